"""The checks of the demo: pure functions from what was planned and what was seen to findings. No finding: it holds.

What was seen comes from two sides: the receiver's log (what the handlers really did, and when) and the tables (what the
scheduler says of it).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from math import ceil
from typing import Any, Final, NamedTuple

from scylla_spark.clock import iso
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.task import CANCELLED, SUCCEEDED
from scylla_spark.testing import judge
from scylla_spark.testing.history import History as Judged
from scylla_spark.testing.judge import Breach
from scylla_spark_tools.demo import schedules
from scylla_spark_tools.demo.evidence import History, ScheduledRun

P99_LIMIT_MS: Final = 250.0
LEAST_MEASURED: Final = 1_000
LEAST_ON_SPARK: Final = 50


class Finding(NamedTuple):
    """A check that does not hold: its name, whom it concerns, and why."""

    check: str
    key: str
    why: str


def lost(history: History) -> Iterator[Finding]:
    """Every accepted key has a completion."""
    ended = (completion.key for completion in history.completions)
    yield from _findings("lost", judge.lost(history.wanted, ended))


def doubled(history: History) -> Iterator[Finding]:
    """No key has two completions, delivers twice, or stands twice in `tasks`."""
    completed = (completion.key for completion in history.completions)
    yield from _findings("doubled", judge.repeated(completed, "it was completed"))
    yield from _findings("doubled", judge.doubled(history.visits))
    yield from _findings("doubled", judge.repeated((key for key, _ in history.stored), "it stands in tasks"))


def unknown(history: History) -> Iterator[Finding]:
    """Nothing ran or ended that was not accepted."""
    yield from _findings("unknown", judge.unasked(Judged(enqueues=history.sent(), runs=history.visits)))
    for key in {completion.key for completion in history.completions} - history.wanted.keys():
        yield Finding("unknown", str(key), "it has a completion, but was never accepted")


def order(history: History) -> Iterator[Finding]:
    """A task begins after the last attempt of every smaller key of its lane that was enqueued before either was due."""
    yield from _findings("order", judge.overtaken(history.visits, history.sent(), in_time=True))


def overlaps(history: History) -> Iterator[Finding]:
    """No two attempts of a lane run at the same time, but in one call of a batch handler."""
    yield from _findings("overlap", judge.overlapping(history.visits))


def early(history: History) -> Iterator[Finding]:
    """No attempt starts before it is due: the first at the scheduled time, others after their wait."""
    waits = {(wait.key, wait.attempt + 1): wait.next_us for wait in history.waits}
    yield from _findings("early", judge.early(history.visits, waits))


def _findings(check: str, breaches: Iterable[Breach]) -> Iterator[Finding]:
    """Yields what the judge of histories found."""
    return (Finding(check, str(breach.key), breach.why) for breach in breaches)


def outcomes(history: History) -> Iterator[Finding]:
    """Every task ended as it had to, after as many attempts as it had to, and the tables agree with the receiver."""
    attempts = Counter(visit.key for visit in history.visits)
    delivered = {visit.key for visit in history.visits if visit.ok}
    for completion in history.completions:
        want = history.wanted.get(completion.key)
        if want is None:
            continue
        key = str(completion.key)
        if completion.outcome != want.outcome:
            yield Finding("outcome", key, f"it ended {completion.outcome}, not {want.outcome}")
        if completion.attempt != want.attempts:
            yield Finding("outcome", key, f"its completion tells of {completion.attempt} attempts, not {want.attempts}")
        if want.reported and attempts[completion.key] != completion.attempt:
            yield Finding(
                "outcome", key, f"the receiver saw {attempts[completion.key]} attempts, the tables {completion.attempt}"
            )
        if want.reported and (completion.key in delivered) != (completion.outcome == SUCCEEDED):
            seen = "delivered" if completion.key in delivered else "never delivered"
            yield Finding("outcome", key, f"it ended {completion.outcome}, but {seen}")


def values(history: History) -> Iterator[Finding]:
    """Yields what was delivered is the newest payload."""
    for visit in history.visits:
        want = history.wanted.get(visit.key)
        if want is not None and visit.ok and want.value is not None and visit.mark != want.value:
            yield Finding("payload", str(visit.key), f"it delivered {visit.mark!r}, not {want.value!r}")


def cancelled(history: History) -> Iterator[Finding]:
    """Cancelled tasks never ran."""
    for visit in history.visits:
        want = history.wanted.get(visit.key)
        if want is not None and want.outcome == CANCELLED:
            yield Finding("cancelled", str(visit.key), f"it was cancelled, yet attempt {visit.attempt} ran")


def rejects(history: History) -> Iterator[Finding]:
    """Every bad record is refused once, for its reason, and no other."""
    seen = Counter((reject.partition, reject.offset) for reject in history.rejects)
    for (partition, offset), (_, what) in history.refused.items():
        times = seen[partition, offset]
        if times != 1:
            yield Finding("rejected", what, f"partition {partition}, offset {offset}: refused {times} times")
    for reject in history.rejects:
        reason, what = history.refused.get((reject.partition, reject.offset), ("", "an accepted record"))
        if reject.reason != reason:
            why = f"refused as {reject.reason!r}, expected {reason or 'to be kept'!r}"
            yield Finding("rejected", what, f"partition {reject.partition}, offset {reject.offset}: {why}")


def kept(history: History) -> Iterator[Finding]:
    """Every accepted key stands in `tasks`, with the fields that we do not know."""
    stored = dict(history.stored)
    for key, want in history.wanted.items():
        if key not in stored:
            yield Finding("kept", str(key), "it is not in tasks")
        elif want.extra is not None and stored[key] != want.extra:
            yield Finding("kept", str(key), f"its unknown fields are {stored[key]!r}, not {want.extra!r}")


def each_second(history: History) -> Iterator[Finding]:
    """The schedule that fires each second ran once for each that was planned, and never else."""
    yield from _at_times(history, "seconds", schedules.EACH_SECOND, history.intended.seconds)


def growth(history: History) -> Iterator[Finding]:
    """The runs of the schedule that watches a table own ranges that touch and cover all versions."""
    yield from _covered(history, "versions", schedules.GROWTH)


def either(history: History) -> Iterator[Finding]:
    """The schedule that waits for a time or the table ran once for that time, and for all versions."""
    yield from _at_times(history, "either", schedules.EITHER, (history.intended.moment_us,))
    yield from _covered(history, "either", schedules.EITHER)


def runs_succeeded(history: History) -> Iterator[Finding]:
    """Every run of a schedule succeeded."""
    for run in history.runs:
        if run.outcome != SUCCEEDED:
            yield Finding("schedules", f"{run.schedule}/{iso(run.planned_us)}", f"it ended {run.outcome}")


def _at_times(history: History, check: str, schedule: str, planned: Iterable[int]) -> Iterator[Finding]:
    """Runs that own no versions are those of times."""
    ran = Counter(run.planned_us for run in _runs(history, schedule) if run.versions is None)
    want = Counter(planned)
    for at_us in sorted(want.keys() | ran.keys()):
        if ran[at_us] != want[at_us]:
            yield Finding(check, f"{schedule}/{iso(at_us)}", f"it ran {ran[at_us]} times, not {want[at_us]}")


def _covered(history: History, check: str, schedule: str) -> Iterator[Finding]:
    covered = 0
    for after, upto in sorted(run.versions for run in _runs(history, schedule) if run.versions is not None):
        if after != covered or upto <= after:
            yield Finding(
                check, schedule, f"a run owns versions ({after}, {upto}], where the one before ends at {covered}"
            )
        covered = max(covered, upto)
    if covered != history.intended.version:
        yield Finding(check, schedule, f"its runs own versions up to {covered}, not {history.intended.version}")


def _runs(history: History, schedule: str) -> Iterator[ScheduledRun]:
    return (run for run in history.runs if run.schedule == schedule)


def lateness(history: History, *, on_spark: bool = False) -> dict[TaskKey, int]:
    """Microseconds from due to start, of first attempts of tasks that were the head of their lane when due.

    Head: all smaller keys of the lane had ended. Counted are tasks that were acknowledged before they were due.

    Args:
        history: what happened.
        on_spark: those whose handlers run on Spark, or the others.
    """
    first: dict[TaskKey, int] = {}
    over: dict[TaskKey, int] = {completion.key: completion.finished_us for completion in history.completions}
    for visit in history.visits:
        first[visit.key] = min(visit.start, first.get(visit.key, visit.start))
    for visit in history.visits:
        if visit.ok:
            over[visit.key] = visit.end
    late: dict[TaskKey, int] = {}
    free: dict[str, float] = {}
    for key in sorted(history.wanted):
        want = history.wanted[key]
        head = free.get(key.ordering_id, 0) <= key.time_us
        if head and want.on_spark is on_spark and key in first and want.acked_us <= key.time_us:
            late[key] = first[key] - key.time_us
        free[key.ordering_id] = max(free.get(key.ordering_id, 0), over.get(key, float("inf")))
    return late


def percentiles(late_us: Iterable[int]) -> dict[str, float]:
    """p50, p95, p99 and max in milliseconds, by nearest rank; empty for nothing."""
    ranked = sorted(late_us)
    if not ranked:
        return {}
    places = {"p50": 0.50, "p95": 0.95, "p99": 0.99, "max": 1.0}
    return {name: round(ranked[ceil(share * len(ranked)) - 1] / 1e3, 3) for name, share in places.items()}


def punctual(history: History) -> Iterator[Finding]:
    """p99 of the lateness is within the limit, in the local pool and on Spark, and enough was measured to say so."""
    for on_spark, least, where in ((False, LEAST_MEASURED, ""), (True, LEAST_ON_SPARK, " on Spark")):
        late = lateness(history, on_spark=on_spark)
        if len(late) < least:
            why = f"only {len(late)} tasks{where} were acknowledged in time and head of their lane"
            yield Finding("late", "", f"{why}; {least} are needed to judge")
            continue
        p99 = percentiles(late.values())["p99"]
        if p99 > P99_LIMIT_MS:
            worst = max(late, key=lambda key: late[key])
            why = (
                f"p99{where} is {p99:.1f} ms, more than {P99_LIMIT_MS:g}; this one was {late[worst] / 1e3:.1f} ms late"
            )
            yield Finding("late", str(worst), why)


CHECKS: Final[dict[str, Callable[[History], Iterator[Finding]]]] = {
    "every accepted key has a completion": lost,
    "exactly one: no second completion, delivery or row": doubled,
    "nothing ran that was not accepted": unknown,
    "lanes ran in key order": order,
    "lanes ran one task at a time": overlaps,
    "nothing started early, retries included": early,
    "outcomes and attempts as they had to be": outcomes,
    "overwritten tasks delivered the new payload": values,
    "cancelled tasks never ran": cancelled,
    "bad records were refused, each for its reason": rejects,
    "unknown fields were kept": kept,
    "a schedule ran once for each planned second": each_second,
    "runs for a table own all its versions, each once": growth,
    "a schedule for a time or the table ran for both": either,
    "every run of a schedule succeeded": runs_succeeded,
    f"p99 lateness is at most {P99_LIMIT_MS:g} ms": punctual,
}


def summary(history: History, findings: Iterable[Finding], seconds: float) -> dict[str, Any]:
    """The numbers of the run.

    Args:
        history: what was planned and seen.
        findings: of all checks.
        seconds: how long the run took.
    """
    found = list(findings)
    counts = Counter(finding.check for finding in found)
    ended = {one.key: one.outcome for one in history.completions if one.key in history.wanted}
    kinds = Counter(ended.values())
    return {
        "ok": not found,
        "accepted": len(history.wanted),
        "completed": kinds[SUCCEEDED],
        "failed": len(ended) - kinds[SUCCEEDED] - kinds[CANCELLED],
        "cancelled": kinds[CANCELLED],
        "rejected": len(history.rejects),
        "schedule_runs": len(history.runs),
        "lost": counts["lost"],
        "doubled": counts["doubled"],
        "order_violations": counts["order"],
        "overlaps": counts["overlap"],
        "early": counts["early"],
        "lateness_ms": percentiles(lateness(history).values()) or dict.fromkeys(("p50", "p95", "p99", "max")),
        "seconds": round(seconds, 1),
    }
