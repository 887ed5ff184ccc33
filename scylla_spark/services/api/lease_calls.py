"""Calls of workers, shared out among the desks of all dispatchers, and the answers put together again."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import xor
from typing import Final

from scylla_spark.core.lease import LOST, UNAVAILABLE, Answer, Call, Report, Scarcity, Sign, folded, partition_of_token
from scylla_spark.core.task import YIELDED
from scylla_spark.errors import UnreachableError
from scylla_spark.services.api.desks import Desks, together

_PATIENCE_S: Final = 10.0
_TURN_S: Final = 0.1  # between two rounds in which nobody had anything


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
        if len(addresses) == 1 and len(owners) == self._desks.partitions:
            return await self._ask(addresses[0], call)
        if any(want.lease_ms == 0 for want in call.wants):
            return await self._in_turn(addresses, call, owners)
        return await self._several(addresses, call, owners)

    async def _several(self, addresses: Sequence[str], call: Call, owners: dict[int, str]) -> Answer:
        """Everyone hears what concerns it, and is asked for its share; who has something first ends the waiting of the others."""
        of_token = {token: _owner(owners, token) for token in _tokens(call)}
        waits = 0 if call.reports else call.until_us
        wants = tuple(want._replace(most=-(-want.most // len(addresses))) for want in call.wants)
        shared = call._replace(until_us=waits, wants=wants)
        parts = {address: _part(shared, _spoken_for(of_token, address)) for address in addresses}
        asked = {asyncio.create_task(self._ask(address, part)): part for address, part in parts.items()}
        answers: list[tuple[Call, Answer]] = []
        pending = set(asked)
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            answers += [(asked[task], _answer_of(task, asked[task])) for task in done]
            if not call.reports and any(_says_something(answer) for _, answer in answers):
                break
        for task in pending:  # the desk gives back what it leased meanwhile, as nobody confirms it
            task.cancel()
        return await self._without_surplus(call, _merged(call, answers))

    async def _in_turn(self, addresses: Sequence[str], call: Call, owners: dict[int, str]) -> Answer:
        """Whoever has something gives it, and nobody else is asked: what ends with being handed over could not be given back."""
        clock = asyncio.get_running_loop().time
        until = clock() + (0 if call.reports else call.until_us / 1e6)
        said = call._replace(wants=(), until_us=0)
        heard = await self._several(addresses, said, owners)
        wanted = call._replace(until_us=0, reports=(), signs=(), held=None)
        while True:
            answers: list[tuple[Call, Answer]] = []
            for address in random.sample(addresses, len(addresses)):
                with contextlib.suppress(UnreachableError):
                    answers.append((wanted, await self._ask(address, wanted)))
                if answers and _says_something(answers[-1][1]):
                    return _merged(call, [(said, heard), *answers])
            if _says_something(heard) or clock() >= until:
                return _merged(call, [(said, heard), *answers])
            await asyncio.sleep(_TURN_S)

    async def _without_surplus(self, call: Call, answer: Answer) -> Answer:
        """More than was wanted goes back at once."""
        most = sum(want.most for want in call.wants)
        surplus = [lease.token for lease in answer.leases[most:] if lease.token]
        if surplus:
            await self.call(Call(0, call.worker, reports=tuple(Report(token, YIELDED) for token in surplus)))
        held, digest = answer.held - len(surplus), answer.digest ^ folded(surplus)
        return answer._replace(leases=answer.leases[:most], held=held, digest=digest)

    async def _ask(self, address: str, call: Call) -> Answer:
        desk = await self._desks.at(address)
        try:
            answer: Answer = await asyncio.wait_for(desk.call(call), call.until_us / 1e6 + _PATIENCE_S)
        except TimeoutError:
            raise UnreachableError(
                "The dispatcher does not answer in time.", hint="Call again; nothing is lost."
            ) from None
        return answer


def _tokens(call: Call) -> list[str]:
    return [item.token for item in call.reports] + [item.token for item in call.signs] + list(call.held or ())


def _owner(owners: Mapping[int, str], token: str) -> str | None:
    number = partition_of_token(token)
    return owners.get(number) if number is not None else None


def _says_something(answer: Answer) -> bool:
    return bool(answer.leases or answer.lost or answer.cancelled or answer.refusal)


def _spoken_for(of_token: Mapping[str, str | None], address: str) -> Callable[[str], bool]:
    return lambda token: of_token[token] == address


def _part(call: Call, ours: Callable[[str], bool]) -> Call:
    """What of a call concerns the owner of some tokens."""
    return call._replace(
        reports=tuple(report for report in call.reports if ours(report.token)),
        signs=tuple(sign for sign in call.signs if ours(sign.token)),
        held=None if call.held is None else tuple(token for token in call.held if ours(token)),
    )


def _answer_of(task: asyncio.Task[Answer], part: Call) -> Answer:
    try:
        return task.result()
    except UnreachableError:
        return Answer(part.number, (UNAVAILABLE,) * (len(part.reports) + len(part.signs)))


def _merged(call: Call, answers: Sequence[tuple[Call, Answer]]) -> Answer:
    """One answer of several; statuses in the order of the whole call."""
    found: dict[Report | Sign, str] = {}
    for part, answer in answers:
        found |= dict(zip((*part.reports, *part.signs), answer.statuses, strict=False))
    items: list[Report | Sign] = [*call.reports, *call.signs]
    unheard = {item: LOST if partition_of_token(item.token) is None else UNAVAILABLE for item in items}
    statuses = tuple((unheard | found)[item] for item in items)
    first = answers[0][1] if answers else Answer(call.number)
    queues: dict[str, list[Scarcity]] = defaultdict(list)
    for _, answer in answers:
        for queue in answer.queues:
            queues[queue.queue].append(queue)
    return first._replace(
        statuses=statuses,
        leases=tuple(lease for _, answer in answers for lease in answer.leases),
        lost=tuple(token for _, answer in answers for token in answer.lost),
        cancelled=tuple(token for _, answer in answers for token in answer.cancelled),
        held=sum(answer.held for _, answer in answers),
        digest=reduce(xor, (answer.digest for _, answer in answers), 0),
        queues=tuple(map(together, queues.values())),
        refusal=next((answer.refusal for _, answer in answers if answer.refusal), ""),
    )
