"""What a worker holds, what it has to say, and what its next call is: pure, without threads, clocks and sockets."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from scylla_spark.core.leases.messages import CANCELLED, LOST, OK, UNAVAILABLE, folded
from scylla_spark.core.tasks.kept_json import size_of
from scylla_spark.worker.lease import Lease
from scylla_spark.worker.report_json import item_text

_log = logging.getLogger(__name__)
MOST_ITEMS: Final = 1_000  # results, and signs of life, that one call may carry
MOST_BYTES: Final = 512 * 1024  # of both; servers take a mebibyte


class Call(NamedTuple):
    """One call.

    Attributes:
        sequence: its number.
        body: JSON.
        results: tokens of the leases whose end it reports, in order.
        signs: tokens of those that it tells of, in order, and what.
        lists: it lists all leases.
        wait_ms: how long the server may hold it.
    """

    sequence: int
    body: bytes
    results: tuple[str, ...]
    signs: tuple[tuple[str, dict[str, str]], ...]
    lists: bool
    wait_ms: int

    @property
    def may_be_overtaken(self) -> bool:
        """Returns True if nothing is missed if the server takes the next call in its place."""
        return not (self.results or self.signs or self.lists)


class News(NamedTuple):
    """What an answer brought.

    Attributes:
        leases: new ones.
        again: something was not taken, for now.
    """

    leases: Sequence[Lease]
    again: bool


class Ledger:
    """All that passes between a worker and the server.

    Args:
        session: names this run of the worker.
        about: JSON text of what it says of itself.
    """

    def __init__(self, session: str, about: str) -> None:
        self._session = session
        self._about = about
        self._sequence = 0
        self._held: dict[str, Lease] = {}
        self._reports: dict[str, str] = {}  # token → text, until the server has answered it; the oldest first
        self._signs: dict[str, dict[str, str]] = {}
        self._list = False
        self._most = 2 * MOST_ITEMS  # of what is said in one call; fewer while it is found out what of it is refused

    @property
    def held(self) -> Collection[Lease]:
        """All leases whose end the server does not know yet."""
        return self._held.values()

    @property
    def unsaid(self) -> int:
        """Returns how many reports the server has not answered."""
        return len(self._reports)

    @property
    def signs(self) -> bool:
        """Returns True if there is something to tell of leases that go on."""
        return bool(self._signs)

    def beat_ms(self, most: int) -> int:
        """Returns how soon the next call has to follow, at most `most`."""
        return min([most, *(lease.beat_ms for lease in self._held.values())])

    # -- what the code of the worker says ---------------------------------------------------------------------------------

    def report(self, lease: Lease, text: str) -> None:
        """A lease ends."""
        self._signs.pop(lease.token, None)
        if lease.token in self._held:
            self._reports[lease.token] = text
        else:
            lease.settle(lease.status or LOST)

    def sign(self, lease: Lease, fields: dict[str, str]) -> None:
        """A lease goes on; newer values replace older ones."""
        if lease.token in self._held:
            self._signs[lease.token] = self._signs.get(lease.token, {}) | fields

    # -- calls ------------------------------------------------------------------------------------------------------------

    def call(self, wants: Sequence[Mapping[str, Any]], wait_ms: int) -> Call:
        """The next call.

        Args:
            wants: what the worker has room for.
            wait_ms: how long the server may hold it, if it says nothing that wants an answer: behind one that does, and is held,
                whatever comes next would wait, for ever on a network that breaks more often than calls are answered.
        """
        self._sequence += 1
        results = dict(_portion(self._reports.items(), min(self._most, MOST_ITEMS)))
        signs = {token: fields for token, fields in self._signs.items() if token not in results}
        texts = ((token, item_text(lease=token, raw=fields)) for token, fields in signs.items())
        told = dict(_portion(texts, min(self._most - len(results), MOST_ITEMS)))
        kept = [token for token in self._held if token not in results]
        held: dict[str, Any] = {"count": len(kept), "digest": f"{folded(kept):08x}"}
        if self._list:
            held = {"count": len(kept), "leases": kept}
        if results or told or self._list:
            wait_ms = 0
        body = item_text(
            seq=self._sequence,
            session=self._session,
            want=wants,
            wait_ms=wait_ms,
            held=held,
            raw={"results": _array(results.values()), "progress": _array(told.values()), "self": self._about},
        )
        lists, self._list = self._list, False
        taken = tuple((token, self._signs.pop(token)) for token in told)
        return Call(self._sequence, body.encode(), tuple(results), taken, lists, wait_ms)

    def take(self, call: Call, answer: Mapping[str, Any], sent_us: int, new: Sequence[Lease]) -> News:
        """Returns what the server answered.

        Args:
            call: that it answered.
            answer: the document.
            sent_us: when the call was sent, on the boot clock.
            new: the leases in it.
        """
        statuses = [one["status"] for one in answer["accepted"]]
        self._most = min(2 * self._most, 2 * MOST_ITEMS)
        for lease in self._held.values():
            lease.kept(sent_us)
        again = False
        for token, status in zip(call.results, statuses, strict=False):
            again |= self._result(token, status)
        for (token, fields), status in zip(call.signs, statuses[len(call.results) :], strict=False):
            again |= self._signed(token, fields, status)
        self._obey(answer)
        for lease in new:
            if lease.token:
                self._held[lease.token] = lease
        return News(new, again)

    def refused(self, call: Call, why: str) -> bool:
        """The server does not take a call as it is; True: the next one may be better.

        Of several things that it says one is to blame, which is found by saying half as many: a report fails then, and a sign is
        dropped, without any other having to do with it.
        """
        said = len(call.results) + len(call.signs)
        if said != 1:
            self._most = max(said // 2, 1)
            self.unheard(call)
            return said > 1
        self._list = self._list or call.lists
        return self._report_refused(call.results[0], why) if call.results else self._sign_refused(call.signs[0][0], why)

    def unheard(self, call: Call) -> None:
        """A call was not taken: what it said is said again, before anything else."""
        self._list = self._list or call.lists
        again = {token: fields | self._signs.get(token, {}) for token, fields in call.signs if token in self._held}
        self._signs = again | {token: fields for token, fields in self._signs.items() if token not in again}

    def close(self) -> None:
        """Nothing will be said any more: all that is held is lost."""
        for lease in list(self._held.values()):
            lease.settle(LOST if not lease.reported else "")
        self._held.clear()
        self._reports.clear()
        self._signs.clear()

    # -- below: answers ---------------------------------------------------------------------------------------------------

    def _result(self, token: str, status: str) -> bool:
        if status == UNAVAILABLE:
            return True
        self._reports.pop(token, None)
        lease = self._held.pop(token, None)
        if lease is not None:
            lease.settle(status)
        return False

    def _signed(self, token: str, fields: dict[str, str], status: str) -> bool:
        lease = self._held.get(token)
        if lease is None or status == OK:
            return False
        if status == UNAVAILABLE:
            self._signs[token] = fields | self._signs.get(token, {})
            return True
        self._gone(token, cancelled=status == CANCELLED)
        return False

    def _report_refused(self, token: str, why: str) -> bool:
        known = self._reports.get(token)
        text = item_text(code="report_refused", description=f"The server refused the report: {why}")
        self._reports[token] = item_text(lease=token, outcome="failed", raw={"error": text})
        return known is None or '"report_refused"' not in known

    def _sign_refused(self, token: str, why: str) -> bool:
        lease = self._held.get(token)
        if lease is not None:
            lease.forget_checkpoint()  # or its end would be refused with it
            _log.warning("the server refuses what was told of %s while it ran: %s", lease.task.key, why)
        return True

    def _obey(self, answer: Mapping[str, Any]) -> None:
        for command in answer["commands"]:
            if command["type"] == "cancel":
                self._gone(command["lease"], cancelled=True)
            elif command["type"] == "list_leases":
                self._list = True
        for token in answer["lost"]:
            self._gone(token, cancelled=False)

    def _gone(self, token: str, *, cancelled: bool) -> None:
        self._reports.pop(token, None)
        self._signs.pop(token, None)
        lease = self._held.pop(token, None)
        if lease is not None:
            lease.end(cancelled=cancelled)


def _portion(items: Any, most: int) -> Iterator[tuple[str, str]]:
    """As many as one call may carry; if it may carry any, one at least."""
    size = 0
    for number, (token, text) in enumerate(items):
        size += size_of(text)
        if number >= most or (number and size > MOST_BYTES // 2):
            return
        yield token, text


def _array(texts: Any) -> str:
    return "[" + ",".join(texts) + "]"
