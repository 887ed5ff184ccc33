"""What a call says of its work while it runs: how far it is, and from where another attempt could go on."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from scylla_spark.clock import boot_us
from scylla_spark.core.work_note import MAX_CHECKPOINT_BYTES
from scylla_spark.errors import ArgumentError, shown
from scylla_spark.executors.local.call import clean
from scylla_spark.executors.local.framing import pack
from scylla_spark.executors.local.messages import NOTE
from scylla_spark.executors.local.shared_memory import SharedMemory

_LOOK_S: Final = 0.02
_EVERY_US: Final = 200_000  # progress is told no more often
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class CallFlag:
    """Whether a call is asked to end; a `Flag`.

    Args:
        number: of the call.
        slot: where the pool says so.
    """

    def __init__(self, number: int, slot: SharedMemory) -> None:
        self._number = number
        self._slot = slot

    def is_set(self) -> bool:
        """Whether it is."""
        return self._slot.is_asked_to_end(self._number)

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until it is, or for so many seconds; whether it is."""
        until_us = None if timeout is None else boot_us() + int(timeout * 1e6)
        while not self.is_set():
            left_s = _LOOK_S if until_us is None else min((until_us - boot_us()) / 1e6, _LOOK_S)
            if left_s <= 0:
                return False
            time.sleep(left_s)
        return True


class CallNotes:
    """The `Notes` of one call in a child; may be used from any thread of it.

    Args:
        number: of the call.
        send: brings a frame to the pool; one at a time.
    """

    def __init__(self, number: int, send: Callable[[bytes], None]) -> None:
        self._number = number
        self._send = send
        self._lock = threading.Lock()
        self._untold: float | None = None
        self._told_us = 0
        self._over = False

    def progress(self, value: float) -> None:
        """See `TaskContext.progress`."""
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise ArgumentError(f"Progress {shown(value)} is no number from 0 to 1.", hint="Pass 0.4 for 40 %.")
        now = boot_us()
        with self._lock:
            self._untold = float(value)
            if now - self._told_us >= _EVERY_US:
                self._told_us = now
                self._tell(None)

    def checkpoint(self, value: dict[str, Any]) -> None:
        """See `TaskContext.checkpoint`."""
        text = _object_text(value)
        with self._lock:
            self._tell(text)

    def end(self) -> None:
        """The call has ended: tells what is left to tell, and nothing after that."""
        with self._lock:
            if self._untold is not None:
                self._tell(None)
            self._over = True

    def _tell(self, checkpoint: str | None) -> None:
        if not self._over:
            progress, self._untold = self._untold, None
            self._send(pack(_encode([[NOTE, self._number, progress, checkpoint]]).encode()))


def _object_text(value: object) -> str:
    if not isinstance(value, dict):
        raise ArgumentError(f"A checkpoint is a dict, not a {type(value).__name__}.", hint='Such as {"row": 7}.')
    try:
        text = clean(_encode(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentError(
            f"The checkpoint is no JSON: {error}.", hint="Pass dict, list, str, int, float, bool."
        ) from None
    size = len(text.encode())
    if size > MAX_CHECKPOINT_BYTES:
        raise ArgumentError(
            f"The checkpoint has {size} bytes; {MAX_CHECKPOINT_BYTES} are kept.",
            hint="Store it elsewhere, and pass where.",
        )
    return text
