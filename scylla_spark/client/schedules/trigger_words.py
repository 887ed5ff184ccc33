"""What triggers mean: in short, for lists, and in words, for people who check what they have written."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from scylla_spark.clock import iso
from scylla_spark.core.plan.times.cron import Cron
from scylla_spark.core.plan.times.fire_times import Dates, Every, FireTimes
from scylla_spark.core.plan.triggers.tree import key_of
from scylla_spark.core.plan.triggers.trigger import (
    AnyOf,
    AtTimes,
    Ended,
    OnAbsence,
    OnBatch,
    OnEvent,
    OnPartitions,
    OnRequest,
    OnRuns,
    OnTable,
    OnTopic,
    Trigger,
)
from scylla_spark.core.tasks.key import EARLIEST_US, LATEST_US
from scylla_spark.duration import duration_text

_ORDINAL: Final = re.compile(r"\b(\d+)th\b")
_DATES_SAID: Final = 3


def brief(trigger: Trigger) -> str:
    """A trigger in a few signs, such as `0 2 * * * Europe/Berlin` or `event:stock & after:load`."""
    match trigger:
        case AtTimes(times):
            return _brief_times(times)
        case AnyOf(branches, at_least):
            parts = [f"({brief(one)})" if isinstance(one, AnyOf) else brief(one) for one in branches]
            if at_least in (1, len(parts)):
                return (" | " if at_least == 1 else " & ").join(parts)
            return f"{at_least} of ({', '.join(parts)})"
        case OnAbsence(of, within_us):
            return f"no {brief(of)} for {span(within_us)}"
        case OnRuns(work, at_least=at_least):
            return f"{'start' if trigger.on_start else 'after'}:{work}" + (f" {at_least} times" if at_least > 1 else "")
        case OnBatch(tag, size):
            return f"batch:{tag} of {size}"
        case _:
            return key_of(trigger)


def in_words(trigger: Trigger) -> str:
    """A trigger as a sentence without its end, such as "at 02:00 every day in Europe/Berlin"."""
    match trigger:
        case AtTimes(times):
            return _times_in_words(times)
        case AnyOf(branches, at_least):
            parts = [f"({in_words(one)})" if isinstance(one, AnyOf) else in_words(one) for one in branches]
            if at_least in (1, len(parts)):
                return ("; or " if at_least == 1 else "; and ").join(parts)
            return f"when {at_least} of these have come: {'; '.join(parts)}"
        case OnTable():
            return _table_in_words(trigger)
        case OnTopic():
            return _topic_in_words(trigger)
        case OnPartitions(dataset, at_least, rows, size):
            more = [f"{number} {what}" for number, what in ((rows, "rows"), (size, "bytes")) if number]
            return f"when {' and '.join([_many(at_least, 'partition'), *more])} of the dataset {dataset!r} were told of"
        case OnEvent(name, where):
            fields = " and ".join(f"{field} = {value!r}" for field, value in where)
            return f"on the event {name!r}" + (f" with {fields}" if fields else "")
        case OnRuns(work, on, at_least):
            ends = _ended(on)
            return (
                f"after a run of {work!r} has {ends}"
                if at_least == 1
                else f"after {at_least} runs of {work!r} have {ends}"
            )
        case OnBatch(tag, size):
            return f"when {_many(size, 'task')} with the tag {tag!r} {'has' if size == 1 else 'have'} ended"
        case OnRequest():
            return "when a run is asked for, and at no other time"
        case OnAbsence(OnRuns(work, on), within_us):
            return f"when no run of {work!r} has {_ended(on)} for {span(within_us)}"
        case OnAbsence(of, within_us):
            return f"when nothing came of {key_of(of)} for {span(within_us)}"


def cron_in_words(expression: str) -> str:
    """Returns what a cron expression says, as in "at 02:00 every day"."""
    from cronsim import CronSim

    from scylla_spark.core.plan.times.zone import EPOCH

    text: str = CronSim(expression, EPOCH).explain()
    return _ORDINAL.sub(_ordinal, text[:1].lower() + text[1:])


def span(us: int) -> str:
    """A duration as people write it."""
    return duration_text(timedelta(microseconds=us))


def _brief_times(times: FireTimes) -> str:
    rule = times.rule
    if isinstance(rule, Cron):
        return rule.expression + (f" {rule.tz}" if rule.tz != "UTC" else "")
    if isinstance(rule, Every):
        return f"every {span(rule.period_us)}"
    if isinstance(rule, Dates):
        return f"at {iso(rule.instants_us[0])}" if len(rule.instants_us) == 1 else f"at {len(rule.instants_us)} times"
    return rule.rule


def _times_in_words(times: FireTimes) -> str:
    rule = times.rule
    if isinstance(rule, Cron):
        text = f"{cron_in_words(rule.expression)}, {rule.tz} time"
        text += ", not at times that a clock skips" if rule.gap == "skip" else ""
        text += ", twice at times that come twice" if rule.fold == "both" else ""
    elif isinstance(rule, Every):
        text = f"every {span(rule.period_us)}" + (
            f", {span(rule.phase_us)} after the full period" if rule.phase_us else ""
        )
    elif isinstance(rule, Dates):
        first = ", ".join(map(iso, rule.instants_us[:_DATES_SAID]))
        left = len(rule.instants_us) - _DATES_SAID
        text = f"at {first}" + (f" and {_many(left, 'other time')}" if left > 0 else "")
    else:
        text = f"as {rule.rule} says, from {rule.start} on, {rule.tz} time"
    return text + _bounds_in_words(times)


def _bounds_in_words(times: FireTimes) -> str:
    parts = []
    if times.start_us != EARLIEST_US:
        parts.append(f"from {iso(times.start_us)} on")
    if (end_us := min(times.end_us, times.last_us)) != LATEST_US - 1:
        parts.append(f"until {iso(end_us)}")
    if times.calendar:
        parts.append(f"{_HOLIDAY[times.on_holiday]} the days of the calendar {times.calendar!r}")
    if times.blackouts:
        parts.append(f"outside of {_many(len(times.blackouts), 'blackout')}")
    if times.jitter_us:
        parts.append(f"up to {span(times.jitter_us)} later, always as much at one time")
    return "".join(f", {part}" for part in parts)


def _table_in_words(leaf: OnTable) -> str:
    more = [f"{number:,} {what}" for number, what in ((leaf.min_rows, "rows"), (leaf.min_bytes, "bytes")) if number]
    wanted = [_many(leaf.min_commits, "commit"), *more]
    text = f"when the table {leaf.table!r} has grown by {' and '.join(wanted)}"
    text += f" ({', '.join(leaf.operations)} only)" if leaf.operations else ""
    where = " and ".join(f"{one.column} {one.comparison} {one.value!r}" for one in leaf.where)
    text += f", of rows where {where}" if where else ""
    text += f", for each {leaf.per} by itself" if leaf.per else ""
    text += f", and was quiet for {span(leaf.settle_us)}" if leaf.settle_us else ""
    return text + _paces_in_words(leaf)


def _topic_in_words(leaf: OnTopic) -> str:
    wanted = _many(leaf.records, "record") + (f" and {leaf.bytes:,} bytes" if leaf.bytes else "")
    text = f"when the topic {leaf.topic!r} has grown by {wanted}"
    return text + _paces_in_words(leaf)


def _paces_in_words(leaf: OnTable | OnTopic) -> str:
    text = f", at most every {span(leaf.throttle_us)}" if leaf.throttle_us else ""
    return text + (f", or by less {span(leaf.overdue_us)} after the last run" if leaf.overdue_us else "")


def _ended(on: Iterable[Ended]) -> str:
    return " or ".join(sorted(_ENDS[end] for end in on))


def _many(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _ordinal(found: re.Match[str]) -> str:
    number = int(found[1])
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 not in (11, 12, 13) else "th"
    return f"{number}{ending}"


_ENDS: Final = {"succeeded": "succeeded", "failed": "failed", "cancelled": "been cancelled", "started": "begun"}
_HOLIDAY: Final = {
    "skip": "not on", "next": "on the next open day instead of", "previous": "on the open day before instead of",
}  # fmt: skip
