"""The end of a run: it is written, what has waited for it is looked at again, and those that come after it are told."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from scylla_spark.clock import iso
from scylla_spark.core.plan.commands.answers import Answers
from scylla_spark.core.plan.defects import Defects
from scylla_spark.core.plan.launching import Launching
from scylla_spark.core.plan.state.plan_log import RUN_ENDED, Partly
from scylla_spark.core.plan.state.schedule_entry import Entry, Run
from scylla_spark.core.plan.state.unwritten_changes import Journal
from scylla_spark.core.plan.taken_back import closes_launch, ends, is_our_cancel, is_run_later
from scylla_spark.core.plan.triggers.observations import Occurrence
from scylla_spark.core.plan.triggers.telling import SECOND, Telling
from scylla_spark.core.plan.upstream import ENDS, named, upstream_of, was_run
from scylla_spark.core.records.fact import Fact
from scylla_spark.core.tasks.key import TaskKey

AfterRun = Callable[[Entry, Run, Fact, int], None]
"""What the policies of a schedule make of the end of its run: told of schedule, run, end and time."""


class EndedRuns:
    """Takes ends of tasks, whether schedules have launched them or not.

    Args:
        journal: takes the ends of runs.
        launching: looks at what has waited.
        telling: tells those that come after.
        answers: gives those that have waited for an end.
        defects: sets schedules aside.
        after: policies.
    """

    def __init__(
        self,
        journal: Journal,
        launching: Launching,
        telling: Telling,
        answers: Answers,
        defects: Defects,
        after: AfterRun,
    ) -> None:
        self._journal = journal
        self._state = journal.state
        self._launching = launching
        self._telling = telling
        self._answers = answers
        self._defects = defects
        self._after = after

    def ended(self, at: Partly, fact: Fact, now: int) -> None:
        """A task has ended.

        Args:
            at: how far the input is that says so.
            fact: the end.
            now: microseconds since the epoch.
        """
        self._defects.guarded(self._schedule_of(fact.key), partial(self._end, at, fact, now), now)

    def only_end(self, fact: Fact, now: int) -> None:
        """A task has ended, and what follows from that brought the state in doubt: its run is over, and nobody is told.

        Args:
            fact: the end.
            now: microseconds since the epoch.
        """
        found = self._state.runs.get(fact.key)
        if found is not None:
            entry = self._state.entries[found[0]]
            run = entry.runs[found[1]]
            groups = self._launching.groups(fact.key)
            self._conclude(entry, run, fact, now, runs_later=is_run_later(entry, run, fact))
            self.room(groups, now, entry.name)
        elif fact.key in self._state.handlers:
            groups = self._launching.groups(fact.key)
            self._conclude_without_schedule(fact)
            self.room(groups, now)

    def go_on(self, at: Partly, fact: Fact, now: int) -> None:
        """Tells of an end that the planner before us has written, and then ended in the midst of telling. See `ended`."""
        if was_run(self._state, fact.key):
            tell = partial(self._tell, at, *named(fact.key), fact, now)
            self._defects.guarded(self._schedule_of(fact.key), tell, now)

    def room(self, groups: Iterable[str], now: int, name: str = "") -> None:
        """Looks again at what may have waited for the end of a run, or for the time of the next launch under a tag.

        Args:
            groups: of the runs.
            now: microseconds since the epoch.
            name: of a schedule that is looked at in any case; empty: none is.
        """
        for waiting in self._launching.waiting(groups, name):
            self._defects.guarded(waiting, partial(self._launching.look_again, waiting, now), now)

    def _schedule_of(self, key: TaskKey) -> str:
        """Name of the schedule whose run a task is, and has not ended; empty: it is none."""
        return self._state.runs.get(key, ("", 0))[0]

    def _end(self, at: Partly, fact: Fact, now: int) -> None:
        found = self._state.runs.get(fact.key)
        if found is None:
            self._end_without_schedule(at, fact, now)
            return
        entry = self._state.entries[found[0]]
        run = entry.runs[found[1]]
        runs_later, groups = is_run_later(entry, run, fact), self._launching.groups(fact.key)
        handler = self._conclude(entry, run, fact, now, runs_later=runs_later)
        self._defects.guarded(entry.name, partial(self._after, entry, run, fact, now), now)
        self.room(groups, now, entry.name)
        if not runs_later and (fact.started_us or not is_our_cancel(run, fact)):
            self._tell(at, entry.name, iso(run.planned_us), fact, now, handler)
            self._tell_batches(at, fact, now)

    def _conclude(self, entry: Entry, run: Run, fact: Fact, now: int, *, runs_later: bool) -> str:
        """Writes the end of a run; the handler that it was launched with."""
        handler = self._state.handlers.get(fact.key, entry.handler)
        self._journal.conclude(
            *ends(entry.name, run, fact.outcome, fact.started_us, fact.finished_us, runs_later=runs_later)
        )
        self._answers.ended(fact.key)
        # after the end, so that a watcher that fails at the row does not prevent the end;
        # between two attempts none runs, but the first one has begun
        if is_our_cancel(run, fact) and not fact.attempt:
            for closed in closes_launch(entry, run, now):
                self._journal.conclude(*closed)
        return handler

    def _end_without_schedule(self, at: Partly, fact: Fact, now: int) -> None:
        """The end of a task that nobody launched, or of a run whose schedule is gone, though one of its name may have come."""
        self._tell_singly(at, fact, now)
        self._tell_batches(at, fact, now)

    def _tell_singly(self, at: Partly, fact: Fact, now: int) -> None:
        handler = self._state.handlers.get(fact.key)
        if handler is not None:
            groups = self._launching.groups(fact.key)
            self._conclude_without_schedule(fact)
            self.room(groups, now)
            if was_run(self._state, fact.key):
                self._tell(at, *named(fact.key), fact, now, handler)
                return
        self._tell_by_hand(at, fact, now)

    def _conclude_without_schedule(self, fact: Fact) -> None:
        succeeded = (fact.finished_us,) if fact.outcome == "succeeded" else ()
        self._journal.conclude(RUN_ENDED, fact.key, *succeeded)
        self._answers.ended(fact.key)

    def _tell_by_hand(self, at: Partly, fact: Fact, now: int) -> None:
        """Tells who listens to a handler of the end of a task that no schedule has launched."""
        work = f"work:{fact.handler}"
        if fact.handler is None or work not in self._telling.listeners:  # most tasks are nobody's concern
            return
        if was_run(self._state, fact.key):  # a run that has ended is told of once
            return
        upstream = upstream_of(fact, "", fact.handler, iso(fact.key.time_us))
        self._telling.tell(at, Occurrence(work, upstream, ended=ENDS.get(fact.outcome, "")), now)

    def _tell(self, at: Partly, name: str, planned: str, fact: Fact, now: int, launched: str = "") -> None:
        """Tells who listens of the end of a run; `launched` is the handler that it was launched with, if that is known."""
        entry = self._state.entries.get(name)
        if entry is None:
            return
        handler = fact.handler or launched or entry.handler  # which the schedule may have changed meanwhile
        both = (f"work:{name}", f"work:{handler}")
        if self._telling.listeners.keys().isdisjoint(both):
            return
        upstream = upstream_of(fact, name, handler, planned)
        happened = Occurrence(both[0], upstream, ended=ENDS.get(fact.outcome, ""), also=both[1])
        self._telling.tell(at, happened, now)
        if name != handler:
            self._telling.tell(at, happened._replace(key=both[1], also=both[0]), now, SECOND, beside=True)

    def _tell_batches(self, at: Partly, fact: Fact, now: int) -> None:
        """Tells who waits for a batch of the end of a task that carries its tag; last, since many ends are of none."""
        for number, tag in enumerate(fact.tags or ()):
            key = f"batch:{tag}"
            if key in self._telling.listeners:
                ended = ENDS.get(fact.outcome, "")
                one = Occurrence(key, {}, ended=ended, rows=int(ended == "failed"), size=int(ended == "cancelled"))
                self._telling.tell(at, one, now, SECOND * (2 + number))
