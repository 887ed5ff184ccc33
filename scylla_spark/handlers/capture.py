"""What handlers print: lines for the logs of attempts, and on demand the last of it as one text."""

from __future__ import annotations

import io
import sys
from typing import Final

from scylla_spark.handlers.log_ring import LogMemory
from scylla_spark.handlers.log_writer import LogWriter, keep_records
from scylla_spark.handlers.messages import TaskRow

CAPTURE_CHARS: Final = 64 * 1024


class Output:
    """Stands in for stdout and stderr of a process that runs handlers.

    Args:
        wants_text: whether the last 64 Ki characters of a call are kept as one text.

    Attributes:
        out: in place of sys.stdout.
        err: in place of sys.stderr.
    """

    def __init__(self, *, wants_text: bool) -> None:
        self._tail = _Tail() if wants_text else None
        self._writer: LogWriter | None = None
        self.out = Capture(self, "stdout", 1)
        self.err = Capture(self, "stderr", 2)

    def keep_lines(self, log_fd: int) -> None:
        """Hands the lines of handlers and their logging records to the dispatcher from now on.

        Args:
            log_fd: see `LogMemory.create_fd`.
        """
        self._writer = LogWriter(LogMemory(log_fd))
        keep_records(self._writer, (self.out, self.err))

    def put_in_place(self) -> None:
        """Makes what code prints come here."""
        sys.stdout, sys.stderr = self.out, self.err

    def begin(self, row: TaskRow) -> None:
        """A call begins.

        Args:
            row: its task, or the first of its batch.
        """
        self.put_in_place()
        if self._writer is not None:
            self._writer.begin(row)

    def end(self) -> str:
        """The call has ended; the last that it printed, if that is wanted."""
        if self._writer is not None:
            self._writer.end()
        return self._tail.take() if self._tail is not None else ""

    def written(self, stream: str, text: str) -> None:
        """Something was printed.

        Args:
            stream: stdout or stderr.
            text: any.
        """
        if self._writer is not None:
            self._writer.text(stream, text)
        if self._tail is not None:
            self._tail.add(text)


class Capture(io.TextIOBase):
    """Stands in for one of sys.stdout and sys.stderr.

    Args:
        output: takes what is written.
        stream: stdout or stderr.
        fd: what `fileno` answers, so that subprocesses inherit a real descriptor (which leads to /dev/null).
    """

    def __init__(self, output: Output, stream: str, fd: int) -> None:
        super().__init__()
        self._output = output
        self._stream = stream
        self._fd = fd
        self.buffer = _BytesSide(self)

    def writable(self) -> bool:
        """Always."""
        return True

    def fileno(self) -> int:
        """The process's real stdout or stderr."""
        return self._fd

    def write(self, text: str, /) -> int:
        """Takes the text.

        Raises:
            TypeError: it is no text.
        """
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        self._output.written(self._stream, text)
        return len(text)


class _Tail:
    """The last 64 Ki characters of what was added."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._chars = 0
        self._dropped = False

    def add(self, text: str) -> None:
        self._pieces.append(text[-CAPTURE_CHARS:])
        self._chars += len(self._pieces[-1])
        if len(text) > CAPTURE_CHARS or self._chars > 2 * CAPTURE_CHARS:
            self._dropped = True
            self._keep_tail()

    def take(self) -> str:
        """What was added since the last `take`: its tail, with a mark in front if the head was dropped."""
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
