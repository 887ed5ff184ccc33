"""What handlers print and log becomes lines of the logs of their attempts."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from scylla_spark.handlers.log_lines import LineWriter


class Output:
    """Takes the place of stdout and stderr of a process that runs handlers.

    Args:
        shown: the streams to which all is handed on; None: it is not, and subprocesses inherit descriptors 1 and 2.

    Attributes:
        out: in place of sys.stdout.
        err: in place of sys.stderr.
    """

    def __init__(self, shown: tuple[Any, Any] | None = None) -> None:
        self._writer: LineWriter | None = None
        out, err = shown or (_Nowhere(1), _Nowhere(2))
        self.out = _Stream(self, "stdout", out)
        self.err = _Stream(self, "stderr", err)

    def keep_lines(self, writer: LineWriter, *, choose_level: bool = True) -> logging.Handler:
        """Hands what handlers print, and their logging records, to a writer from now on.

        Handlers of the root logger that would print the same on our streams are taken off.

        Args:
            writer: of lines.
            choose_level: whether records from info on are kept where nobody has chosen a level.

        Returns:
            What the root logger has got.
        """
        self._writer = writer
        root, keeper = logging.getLogger(), _Records(writer, self.err)
        ours = [
            one for one in root.handlers if type(one) is logging.StreamHandler and one.stream in (self.out, self.err)
        ]
        if choose_level and not root.handlers and root.level == logging.WARNING:
            root.setLevel(logging.INFO)
        for one in ours:
            root.removeHandler(one)
        root.addHandler(keeper)
        return keeper

    def put_in_place(self) -> None:
        """Makes what code prints come here."""
        sys.stdout, sys.stderr = self.out, self.err

    def written(self, stream: str, text: str) -> None:
        """Something was printed.

        Args:
            stream: stdout or stderr.
            text: any.
        """
        if self._writer is not None:
            self._writer.text(stream, text)


@contextmanager
def hearing(writer: LineWriter, *, choose_level: bool = False) -> Iterator[LineWriter]:
    """Yields what is printed and logged in this process meanwhile goes to a writer, and where it always went.

    Args:
        writer: of lines.
        choose_level: see `Output.keep_lines`.
    """
    before = sys.stdout, sys.stderr
    output = Output(before)
    keeper = output.keep_lines(writer, choose_level=choose_level)
    output.put_in_place()
    try:
        yield writer
    finally:
        logging.getLogger().removeHandler(keeper)
        if (sys.stdout, sys.stderr) == (output.out, output.err):  # else somebody has taken the place meanwhile
            sys.stdout, sys.stderr = before


class _Stream:
    """In place of a text stream; all but writing is the stream's own."""

    def __init__(self, output: Output, stream: str, shown: Any) -> None:
        self._output, self._stream, self.shown = output, stream, shown

    def write(self, text: str, /) -> int:
        """Writes to the logs, and to the stream itself.

        Raises:
            TypeError: it is no text.
        """
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        self._output.written(self._stream, text)
        self.shown.write(text)
        return len(text)

    def writelines(self, texts: Iterable[str], /) -> None:
        """Writes one after the other."""
        for text in texts:
            self.write(text)

    def write_bytes(self, data: Any, /) -> int:
        """Writes what may be bytes of a text to the logs, and to the stream itself."""
        self.shown.buffer.write(data)
        self._output.written(self._stream, bytes(data).decode(errors="replace"))
        return len(data)

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Writes what is buffered; the stream stays open for the calls that come after."""
        self.shown.flush()

    @property
    def buffer(self) -> _Bytes:
        """For code that writes bytes."""
        return _Bytes(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.shown, name)


class _Bytes:
    """The bytes' side of a stream. A `TextIOWrapper` that a call puts around it closes it when it is collected."""

    def __init__(self, text: _Stream) -> None:
        self.write, self.close, self._shown = text.write_bytes, text.close, text.shown.buffer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shown, name)


class _Nowhere(io.TextIOBase):
    """A stream that keeps nothing, of text and of bytes. Its descriptor is a real one, for subprocesses."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd
        self.buffer = self

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def write(self, text: Any, /) -> int:
        return len(text)


class _Records(logging.Handler):
    """Takes what code says through `logging`, as records with a level and fields instead of text on a stream.

    Args:
        writer: of lines.
        err: in place of stderr; warnings are shown there as `logging` does by itself, where nobody has chosen otherwise.
    """

    def __init__(self, writer: LineWriter, err: _Stream) -> None:
        super().__init__()
        self._writer = writer
        self._err = err
        self.setFormatter(logging.Formatter("%(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps a record; one that cannot be formatted is shown as `logging` does, on stderr."""
        try:
            text = self.format(record)
            self._writer.record(record, text)
            if record.levelno >= logging.WARNING and logging.getLogger().handlers == [self]:
                self._err.shown.write(text + "\n")
        except Exception:
            self.handleError(record)
