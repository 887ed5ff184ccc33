"""Judges what clients and handlers wrote down: which promises a history breaks. Pure; every check returns the breaches in words.

Clients write a line for every enqueue and cancel and what came of it, handlers one when they begin and one when they end, the
test one for every fault. Nothing of it comes from the system that is judged, except `facts`, which is the log it publishes.
Times are microseconds since the epoch, of one machine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

from scylla_spark.core.fact import TOO_LATE, Fact
from scylla_spark.core.key import TaskKey
from scylla_spark.core.task import CANCELLED, STARTED, SUCCEEDED

NEVER = 1 << 62
OK, UNKNOWN = "ok", "unknown"

G = TypeVar("G", bound=Hashable)
T = TypeVar("T")


class Run(NamedTuple):
    """One attempt, as its handler saw it.

    Attributes:
        end: when it ended, or was ended by the death of its process; NEVER while neither is known.
        ok: whether it returned; None: it did not come to its end.
        mark: which of several payloads of the key it was given.
        pool: which pool of processes ran it.
        driver: the dispatcher whose pool that was; 0: not known.
    """

    key: TaskKey
    attempt: int
    epoch: int
    start: int
    end: int = NEVER
    ok: bool | None = None
    mark: str = ""
    pool: int = 0
    driver: int = 0

    def __str__(self) -> str:
        return f"{self.key} attempt {self.attempt} epoch {self.epoch} [{self.start}, {self.end}]"


class Enqueue(NamedTuple):
    """One record that a client sent.

    Attributes:
        outcome: "ok": acknowledged; "failed": never sent; "unknown": it may have arrived.
        asked: when it was sent.
        at: when the outcome was known.
        attempts: how many attempts the task may use up.
    """

    key: TaskKey
    outcome: str
    asked: int
    at: int
    attempts: int = NEVER


class Cancel(NamedTuple):
    """One cancel that a client asked for; `answer` is "cancelled", "too_late" or "unknown"."""

    key: TaskKey
    answer: str
    asked: int
    at: int


class Fault(NamedTuple):
    """Something the test did.

    Attributes:
        kind: "kill" (at `begin`), "freeze" (from `begin` to `end`), or anything else that may cost a dispatcher its partitions.
        driver: the dispatcher it was done to; 0: to all of them.
    """

    kind: str
    begin: int
    end: int
    driver: int = 0

    def hit(self, run: Run) -> bool:
        """Whether it concerns the dispatcher of a run."""
        return self.driver in (0, run.driver)


class Recorded(NamedTuple):
    """A fact that counts, with the epoch of the fence it stands behind, in the order of its partition's log."""

    fact: Fact
    epoch: int


class History(NamedTuple):
    """Everything written down about one deployment."""

    enqueues: Sequence[Enqueue] = ()
    cancels: Sequence[Cancel] = ()
    runs: Sequence[Run] = ()
    faults: Sequence[Fault] = ()
    recorded: Sequence[Recorded] = ()

    def acknowledged(self) -> dict[TaskKey, Enqueue]:
        """The first acknowledged enqueue of every key."""
        found: dict[TaskKey, Enqueue] = {}
        for item in self.enqueues:
            if item.outcome == OK:
                found.setdefault(item.key, item)
        return found

    def completions(self) -> dict[TaskKey, Fact]:
        """The first completion that counts, of every key."""
        found: dict[TaskKey, Fact] = {}
        for fact, _ in self.recorded:
            if fact.terminal:
                found.setdefault(fact.key, fact)
        return found


