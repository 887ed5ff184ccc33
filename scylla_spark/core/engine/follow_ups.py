"""What handlers want sent when they have succeeded: recorded as decided, sent, and acknowledged before their tasks end.

The times of the tasks that are sent are counted from one moment, which stands in the log before anything is sent. So an attempt
that has to be made again, because its dispatcher died before the end of the task counted, sends the same tasks under the same keys.
"""

from __future__ import annotations

from typing import Final

from scylla_spark.core.engine import action
from scylla_spark.core.engine.fact_recorder import Recorder
from scylla_spark.core.engine.lane import left_behind
from scylla_spark.core.engine.runs import Run, Runs, start_of
from scylla_spark.core.engine.state import EngineState
from scylla_spark.core.records.fact import Fact
from scylla_spark.core.tasks.attempt_note import WorkNote
from scylla_spark.core.tasks.task import FAILED, SUCCEEDED, Failure, Outcome

MEMORY_US: Final = 3_000_000_000
"""A moment is counted from no longer: a stamp that is older than an hour is not believed, and what is due since then is too late."""


class FollowUpsOfRuns:
    """Attempts that have succeeded, until their follow-ups are acknowledged.

    Args:
        state: of the engine.
        runs: what is under way; so are these.
        recorder: writes the moment.
    """

    def __init__(self, state: EngineState, runs: Runs, recorder: Recorder) -> None:
        self._state = state
        self._runs = runs
        self._recorder = recorder

    def holds(self, outcome: Outcome, now: int) -> bool:
        """Returns True if an outcome has to wait because it brings follow-ups; if so, these are on their way.

        Args:
            outcome: as an executor reports it.
            now: microseconds since the epoch.
        """
        run = self._runs.by_id.get(outcome.id)
        if not outcome.follow_ups or outcome.outcome != SUCCEEDED or run is None:
            return False
        before = left_behind(run.entry)
        known = before.decided_us if before is not None else 0
        self._runs.hold(run, outcome, known if abs(now - known) < MEMORY_US else now)
        self._record(run, now)
        return True

    def recorded(self, fact: Fact, now: int) -> None:
        """A start counts; if it tells the moment, the follow-ups are sent, and if it is an older one, the moment is told now."""
        found = self._runs.returned.get(fact.key)
        run = self._runs.by_id.get(found.outcome.id) if found is not None else None
        if found is None or run is None or found.asked:
            return
        told = fact.work is not None and fact.work.decided_us == found.decided_us
        if fact.attempt != run.invocation.attempt or not told:
            self._record(run, now)
            return
        self._runs.returned[fact.key] = found._replace(asked=True)
        number, key, outcome = run.invocation.id, run.entry.key, found.outcome
        self._state.ask(action.SendFollowUps(number, key, found.decided_us, outcome.follow_ups))

    def ended(self, number: int, failure: Failure | None) -> Outcome | None:
        """Returns how an attempt has ended whose follow-ups were sent, or were not; None: it is not under way any more.

        Args:
            number: id of the invocation.
            failure: why they were not.
        """
        run = self._runs.by_id.get(number)
        found = self._runs.returned.get(run.entry.key) if run is not None else None
        if found is None:
            return None
        outcome = found.outcome._replace(follow_ups=())
        if failure is None:
            return outcome
        return outcome._replace(outcome=FAILED, result=None, failure=failure)

    def _record(self, run: Run, now: int) -> None:
        """Tells the start again, with the moment. Of one that is on its way to the log already, only that one is told."""
        found = self._runs.returned[run.entry.key]
        work = (found.outcome.work or WorkNote())._replace(since_us=found.decided_us)
        self._recorder.record(run.partition, start_of(run, found.outcome.started_us, work), now, now)
