"""Where log lines go: one JSON object per line, on standard error or in a file; never on standard output."""

from __future__ import annotations

import logging
import sys

import structlog

from scylla_spark.config import Log
from scylla_spark.visible import visible_lines


def configure(log: Log) -> None:
    """Sets up logging for this process; for processes of ours only, not for notebooks.

    Args:
        log: level and file.
    """
    target = log.file.open("a", buffering=1) if log.file is not None else None
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, log.level.upper())),
        logger_factory=lambda *_: structlog.WriteLogger(target or sys.stderr),  # as it is then, should it be replaced
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(target or sys.stderr)
    handler.setFormatter(_Visible("%(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.ERROR, force=True)


class _Visible(logging.Formatter):
    """What libraries log may quote data; our own lines are JSON, which escapes it."""

    def format(self, record: logging.LogRecord) -> str:
        return visible_lines(super().format(record))
