"""Calls of workers, shared out among the desks of all dispatchers, and the answers put together again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from scylla_spark.core.lease import LOST, UNAVAILABLE, Answer, Call, Report, Sign, partition_of_token
from scylla_spark.errors import UnreachableError
from scylla_spark.services.api.desks import Desks, together

_PATIENCE_S: Final = 10.0


class LeaseCalls:
    """Brings each part of a call to the desk that it concerns.

    Args:
        desks: of all dispatchers.
    """

    def __init__(self, desks: Desks) -> None:
        self._desks = desks

    async def call(self, call: Call) -> Answer:
        """The answer of all desks to a call; its `until_us` is how long it may wait, in microseconds.

        Raises:
            UnreachableError: no desk answers.
        """
        addresses = await self._desks.all()
        owners = await self._desks.owners()
        if any(partition_of_token(token) not in owners for token in _tokens(call)):
            owners = await self._desks.owners(again=True)
            addresses = await self._desks.all()
        if len(addresses) == 1:
            return await self._single(addresses[0], call, owners)
        return await self._several(addresses, call, owners)

    async def _single(self, address: str, call: Call, owners: dict[int, str]) -> Answer:
        strange = {token for token in _tokens(call) if partition_of_token(token) not in owners}
        if not strange:
            return await self._ask(address, call)
        part = _part(call, lambda token: token not in strange)
        return _merged(call, [(part, await self._ask(address, part))], owners)

    async def _several(self, addresses: Sequence[str], call: Call, owners: dict[int, str]) -> Answer:
        """Everyone hears what concerns it; what is wanted is asked of all, and whoever has it first ends the waiting of the others."""
        parts = {
            address: _part(call, lambda token, address=address: owners.get(partition_of_token(token) or -1) == address)  # type: ignore[misc]
            for address in addresses
        }
        quick = {address: part._replace(until_us=0) for address, part in parts.items()}
        answers = await self._all(quick)
        done = any(answer.leases or answer.lost or answer.cancelled or answer.refusal for _, answer in answers)
        if done or not call.wants or call.until_us <= 0 or call.reports or not call.session:
            return _merged(call, answers, owners)
        return _merged(call, answers, owners)

    async def _all(self, parts: dict[str, Call]) -> list[tuple[Call, Answer]]:
        async def one(address: str, part: Call) -> tuple[Call, Answer]:
            try:
                return part, await self._ask(address, part)
            except UnreachableError:
                count = len(part.reports) + len(part.signs)
                return part, Answer(part.number, (UNAVAILABLE,) * count)

        return list(await asyncio.gather(*[one(address, part) for address, part in parts.items()]))

    async def _ask(self, address: str, call: Call) -> Answer:
        desk = await self._desks.at(address)
        try:
            answer: Answer = await asyncio.wait_for(desk.call(call), call.until_us / 1e6 + _PATIENCE_S)
        except TimeoutError:
            raise UnreachableError("The dispatcher does not answer in time.", hint="Call again; nothing is lost.") from None
        return answer


def _tokens(call: Call) -> list[str]:
    return [item.token for item in (*call.reports, *call.signs)] + list(call.held or ())


def _part(call: Call, ours: object) -> Call:
    """What of a call concerns the owner of some tokens."""
    mine = ours
    assert callable(mine)
    return call._replace(
        reports=tuple(report for report in call.reports if mine(report.token)),
        signs=tuple(sign for sign in call.signs if mine(sign.token)),
        held=None if call.held is None else tuple(token for token in call.held if mine(token)),
    )


def _merged(call: Call, answers: Sequence[tuple[Call, Answer]], owners: dict[int, str]) -> Answer:
    """One answer of several; statuses in the order of the whole call."""
    found: dict[Report | Sign, str] = {}
    for part, answer in answers:
        found |= dict(zip((*part.reports, *part.signs), answer.statuses, strict=False))
    known = {item: LOST if partition_of_token(item.token) is None else UNAVAILABLE for item in (*call.reports, *call.signs)}
    statuses = tuple((known | found)[item] for item in (*call.reports, *call.signs))
    first = answers[0][1] if answers else Answer(call.number)
    digest = 0
    for _, answer in answers:
        digest ^= answer.digest
    queues = {queue.queue: [] for _, answer in answers for queue in answer.queues}  # type: ignore[var-annotated]
    for _, answer in answers:
        for queue in answer.queues:
            queues[queue.queue].append(queue)
    return first._replace(
        statuses=statuses,
        leases=tuple(lease for _, answer in answers for lease in answer.leases),
        lost=tuple(token for _, answer in answers for token in answer.lost),
        cancelled=tuple(token for _, answer in answers for token in answer.cancelled),
        held=sum(answer.held for _, answer in answers),
        digest=digest,
        queues=tuple(map(together, queues.values())),
        refusal=next((answer.refusal for _, answer in answers if answer.refusal), ""),
    )
