"""What handlers print: kept up to a limit, thrown away beyond it."""

from __future__ import annotations

import io
from typing import Final

CAPTURE_CHARS: Final = 64 * 1024


class Capture(io.TextIOBase):
    """Stands in for sys.stdout and sys.stderr and remembers the last 64 Ki characters.

    Args:
        fd: what `fileno` answers, so that subprocesses inherit a real descriptor (which leads to /dev/null).
    """

    def __init__(self, fd: int = 1) -> None:
        super().__init__()
        self._fd = fd
        self._pieces: list[str] = []
        self._chars = 0
        self._dropped = False
        self.buffer = _BytesSide(self)

    def writable(self) -> bool:
        """Always."""
        return True

    def fileno(self) -> int:
        """The process's real stdout or stderr."""
        return self._fd

    def write(self, text: str, /) -> int:
        """Keeps the text, or its tail if there is too much of it.

        Raises:
            TypeError: it is no text.
        """
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        self._pieces.append(text[-CAPTURE_CHARS:])
        self._chars += len(self._pieces[-1])
        if len(text) > CAPTURE_CHARS or self._chars > 2 * CAPTURE_CHARS:
            self._dropped = True
            self._keep_tail()
        return len(text)

    def take(self) -> str:
        """What was written since the last `take`: its tail, with a mark in front if the head was dropped."""
        if not self._pieces:
            return ""
        self._dropped = self._dropped or self._chars > CAPTURE_CHARS
        self._keep_tail()
        text = self._pieces[0]
        if self._dropped:
            text = "[…] " + text
        self._pieces, self._chars, self._dropped = [], 0, False
        return text

    def _keep_tail(self) -> None:
        tail = "".join(self._pieces)[-CAPTURE_CHARS:]
        self._pieces, self._chars = [tail], len(tail)


class _BytesSide(io.RawIOBase):
    """`sys.stdout.buffer` for code that writes bytes."""

    def __init__(self, text: Capture) -> None:
        super().__init__()
        self._text = text

    def writable(self) -> bool:
        return True

    def write(self, data: object, /) -> int:
        piece = bytes(data)  # type: ignore[call-overload]
        self._text.write(piece.decode(errors="replace"))
        return len(piece)
