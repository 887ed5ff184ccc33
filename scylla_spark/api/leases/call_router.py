"""Calls of workers, shared out among the lease servers of all dispatchers, and the answers put together again."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from operator import xor
from typing import Any, Final, NamedTuple

from scylla_spark.api.leases.lease_servers import LeaseServerConnection, LeaseServers, together, too_slow
from scylla_spark.api.leases.pending_calls import current_call
from scylla_spark.core.leases.messages import (
    LOST,
    UNAVAILABLE,
    Answer,
    Call,
    Report,
    Scarcity,
    Sign,
    folded,
    partition_of_token,
)
from scylla_spark.core.tasks.task import YIELDED
from scylla_spark.errors import UnreachableError

_PATIENCE_S: Final = 10.0
_OPENING_S: Final = (
    2.0  # for the way to a lease server, once all others have answered: the worker's next call waits for that
)
_TURN_S: Final = 0.1  # between two rounds in which nobody had anything


class _Part(NamedTuple):
    """The part of a call for one lease server, and its answer."""

    address: str
    call: Call
    answer: Answer
    unheard: bool = False  # it did not answer, or was not certain


class _Round:
    """Asks several lease servers, each as soon as the way to it is open.

    Args:
        parts: address of a lease server → what it is asked.
        way: begins to make the way to one; None: it does not answer.
    """

    def __init__(
        self, parts: Mapping[str, Call], way: Callable[[str], asyncio.Task[LeaseServerConnection | None]]
    ) -> None:
        self._parts = parts
        self._opening = {way(address): address for address in parts}
        self._addresses: dict[asyncio.Future[Answer], str] = {}
        self._hurries = False
        self.asked: dict[asyncio.Future[Answer], LeaseServerConnection] = {}

    async def heard(self, wait_s: float) -> Mapping[str, Answer]:
        """Returns the answers in time, by address. When one lease server has tasks, the others are asked to answer at once.

        Args:
            wait_s: how long desks may wait for something to say.
        """
        while waiting := self._waiting():
            done, _ = await asyncio.wait(waiting, timeout=self._patience_s(wait_s), return_when=asyncio.FIRST_COMPLETED)
            if not done:
                break
            self._ask()
            if wait_s and not self._hurries and any(map(_says_something, _results(self.asked).values())):
                self._hurry()
        return {self._addresses[answer]: told for answer, told in _results(self.asked).items()}

    def _patience_s(self, wait_s: float) -> float:
        if self.asked and all(answer.done() for answer in self.asked):
            return _OPENING_S
        return _PATIENCE_S if self._hurries else wait_s + _PATIENCE_S

    def _waiting(self) -> set[asyncio.Future[Any]]:
        return {*self._opening, *(answer for answer in self.asked if not answer.done())}

    def _ask(self) -> None:
        """Asks those to which the way is open now."""
        for opened in [one for one in self._opening if one.done()]:
            address, desk = self._opening.pop(opened), opened.result()
            if desk is not None:
                part = self._parts[address]
                with contextlib.suppress(UnreachableError):  # it has died in this moment
                    answer = desk.call(part._replace(until_us=0) if self._hurries else part)
                    self.asked[answer], self._addresses[answer] = desk, address

    def _hurry(self) -> None:
        self._hurries = True
        for answer, desk in self.asked.items():
            if not answer.done():
                desk.hurry(answer)


class LeaseCalls:
    """Brings each part of a call to the lease server that it concerns.

    Args:
        desks: of all dispatchers.
    """

    def __init__(self, desks: LeaseServers) -> None:
        self._desks = desks
        self._ways: set[asyncio.Task[LeaseServerConnection | None]] = set()
        self._giving: set[asyncio.Task[None]] = set()

    async def call(self, call: Call) -> Answer:
        """The answer of all lease servers to a call; its `until_us` is how long it may wait, in microseconds.

        Who cancels it, because nobody listens any more, loses nothing: what was leased without a session goes back at once.

        Raises:
            UnreachableError: no lease server answers.
        """
        addresses = await self._desks.all()
        owners = await self._desks.owners()
        if any(partition_of_token(token) not in owners for token in _tokens(call)):
            owners = await self._desks.owners(again=True)
            addresses = await self._desks.all()
        if len(addresses) == 1 and len(owners) == self._desks.partitions:
            return await self._ask(addresses[0], call)
        if call.request and call.wants:
            told = await self._all(addresses, call._replace(wants=(), until_us=0), owners)
            known = _merged(call, told)
            if known.known:
                return await self._without_surplus(call, known)  # it was answered before, and that answer was lost
            if any(part.unheard for part in told):  # it may have been that one that answered it
                return known._replace(refusal=known.refusal or UNAVAILABLE)
        if any(want.lease_ms == 0 for want in call.wants):
            return await self._in_turn(addresses, call, owners)
        return await self._several(addresses, call, owners)

    async def _several(self, addresses: Sequence[str], call: Call, owners: dict[int, str]) -> Answer:
        """Everyone hears what concerns it, and is asked for its share; who has something first ends the waiting of the others."""
        wants = tuple(want._replace(most=-(-want.most // len(addresses))) for want in call.wants)
        shared = call._replace(until_us=0 if call.reports else call.until_us, wants=wants)
        return await self._without_surplus(call, _merged(call, await self._all(addresses, shared, owners)))

    async def _in_turn(self, addresses: Sequence[str], call: Call, owners: dict[int, str]) -> Answer:
        """Whoever has something gives it, and nobody else is asked: what ends with being handed over could not be given back."""
        clock = asyncio.get_running_loop().time
        until = clock() + (0 if call.reports else call.until_us / 1e6)
        parts = await self._all(addresses, call._replace(wants=(), until_us=0), owners)
        if any(_says_something(part.answer) for part in parts):
            return _merged(call, parts)  # what an answer told that was lost, too: the rest is for the next call
        wanted = call._replace(until_us=0, reports=(), signs=(), held=None)
        while True:
            for address in random.sample(addresses, len(addresses)):
                with contextlib.suppress(UnreachableError):
                    parts.append(_Part(address, wanted, await self._ask(address, wanted)))
                if _says_something(parts[-1].answer):
                    return _merged(call, parts)
            if clock() >= until:
                return _merged(call, parts)
            await asyncio.sleep(_TURN_S)

    async def _all(self, addresses: Sequence[str], call: Call, owners: dict[int, str]) -> list[_Part]:
        """Asks all lease servers for their parts. When one of them has tasks, the others are asked to answer at once."""
        of_token = {token: _owner(owners, token) for token in _tokens(call)}
        parts = {address: _part(call, _spoken_for(of_token, address)) for address in addresses}
        current_call().goes_to(addresses)
        found = await self._heard(call, parts)
        if not found:
            raise too_slow()
        return [_told(address, part, found.get(address)) for address, part in parts.items()]

    async def _heard(self, call: Call, parts: Mapping[str, Call]) -> Mapping[str, Answer]:
        """Returns the answers in time, by address. If the call is cancelled, its leases go back."""
        asking = _Round(parts, self._way)
        try:
            return await asking.heard(call.until_us / 1e6)
        except BaseException:
            _give_back(call, asking.asked)
            raise
        finally:
            current_call().end()
            for answer in asking.asked:
                answer.cancel()

    def _way(self, address: str) -> asyncio.Task[LeaseServerConnection | None]:
        """Begins to open a connection, which whoever calls next has use for, too."""
        way = asyncio.create_task(self._desk(address))
        self._ways.add(way)
        way.add_done_callback(self._ways.discard)
        return way

    async def _desk(self, address: str) -> LeaseServerConnection | None:
        with contextlib.suppress(UnreachableError):
            desk = await self._desks.at(address)
            return desk if desk.alive else None
        return None

    async def _without_surplus(self, call: Call, answer: Answer) -> Answer:
        """More than was wanted goes back at once: the least urgent. What has ended with being handed over cannot, and is told."""
        most = sum(want.most for want in call.wants)
        if not call.wants or len(answer.leases) <= most:
            return answer
        leases = sorted(
            answer.leases, key=lambda lease: (bool(lease.token), -lease.task.priority, lease.task.key.time_us)
        )  # as each queue gives them out
        most = max(most, sum(not lease.token for lease in leases))
        surplus = [lease.token for lease in leases[most:]]
        if surplus:
            await self._yield(call.worker, surplus)
        held, digest = answer.held - len(surplus), answer.digest ^ folded(surplus)
        return answer._replace(leases=tuple(leases[:most]), held=held, digest=digest)

    def give_back(self, call: Call, answer: Answer) -> None:
        """Begins to give to others what was leased, because nobody will be told of it; what ended with being handed over cannot be.

        Args:
            call: that was answered.
            answer: to it.
        """
        tokens = [lease.token for lease in answer.leases if lease.token]
        if tokens:
            giving = asyncio.create_task(self._yield(call.worker, tokens))
            self._giving.add(giving)
            giving.add_done_callback(self._giving.discard)

    async def _yield(self, worker: str, tokens: Sequence[str]) -> None:
        with contextlib.suppress(UnreachableError):  # it ends by itself; what is wanted is not lost with it
            await self.call(Call(0, worker, reports=tuple(Report(token, YIELDED) for token in tokens)))

    async def _ask(self, address: str, call: Call) -> Answer:
        current_call().goes_to((address,))
        desk = await self._desks.at(address)
        answer = desk.call(call)
        try:
            await asyncio.wait((answer,), timeout=call.until_us / 1e6 + _PATIENCE_S)
            if answer.done():
                return answer.result()
        except asyncio.CancelledError:
            _give_back(call, {answer: desk})  # it came in the same moment
            raise
        finally:
            answer.cancel()
        raise too_slow()


def _give_back(call: Call, asked: Mapping[asyncio.Future[Answer], LeaseServerConnection]) -> None:
    """Gives back leases without a session from answers that no caller will read."""
    if not (call.session or call.request):
        for answer, told in _results(asked).items():
            asked[answer].give_back(told)


def _tokens(call: Call) -> list[str]:
    return [item.token for item in call.reports] + [item.token for item in call.signs] + list(call.held or ())


def _owner(owners: Mapping[int, str], token: str) -> str | None:
    number = partition_of_token(token)
    return owners.get(number) if number is not None else None


def _says_something(answer: Answer) -> bool:
    """Returns whether an answer must not wait for those of others."""
    told = answer.leases or answer.lost or answer.cancelled or answer.order
    return bool(told or (answer.refusal and answer.refusal != UNAVAILABLE))


def _spoken_for(of_token: Mapping[str, str | None], address: str) -> Callable[[str], bool]:
    return lambda token: of_token[token] == address


def _part(call: Call, ours: Callable[[str], bool]) -> Call:
    """Returns the part of a call for the owner of some tokens."""
    return call._replace(
        reports=tuple(report for report in call.reports if ours(report.token)),
        signs=tuple(sign for sign in call.signs if ours(sign.token)),
        held=None if call.held is None else tuple(token for token in call.held if ours(token)),
    )


def _results(answers: Iterable[asyncio.Future[Answer]]) -> dict[asyncio.Future[Answer], Answer]:
    """Those that have come."""
    come = (one for one in answers if one.done() and not one.cancelled() and one.exception() is None)
    return {one: one.result() for one in come}


def _told(address: str, part: Call, answer: Answer | None) -> _Part:
    """Returns the part of a lease server with its answer. Without a certain answer the part counts as not received."""
    if answer is None or answer.refusal == UNAVAILABLE:
        unheard = (UNAVAILABLE,) * (len(part.reports) + len(part.signs))
        return _Part(address, part, (answer or Answer(part.number))._replace(statuses=unheard), unheard=True)
    return _Part(address, part, answer)


def _merged(call: Call, parts: Sequence[_Part]) -> Answer:
    """One answer of several; statuses in the order of the whole call."""
    found: dict[Report | Sign, str] = {}
    for part in parts:
        found |= dict(zip((*part.call.reports, *part.call.signs), part.answer.statuses, strict=False))
    items: list[Report | Sign] = [*call.reports, *call.signs]
    unheard = {item: LOST if partition_of_token(item.token) is None else UNAVAILABLE for item in items}
    answers = [part.answer for part in parts]
    newest = {part.address: part.answer for part in parts}.values()
    queues: dict[str, list[Scarcity]] = defaultdict(list)
    for answer in newest:
        for queue in answer.queues:
            queues[queue.queue].append(queue)
    refusals = [answer.refusal for answer in newest]
    refusal = next((one for one in refusals if one and one != UNAVAILABLE), "")
    if not refusal and all(refusals):
        refusal = UNAVAILABLE
    return Answer(
        call.number,
        tuple((unheard | found)[item] for item in items),
        tuple(lease for answer in answers for lease in answer.leases),
        tuple(token for answer in answers for token in answer.lost),
        tuple(token for answer in answers for token in answer.cancelled),
        held=sum(answer.held for answer in newest),
        digest=reduce(xor, (answer.digest for answer in newest), 0),
        queues=tuple(map(together, queues.values())),
        refusal=refusal,
        order=max((answer.order for answer in newest), default=""),  # STOP goes before DRAIN
        known=any(answer.known for answer in answers),
    )
