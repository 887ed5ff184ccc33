"""What clients and handlers wrote down of one deployment: the plain rows that `testing.judge` judges.

Clients write a line for every enqueue and cancel and what came of it, handlers one when they begin and one when they end, the
test one for every fault. Nothing of it comes from the system that is judged, except `recorded`, which is the log it publishes.
Times are microseconds since the epoch, of one machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from scylla_spark.core.records.fact import Fact
from scylla_spark.core.tasks.key import TaskKey

NEVER: Final = 1 << 62
OK: Final = "ok"
UNKNOWN: Final = "unknown"


class Run(NamedTuple):
    """One attempt, as its handler saw it.

    Attributes:
        end: when it ended, or was ended by the death of its process; NEVER while neither is known.
        ok: whether it returned; None: it did not come to its end.
        mark: which of several payloads of the key it was given.
        pool: which pool of processes ran it.
        driver: the dispatcher whose pool that was; 0: not known.
        call: tells apart the calls of batch handlers, which may hold consecutive tasks of a lane; "": a call of its own.
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
    call: str = ""

    def shares_call(self, other: Run) -> bool:
        """Returns True if both were in one call of a batch handler."""
        return self.call != "" and (self.call, self.start) == (other.call, other.start)

    def __str__(self) -> str:
        return f"{self.key} attempt {self.attempt} epoch {self.epoch} [{self.start}, {self.end}]"


class Enqueue(NamedTuple):
    """One record that a client sent.

    Attributes:
        outcome: "ok": acknowledged; "failed": never sent; "unknown": it may have arrived.
        asked: when it was sent.
        at: when the outcome was known.
        attempts: how many attempts the task may use up.
        expires: when it expires unless it has begun; NEVER: it does not.
        unique: its name is to be unique among open tasks.
    """

    key: TaskKey
    outcome: str
    asked: int
    at: int
    attempts: int = NEVER
    expires: int = NEVER
    unique: bool = False


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
        """Returns True if it concerns the dispatcher of a run."""
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

    def waits(self) -> dict[tuple[TaskKey, int], int]:
        """(key, attempt) → when that attempt may start at the earliest, as the log says of the one before."""
        found: dict[tuple[TaskKey, int], int] = {}
        for fact, _ in self.recorded:
            if fact.next_us is not None:
                place = (fact.key, fact.attempt + 1)
                found[place] = max(fact.next_us, found.get(place, 0))
        return found


# -- reading lines ----------------------------------------------------------------------------------------------------------


def runs(
    lines: Iterable[Mapping[str, Any]], deaths: Sequence[int] = (), killed: Mapping[int, int] | None = None
) -> list[Run]:
    """Pairs begin and end lines; by start.

    Args:
        lines: as written by the handlers.
        deaths: when a deployment was killed: what had not ended by then ended there.
        killed: process id of a driver, a pool or a child → when it was killed, where only some were.
    """
    found: list[Run] = []
    latest: dict[tuple[Any, ...], int] = {}  # where the run is that an end line means
    for line in lines:
        key = TaskKey(*line["key"])
        identity = (key, line["attempt"], line["epoch"], line["pid"])
        if line["event"] == "start":
            driver = line.get("driver", 0)
            end = min((death for death in deaths if death >= line["at"]), default=NEVER)
            processes = driver, line.get("pool", 0), line["pid"]
            end = min(end, *((killed or {}).get(process, NEVER) for process in processes))
            latest[identity] = len(found)
            found.append(Run(*identity[:3], line["at"], end, None, line.get("mark", ""), line.get("pool", 0), driver))
        else:
            found[latest[identity]] = found[latest[identity]]._replace(end=line["at"], ok=line["ok"])
    return sorted(found, key=lambda run: run.start)


def enqueues(lines: Iterable[Mapping[str, Any]]) -> list[Enqueue]:
    """The enqueues among a client's lines."""
    return [
        Enqueue(
            TaskKey(*line["key"]),
            line["outcome"],
            line["asked"],
            line["at"],
            line.get("attempts") or NEVER,
            line.get("expires") or NEVER,
            bool(line.get("unique")),
        )
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
