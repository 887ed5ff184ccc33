"""What a snapshot of the planner's log holds: all that the state is, as changes that make it anew.

It is written in parts, so that decisions need not wait for it: first, at once, what is of no single thing, then each schedule, queue,
token and rule by its name in the list. Each change fits into a record; a schedule that would not is told in several.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from scylla_spark.core.plan.notices.state import RULE_REVISION
from scylla_spark.core.plan.state.backfill_entry import begins
from scylla_spark.core.plan.state.plan_log import (
    BEGUN,
    ENTRY_JOB,
    ENTRY_PART,
    LAUNCHES,
    RUNS_OF,
    SUCCEEDED,
    TABLE_PART,
    change_bytes,
)
from scylla_spark.core.plan.state.plan_state import ANSWER, PlanState
from scylla_spark.core.plan.state.schedule_entry import Entry
from scylla_spark.core.plan.state.stored_definition import QUEUE_ENTRY
from scylla_spark.core.plan.state.stored_token import TOKEN_ENTRY
from scylla_spark.core.plan.times.breaks import Days
from scylla_spark.core.tasks.key import TaskKey

_OF_QUEUE: Final = "~"  # no schedule's name begins with it: those of queues in the list do
_OF_TOKEN: Final = "^"  # likewise those of tokens
_OF_RULE: Final = "|"  # likewise those of notification rules
_MOST_ENTRY_BYTES: Final = 256 * 1024
_MOST_KEYS: Final = 100  # of one change


def calendar_change(name: str, days: Days) -> list[Any]:
    """The change that replaces the days of a calendar; notes, which older readers pass over, stand in it where there are some."""
    notes = {day.isoformat(): note for day, note in sorted(days.notes.items())}
    return ["calendar", name, sorted(day.isoformat() for day in days), *([notes] if notes else [])]


def common_changes(state: PlanState) -> list[Sequence[Any]]:
    """Returns what is of no single schedule, queue, token or rule."""
    days = [calendar_change(name, days) for name, days in state.calendars.items()]
    graves = [["grave", name, generation] for name, generation in state.graves.items()]
    left = list(_runs_of(state, [key for key in state.handlers if key not in state.runs]))
    succeeded = [[SUCCEEDED, handler, at_us] for handler, at_us in state.successes.items()]
    begun = [[BEGUN, key, True] for key in state.begun]
    launches = [[LAUNCHES, tag, launches_us] for tag, launches_us in state.launches.items()]
    unsent = [["unsent", number, texts] for number, texts in state.unsent.items()]
    answers = [[ANSWER, to, *answer] for to, answer in state.answers.items()]
    return [
        ["queue_revision", state.queues.revision],
        [RULE_REVISION, state.notices.rules.revision],
        *days,
        *succeeded,
        *launches,
        *graves,
        *left,
        *begun,
        *unsent,
        *answers,
    ]


def names_of(state: PlanState) -> list[str]:
    """The list of all else; `changes_of` takes its elements."""
    queues, tokens = (_OF_QUEUE + name for name in state.queues), (_OF_TOKEN + id for id in state.tokens)
    return [*state.entries, *queues, *tokens, *(_OF_RULE + name for name in state.notices.names())]


def changes_of(state: PlanState, name: str) -> Iterator[Sequence[Any]]:
    """Yields what makes one of the list anew; nothing if it is gone meanwhile."""
    plain = name[1:]
    if name.startswith(_OF_QUEUE):
        if (queue := state.queues.get(plain)) is not None:
            yield QUEUE_ENTRY, plain, queue._asdict()
    elif name.startswith(_OF_TOKEN):
        if (token := state.tokens.get(plain)) is not None:
            yield TOKEN_ENTRY, plain, {"token": token._asdict()}
    elif name.startswith(_OF_RULE):
        yield from state.notices.again(plain)
    elif (entry := state.entries.get(name)) is not None:
        yield from _of_entry(entry)
        yield from (begins(name, backfill) for backfill in entry.backfills.values())
        yield from _runs_of(state, [run.key for run in entry.runs.values() if run.key in state.handlers])


def _runs_of(state: PlanState, keys: Iterable[TaskKey]) -> Iterator[Sequence[Any]]:
    """Yields which handlers runs are of that their schedule does not say that of (any more)."""
    found: dict[tuple[Any, ...], list[TaskKey]] = defaultdict(list)
    for key in keys:
        tags = (state.tags[key],) if key in state.tags else ()
        found[state.handlers[key], *tags].append(key)
    for (handler, *more), those in found.items():
        for first in range(0, len(those), _MOST_KEYS):
            yield RUNS_OF, handler, those[first : first + _MOST_KEYS], *more


def _of_entry(entry: Entry) -> Iterator[Sequence[Any]]:
    """A schedule, whole if it is small: what its jobs and the partitions of its tables hold may be more than one record takes."""
    whole = entry.to_json()
    if change_bytes(("entry", whole)) <= _MOST_ENTRY_BYTES:
        yield "entry", whole
        return
    jobs = whole.pop("jobs", ())
    tables = {str(leaf): handed._replace(parts={}) for leaf, handed in entry.tables.items()}
    yield ENTRY_PART, whole | ({"tables": tables} if tables else {}), [job["generation"] for job in jobs]
    for job in jobs:
        yield ENTRY_JOB, entry.name, job["generation"], job
    for leaf, handed in entry.tables.items():
        for part, (version, at_us) in handed.parts.items():
            yield TABLE_PART, entry.name, leaf, part, version, at_us
