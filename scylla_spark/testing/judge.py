"""The one judge of what a deployment did: which promises a history breaks. Pure: every check is given rows, and returns breaches.

`judge` asks for every promise at once, of a deployment of which everything is known: all enqueues and cancels with their answers,
all runs as the handlers saw them, all faults and all facts that count. Who knows less, asks for single checks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from itertools import islice, pairwise
from typing import Any, NamedTuple, TypeVar

from scylla_spark.core.records.fact import TOO_LATE, Fact
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.task import CANCELLED, DUPLICATE, EXPIRED, STARTED, SUCCEEDED
from scylla_spark.testing.history import NEVER, OK, UNKNOWN, Enqueue, Fault, History, Recorded, Run

G = TypeVar("G", bound=Hashable)
T = TypeVar("T")


class Breach(NamedTuple):
    """A promise that was broken: to which task, and how, in words."""

    key: TaskKey
    why: str

    def __str__(self) -> str:
        return f"{self.key}: {self.why}"


def judge(history: History) -> dict[str, list[Breach]]:
    """Every promise that a history can break: its name → the breaches. Reruns are not among them: see `reruns`.

    - lost: an acknowledged task runs to a good end, uses up its attempts, is cancelled, expires, or is a duplicate;
      unrecorded: and the log says so.
    - early: nothing starts before its time, or before its wait between two attempts is over.
    - expired: nothing begins once it has expired.
    - after completion, after cancel: nothing starts once its task has ended, or its cancel was granted.
    - overlap, order: tasks of a lane run one at a time, in key order if they were enqueued in that order.
    - numbers, facts, verdicts: attempts are numbered one by one, facts follow each other, and tell what happened.
    - unasked, unexplained reruns: nothing runs that nobody enqueued, or again without a fault.
    """
    ended = {key: fact.finished_us for key, fact in history.completions().items()}
    return {
        "lost": unended(history),
        "unrecorded": lost(history.acknowledged(), ended),
        "early": early(history.runs, history.waits()),
        "expired": begun_too_late(history),
        "after completion": revived(history.runs, ended),
        "overlap": overlapping(history.runs, history.faults),
        "order": overtaken(history.runs, history.enqueues),
        "after cancel": undead(history),
        "numbers": misnumbered(history.runs, history.recorded),
        "facts": contradictions(history.recorded),
        "unasked": unasked(history),
        "unexplained reruns": unexplained(history),
        "verdicts": misjudged(history),
    }


# -- checks -----------------------------------------------------------------------------------------------------------------


def unended(history: History) -> list[Breach]:
    """Acknowledged tasks that neither ran to a good end, nor used up their attempts, nor were cancelled, expired or duplicates.

    A cancel that was asked for and never answered excuses a task only if the log says that it was cancelled.
    """
    good = {run.key for run in history.runs if run.ok}
    good |= {cancel.key for cancel in history.cancels if cancel.answer == CANCELLED}
    asked = {cancel.key for cancel in history.cancels}
    good |= {key for key, fact in history.completions().items() if fact.outcome == CANCELLED and key in asked}
    expiring = {item.key for item in history.enqueues if item.expires < NEVER}
    good |= {key for key, fact in history.completions().items() if fact.outcome == EXPIRED and key in expiring}
    unique = {item.key for item in history.enqueues if item.unique}
    good |= {key for key, fact in history.completions().items() if fact.outcome == DUPLICATE and key in unique}
    used = {key: max(run.attempt for run in group) for key, group in _grouped(history.runs, _key).items()}
    return [
        Breach(key, "it was acknowledged and did not come to its end")
        for key, item in history.acknowledged().items()
        if key not in good and used.get(key, 0) < item.attempts
    ]


def early(history: Iterable[Run], waits: Mapping[tuple[TaskKey, int], int] | None = None) -> list[Breach]:
    """Runs that began before their time.

    Args:
        history: the runs.
        waits: (key, attempt) → when that attempt may start at the earliest, where that is not the scheduled time.
    """
    known = waits or {}
    due = ((run, max(run.key.time_us, known.get((run.key, run.attempt), 0))) for run in history)
    return [
        Breach(run.key, f"attempt {run.attempt} started {(at - run.start) / 1e3:.3f} ms early")
        for run, at in due
        if run.start < at
    ]


def begun_too_late(history: History) -> list[Breach]:
    """First attempts that began after every enqueue of their key said that it expires."""
    latest: dict[TaskKey, int] = {}
    for item in history.enqueues:
        latest[item.key] = max(item.expires, latest.get(item.key, 0))
    return [
        Breach(run.key, f"{run} began after it had expired at {latest[run.key]}")
        for run in history.runs
        if run.attempt == 1 and run.start > latest.get(run.key, NEVER)
    ]


def overlapping(history: Iterable[Run], faults: Collection[Fault] = ()) -> list[Breach]:
    """Runs that began while another run of their lane had not ended.

    It is no breach if both were in one call of a batch handler, or if the other belonged to an owner that was then frozen.

    Args:
        history: the runs.
        faults: what the test did; only "freeze" matters.
    """
    breaches = []
    for lane in _lanes(history).values():
        running = lane[0]
        for run in lane[1:]:
            if (
                run.start < running.end
                and not run.shares_call(running)
                and not _frozen_during(running, run.start, faults)
            ):
                breaches.append(Breach(run.key, f"{run} began during {running}"))
            running = max(running, run, key=lambda other: other.end)
    return breaches


def disordered(history: Iterable[Run]) -> list[Breach]:
    """Runs of a lane that began after a run of a later key (for tasks enqueued in time)."""
    breaches = []
    for lane in _lanes(history).values():
        greatest = lane[0]
        for run in lane[1:]:
            if run.key < greatest.key:
                breaches.append(Breach(run.key, f"{run} began after {greatest}"))
            greatest = max(greatest, run, key=_key)
    return breaches


def overtaken(history: Iterable[Run], sent: Iterable[Enqueue], *, in_time: bool = False) -> list[Breach]:
    """Runs of a lane that began after a run of a later key, though they had been acknowledged before that one was sent.

    Args:
        history: the runs.
        sent: all enqueues; a key that was sent more than once, or not acknowledged, has no place in the order.
        in_time: judge also tasks that were both acknowledged before the earlier was due, whichever was sent first. That holds
            while nothing fails: a tail that is behind may meet the later one first.
    """
    places = {
        key: group[0] for key, group in _grouped(sent, _key).items() if len(group) == 1 and group[0].outcome == OK
    }

    def in_order(run: Run, other: Run) -> bool:
        first, second = places.get(run.key), places.get(other.key)
        if first is None or second is None:
            return False
        return first.at <= second.asked or (in_time and max(first.at, second.at) <= run.key.time_us)

    breaches = []
    for lane in _lanes(history).values():
        greatest = lane[0].key
        for number, run in enumerate(lane):
            if run.key < greatest:  # seldom: only then the runs before are looked at one by one
                others = (other for other in lane[:number] if run.key < other.key and in_order(run, other))
                breaches += [Breach(run.key, f"{run} began after {other}") for other in islice(others, 1)]
            greatest = max(greatest, run.key)
    return breaches


def misnumbered(history: Iterable[Run], recorded: Iterable[Recorded] = ()) -> list[Breach]:
    """Runs whose (epoch, attempt) does not exceed that of the run of the same key before, or whose attempt skips numbers.

    Args:
        history: the runs.
        recorded: the log; a number may be skipped if it says that this attempt was begun (its owner died before the handler ran), or
            that it was lost with its Spark worker, where it may only have waited.
    """
    used = {(fact.key, fact.attempt) for fact, _ in recorded if fact.outcome == STARTED or _was_lost(fact)}
    breaches = []
    for key, attempts in _grouped(history, _key).items():
        expected = 1
        token = (0, 0)
        for run in attempts:
            # an attempt that died unrecorded lends its number to the next, under another epoch
            skipped = range(expected, run.attempt)
            if (
                run.attempt < expected - 1
                or (run.epoch, run.attempt) <= token
                or any((key, n) not in used for n in skipped)
            ):
                breaches.append(Breach(key, f"attempt {run.attempt} of epoch {run.epoch} after {token}"))
            token, expected = (run.epoch, run.attempt), run.attempt + 1
    return breaches


def _was_lost(fact: Fact) -> bool:
    return fact.failure is not None and fact.failure.kind == "executor_lost"


def doubled(history: Iterable[Run]) -> list[Breach]:
    """Keys that ran to a good end more than once (legal only where a process was killed in between)."""
    counts = {key: len(group) for key, group in _grouped((r for r in history if r.ok), _key).items()}
    return [Breach(key, f"it succeeded {count} times") for key, count in counts.items() if count > 1]


def repeated(keys: Iterable[TaskKey], what: str) -> list[Breach]:
    """Keys that stand more than once among `keys`, which may stand there once; `what` they would be then, in words."""
    return [Breach(key, f"{what} {count} times") for key, count in Counter(keys).items() if count > 1]


def reruns(history: Iterable[Run]) -> list[tuple[Run, Run]]:
    """Pairs (run, next run of its key) where the first did not fail: it succeeded, or nothing is known of its end."""
    return [
        (first, second)
        for group in _grouped(history, _key).values()
        for first, second in pairwise(group)
        if first.ok is not False
    ]


def unexplained(history: History) -> list[Breach]:
    """Reruns without a fault that hit the first run's owner after it began and before the second began."""
    return [
        Breach(second.key, f"{second} repeats {first} without a cause")
        for first, second in reruns(history.runs)
        if not any(f.hit(first) and f.begin <= second.start and f.end >= first.start for f in history.faults)
    ]