def judge(history: History) -> dict[str, list[str]]:
    """Every promise that a history can break: its name → the breaches in words. Reruns are not among them: see `reruns`."""
    ended = {key: fact.finished_us for key, fact in history.completions().items()}
    return {
        "lost": unended(history),
        "unrecorded": lost(history.acknowledged(), ended),
        "early": early(history.runs),
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


# -- reading lines ----------------------------------------------------------------------------------------------------------


def runs(
    lines: Iterable[Mapping[str, Any]], deaths: Sequence[int] = (), killed: Mapping[int, int] | None = None
) -> list[Run]:
    """Pairs begin and end lines; by start.

    Args:
        lines: as written by the handlers.
        deaths: when a deployment was killed: what had not ended by then ended there.
        killed: driver → when it was killed, where only some were.
    """
    found: list[Run] = []
    latest: dict[tuple[Any, ...], int] = {}  # where the run is that an end line means
    for line in lines:
        key = TaskKey(*line["key"])
        identity = (key, line["attempt"], line["epoch"], line["pid"])
        if line["event"] == "start":
            driver = line.get("driver", 0)
            end = min((death for death in deaths if death >= line["at"]), default=NEVER)
            end = min(end, (killed or {}).get(driver, NEVER))
            latest[identity] = len(found)
            found.append(Run(*identity[:3], line["at"], end, None, line.get("mark", ""), line.get("pool", 0), driver))
        else:
            found[latest[identity]] = found[latest[identity]]._replace(end=line["at"], ok=line["ok"])
    return sorted(found, key=lambda run: run.start)


def enqueues(lines: Iterable[Mapping[str, Any]]) -> list[Enqueue]:
    """The enqueues among a client's lines."""
    return [
        Enqueue(TaskKey(*line["key"]), line["outcome"], line["asked"], line["at"], line.get("attempts") or NEVER)
        for line in lines
        if line["event"] == "enqueue"
    ]


def cancels(lines: Iterable[Mapping[str, Any]]) -> list[Cancel]:
    """The cancels among a client's lines."""
    return [
        Cancel(TaskKey(*line["key"]), line["answer"], line["asked"], line["at"])
        for line in lines
        if line["event"] == "cancel"
    ]


# -- checks -----------------------------------------------------------------------------------------------------------------


def unended(history: History) -> list[str]:
    """Acknowledged tasks that neither ran to a good end, nor used up their attempts, nor were cancelled.

    A cancel that was asked for and never answered excuses a task only if the log says that it was cancelled.
    """
    good = {run.key for run in history.runs if run.ok}
    good |= {cancel.key for cancel in history.cancels if cancel.answer == CANCELLED}
    asked = {cancel.key for cancel in history.cancels}
    good |= {key for key, fact in history.completions().items() if fact.outcome == CANCELLED and key in asked}
    used = {key: max(run.attempt for run in group) for key, group in _grouped(history.runs, _key).items()}
    return [
        str(key) for key, item in history.acknowledged().items() if key not in good and used.get(key, 0) < item.attempts
    ]


def early(history: Iterable[Run]) -> list[str]:
    """Runs that began before their scheduled time."""
    return [f"{run} is early by {run.key.time_us - run.start} us" for run in history if run.start < run.key.time_us]


def overlapping(history: Iterable[Run], faults: Collection[Fault] = ()) -> list[str]:
    """Runs that began while another run of their lane had not ended, unless that one belonged to an owner that was then frozen.

    Args:
        history: the runs.
        faults: what the test did; only "freeze" matters.
    """
    breaches = []
    for lane in _lanes(history).values():
        running = lane[0]
        for run in lane[1:]:
            if run.start < running.end and not _frozen_during(running, run.start, faults):
                breaches.append(f"{run} began during {running}")
            running = max(running, run, key=lambda other: other.end)
    return breaches


def disordered(history: Iterable[Run]) -> list[str]:
    """Runs of a lane that began after a run of a later key (for tasks enqueued in time)."""
    return [
        f"{later} began after {earlier}"
        for lane in _lanes(history).values()
        for earlier, later in pairwise(lane)
        if later.key < earlier.key
    ]


def overtaken(history: Iterable[Run], sent: Iterable[Enqueue]) -> list[str]:
    """Runs of a lane that began after a run of a later key, though they had been acknowledged before that one was sent.

    Args:
        history: the runs.
        sent: all enqueues; a key that was sent more than once, or not acknowledged, has no place in the order.
    """
    places = {
        key: group[0] for key, group in _grouped(sent, _key).items() if len(group) == 1 and group[0].outcome == OK
    }
    breaches = []
    for lane in _lanes(history).values():
        ran: list[Run] = []
        for run in lane:
            if ran and run.key in places and run.key < max(other.key for other in ran):
                late = [
                    other
                    for other in ran
                    if run.key < other.key and other.key in places and places[run.key].at <= places[other.key].asked
                ]
                breaches += [f"{run} began after {other}" for other in late[:1]]
            ran.append(run)
    return breaches


def misnumbered(history: Iterable[Run], recorded: Iterable[Recorded] = ()) -> list[str]:
    """Runs whose (epoch, attempt) does not exceed that of the run of the same key before, or whose attempt skips numbers.

    Args:
        history: the runs.
        recorded: the log; a number may be skipped if it says that this attempt was begun: its owner died before the handler ran.
    """
    begun = {(fact.key, fact.attempt) for fact, _ in recorded if fact.outcome == STARTED}
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
                or any((key, n) not in begun for n in skipped)
            ):
                breaches.append(f"{key}: attempt {run.attempt} of epoch {run.epoch} after {token}")
            token, expected = (run.epoch, run.attempt), run.attempt + 1
    return breaches


