"""Which instants a record may name: those that every reader of the topics and tables can hold.

Readers with nanosecond clocks (pandas, Arrow) end in the year 2262, and Python's datetimes in 9999. Tasks that are due before 1970
would be refused as too old in any case, so the range begins with the epoch and no instant is negative.
"""

from __future__ import annotations

from typing import Final

EARLIEST_US: Final = 0  # 1970-01-01T00:00:00Z
LATEST_US: Final = 9_214_646_400_000_000  # 2262-01-01T00:00:00Z, the first instant that is too late


def is_storable(us: int) -> bool:
    """Whether an instant (microseconds since the epoch) lies in the range."""
    return EARLIEST_US <= us < LATEST_US
