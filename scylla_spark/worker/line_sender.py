"""Brings lines of attempts to the server, some twice a second, from a thread that nobody waits for long."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from scylla_spark.clock import boot_us
from scylla_spark.core.leases.messages import MOST_LINES, LeasedLine
from scylla_spark.errors import SchedulerError, UnreachableError

HEAD_BYTES: Final = 256 * 1024
TAIL_BYTES: Final = 768 * 1024
LINE_BYTES: Final = 8 * 1024
LINE_COSTS: Final = 64  # with a line of text go its number, its time and its stream
_SENT_BYTES: Final = 128 * 1024
_EVERY_S: Final = 0.5
_LAST_US: Final = 5_000_000

Send = Callable[[Sequence[LeasedLine]], object]
"""Brings lines to the server; raises UnreachableError where it may be tried again, other errors of ours where it may not."""


class LineSender:
    """The lines of one attempt, on their way.

    Args:
        send: brings them to the server.
        take: what is to be sent next, in order; called in the sender's thread.
    """

    def __init__(self, send: Send, take: Callable[[], Iterable[LeasedLine]]) -> None:
        self._send = send
        self._take = take
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="attempt-lines", daemon=True)

    def start(self) -> None:
        """Begins to send.

        Raises:
            RuntimeError: no thread can be started.
        """
        self._thread.start()

    def end(self) -> None:
        """There will be no more; waits until what there is was sent, but for seconds at most."""
        self._ended.set()
        if self._thread.ident is not None:  # else it could not be started
            self._thread.join(_LAST_US / 1e6 + 1)

    def _run(self) -> None:
        until = None
        while True:
            ended = self._ended.wait(_EVERY_S)
            lines = list(self._take())
            if ended:
                until = until or boot_us() + _LAST_US
                if not lines or boot_us() > until:
                    return
            if not self._sent(lines):
                return

    def _sent(self, lines: Iterable[LeasedLine]) -> bool:
        """Sends lines; whether more could be sent."""
        for some in _portions(lines):
            try:
                self._send(some)
            except UnreachableError:
                continue  # what is told next shows that these are missing
            except SchedulerError:
                return False
        return True


def _portions(lines: Iterable[LeasedLine]) -> Iterator[list[LeasedLine]]:
    """As many lines at a time as one request takes."""
    some, size = list[LeasedLine](), 0
    for line in lines:
        some.append(line)
        size += len(line.text) + LINE_COSTS
        if len(some) >= MOST_LINES or size >= _SENT_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some
