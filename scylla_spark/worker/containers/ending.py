"""How a container ended, and what that means for its task. Pure."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from scylla_spark.core.tasks.task import (
    ABORTED,
    CONTAINER_LOST,
    CONTAINER_NOT_STARTED,
    MAX_RESULT_BYTES,
    TIMED_OUT,
    YIELDED,
)
from scylla_spark.handlers.call import OK, encode_result, failed
from scylla_spark.handlers.isolation import MEMORY_EXCEEDED
from scylla_spark.handlers.messages import Verdict
from scylla_spark.json_text import read_json
from scylla_spark.worker.containers.last_lines import LastLines

EXIT: Final = "container_exit"
KILLED: Final = "container_killed"
LOST: Final = CONTAINER_LOST
NOT_STARTED: Final = CONTAINER_NOT_STARTED
NOT_KEPT: Final = "outputs_not_kept"
ABORT_CODE: Final = 64
LATER_CODE: Final = 75
LATER_MS: Final = 10_000
_BY_SIGKILL: Final = 128 + 9
_TAIL_CHARS: Final = 8_000
_LINE_CHARS: Final = 500


class Ended(NamedTuple):
    """How a container ended, as podman says.

    Attributes:
        code: exit code of its first process; None: it never ran.
        out_of_memory: whether the kernel ended a process of it for want of memory.
        running: whether it still ran when podman's client had ended.
    """

    code: int | None
    out_of_memory: bool = False
    running: bool = False


def ended_of(client_code: int, state: Any) -> Ended:
    """Returns how a container ended.

    Args:
        client_code: exit code of `podman run`.
        state: `State` of `podman inspect`; anything else: podman knows no such container.
    """
    if client_code == 0:
        return Ended(0)
    if not isinstance(state, dict):
        return Ended(None)
    status, code = state.get("Status"), state.get("ExitCode")
    if status == "running":
        return Ended(None, running=True)
    if status not in ("exited", "stopped") or not isinstance(code, int):
        return Ended(None)
    return Ended(code, state.get("OOMKilled") is True)


def verdict_of_container(ended: Ended, out: LastLines, err: LastLines) -> Verdict:
    """Returns what becomes of the task.

    Args:
        ended: how its container ended.
        out: what it wrote to its standard output.
        err: the same of its standard error, with podman's own words.
    """
    if ended.code == 0:
        return verdict_of_output(out)
    tail = err.text(_TAIL_CHARS)
    last = tail.rpartition("\n")[2][:_LINE_CHARS]
    if ended.code is None:
        kind, what = (LOST, "podman let go of it") if ended.running else (NOT_STARTED, "it was not started")
        return failed(kind, f"The container has no end: {what}: {last}", tail)
    if ended.out_of_memory:
        return failed(
            MEMORY_EXCEEDED, f"The container took more memory than it may, and ended with {ended.code}.", tail
        )
    if ended.code == LATER_CODE:
        return Verdict(YIELDED, after_ms=LATER_MS)
    if ended.code == _BY_SIGKILL:
        return failed(KILLED, "Its first process was killed (SIGKILL): probably it took more memory than it may.", tail)
    verdict = failed(EXIT, f"The program exited with code {ended.code}: {last}".rstrip(": "), tail)
    return verdict._replace(outcome=ABORTED) if ended.code == ABORT_CODE else verdict


def timed_out(after_s: float, err: LastLines) -> Verdict:
    """The verdict on a container that was killed because its time was over.

    Args:
        after_s: how long it ran, seconds.
        err: what it wrote to its standard error.
    """
    return failed(TIMED_OUT, f"It had not ended after {after_s:.1f} s and was killed.", err.text(_TAIL_CHARS))


def not_kept(verdict: Verdict, why: str) -> Verdict:
    """The verdict on a program of which files could not be kept: it has not succeeded, however else it ended that stays.

    Args:
        verdict: without regard to them.
        why: in words.
    """
    return (
        failed(NOT_KEPT, f"What it left in /out could not be kept: {why}") if verdict.outcome == OK.outcome else verdict
    )


def verdict_of_output(out: LastLines) -> Verdict:
    """Succeeded, with the last line that is JSON as the result; failed where that line is too long to be kept.

    Args:
        out: the last lines of standard output.
    """
    for line in reversed(out.lines()):
        if len(line) > MAX_RESULT_BYTES:
            if line.lstrip()[:1] in (b"{", b"[", b'"'):
                words = f"The last line has more than {MAX_RESULT_BYTES} bytes. Store it elsewhere, and say where."
                return failed("result_too_large", words)
            continue
        try:
            value = read_json(line.decode())
        except ValueError:
            continue
        return OK if value is None else encode_result(value)
    return OK
