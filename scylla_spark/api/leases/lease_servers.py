"""The way to the lease servers of all dispatchers: one connection to each, which carries the calls of all workers."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any, Final

import anyio
import anyio.to_thread

from scylla_spark.api.leases.pending_calls import PendingCalls, current_call
from scylla_spark.client.connection import Connection
from scylla_spark.client.tasks.explain import ask
from scylla_spark.core.leases.messages import (
    LOST,
    UNAVAILABLE,
    Answer,
    Call,
    LeasedLine,
    Report,
    Scarcity,
    partition_of_token,
)
from scylla_spark.core.records.desk_messages import (
    ANSWER,
    CALL,
    CALLER,
    DRAIN_SPARK_WORKER,
    HELLO,
    HURRY,
    LEAVE,
    LINES,
    MAX_LINE_BYTES,
    ORDER,
    OUTPUT,
    PING,
    PONG,
    QUEUE,
    SPARK_WORKERS,
    TOLD,
    VERSION,
    WELCOME,
    WORKERS,
    Handshake,
    line,
    read_answer,
    read_line,
)
from scylla_spark.core.tasks.output import OutputLink
from scylla_spark.core.tasks.task import YIELDED
from scylla_spark.errors import SchedulerError, UnreachableError
from scylla_spark.log import get_logger

log = get_logger("api")

_TURN_S: Final = 0.02
_CALM_S: Final = 0.1  # a turn of the loop that is no later than this was kept by nothing
_MOST_TURNS: Final = 20  # more than a call takes from its first byte to its first wait, however long each is
_BODY_TURNS: Final = 100  # for bodies of calls that have begun: two seconds, or longer where the loop is busy
_HAND_ON_S: Final = 25.0  # for calls that wait here; the lease server waits for 30 s
_PATIENCE_S: Final = 10.0  # beyond the time that a call may wait by itself
_LOOK_S: Final = 2.0  # between two looks at who owns what, while somebody is missing …
_KNOWN_S: Final = (
    10.0  # … and while each partition had an owner at the last look: a new dispatcher may have taken some since
)


class _PendingAnswer(asyncio.Future[Any]):
    """The answer to a question, when it arrives.

    Args:
        number: of the question.
    """

    def __init__(self, number: int) -> None:
        super().__init__(loop=asyncio.get_running_loop())
        self.number = number


class LeaseServerConnection:
    """One connection to the lease server of a dispatcher.

    Args:
        reader: what comes.
        writer: what goes.
        address: of the desk.
        pending: calls of workers that have come to this process.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str, pending: PendingCalls
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._address = address
        self._pending = pending
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._given_up: set[int] = (
            set()
        )  # numbers of calls without a session and a name to whose answers nobody listens any more
        self._unsent: list[bytes] = []
        self._pongs: set[asyncio.Task[None]] = set()
        self._task = asyncio.create_task(self._listen())

    @classmethod
    async def open(cls, address: str, secret: str, pending: PendingCalls | None = None) -> LeaseServerConnection:
        """Connects, and proves to know the secret.

        Args:
            address: of the desk.
            secret: that all know.
            pending: calls of workers that have come to this process; None: no others than `call` is given.

        Raises:
            UnreachableError: nobody listens, or it is not a lease server of this deployment.
        """
        host, _, port = address.rpartition(":")
        try:
            opening = asyncio.open_connection(host, int(port), limit=MAX_LINE_BYTES)
            reader, writer = await asyncio.wait_for(opening, _PATIENCE_S)
        except (OSError, ValueError, TimeoutError) as error:
            raise _silent(address, error) from None
        try:
            known = await asyncio.wait_for(_greeted(reader, writer, address, secret), _PATIENCE_S)
        except (OSError, ValueError, TimeoutError) as error:
            writer.close()
            raise _silent(address, error) from None
        if not known:
            writer.close()
            raise UnreachableError(f"The server at {address} is not a lease server of this deployment.")
        return cls(reader, writer, address, pending or PendingCalls())

    @property
    def alive(self) -> bool:
        """Returns whether the connection is open."""
        return not self._task.done()

    def call(self, call: Call) -> asyncio.Future[Answer]:
        """The answer to a call of a worker; its `until_us` is how long it may wait, in microseconds.

        Who cancels it hears nothing: what was leased for it without a session goes back as soon as the answer is there; a session
        or a request that calls again is given it again.
        """
        number, answer = self._expect()
        answer.add_done_callback(lambda done: self._give_up(number, call) if done.cancelled() else None)
        self._say(line(CALL, call._replace(number=number)))
        current_call().was_said_to(self._address)
        return answer

    def hurry(self, answer: asyncio.Future[Answer]) -> None:
        """A call is to be answered now, with what there is."""
        if isinstance(answer, _PendingAnswer) and self.alive:
            self._say(line(HURRY, [answer.number]))

    def give_back(self, answer: Answer) -> None:
        """Gives back what was leased without a session."""
        tokens = [lease.token for lease in answer.leases if lease.token]
        if tokens and self.alive:
            number, returned = self._expect()
            returned.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody waits for it
            self._say(line(CALL, Call(number, "", reports=tuple(Report(token, YIELDED) for token in tokens))))

    def _give_up(self, number: int, call: Call) -> None:
        self._waiting.pop(number, None)
        if self.alive:
            if not (call.session or call.request) and call.wants:
                self._given_up.add(number)
            self._say(line(HURRY, [number]))

    async def ask(self, kind: str, *values: Any) -> Any:
        """The answer to another question.

        Raises:
            UnreachableError: it does not come in time.
        """
        number, answer = self._expect()
        self._say(line(kind, number, *values))
        current_call().was_said_to(self._address)
        try:
            return await asyncio.wait_for(answer, _PATIENCE_S)
        except TimeoutError:
            raise too_slow() from None
        finally:
            self._waiting.pop(number, None)

    def close(self) -> None:
        """Lets go of it."""
        self._task.cancel()
        self._writer.close()

    def _expect(self) -> tuple[int, _PendingAnswer]:
        if not self.alive:
            raise UnreachableError("The dispatcher has closed the connection.", hint="Repeat the call in a moment.")
        number = next(self._numbers)
        answer = self._waiting[number] = _PendingAnswer(number)
        return number, answer

    def _say(self, text: bytes) -> None:
        """Writes at the end of this turn of the loop: calls that come together go together."""
        self._unsent.append(text)
        if len(self._unsent) == 1:
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        if not self._writer.is_closing():
            self._writer.write(b"".join(unsent))

    async def _listen(self) -> None:
        try:
            while text := await self._reader.readline():
                kind, *values = read_line(text)
                if kind == ANSWER:
                    self._hear(read_answer(values[0]))
                elif kind == TOLD:
                    self._tell(values[0], values[1])
                elif kind == PING:
                    pong = asyncio.create_task(self._pong(values[0]))
                    self._pongs.add(pong)
                    pong.add_done_callback(self._pongs.discard)
        except (OSError, ValueError) as error:
            log.warning("the connection to a lease server ended", why=repr(error)[:300])
        finally:
            self._writer.close()
            waiting, self._waiting = self._waiting, {}
            for future in waiting.values():
                if not future.done():
                    future.set_exception(
                        UnreachableError(
                            "The dispatcher has closed the connection.", hint="Repeat the call in a moment."
                        )
                    )

    async def _pong(self, number: Any) -> None:
        """Says when all calls that had come before were handed on."""
        await self._has_read()
        await self._has_handed_on()
        if self.alive:
            self._say(line(PONG, number))

    async def _has_read(self) -> None:
        """Waits until all requests that had come have begun: for a turn of the loop that nothing has kept, or many others.

        When this process was busy, it finds the question of the lease server and the calls of workers together, and may read the
        question first.
        """
        clock = asyncio.get_running_loop().time
        for _ in range(_MOST_TURNS):
            before = clock()
            await asyncio.sleep(_TURN_S)
            if clock() - before <= _TURN_S + _CALM_S:
                break

    async def _has_handed_on(self) -> None:
        """Waits for those that are here and that the lease server may yet be told of: they may wait for tokens, owners, or other desks.

        One that waits for its client is not waited for longer than some turns: whoever sends a byte now and then would keep leases
        of dead workers in force. It is turns that count, and not the time, of which this process may have had none.
        """
        clock = asyncio.get_running_loop().time
        until, here, turns = clock() + _HAND_ON_S, self._pending.now(self._address), 0
        while clock() < until:
            here = [
                call
                for call in here
                if call.concerns(self._address) and (turns < _BODY_TURNS or not call.waits_for_body)
            ]
            if not here:
                break
            await asyncio.sleep(_TURN_S)
            turns += 1

    def _hear(self, answer: Answer) -> None:
        if answer.number in self._given_up:
            self._given_up.discard(answer.number)
            self.give_back(answer)
        else:
            self._tell(answer.number, answer)

    def _tell(self, number: int, value: Any) -> None:
        future = self._waiting.pop(number, None)
        if future is not None and not future.done():
            future.set_result(value)


