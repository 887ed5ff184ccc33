"""How many connections there is room for, and which of them makes way for a new one."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from typing import Protocol


class Guest(Protocol):
    """An open connection."""

    def make_way(self) -> None:
        """Ends, because another one needs its place."""


class Room:
    """The connections that are open, in all and by address, and those that have no request under way, by how long.

    A newcomer takes the place of whoever has been longest without a request, so no number of idle connections keeps
    anybody out. Each call costs the same however many there are, and what is kept is bounded by `most`.

    Args:
        most: connections at once.
        most_of_one: connections of one address at once.
    """

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most, self._most_of_one = most, most_of_one
        self._addresses: dict[Guest, str] = {}
        self._of_one: Counter[str] = Counter()
        self._idle: OrderedDict[Guest, None] = OrderedDict()
        self._idle_of: defaultdict[str, OrderedDict[Guest, None]] = defaultdict(OrderedDict)

    def take(self, newcomer: Guest, address: str) -> bool:
        """Takes a connection that has no request yet, and ends an idle one if it would be one too many.

        Args:
            newcomer: the connection.
            address: of its client.

        Returns:
            Whether it has a place. It has none if all others that could make way have a request under way.
        """
        if self._of_one[address] >= self._most_of_one:
            placed = self._end_first(self._idle_of[address])
        else:
            placed = len(self._addresses) < self._most or self._end_first(self._idle)
        if placed:
            self._addresses[newcomer] = address
            self._of_one[address] += 1
            self.rest(newcomer)
        self._tidy(address)
        return placed

    def rest(self, guest: Guest) -> None:
        """A connection has no request under way from now on; one that was not taken, or has left, is passed over."""
        if (address := self._addresses.get(guest)) is not None:
            self._idle[guest] = self._idle_of[address][guest] = None

    def work(self, guest: Guest) -> None:
        """A connection has a request under way."""
        if (address := self._addresses.get(guest)) is not None:
            self._idle.pop(guest, None)
            self._idle_of[address].pop(guest, None)
            self._tidy(address)

    def leave(self, guest: Guest) -> None:
        """A connection is over; one that is not known is passed over."""
        self.work(guest)
        if (address := self._addresses.pop(guest, None)) is not None:
            self._of_one[address] -= 1
            self._tidy(address)

    def _end_first(self, idle: OrderedDict[Guest, None]) -> bool:
        if not idle:
            return False
        first = next(iter(idle))
        self.leave(first)
        first.make_way()
        return True

    def _tidy(self, address: str) -> None:
        """Forgets what is empty, because addresses come from outside."""
        if not self._of_one[address]:
            del self._of_one[address]
        if not self._idle_of[address]:
            del self._idle_of[address]
