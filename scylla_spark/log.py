"""Where log lines go: one JSON object per line, on standard error or in a file; never on standard output."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import sys
from pathlib import Path
from typing import TextIO, cast

import structlog

from scylla_spark.clock import boot_us
from scylla_spark.config.settings import Log
from scylla_spark.visible import visible_lines

_SELDOM_US = 10_000_000


class _Lines(io.TextIOBase):
    """Takes log lines and never raises: a full disk costs lines, not the work that they tell of.

    Args:
        path: the file they are appended to; what it does not take, or all without one, goes to standard error.
    """

    def __init__(self, path: Path | None) -> None:
        super().__init__()
        self._file = None if path is None else path.open("ab", buffering=0)

    def write(self, text: str, /) -> int:
        """Appends the text, in one piece."""
        data = text.encode(errors="backslashreplace")
        with contextlib.suppress(OSError):
            if self._file is not None and self._file.write(data) == len(data):
                return len(text)
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)  # as it is now, should it be replaced
        return len(text)


def configure(log: Log) -> None:
    """Sets up logging for this process; for processes of ours only, not for notebooks.

    Args:
        log: level and file.
    """
    target = cast(TextIO, _Lines(log.file))
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, log.level.upper())),
        logger_factory=lambda *_: structlog.WriteLogger(target),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(target)
    handler.setFormatter(_Visible("%(message)s"))
    handler.addFilter(_Seldom("kafka"))
    logging.basicConfig(handlers=[handler], level=logging.ERROR, force=True)


class _Seldom(logging.Filter):
    """Lets each line of a library's source speak once in a while: while a broker is away, its clients repeat themselves for ever."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._told_us: dict[tuple[str, int], int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if not super().filter(record):
            return True  # of others everything
        place, now = (record.pathname, record.lineno), boot_us()
        seldom = now - self._told_us.get(place, -_SELDOM_US) < _SELDOM_US
        if not seldom:
            self._told_us[place] = now
        return not seldom


class _Visible(logging.Formatter):
    """What libraries log may quote data; our own lines are JSON, which escapes it."""

    def format(self, record: logging.LogRecord) -> str:
        if (
            record.name.startswith("kafka.") and record.exc_info
        ):  # a broker that goes is no defect: its error, without the stack
            record = copy.copy(record)
            record.msg, record.args = f"{record.getMessage()}: {record.exc_info[1]!r}", ()  # type: ignore[index]
            record.exc_info = record.exc_text = None
        return visible_lines(super().format(record))
