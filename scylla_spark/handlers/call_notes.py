"""What a call says while it runs: how far it is, from where another attempt could go on, what is to be sent, for how long it goes on."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from scylla_spark.clock import boot_us, both_us
from scylla_spark.core.tasks.attempt_note import MAX_CHECKPOINT_BYTES, checked_note, checked_progress
from scylla_spark.core.tasks.follow_up import MAX_FOLLOW_UP_CHARS, MAX_FOLLOW_UPS, FollowUp, FollowUps
from scylla_spark.core.tasks.kept_json import kept_text, size_of
from scylla_spark.core.tasks.task import FollowUpOptions, Invocation
from scylla_spark.core.tasks.trace_context import current_trace
from scylla_spark.errors import ArgumentError
from scylla_spark.handlers import follow_ups
from scylla_spark.handlers.framing import pack
from scylla_spark.handlers.messages import EXTEND, FOLLOW_UP, NOTE, OUTPUT
from scylla_spark.handlers.outputs import WritesOutputs
from scylla_spark.handlers.shared_memory import SharedMemory
from scylla_spark.io.host.output_files import attempt_over

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
        """Returns True if it is."""
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
        item: its invocation; it begins now.
        send: brings a frame to the pool; one at a time.
        extended: is told until when it runs now, in milliseconds from its start; from any thread.
        outputs: stores its files; None: nobody does.
        longest_ms: how long it may run, from its start, if it asks for longer than its timeout.

    Attributes:
        asked: whether it has asked for follow-ups, or left files behind.
    """

    def __init__(
        self,
        number: int,
        item: Invocation,
        send: Callable[[bytes], None],
        extended: Callable[[int], object] | None = None,
        outputs: WritesOutputs | None = None,
        longest_ms: int = 0,
    ) -> None:
        self.asked = False
        self._number = number
        self._key = item.key
        self._begun_us = boot_us()
        self._trace = item.traceparent
        self._timeout_ms = item.timeout_ms
        self._longest_ms = longest_ms
        self._extended = extended
        self._outputs = outputs
        self._follow_ups = FollowUps()
        self._unnamed = 0
        self._send = send
        self._lock = threading.Lock()
        self._untold: float | None = None
        self._untold_note: str | None = None
        self._told_us = 0
        self._over = False

    def progress(self, value: float, note: str | None = None) -> None:
        """See `TaskContext.progress`."""
        progress, words, now = checked_progress(value), None if note is None else checked_note(note), boot_us()
        with self._lock:
            self._untold = progress
            self._untold_note = self._untold_note if words is None else words
            if now - self._told_us >= _EVERY_US:
                self._told_us = now
                self._tell(None)

    def checkpoint(self, value: dict[str, Any]) -> None:
        """See `TaskContext.checkpoint`."""
        text = _object_text(value)
        with self._lock:
            self._tell(text)

    def enqueue(
        self, handler: str | Callable[..., Any] | None, payload: Any, name: str | None, options: FollowUpOptions
    ) -> None:
        """See `TaskContext.enqueue`."""
        trace = current_trace() or self._trace
        self._ask(follow_ups.task(self._key, self._name(name), handler, payload, options, trace))

    def emit(self, event: str, fields: dict[str, Any] | None) -> None:
        """See `TaskContext.emit`."""
        self._ask(follow_ups.event(self._name(None), event, fields))

    def output(self, name: str, data: Any, media_type: str | None) -> None:
        """See `TaskContext.output`."""
        if self._outputs is None:
            raise ArgumentError("Outputs cannot be kept where this handler runs.", hint="docs/outputs.md says where.")
        if self._over:
            raise attempt_over()
        link = self._outputs.write(name, data, media_type, lambda: self._over)
        with self._lock:
            if not self._over:
                self.asked = True
                self._send(pack(_encode([[OUTPUT, self._number, *link]]).encode()))

    def extend(self, by_us: int) -> int:
        """The attempt wants to go on for so long; until when it may, microseconds since the epoch."""
        now, boot = both_us()
        ran_us = boot - self._begun_us
        asked_ms = min(-(-(ran_us + by_us) // 1000), self._longest_ms)
        with self._lock:
            if asked_ms > self._timeout_ms and not self._over:
                self._timeout_ms = asked_ms
                self._send(pack(_encode([[EXTEND, self._number, asked_ms]]).encode()))
                if self._extended is not None:
                    self._extended(asked_ms)
            return now + max(0, self._timeout_ms * 1000 - ran_us)

    def _name(self, name: str | None) -> str:
        if name is not None:
            return follow_ups.checked_name(name)
        with self._lock:
            self._unnamed += 1
            return f"#{self._unnamed}"

    def _ask(self, one: FollowUp) -> None:
        with self._lock:
            if self._over:
                raise ArgumentError("The attempt is over.", hint="Ask before the handler returns.")
            if not self._follow_ups.add(one):
                raise ArgumentError(
                    f"The attempt asks for more than {MAX_FOLLOW_UPS} follow-ups, or for too large ones.",
                    hint=f"Together they may have {MAX_FOLLOW_UP_CHARS} characters. Let one of them ask for others.",
                    reason="too_large",
                )
            self.asked = True
            self._send(pack(_encode([[FOLLOW_UP, self._number, *one]]).encode()))

    def end(self) -> None:
        """The call has ended: tells what is left to tell, and nothing after that."""
        with self._lock:
            if self._untold is not None:
                self._tell(None)
            self._over = True

    def _tell(self, checkpoint: str | None) -> None:
        if not self._over:
            progress, note = self._untold, self._untold_note
            self._untold = self._untold_note = None
            self._send(pack(_encode([[NOTE, self._number, progress, checkpoint, note]]).encode()))


def _object_text(value: object) -> str:
    if not isinstance(value, dict):
        raise ArgumentError(f"A checkpoint is a dict, not a {type(value).__name__}.", hint='Such as {"row": 7}.')
    try:
        text = kept_text(value)
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"The checkpoint cannot be kept: {error}.", hint="Pass dict, list, str, int, finite float, bool."
        ) from None
    size = size_of(text)
    if size > MAX_CHECKPOINT_BYTES:
        raise ArgumentError(
            f"The checkpoint has {size} bytes; {MAX_CHECKPOINT_BYTES} are kept.",
            hint="Store it elsewhere, and pass where.",
        )
    return text
