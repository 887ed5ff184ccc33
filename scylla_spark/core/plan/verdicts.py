"""What is decided about a job, in the words of `fires`: a verdict, why, and what the job has seen."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from scylla_spark.clock import iso
from scylla_spark.core.plan.payload_template import Instant
from scylla_spark.core.plan.state.schedule_entry import Entry, Job, Run
from scylla_spark.core.plan.state.unwritten_changes import Journal
from scylla_spark.core.plan.tables.growth import TABLE, as_told
from scylla_spark.core.plan.topics.growth import TOPIC, offsets_as_told
from scylla_spark.core.plan.triggers.template_values import all_by_name, last_of_each
from scylla_spark.core.plan.triggers.tree import missing_leaves
from scylla_spark.core.records.bounded_text import cut

SKIPPED: Final = "skipped"
WAITING: Final = "waiting"
FAILED: Final = "failed"
OBSOLETE: Final = "obsolete"
WAITED_TOO_LONG: Final = "it has waited for longer than its job timeout"
_MOST_WHY_BYTES: Final = 4_096
_MOST_MISSING: Final = 100
_MOST_MISSING_BYTES: Final = 200  # of one name
_MOST_SEEN_CHARS: Final = 20_000  # of one value; only results of runs can be longer


class Verdicts:
    """Notes decisions that are no launches.

    Args:
        journal: takes them.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def say(
        self, entry: Entry, job: Job, now: int, verdict: str, why: str, more: Mapping[str, Any], **others: Any
    ) -> None:
        """Notes what was decided about a job.

        Args:
            entry: its schedule.
            job: the job.
            now: microseconds since the epoch.
            verdict: one of those above.
            why: for people.
            more: further fields of the decision.
            **others: likewise.
        """
        self._journal.fire(
            entry,
            generation=job.generation,
            planned_us=job.planned_us or now,
            at_us=now,
            verdict=verdict,
            why=why,
            **seen_of(entry, job),
            **more,
            **others,
        )


def seen_of(entry: Entry, job: Job) -> dict[str, Any]:
    """The field of a decision that tells what a job has seen; nothing, if it has seen nothing.

    Args:
        entry: its schedule.
        job: the job.
    """
    values = last_of_each(job.latches)
    if len(job.latches) > 1:
        several = all_by_name(entry.schedule.trigger, job.latches)
        values |= {kind: named for kind, named in several.items() if len(named) > 1}
    texts = {name: json.dumps(value, separators=(",", ":"), ensure_ascii=False) for name, value in values.items()}
    kept = [f"{json.dumps(name)}:{text}" for name, text in texts.items() if len(text) <= _MOST_SEEN_CHARS]
    return {"values": f"{{{','.join(kept)}}}"} if kept else {}


def values_of(entry: Entry, job: Job, now: int) -> dict[str, Any]:
    """Returns what templates may know of a launch.

    Args:
        entry: the schedule.
        job: that is launched.
        now: microseconds since the epoch.
    """
    values: dict[str, Any] = {
        "planned": Instant(job.planned_us),
        "started": Instant(now),
        "schedule": entry.name,
        "revision": entry.revision,
        "generation": job.generation,
    }
    last, all_of = last_of_each(job.latches), all_by_name(entry.schedule.trigger, job.latches)
    if TABLE in last:
        last[TABLE] = as_told(last[TABLE])
        all_of["tables"] = {name: as_told(one) for name, one in all_of.get("tables", {}).items()}
    if TOPIC in last:
        last[TOPIC] = offsets_as_told(last[TOPIC])
        all_of["topics"] = {name: offsets_as_told(one) for name, one in all_of.get("topics", {}).items()}
    return values | last | all_of


def missing_of(entry: Entry, job: Job, constraints: Sequence[str]) -> list[str]:
    """Returns the names of the conditions that a job is launched without: branches of its trigger, then constraints.

    Args:
        entry: its schedule.
        job: the job.
        constraints: names of those that do not hold.
    """
    waited = missing_leaves(entry.schedule.trigger, job.latches) if job.latches else []
    return [cut(name, _MOST_MISSING_BYTES) for name in dict.fromkeys([*waited, *constraints])][:_MOST_MISSING]


def run_anyway_words(missing: Sequence[str]) -> str:
    """Returns why a job was launched though not all of its conditions hold, for people."""
    return cut(f"{WAITED_TOO_LONG}; it was launched without {', '.join(missing)}", _MOST_WHY_BYTES)


def busy_words(active: list[Run]) -> str:
    """That runs are active, for people."""
    first = min(active, key=lambda run: run.planned_us)
    more = f" and {len(active) - 1} others are" if len(active) > 1 else " is"
    return f"the run planned for {iso(first.planned_us)}{more} active"
