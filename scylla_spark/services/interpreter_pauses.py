"""How long no thread of this process could run Python: a thread sleeps for short times, and measures by how much it wakes late.

Python runs one thread at a time. A native call that keeps the interpreter's lock while it waits stops all others, the engine's thread
among them. A machine without a free core looks the same from here.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Final

from prometheus_client import CollectorRegistry, Histogram

from scylla_spark.log import get_logger
from scylla_spark.services.metrics_server import PREFIX

log = get_logger("services")

_BUCKETS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_EVERY_S: Final = 0.05  # at 0.02 it takes half a hundredth of a core
_LONG_S: Final = 0.25
_SILENT_S: Final = 60.0  # after a line
_DEPTH: Final = 8  # frames of a stack in the log


class InterpreterPauses:
    """Measures the pauses of this process, and logs long ones with the stacks of the threads that may have caused them.

    Args:
        registry: gets the histogram `scyllaspark_interpreter_pause_seconds`; default: one that nobody is shown.
        every_s: how long it sleeps between two measurements, in seconds. Shorter pauses may be missed.
        observe: is called with each pause, in seconds; default: the histogram counts it.
    """

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        every_s: float = _EVERY_S,
        observe: Callable[[float], object] | None = None,
    ) -> None:
        pauses = Histogram(
            f"{PREFIX}interpreter_pause_seconds", "How late a thread that wanted to run Python could do so",
            buckets=_BUCKETS, registry=registry,
        )  # fmt: skip
        self._every_s = every_s
        self._observe = observe or pauses.observe
        self._silent_until = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="interpreter-pauses", daemon=True)

    def start(self) -> None:
        """Begins to measure."""
        self._thread.start()

    def stop(self) -> None:
        """Ends measuring."""
        self._stop.set()

    def _run(self) -> None:
        own, places = threading.get_ident(), dict[int, tuple[int, int]]()
        ended = time.monotonic()
        while not self._stop.is_set():
            begun = ended  # without a gap: the lock may be lost between any two lines
            time.sleep(self._every_s)
            ended = time.monotonic()
            pause_s = max(ended - begun - self._every_s, 0.0)
            self._observe(pause_s)
            frames = sys._current_frames()  # noqa: SLF001 - the documented way to see other threads
            del frames[own]
            if pause_s >= _LONG_S and ended > self._silent_until:
                self._silent_until = ended + _SILENT_S
                _report(pause_s, frames, places)
            places = {number: _place(frame) for number, frame in frames.items()}
            del frames  # they hold what their threads work on


def _report(pause_s: float, frames: dict[int, FrameType], places: dict[int, tuple[int, int]]) -> None:
    """Names the threads that were elsewhere before the pause: one of them has held the lock, the others wait since before."""
    moved = {number: frame for number, frame in frames.items() if places.get(number) != _place(frame)}
    log.info("no thread could run Python for a while", seconds=round(pause_s, 3), stacks=_stacks(moved or frames))


def _place(frame: FrameType) -> tuple[int, int]:
    return id(frame), frame.f_lasti


def _stacks(frames: dict[int, FrameType]) -> dict[str, list[str]]:
    """Returns where threads are: name → the innermost calls, the caller first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return {
        names.get(number, str(number)): [
            f"{call.filename}:{call.lineno} {call.name}" for call in traceback.extract_stack(frame)[-_DEPTH:]
        ]
        for number, frame in frames.items()
    }
