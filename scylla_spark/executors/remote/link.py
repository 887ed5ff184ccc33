"""Numbered and acknowledged frames: a connection that breaks and is made again loses nothing and repeats nothing."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from scylla_spark.handlers.framing import ProtocolError

UNNUMBERED: Final = 0
"""The number of a frame that nobody misses if it is lost, such as a heartbeat."""
_MOST_NUMBER: Final = 1 << 62


class Link:
    """One end of a conversation that may take several connections.

    A frame on the wire is `[number, ack, body]`: its number from 1, the last number that this end has received, and a JSON value.

    Attributes:
        received: number of the last frame that the other end sent and this one took.
        acknowledged: number of the last frame that the other end has taken, as far as it was heard.
    """

    def __init__(self) -> None:
        self.received = 0
        self.acknowledged = 0
        self._next = 1
        self._written = 0  # the last frame that was handed out for this connection
        self._unacknowledged: deque[tuple[int, Any]] = deque()

    @property
    def sent(self) -> int:
        """Number of the last frame that was put into the queue."""
        return self._next - 1

    @property
    def waiting(self) -> int:
        """Returns how many frames the other end has not acknowledged."""
        return len(self._unacknowledged)

    def send(self, body: Any) -> None:
        """Puts a frame into the queue; it stays there until it is acknowledged."""
        self._unacknowledged.append((self._next, body))
        self._next += 1

    def unnumbered(self, body: Any) -> list[Any]:
        """A frame that is sent once, and not again after a break."""
        return [UNNUMBERED, self.received, body]

    def take(self) -> list[list[Any]]:
        """The frames that were not written to this connection yet."""
        frames = [[number, self.received, body] for number, body in self._unacknowledged if number > self._written]
        self._written = self._next - 1
        return frames

    def reconnected(self, their_received: int) -> None:
        """A new connection: what the other end does not have is written again.

        Args:
            their_received: number of the last frame that the other end has taken.

        Raises:
            ProtocolError: it cannot have taken that.
        """
        self._acknowledge(their_received)
        self._written = their_received

    def receive(self, frame: Any) -> Any:
        """The body of a frame, or None if it was received before.

        Raises:
            ProtocolError: it is no frame, one before it is missing, or it acknowledges what was not sent.
        """
        if type(frame) is not list or len(frame) != 3:
            raise ProtocolError("a frame that is no list of a number, an acknowledgement and a body")
        number, ack, body = frame
        if not all(type(one) is int and 0 <= one <= _MOST_NUMBER for one in (number, ack)) or body is None:
            raise ProtocolError("a frame without a number, an acknowledgement or a body")
        self._acknowledge(ack)
        if number == UNNUMBERED:
            return body
        if number <= self.received:
            return None
        if number != self.received + 1:
            raise ProtocolError(f"frame {number} after frame {self.received}")
        self.received = number
        return body

    def _acknowledge(self, number: int) -> None:
        if number >= self._next:
            raise ProtocolError(f"an acknowledgement of frame {number}, which was not sent")
        self.acknowledged = max(self.acknowledged, number)
        while self._unacknowledged and self._unacknowledged[0][0] <= number:
            self._unacknowledged.popleft()
