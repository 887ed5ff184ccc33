"""How an outcome is judged: it ends its task, or says when the next attempt may start."""

from __future__ import annotations

from typing import Final

from scylla_spark.core.engine.bounds import LEASED
from scylla_spark.core.engine.external_rate_limits import LONGEST_US, RateLimits
from scylla_spark.core.engine.fact_recorder import LINGER_US, Recorder
from scylla_spark.core.engine.lane import CLOSING, DECIDED, Entry, left_behind
from scylla_spark.core.engine.runs import Run
from scylla_spark.core.engine.state import EngineState
from scylla_spark.core.records.fact import Fact
from scylla_spark.core.tasks.attempt_note import WorkNote
from scylla_spark.core.tasks.task import CANCELLED, FAILED, RATE_LIMITED, SUCCEEDED, TIMED_OUT, YIELDED, Outcome

_FALSE: Final = "false"


class Judging:
    """Makes facts of outcomes.

    Args:
        state: of the engine.
        recorder: writes them.
        rates: rate limits that attempts run into.
    """

    def __init__(self, state: EngineState, recorder: Recorder, rates: RateLimits) -> None:
        self._state = state
        self._recorder = recorder
        self._rates = rates

    def as_queue_says(self, run: Run, outcome: Outcome) -> Outcome:
        """The outcome as the queue of its task wants it: of exceptions, and of results that are false.

        Args:
            run: the attempt.
            outcome: how it ended.
        """
        limits = run.gate.limits
        if limits.redelivers and outcome.outcome == SUCCEEDED and outcome.result == _FALSE:
            return outcome._replace(outcome=YIELDED, result=None, after_ms=limits.lease_ms)
        failure = outcome.failure
        if limits.fails_at_once and outcome.outcome == FAILED and failure is not None:
            return outcome._replace(final=failure.reported if run.executor == LEASED else failure.raised)
        return outcome

    def decide(self, run: Run, outcome: Outcome, now: int, *, linger: bool = True) -> None:
        """An attempt has ended.

        Args:
            run: the attempt.
            outcome: how it ended.
            now: microseconds since the epoch.
            linger: its fact may wait a moment for others, where no task of the lane waits for it.
        """
        failure = outcome.failure
        if outcome.outcome == YIELDED and failure is not None:
            if failure.brief.kind == RATE_LIMITED:  # whoever reads later when its task starts again reckons a day, too
                outcome = outcome._replace(after_ms=min(outcome.after_ms, LONGEST_US // 1000))
            until_us = outcome.finished_us + outcome.after_ms * 1000
            self._rates.learn(run.entry.data, failure.brief, until_us, now)
        fact = self._judge(run, outcome)
        run.entry.stage = CLOSING if fact.terminal else DECIDED
        if fact.terminal and run.gate.limits.replay:
            run.lane.let_go(run.entry)
        at_once = not linger or run.lane.waits(now + LINGER_US)
        self._recorder.record(run.partition, fact, now, now if at_once else now + LINGER_US)

    def _judge(self, run: Run, outcome: Outcome) -> Fact:
        """The fact that an outcome becomes: the end, or when the next attempt may start."""
        invocation, entry = run.invocation, run.entry
        yielded = outcome.outcome == YIELDED
        already = entry.attempt >= invocation.attempt  # its start fact has counted
        used = entry.used + (0 if already else 1) - (1 if yielded else 0)
        verdict, next_us = outcome.outcome, None
        soonest = outcome.finished_us + self._state.limits.least_wait_us
        if verdict in (FAILED, TIMED_OUT, YIELDED):
            if entry.cancelled:
                verdict = CANCELLED
            elif yielded:
                next_us = max(soonest, outcome.finished_us + outcome.after_ms * 1000)
            elif not outcome.final and run.retry.allows(used):
                next_us = max(soonest, outcome.finished_us + self._wait_us(run, outcome, used))
            else:
                verdict = FAILED
                self._state.counts["retries_exhausted"] += 0 if outcome.final else 1
        self._state.counts[f"attempts_{outcome.outcome}"] += 1
        named = (
            (invocation.queue or None, invocation.handler or None, entry.data.tags or None) if next_us is None else ()
        )
        asked = entry.requests[0] if verdict == CANCELLED and entry.requests else None
        return Fact(
            entry.key,
            invocation.attempt,
            verdict,
            outcome.started_us,
            outcome.finished_us,
            invocation.planned_us,
            used,
            next_us,
            outcome.result,
            outcome.failure,
            asked,
            outcome.work if next_us is None else _kept(entry, outcome.work),
            *named,
        )

    def _wait_us(self, run: Run, outcome: Outcome, used: int) -> int:
        if outcome.wait_ms is not None:
            return outcome.wait_ms * 1000
        return max(run.retry.wait_us(used + 1, self._state.rng), outcome.least_wait_ms * 1000)


def _kept(entry: Entry, work: WorkNote | None) -> WorkNote | None:
    """The note of an attempt that others follow: what an earlier one left behind holds until something newer is."""
    before = left_behind(entry)
    return before if work is None else work.after(before)
