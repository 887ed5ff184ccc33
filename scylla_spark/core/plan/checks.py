"""Constraints that a handler of the user judges: the planner launches a task of it, and reads its result as an answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from scylla_spark.clock import iso
from scylla_spark.core.plan.constraint import Asked, Check
from scylla_spark.core.plan.schedule_policies import since_us
from scylla_spark.core.plan.state.schedule_entry import PENDING_TRIGGER, Entry, Job
from scylla_spark.core.plan.state.timers import Timer, Timers
from scylla_spark.core.plan.state.unwritten_changes import Journal
from scylla_spark.core.plan.verdicts import SKIPPED, Verdicts
from scylla_spark.core.records.bounded_text import cut
from scylla_spark.core.records.command import ENQUEUE, Command, WireRetry, encode, payload_text
from scylla_spark.core.records.fact import Fact
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.task import SUCCEEDED
from scylla_spark.duration import duration_us
from scylla_spark.errors import ArgumentError

MOST_FAILURES: Final = 3
"""So many failures in a row count as the answer never."""
LANES: Final = "check/"
"""Begins the ordering ids of checks; the name of the schedule and the generation of the job follow."""
_ONCE: Final = WireRetry(0, 1_000, 1_000)
_MOST_WHY_BYTES: Final = 500
_LONGEST_WAIT_US: Final = 366 * 86_400_000_000

Look = Callable[[Entry, int, int], None]
"""Looks once more at a job whose check is satisfied: schedule, generation of the job, time."""


class Answer(NamedTuple):
    """The answer of a check.

    Attributes:
        kind: "satisfied", "wait", "never" or "failed".
        wait_us: for "wait": when to ask again, from now.
        why: for "failed": what is wrong with it.
    """

    kind: str
    wait_us: int = 0
    why: str = ""


class Checks:
    """Asks handlers whether jobs may be launched, and takes their answers.

    Args:
        journal: takes what is decided.
        timers: when to ask again.
        look: called for a job whose check is satisfied.
    """

    def __init__(self, journal: Journal, timers: Timers, look: Look) -> None:
        self._journal = journal
        self._timers = timers
        self._verdicts = Verdicts(journal)
        self._look = look

    def ask(self, entry: Entry, job: Job, now: int) -> None:
        """Launches a task that answers for a job that waits, unless one has been launched.

        Args:
            entry: the schedule.
            job: of it; nothing else keeps it from being launched.
            now: microseconds since the epoch.
        """
        check, before = check_of(entry), job.asked or Asked()
        if check is None or before.key is not None or now < before.again_us:
            return
        work, number = entry.schedule.work, before.number + 1
        key = TaskKey(now, f"{LANES}{entry.name}/{job.generation}", f"{entry.name}/{job.generation}/{number}")
        payload = {
            "schedule": entry.name,
            "planned": iso(job.planned_us),
            "since": iso(job.first_us),
            "generation": job.generation,
            "number": number,
        }
        left_us = since_us(entry, job) + entry.schedule.policies.timeout_us - now
        command = Command(
            ENQUEUE,
            key,
            0,
            check.handler,
            work.queue,
            payload_text(payload),
            work.priority,
            check.timeout_us // 1_000,
            _ONCE,
            now,
            expires_ms=max(left_us // 1_000, 1),  # nothing waits for the answer after that
        )
        asked = before._replace(key=key, number=number)
        self._journal.note_together(_job(entry, job, asked), ("send", encode(command).decode()))

    def answered(self, fact: Fact, now: int) -> None:
        """Takes the end of the task of a check. Ends that no job waits for have no effect.

        Args:
            fact: the end.
            now: microseconds since the epoch.
        """
        found = self._waiting_for(fact.key)
        if found is None:
            return
        entry, job, before = found
        check, answer = check_of(entry), answer_of(fact)
        if check is None or job.state == PENDING_TRIGGER:
            return
        failures = before.failures + 1 if answer.kind == "failed" else 0
        if answer.kind == "never" or failures >= MOST_FAILURES:
            why = f"the check {check.handler!r} answered never"
            if failures:
                why = f"the check {check.handler!r} has failed {failures} times in a row, which counts as never: {answer.why}"
            self._verdicts.say(entry, job, now, SKIPPED, why, {})
            return
        wait_us = check.timeout_us if failures else answer.wait_us
        asked = Asked(None, now + wait_us if wait_us else 0, failures, before.number)
        self._journal.note(*_job(entry, job, asked))
        if answer.kind == "satisfied":
            self._look(entry, job.generation, now)
        else:
            self._timers.add(Timer(asked.again_us, entry.name, "again", job.generation))

    def was_never_sent(self, key: TaskKey, now: int) -> None:
        """The task of a check was never sent, and would be refused as too late: another one is asked.

        Args:
            key: of the task.
            now: microseconds since the epoch.
        """
        found = self._waiting_for(key)
        if found is not None:
            entry, job, before = found
            self._journal.note(*_job(entry, job, before._replace(key=None)))
            self._timers.add(Timer(now, entry.name, "again", job.generation))

    def _waiting_for(self, key: TaskKey) -> tuple[Entry, Job, Asked] | None:
        """Returns the job that waits for the answer of a task, with its schedule; None: no job does."""
        name, generation = owner_of(key)
        entry = self._journal.state.entries.get(name)
        job = entry.jobs.get(generation) if entry is not None else None
        if entry is None or job is None or job.asked is None or job.asked.key != key:
            return None
        return entry, job, job.asked


def check_of(entry: Entry) -> Check | None:
    """Returns the check of a schedule; None: it has none."""
    return next((one for one in entry.schedule.constraints if isinstance(one, Check)), None)


def is_check(key: TaskKey) -> bool:
    """Returns True if a task looks like one that answers for a constraint."""
    return key.ordering_id.startswith(LANES)


def answer_of(fact: Fact) -> Answer:
    """Reads the end of a check; it never raises, whatever the result is.

    Args:
        fact: the end of its task. The result is "satisfied", "never" or {"wait": duration} as JSON.
    """
    if fact.outcome != SUCCEEDED:
        error = f": {fact.failure.kind}: {fact.failure.message}" if fact.failure is not None else ""
        return Answer("failed", why=cut(f"it ended as {fact.outcome}{error}", _MOST_WHY_BYTES))
    try:
        found: Any = json.loads(fact.result or "null")
        if found in ("satisfied", "never"):
            return Answer(found)
        if isinstance(found, dict) and found.keys() == {"wait"}:
            wait_us = duration_us(found["wait"])
            if 0 < wait_us <= _LONGEST_WAIT_US:
                return Answer("wait", wait_us)
    except (ValueError, TypeError, RecursionError, OverflowError, ArgumentError):
        pass
    expected = 'expected is "satisfied", "never" or {"wait": a duration up to 366 days}'
    return Answer("failed", why=cut(f"its result is {(fact.result or 'null')[:200]}; {expected}", _MOST_WHY_BYTES))


def owner_of(key: TaskKey) -> tuple[str, int]:
    """Returns schedule and generation of the job that a check answers for; they need not exist."""
    name, _, generation = key.ordering_id.removeprefix(LANES).rpartition("/")
    return (
        (name, int(generation)) if generation.isascii() and generation.isdecimal() and len(generation) < 20 else ("", 0)
    )


def _job(entry: Entry, job: Job, asked: Asked) -> tuple[Any, ...]:
    return ("job", entry.name, job.generation, job._replace(asked=asked).to_json())
