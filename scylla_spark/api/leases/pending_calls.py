"""Calls of workers on their way through this process: from their first bytes until the lease servers that they are for have been told.

Before a dispatcher ends a lease for silence, it asks whether something of the worker is still here: on the way a call may have to wait
for the stored tokens, for the answer to who owns what, or for a connection to another desk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final


class PendingCall:
    """One call; compared by identity.

    Attributes:
        waits_for_body: nothing more is to be done before its client has sent the next piece.
    """

    __slots__ = ("_ended", "_said", "_to", "waits_for_body")

    def __init__(self) -> None:
        self.waits_for_body = False
        self._to: frozenset[str] | None = None  # nobody knows yet
        self._said: set[str] = set()
        self._ended = False

    def goes_to(self, addresses: Iterable[str]) -> None:
        """It is for the lease servers at these addresses, and for no others."""
        self._to = frozenset(addresses)

    def was_said_to(self, address: str) -> None:
        """That lease server has been told what concerns it."""
        self._said.add(address)

    def end(self) -> None:
        """Whatever was not said by now will not be."""
        self._ended = True

    def concerns(self, address: str) -> bool:
        """Returns whether a part of the call may still be for this lease server."""
        return not self._ended and address not in self._said and (self._to is None or address in self._to)


class PendingCalls:
    """All calls of workers that have come to this process, and whose requests have not ended."""

    def __init__(self) -> None:
        self._calls: set[PendingCall] = set()

    @contextmanager
    def begun(self) -> Iterator[PendingCall]:
        """As long as this lasts, a call is on its way; `current_call` is that call."""
        call = PendingCall()
        self._calls.add(call)
        reset = _at_hand.set(call)
        try:
            yield call
        finally:
            _at_hand.reset(reset)
            self._calls.discard(call)
            call.end()

    def now(self, address: str) -> list[PendingCall]:
        """Those of which the lease server at an address may still be told something."""
        return [call for call in self._calls if call.concerns(address)]


_at_hand: Final[ContextVar[PendingCall | None]] = ContextVar("current_call", default=None)


def current_call() -> PendingCall:
    """The call that the request at hand is; one that nobody waits for, where it is none."""
    return _at_hand.get() or PendingCall()
