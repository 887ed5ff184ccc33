"""The bound of connections, and the choice of an idle one that is closed for a new one."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from typing import Protocol


class ClosableConnection(Protocol):
    """An open connection."""

    def close_for_newcomer(self) -> None:
        """Closes the connection, because a new one needs its place."""


class ConnectionLimit:
    """The open connections, in total and by address, with the idle ones in the order in which they became idle.

    A new connection takes the place of the one that has been idle for longest, so idle connections keep no client out. The cost of a call
    does not depend on the number of connections, and memory is bounded by `most`.

    Args:
        most: connections at once.
        most_of_one: connections of one address at once.
    """

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most, self._most_of_one = most, most_of_one
        self._addresses: dict[ClosableConnection, str] = {}
        self._of_one: Counter[str] = Counter()
        self._idle: OrderedDict[ClosableConnection, None] = OrderedDict()
        self._idle_of: defaultdict[str, OrderedDict[ClosableConnection, None]] = defaultdict(OrderedDict)

    def admit(self, newcomer: ClosableConnection, address: str) -> bool:
        """Adds a connection that has no request yet, and closes an idle one if there would be too many.

        Args:
            newcomer: the connection.
            address: of its client.

        Returns:
            False if every connection that could be closed has a request under way.
        """
        if self._of_one[address] >= self._most_of_one:
            admitted = self._end_first(self._idle_of[address])
        else:
            admitted = len(self._addresses) < self._most or self._end_first(self._idle)
        if admitted:
            self._addresses[newcomer] = address
            self._of_one[address] += 1
            self.mark_idle(newcomer)
        self._tidy(address)
        return admitted

    def mark_idle(self, connection: ClosableConnection) -> None:
        """Marks a connection as idle. An unknown one is ignored."""
        if (address := self._addresses.get(connection)) is not None:
            self._idle[connection] = self._idle_of[address][connection] = None

    def mark_busy(self, connection: ClosableConnection) -> None:
        """Marks a connection as busy: it has a request under way."""
        if (address := self._addresses.get(connection)) is not None:
            self._idle.pop(connection, None)
            self._idle_of[address].pop(connection, None)
            self._tidy(address)

    def remove(self, connection: ClosableConnection) -> None:
        """Removes a closed connection. An unknown one is ignored."""
        self.mark_busy(connection)
        if (address := self._addresses.pop(connection, None)) is not None:
            self._of_one[address] -= 1
            self._tidy(address)

    def _end_first(self, idle: OrderedDict[ClosableConnection, None]) -> bool:
        if not idle:
            return False
        first = next(iter(idle))
        self.remove(first)
        first.close_for_newcomer()
        return True

    def _tidy(self, address: str) -> None:
        """Drops empty entries, because clients choose the addresses."""
        if not self._of_one[address]:
            del self._of_one[address]
        if not self._idle_of[address]:
            del self._idle_of[address]
