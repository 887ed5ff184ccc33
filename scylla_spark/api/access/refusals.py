"""Requests without a token that holds: of each address one a minute is written down, the others are counted."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

_MINUTE_US: Final = 60_000_000
_MOST: Final = 1_000  # addresses; all beyond are one
_OTHERS: Final = ""


class Refusals:
    """Counts of refused requests by address, for use by one event loop."""

    def __init__(self) -> None:
        self._begun: OrderedDict[str, tuple[int, int]] = OrderedDict()  # since when, how many were not written down

    def counted(self, address: str, now: int) -> int | None:
        """Counts one; how many were not written down before this one, or None: this one need not be, either.

        Args:
            address: of the client.
            now: microseconds of a clock that never steps.
        """
        while self._begun and now - next(iter(self._begun.values()))[0] >= 2 * _MINUTE_US:
            self._begun.popitem(last=False)
        if address not in self._begun and len(self._begun) >= _MOST:
            address = _OTHERS
        since, unsaid = self._begun.get(address, (now - _MINUTE_US, 0))
        if now - since < _MINUTE_US:
            self._begun[address] = since, unsaid + 1
            return None
        self._begun[address] = now, 0
        self._begun.move_to_end(address)
        return unsaid
