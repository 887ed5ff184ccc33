"""Schedules whose handler no dispatcher has: their runs wait, and such a schedule is paused before it has launched many of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import islice
from typing import Final

from scylla_spark.core.plan.commands.definitions import Definitions
from scylla_spark.core.plan.state.schedule_entry import Entry, Run
from scylla_spark.core.plan.state.unwritten_changes import Journal
from scylla_spark.core.plan.times.planned_times import planned_after, times_of
from scylla_spark.core.tasks.state import NO_HANDLER
from scylla_spark.definitions.queue import Queue

_MOST_TIMES: Final = 3
_MOST_SCHEDULES: Final = 200  # that one look asks about


class MissingHandlers:
    """Says which handlers are to be asked about, and pauses schedules by the answer.

    Args:
        journal: takes the row of `fires`.
        definitions: pauses.
        queues: name → start values of the settings: tasks of queues for workers wait for them, and need no handler here.
    """

    def __init__(self, journal: Journal, definitions: Definitions, queues: Mapping[str, Queue]) -> None:
        self._journal = journal
        self._definitions = definitions
        self._queues = queues

    def in_question(self, now: int) -> set[str]:
        """Handlers of schedules of which a run is active though so many later planned times have passed."""
        entries = self._journal.state.entries.values()
        found = (entry.handler for entry in entries if entry.handler and self._waits(entry, now) is not None)
        return set(islice(found, _MOST_SCHEDULES))

    def missing(self, entry: Entry, now: int) -> None:
        """No dispatcher has the handler of a schedule: it is paused where a run of it has waited for three planned times."""
        run = self._waits(entry, now)
        if run is None:
            return
        why = f"no dispatcher has the handler {entry.handler!r}, and a run has waited for it while {_MOST_TIMES} planned times passed"
        self._journal.fire(
            entry,
            generation=run.generation,
            planned_us=run.planned_us,
            at_us=now,
            verdict=NO_HANDLER,
            why=why,
            ends_job=False,
        )
        self._definitions.stop(entry, f"paused: {why}", "planner", now, keeps=True)

    def _waits(self, entry: Entry, now: int) -> Run | None:
        """The oldest active run of a schedule, if it is not paused and so many later planned times have passed."""
        runs = [run for run in entry.runs.values() if not run.cancelled and run.key.time_us <= now]
        if entry.paused or not runs or self._is_leased(entry.schedule.work.queue):
            return None
        oldest = min(runs, key=lambda run: run.planned_us)
        since_us = max(oldest.planned_us, entry.changed_us)  # who resumes it has as long to deploy the handler
        times = planned_after(times_of(entry.schedule.trigger), since_us, self._journal.state.calendars)
        passed = list(islice(times, _MOST_TIMES))
        return oldest if len(passed) == _MOST_TIMES and passed[-1] <= now else None

    def _is_leased(self, queue: str) -> bool:
        stored = self._journal.state.queues.get(queue)
        if stored is not None:
            return bool(json.loads(stored.text).get("mode") == "pull")
        return queue in self._queues and self._queues[queue].mode == "pull"
