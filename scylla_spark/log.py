"""Sends log lines to their place.

In processes of ours that is standard error or a file: plain lines on a terminal, else one JSON object per line.
In another process, such as a notebook, they go to `logging`, below the logger `scylla_spark`, whose level is WARNING unless
it is set. Where that process has configured structlog, they go where it says.
"""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO, cast

import structlog

from scylla_spark.clock import boot_us
from scylla_spark.visible import visible, visible_lines

if TYPE_CHECKING:
    from scylla_spark.config.settings import Log

_SELDOM_US = 10_000_000
_LIBRARY: Final = logging.getLogger("scylla_spark")
if _LIBRARY.level == logging.NOTSET:
    _LIBRARY.setLevel(logging.WARNING)


def get_logger(name: str) -> Any:
    """The logger of one part of this package, with the methods of structlog's loggers.

    Args:
        name: of the part; `logging` has it below `scylla_spark`.
    """
    return _Logger(name)


class _Logger:
    """Decides at each line where it goes: a process is configured after its modules are imported."""

    def __init__(self, name: str) -> None:
        self._ours = structlog.get_logger(name)
        self._library = structlog.wrap_logger(
            logging.getLogger(f"{_LIBRARY.name}.{name}"),
            processors=[structlog.contextvars.merge_contextvars, _as_text],
            wrapper_class=structlog.stdlib.BoundLogger,
        )

    def __getattr__(self, method: str) -> Any:
        return getattr(self._ours if structlog.is_configured() else self._library, method)


def _as_text(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> tuple[tuple[str], Mapping[str, Any]]:
    """A line as people read it, and its error as `logging` takes it."""
    words = [str(event.pop("event"))]
    error = {"exc_info": event.pop("exc_info")} if "exc_info" in event else {}
    words += [f"{name}={value}" for name, value in event.items()]
    return (visible(" ".join(words)),), error


class _Lines(io.TextIOBase):
    """Takes log lines and never raises: a full disk costs lines, not the work that they describe.

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
        log: format, level and file.
    """
    plain = log.format == "plain" or (log.format == "auto" and log.file is None and sys.stderr.isatty())
    target = cast(TextIO, _Lines(log.file))
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
            structlog.processors.format_exc_info,
            _plain_line if plain else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, log.level.upper())),
        logger_factory=lambda *_: structlog.WriteLogger(target),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(target)
    handler.setFormatter(_Visible("%(message)s"))
    handler.addFilter(_Seldom("kafka"))
    logging.basicConfig(handlers=[handler], level=logging.ERROR, force=True)


def _plain_line(_logger: object, _name: str, event: structlog.typing.EventDict) -> str:
    """An event for people: UTC time, level, what happened, and the rest as name=value."""
    at, level, stack = str(event.pop("at"))[11:19], event.pop("level"), event.pop("exception", "")
    pairs = " ".join(f"{name}={value}" for name, value in event.items() if name != "event" and value is not None)
    shown = "" if level == "info" else f"{level}: "
    return visible_lines(
        "\n".join(filter(None, (f"{at} {shown}{event['event']}" + (f"  {pairs}" if pairs else ""), stack)))
    )


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
    """Escapes lines of libraries, which may quote data; our own lines are JSON."""

    def format(self, record: logging.LogRecord) -> str:
        if (
            record.name.startswith("kafka.") and record.exc_info
        ):  # a broker that goes is no defect: its error, without the stack
            record = copy.copy(record)
            record.msg, record.args = f"{record.getMessage()}: {record.exc_info[1]!r}", ()  # type: ignore[index]
            record.exc_info = record.exc_text = None
        return visible_lines(super().format(record))