def revived(history: Iterable[Run], completions: Mapping[TaskKey, int]) -> list[Breach]:
    """Runs that began after the run that the completion of their key speaks of had ended.

    Args:
        history: the runs.
        completions: key → when its completed run ended, or its cancel was granted.
    """
    return [
        Breach(run.key, f"{run} began after the completion at {completions[run.key]}")
        for run in history
        if run.start > completions.get(run.key, NEVER)
    ]


def undead(history: History) -> list[Breach]:
    """Runs that began after a client had been told that their task is cancelled, and tasks that ended otherwise after that."""
    granted: dict[TaskKey, int] = {}
    for cancel in history.cancels:
        if cancel.answer == CANCELLED:
            granted[cancel.key] = min(cancel.at, granted.get(cancel.key, NEVER))
    ended = history.completions()
    late = [
        Breach(run.key, f"{run} began after the cancel")
        for run in history.runs
        if run.start > granted.get(run.key, NEVER)
    ]
    return late + [
        Breach(key, f"it was cancelled, but has {ended[key].outcome}")
        for key in granted
        if key in ended and ended[key].outcome != CANCELLED
    ]


def unasked(history: History) -> list[Breach]:
    """Runs of tasks that nobody had tried to enqueue by then."""
    first: dict[TaskKey, int] = {}
    for item in history.enqueues:
        if item.outcome in (OK, UNKNOWN):
            first[item.key] = min(item.asked, first.get(item.key, NEVER))
    return [
        Breach(run.key, f"nobody had enqueued {run}") for run in history.runs if run.start < first.get(run.key, NEVER)
    ]