def doubled(history: Iterable[Run]) -> list[str]:
    """Keys that ran to a good end more than once (legal only where a process was killed in between)."""
    counts = {key: len(group) for key, group in _grouped((r for r in history if r.ok), _key).items()}
    return [f"{key} succeeded {count} times" for key, count in counts.items() if count > 1]


def reruns(history: Iterable[Run]) -> list[tuple[Run, Run]]:
    """Pairs (run, next run of its key) where the first did not fail: it succeeded, or nothing is known of its end."""
    return [
        (first, second)
        for group in _grouped(history, _key).values()
        for first, second in pairwise(group)
        if first.ok is not False
    ]


def unexplained(history: History) -> list[str]:
    """Reruns without a fault that hit the first run's owner after it began and before the second began."""
    return [
        f"{second} repeats {first} without a cause"
        for first, second in reruns(history.runs)
        if not any(f.hit(first) and f.begin <= second.start and f.end >= first.start for f in history.faults)
    ]


def revived(history: Iterable[Run], completions: Mapping[TaskKey, int]) -> list[str]:
    """Runs that began after the run that the completion of their key speaks of had ended.

    Args:
        history: the runs.
        completions: key → when its completed run ended, or its cancel was granted.
    """
    return [
        f"{run} began after the completion at {completions[run.key]}"
        for run in history
        if run.start > completions.get(run.key, NEVER)
    ]


def undead(history: History) -> list[str]:
    """Runs that began after a client had been told that their task is cancelled, and tasks that ended otherwise after that."""
    granted: dict[TaskKey, int] = {}
    for cancel in history.cancels:
        if cancel.answer == CANCELLED:
            granted[cancel.key] = min(cancel.at, granted.get(cancel.key, NEVER))
    breaches = [f"{run} began after the cancel" for run in history.runs if run.start > granted.get(run.key, NEVER)]
    ended = history.completions()
    return breaches + [
        f"{key} was cancelled, but has {ended[key].outcome}" for key in granted if key in ended and ended[key].outcome != CANCELLED
    ]  # fmt: skip


def unasked(history: History) -> list[str]:
    """Runs of tasks that nobody had tried to enqueue by then."""
    first: dict[TaskKey, int] = {}
    for item in history.enqueues:
        if item.outcome in (OK, UNKNOWN):
            first[item.key] = min(item.asked, first.get(item.key, NEVER))
    return [f"nobody enqueued {run}" for run in history.runs if run.start < first.get(run.key, NEVER)]


def contradictions(recorded: Iterable[Recorded]) -> list[str]:
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
                breaches.append(
                    f"{key}: {fact.outcome} of attempt {fact.attempt}, epoch {epoch}, after {begun}, {ended}"
                )
            begun, ended = (fact.attempt, ended) if fact.outcome == STARTED else (begun, max(ended, fact.attempt))
            completed = completed or fact.terminal
    return breaches


def misjudged(history: History) -> list[str]:
    """Completions that say something else than the runs and cancels of their key."""
    good = {(run.key, run.attempt) for run in history.runs if run.ok}
    asked = {cancel.key for cancel in history.cancels}
    used = {item.key: item.attempts for item in history.enqueues}
    breaches = []
    for key, fact in history.completions().items():
        true = {
            SUCCEEDED: (key, fact.attempt) in good,
            CANCELLED: key in asked,
        }.get(fact.outcome, fact.attempt >= used.get(key, NEVER))
        if not true:
            breaches.append(f"{key} is recorded as {fact.outcome} in attempt {fact.attempt}")
    return breaches


def lost(accepted: Iterable[TaskKey], completions: Iterable[TaskKey]) -> list[str]:
    """Accepted keys without a completion."""
    ended = set(completions)
    return [str(key) for key in accepted if key not in ended]


# -- measures ---------------------------------------------------------------------------------------------------------------


def peak(history: Iterable[Run]) -> int:
    """Most runs that were under way at one time."""
    # an end sorts before a start of the same moment
    changes = sorted(change for run in history for change in ((run.start, 1), (run.end, -1)))
    running = most = 0
    for _, change in changes:
        running += change
        most = max(most, running)
    return most


def lateness(history: History) -> list[int]:
    """How long after its time, or its acknowledgement, each acknowledged task first started; sorted, microseconds."""
    first = {key: group[0].start for key, group in _grouped(history.runs, _key).items()}
    sent = history.acknowledged()
    return sorted(first[key] - max(key.time_us, sent[key].at) for key in first.keys() & sent.keys())


# -- below: frozen owners, groups -------------------------------------------------------------------------------------------


def _frozen_during(run: Run, until: int, faults: Iterable[Fault]) -> bool:
    """Whether the owner of a run was frozen while it ran, before `until`."""
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
