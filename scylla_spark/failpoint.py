"""Named places between two writes where a test lets this process die, fail or freeze. Off unless SCYLLASPARK_FAILPOINTS is set.

The variable holds `NAME:MODE` or `NAME:MODE:N`, separated by commas: at the N-th time (default: the first) that NAME is
reached, once. A fault before a write is one at the point that precedes it, a fault after a write one at the point behind it.
Points that concern one record are told its uniqueness key, those that concern one schedule its name, and are met by those only whose key
or name holds the text `poison`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Final

from scylla_spark.errors import ConfigError

VARIABLE: Final = "SCYLLASPARK_FAILPOINTS"

KILL: Final = "kill"
RAISE: Final = "raise"
FREEZE: Final = "freeze"
MODES: Final = {
    KILL: "SIGKILL to this process and to the JVM that works for it",
    RAISE: "an InjectedFault",
    FREEZE: "SIGSTOP to this process; its children and its JVM go on",
}

POISON: Final = "poison"
PLANTED: Final = {
    "ingest.tasks.record": "a record of `tasks` is judged",
    "ingest.outcomes.record": "a record of `outcomes` is judged",
}
"""Places for a planted defect, with mode "defect": each step on a record that contains DEFECT_TEXT fails."""
DEFECT: Final = "defect"
DEFECT_TEXT: Final = b"planted defect"

POINTS: Final = {
    "ingest.tables.prepared": "tables exist and are checked; no query has begun",
    "ingest.tasks.judged": "a batch of `tasks` is judged; nothing of it is written",
    "ingest.tasks.merged": "its rows are merged into `tasks`",
    "ingest.tasks.deferred": "its far rows are appended to `deferred`",
    "ingest.tasks.rejected": "its refused records are appended to `rejected`",
    "ingest.tasks.progressed": "its `progress` is written; the checkpoint does not know yet",
    "ingest.fold.merged": "a slice of `deferred` is merged into `tasks`; `folded_until` has not moved",
    "ingest.purge.queue": "of what a queue keeps no longer attempts and their lines are deleted, its tasks are not yet",
    "ingest.purge.deleted": "old hours of one of `tasks`, `completions` and `attempts` are deleted",
    "ingest.outcomes.judged": "a batch of `outcomes` is judged; nothing of it is written",
    "ingest.outcomes.appended": "one of `completions` and `attempts` is appended",
    "ingest.outcomes.progressed": "its `progress` is written; the checkpoint does not know yet",
    "judge.command": "a record of `tasks` is about to be judged, by ingest, a dispatcher or a client",
    "judge.fact": "a record of `outcomes` is about to be read, by ingest, a dispatcher or a client",
    "dispatch.take.assigned": "the group gave us partitions; their takes have not begun",
    "dispatch.take.fencing": "a fence is decided, not sent",
    "dispatch.scan.read": "rows are read from the tables; none is offered to the lanes",
    "dispatch.scan.offered": "all rows are offered; the engine does not know that they are all",
    "dispatch.membership.confirmed": "membership is confirmed; starts rest on it",
    "dispatch.release.decided": "tasks are released; the executor does not have them",
    "dispatch.release.submitted": "the executor has them",
    "dispatch.send.begun": "facts or a fence are to be sent; nothing has left",
    "dispatch.send.handed_over": "all are with the producer; none is acknowledged",
    "dispatch.send.acknowledged": "one record is acknowledged; the engine does not know yet",
    "engine.offer": "a record of the tail is offered to its lane",
    "engine.row": "a row of the tables is offered to its lane",
    "engine.expire": "the head of a lane has expired, and is about to end",
    "engine.release": "the head of a lane is about to be released",
    "engine.fact": "a fact that counts is about to be applied",
    "plan.take.fencing": "the planner's log is read; its fence is decided, not sent",
    "plan.command": "a command for the planner is read, and about to be obeyed",
    "plan.timer": "a timer of a schedule has gone off",
    "plan.load": "a schedule of the planner's log is taken over",
    "plan.begin": "the first time of a schedule is about to be found",
    "plan.decide": "times of a schedule are about to be decided",
    "plan.happened": "a schedule is about to get something that its trigger names",
    "plan.judge": "a job of a schedule is about to be judged: its constraints, and whether there is room",
    "plan.watch": "it is about to be found out which tables a schedule watches",
    "plan.group.decided": "a group of the planner is decided, not sent",
    "plan.group.counts": "it was read back; what it asks for is not sent",
    "plan.launch.sent": "what it asks for is with the producer",
    "dispatch.facts.read_back": "own or foreign facts are read; the engine has not applied them",
}
"""Every point: name → what has happened when it is reached. Each is reached at one place in the source."""


class InjectedFault(RuntimeError):
    """The error of mode "raise"."""


def parse(text: str) -> dict[str, tuple[str, int]]:
    """Reads the variable: name → (mode, how many times it must be reached).

    Raises:
        ConfigError: a name or mode does not exist, or a number is none.
    """
    armed: dict[str, tuple[str, int]] = {}
    for part in filter(None, text.split(",")):
        name, _, rest = part.partition(":")
        mode, colon, count = rest.partition(":")
        number = int(count) if count.isdecimal() else int(not colon)
        if name in PLANTED and mode == DEFECT and not colon:
            armed[name] = (mode, 1)
            continue
        if name not in POINTS or mode not in MODES or number < 1:
            raise ConfigError(
                f"{VARIABLE}: {part!r} is not NAME:MODE or NAME:MODE:N.",
                hint=f"Modes: {', '.join(MODES)}. Names: {', '.join(POINTS)}. Mode {DEFECT}: {', '.join(PLANTED)}.",
            )
        armed[name] = (mode, number)
    return armed


_lock = threading.Lock()
armed = parse(os.environ.get(VARIABLE, ""))


def reach(name: str, record: str | None = None) -> None:
    """Says that a point was reached; does nothing unless a test asked for a fault here.

    Args:
        name: of the point.
        record: uniqueness key of the record, or name of the schedule, that it concerns; only poisonous ones meet a fault.

    Raises:
        InjectedFault: if that was asked for.
    """
    if armed and (record is None or POISON in record):
        _reached(name)


def planted(name: str) -> bytes | None:
    """The text that stands for a defect, if a test has planted one here; asked by the driver and carried to its workers."""
    return DEFECT_TEXT if armed and name in PLANTED and name in armed else None


def _reached(name: str) -> None:
    with _lock:
        mode, left = armed.get(name, ("", 0))
        if left:
            armed[name] = (mode, left - 1)
    if left != 1:
        return
    sys.stderr.write(f"failpoint {name} {mode}\n")
    sys.stderr.flush()
    if mode == RAISE:
        raise InjectedFault(f"fail point {name}")
    if mode == KILL:
        for pid in _relatives():
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text() == "java\n":
                    os.kill(pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL if mode == KILL else signal.SIGSTOP)


def _relatives() -> list[int]:
    """Children, and under spark-submit the parent: among them is the JVM that works for this process."""
    kin = [int(pid) for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()]
    return [*kin, os.getppid()] if "PYSPARK_GATEWAY_PORT" in os.environ else kin