def contradictions(recorded: Iterable[Recorded]) -> list[Breach]:
    """Facts of a key that cannot follow each other: a number that does not grow, or anything after the completion."""
    breaches = []
    for key, group in _grouped(recorded, lambda item: item.fact.key, ordered=False).items():
        begun = ended = 0  # numbers of the last attempt that was announced, and that came to its end
        completed = False
        for fact, epoch in group:
            if fact.outcome == TOO_LATE:
                continue
            grows = fact.attempt > max(begun, ended) if fact.outcome == STARTED else fact.attempt > ended
            closes = fact.terminal and fact.attempt >= max(begun, ended) and fact.started_us == 0  # without a run
            if completed or not (grows or closes):
                why = f"{fact.outcome} of attempt {fact.attempt}, epoch {epoch}, after {begun}, {ended}"
                breaches.append(Breach(key, why))
            begun, ended = (fact.attempt, ended) if fact.outcome == STARTED else (begun, max(ended, fact.attempt))
            completed = completed or fact.terminal
    return breaches


def misjudged(history: History) -> list[Breach]:
    """Completions that say something else than the runs and cancels of their key."""
    good = {(run.key, run.attempt) for run in history.runs if run.ok}
    asked = {cancel.key for cancel in history.cancels}
    used = {item.key: item.attempts for item in history.enqueues}
    expires = {key: min(item.expires for item in group) for key, group in _grouped(history.enqueues, _key).items()}
    unique, begun = {item.key for item in history.enqueues if item.unique}, {run.key for run in history.runs}
    breaches = []
    for key, fact in history.completions().items():
        true = {
            SUCCEEDED: (key, fact.attempt) in good,
            CANCELLED: key in asked,
            EXPIRED: fact.finished_us >= expires.get(key, NEVER),
            DUPLICATE: key in unique and key not in begun,
        }.get(fact.outcome, fact.attempt >= used.get(key, NEVER))
        if not true:
            breaches.append(Breach(key, f"it is recorded as {fact.outcome} in attempt {fact.attempt}"))
    return breaches


def lost(accepted: Iterable[TaskKey], completions: Iterable[TaskKey]) -> list[Breach]:
    """Accepted keys without a completion."""
    ended = set(completions)
    return [Breach(key, "it was accepted, but has no completion") for key in accepted if key not in ended]


# -- below: frozen owners, groups -------------------------------------------------------------------------------------------


def _frozen_during(run: Run, until: int, faults: Iterable[Fault]) -> bool:
    """Returns True if the owner of a run was frozen while it ran, before `until`."""
    return any(
        f.kind == "freeze" and f.hit(run) and f.begin <= min(run.end, until) and f.end >= run.start for f in faults
    )


def _key(item: Any) -> TaskKey:
    key: TaskKey = item.key
    return key


def _lanes(history: Iterable[Run]) -> dict[str, list[Run]]:
    return _grouped(history, lambda run: run.key.ordering_id)


def _grouped(items: Iterable[T], group: Callable[[T], G], *, ordered: bool = True) -> dict[G, list[T]]:
    groups: dict[G, list[T]] = {}
    for item in sorted(items, key=_start) if ordered else items:
        groups.setdefault(group(item), []).append(item)
    return groups


def _start(item: Any) -> int:
    return item.start if isinstance(item, Run) else item.at
