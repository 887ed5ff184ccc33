"""Defaults and bounds that settings share with records, arguments, rules, definitions and executors: each stands here once.

A default that only the settings know is in `config.settings`.
"""

from __future__ import annotations

from typing import Final

DEFAULT_QUEUE: Final = "default"
API_PORT: Final = 8080
RETRIES: Final = 100  # attempts after the first
MOST_RETRIES: Final = 2**31 - 1  # what the tables' columns can count
RETRY_BASE: Final = "20s"
RETRY_CAP: Final = "2m"
GRACE: Final = "10s"
RETENTION: Final = "14d"
MIN_CHILDREN: Final = 2
MAX_CHILDREN: Final = 16
GROUP_SEPARATOR: Final = ":"
LONGEST_RUN_S: Final = 86_400.0
LEASE: Final = "10s"
LONG_RUN_US: Final = 1_000_000  # an attempt that runs longer gets a fact of its start
MAX_RUN: Final = "1h"
MOST_AT_ONCE: Final = 2**31 - 1  # what the tables' columns can hold
LEAST_RATE: Final = 1e-6  # starts per second: one in eleven days …
MOST_RATE: Final = 1e9  # … to a thousand in a microsecond; beyond, no clock could tell them apart
MOST_WEIGHT: Final = 1_000
MOST_WEIGHTED: Final = 1_000  # groups of one queue
MOST_GROUP_CHARS: Final = 1_024  # as an ordering id
DIGEST: Final = "5m"
STORE_TIMEOUT: Final = "30s"  # of a request to an object store
NOTIFY_QUEUE: Final = "_notify"  # where notifications are tasks
NOTIFY_HANDLER: Final = "scylla.notify"  # what sends them