async def _greeted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str, secret: str) -> bool:
    """Returns True if both ends know the secret; one of another version is an error."""
    greeting = await reader.readline()
    if not greeting:
        raise ConnectionError("it closed the connection at once; too many clients are connected to it")
    _, version, nonce = read_line(greeting)
    if version != VERSION:
        raise ConnectionError(
            f"it speaks version {version} of its protocol, and this API version {VERSION}; run one version of scylla-spark on both"
        )
    both = Handshake(address, str(nonce), secrets.token_hex(16))
    writer.write(line(HELLO, both.proof(secret, CALLER), both.caller))
    welcome = await reader.readline()
    if not welcome:
        raise ConnectionError(
            "it closed the connection: the secrets differ, the address is not its own, or too many unknown clients are connected"
        )
    kind, said = read_line(welcome)
    return kind == WELCOME and both.proves(said, secret, WELCOME)


def too_slow() -> UnreachableError:
    """A dispatcher does not answer."""
    return UnreachableError("The dispatcher does not answer in time.", hint="Repeat the call. Nothing is lost.")


def _silent(address: str, error: Exception) -> UnreachableError:
    return UnreachableError(
        f"The lease server at {address} does not answer: {error!r}.",
        hint="Is desk.secret the same for dispatchers and the API, and desk.host reachable from here?",
    )


