"""Defaults that settings share with records, arguments, rules and executors: each stands here once.

A default that only the settings know stands in `config.settings`.
"""

from __future__ import annotations

from typing import Final

DEFAULT_QUEUE: Final = "default"
RETRIES: Final = 100  # attempts after the first
MOST_RETRIES: Final = 2**31 - 1  # what the tables' columns can count
RETRY_BASE: Final = "20s"
RETRY_CAP: Final = "2m"
GRACE: Final = "10s"
RETENTION: Final = "14d"
MIN_CHILDREN: Final = 2
MAX_CHILDREN: Final = 16
SPARK_SLOTS: Final = 2
