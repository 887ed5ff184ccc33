"""Ports of the loopback interface that no process listens on."""

import random

from scylla_spark.io.host.broker_files import is_free

# Outgoing connections get their ports above this range, so a chosen port stays free until the test listens on it.
_RANGE = range(20_000, 32_000)


def free_port() -> int:
    """A TCP port that no process listens on."""
    return next(port for port in random.sample(_RANGE, len(_RANGE)) if is_free(port))