class LeaseServers:
    """The lease servers of all dispatchers, and which partitions are whose.

    Args:
        connection: to the deployment.
        secret: what all lease servers know.

    Attributes:
        pending: calls of workers that have come to this process.
    """

    def __init__(self, connection: Connection, secret: str) -> None:
        self.pending = PendingCalls()
        self._connection = connection
        self._secret = secret
        self._open: dict[str, LeaseServerConnection] = {}
        self._opening: dict[str, asyncio.Lock] = {}
        self._owners: dict[int, str] = {}  # partition → address of the lease server
        self._looked = 0.0
        self._looking = asyncio.Lock()
        self._threads = anyio.CapacityLimiter(2)  # of their own: a worker's call waits for nobody's list of tasks
        self._renewing: asyncio.Task[None] | None = None

    @property
    def partitions(self) -> int:
        """The number of partitions."""
        return self._connection.rules.partitions

    async def owners(self, *, again: bool = False) -> dict[int, str]:
        """Partition → address of the lease server of its owner; partitions without an owner that answers are missing.

        What is known is told at once, and renewed behind that: a worker would never hear of a task of an owner that nobody looked for.

        Args:
            again: look first, unless that was done a moment ago.
        """
        clock = asyncio.get_running_loop().time
        if not self._owners or again:
            async with self._looking:
                if not self._owners or clock() - self._looked > _LOOK_S:
                    self._owners = await anyio.to_thread.run_sync(self._look, limiter=self._threads)
                    self._looked = clock()
        patience = _LOOK_S if len(self._owners) < self.partitions else _KNOWN_S
        if clock() - self._looked > patience and (self._renewing is None or self._renewing.done()):
            self._renewing = asyncio.create_task(self._renew())
        return self._owners

    async def _renew(self) -> None:
        self._looked = asyncio.get_running_loop().time()
        with contextlib.suppress(SchedulerError):  # whoever calls next and needs to know is told
            found = await anyio.to_thread.run_sync(self._look, limiter=self._threads)
            self._owners = found or self._owners  # if Kafka does not answer, nobody has moved as far as is known

    def _look(self) -> dict[int, str]:
        partitions = self._connection.rules.partitions
        addresses = {number: self._connection.owner_address(number) for number in range(partitions)}
        desks: dict[str, str] = {}
        for address in set(addresses.values()):
            told = ask(address, "status") if address else None
            desk = told.get("desk") if told is not None else None
            if isinstance(desk, str) and desk:
                desks[address] = desk
        return {number: desks[address] for number, address in addresses.items() if address in desks}

    async def at(self, address: str) -> LeaseServerConnection:
        """The connection to a desk.

        Raises:
            UnreachableError: it does not answer.
        """
        async with self._opening.setdefault(address, asyncio.Lock()):
            known = self._open.get(address)
            if known is None or not known.alive:
                try:
                    known = self._open[address] = await LeaseServerConnection.open(address, self._secret, self.pending)
                except UnreachableError:
                    self._owners = {}
                    raise
            return known

    async def all(self) -> list[str]:
        """Addresses of all lease servers; at least one.

        Raises:
            UnreachableError: nobody owns anything.
        """
        found = sorted(set((await self.owners()).values())) or sorted(set((await self.owners(again=True)).values()))
        if not found:
            raise UnreachableError(
                "No dispatcher answers.", hint="Start `scylla-spark up`, or `scylla-spark run dispatch`."
            )
        return found

    async def workers(self) -> list[dict[str, Any]]:
        """All workers, as each lease server that answers tells of them.

        Raises:
            UnreachableError: none answers.
        """
        return [one for some in _heard(await self._ask_all(WORKERS)) for one in some]

    async def spark_workers(self) -> tuple[list[dict[str, Any]], list[str]]:
        """All Spark workers, and why there is none at dispatchers that miss one.

        Raises:
            UnreachableError: no lease server answers.
        """
        told = _heard(await self._ask_all(SPARK_WORKERS))
        return [row for one in told for row in one["workers"]], [why for one in told for why in one["missing"]]

    async def drain_spark_worker(self, worker: str) -> bool:
        """A Spark worker is to take nothing more and to end; whether any lease server knows it.

        Raises:
            UnreachableError: none that answers knows it, and one does not answer.
        """
        return await self._known_to_any(DRAIN_SPARK_WORKER, worker)

    async def scarcity(self, queue: str) -> Scarcity:
        """Returns what a queue has for workers, summed over all lease servers that answer. `oldest_us` is an age.

        Raises:
            UnreachableError: none answers.
        """
        return together([Scarcity(*one) for one in _heard(await self._ask_all(QUEUE, queue))])

    async def leave(self, worker: str, session: str) -> int:
        """A session of a worker ends; how many leases it gave back.

        Raises:
            UnreachableError: a lease server does not answer, and may hold leases for it still.
        """
        told = await self._ask_all(LEAVE, worker, session)
        for one in told:
            if isinstance(one, UnreachableError):
                raise one
        return sum(told)

    async def order(self, worker: str, order: str) -> bool:
        """A worker is to drain or to stop; whether any lease server knows it.

        Raises:
            UnreachableError: none that answers knows it, and one does not answer.
        """
        return await self._known_to_any(ORDER, worker, order)

    async def _known_to_any(self, kind: str, *values: Any) -> bool:
        told = await self._ask_all(kind, *values)
        if any(one is True for one in told):
            return True
        for one in told:
            if isinstance(one, UnreachableError):
                raise one
        return False

    async def _ask_all(self, kind: str, *values: Any) -> list[Any]:
        """Returns the answer of each lease server, or its error."""

        async def ask(address: str) -> Any:
            try:
                return await (await self.at(address)).ask(kind, *values)
            except UnreachableError as error:
                return error

        return await asyncio.gather(*map(ask, await self.all()))

    async def output(self, token: str, link: OutputLink | None) -> dict[str, Any] | str:
        """A worker leaves a file behind, or asks whether it may; see `LeaseReports.output`.

        Args:
            token: of its lease.
            link: to the file; None: it is not stored yet.

        Raises:
            UnreachableError: the owner does not answer.
        """
        found: dict[str, Any] | str = await self._ask_owner(token, OUTPUT, link)
        return found

    async def lines(self, token: str, lines: Sequence[LeasedLine]) -> str:
        """A worker tells what its attempt has written: OK, or why nothing was taken.

        Args:
            token: of its lease.
            lines: in order.

        Raises:
            UnreachableError: the owner does not answer.
        """
        return str(await self._ask_owner(token, LINES, lines))

    async def _ask_owner(self, token: str, kind: str, value: object) -> Any:
        """Asks the owner of the partition of a lease."""
        number = partition_of_token(token)
        if number is None or number >= self.partitions:
            return LOST
        address = (await self.owners()).get(number) or (await self.owners(again=True)).get(number)
        if address is None:
            return UNAVAILABLE
        return await (await self.at(address)).ask(kind, token, value)

    def close(self) -> None:
        """Lets go of all."""
        for connection in self._open.values():
            with contextlib.suppress(RuntimeError):
                connection.close()


def _heard(told: Iterable[Any]) -> list[Any]:
    """Returns the answers without the errors.

    Raises:
        UnreachableError: nothing was.
    """
    all_told = list(told)
    answers = [one for one in all_told if not isinstance(one, UnreachableError)]
    if not answers:
        raise all_told[0]
    return answers


def together(told: Iterable[Scarcity]) -> Scarcity:
    """Merges the answers of several lease servers about one queue. Nothing limits the queue while one of them has tasks to give."""
    all_told = list(told)
    ages = [one.oldest_us for one in all_told if one.oldest_us is not None]
    limits = [one.limit for one in all_told if one.limit]
    ready, gives = sum(one.ready for one in all_told), any(one.ready and not one.limit for one in all_told)
    return Scarcity(all_told[0].queue, ready, max(ages, default=None), limits[0] if limits and not gives else "")
