"""The stream of what happens to tasks, as server-sent events: attempts and ends, in the order of the log of each partition."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, Final

import structlog
from fastapi import Header
from starlette.concurrency import iterate_in_threadpool, run_in_threadpool
from starlette.responses import Response

from scylla_spark.core.key import TaskKey
from scylla_spark.core.records.fact import TOO_LATE, Fact
from scylla_spark.core.scopes import ALL_QUEUES, QueueBounds
from scylla_spark.errors import SchedulerError
from scylla_spark.services.api import problems
from scylla_spark.services.api.context import Api, Asked, Own, answers, iso_us, router
from scylla_spark.services.api.follow.recent_log_records import Happened
from scylla_spark.services.api.follow.stream_positions import Position, positions_text, read_positions
from scylla_spark.services.api.follow.stream_replay import replayed
from scylla_spark.services.api.http.event_stream import MEDIA_TYPE, EventStream
from scylla_spark.services.api.problems import Problem
from scylla_spark.services.api.tasks.views import ErrorView, KeyView, error_view, key_view

log = structlog.get_logger("api")
routes = router()

_QUIET_S: Final = 10.0  # then a comment is sent, so that both sides know of each other
_BEGIN_S: Final = 10.0
_MOST_WAITING: Final = 2_000  # records that a reader may be behind; then it must come back by Last-Event-ID


class EventView(KeyView):
    """What happened to a task; the data of events of type `attempt` and `end`."""

    attempt: int
    outcome: str
    planned_at: str | None
    started_at: str | None
    finished_at: str | None
    next_at: str | None
    result: Any
    error: ErrorView | None


_ANSWER: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "Server-sent events of type `attempt` and `end`, whose data is an EventView",
        "content": {MEDIA_TYPE: {"schema": {"type": "string"}}},
    }
}


@routes.get(
    "/v1/stream", operation_id="follow_what_happens_to_tasks", responses=answers({}, problems.INVALID) | _ANSWER
)
async def stream(
    api: Asked,
    own: Own,
    last_event_id: Annotated[
        str | None, Header(max_length=30_000, description="`id` of the last event that was seen")
    ] = None,
) -> Response:
    """Follow what happens to tasks, from now on or from an event on. At least once: after a break some events come again."""
    partitions = api.scheduler.connection.rules.partitions
    begin = read_positions(last_event_id, partitions) if last_event_id is not None else None
    reader = _Reader(api, begin, own)
    await reader.begin()
    return EventStream(reader.events(), reader.end)


class _Reader:
    """One who follows the stream.

    Args:
        api: to ask through.
        begin: where it begins; None: with now.
        own: of which queues it tells.
    """

    def __init__(self, api: Api, begin: dict[int, Position] | None, own: QueueBounds = ALL_QUEUES) -> None:
        self._api = api
        self._own = own
        self._positions = begin
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Happened] = asyncio.Queue(_MOST_WAITING)
        self._lost = False
        self._first: list[Happened] | None = None
        self._replay: Iterator[Happened] | None = None
        self._room = contextlib.ExitStack()

    async def begin(self) -> None:
        """Begins to listen.

        Raises:
            Problem: too many listen, or the log cannot be read now.
        """
        tail, until = self._api.tail, self._loop.time() + _BEGIN_S
        self._room.enter_context(self._api.waits.room())
        try:
            while not tail.places():
                if self._loop.time() > until:
                    raise Problem(problems.UNREACHABLE, "The log cannot be read now.")
                await asyncio.sleep(0.05)
            if self._positions is None:
                self._positions = {number: Position(*place) for number, place in tail.places().items()}
            wanted = {number: one.offset for number, one in self._positions.items()}
            self._first = tail.since(wanted, self._heard)
            if self._first is None:
                self._begin_in_the_log()
        except BaseException:
            self.end()
            raise

    def _begin_in_the_log(self) -> None:
        """What the memory has let go of is read from the log, up to where the memory begins."""
        assert self._positions is not None
        floor = self._api.tail.floors()
        self._first = self._api.tail.since(floor, self._heard)
        end = {number: max(floor.get(number, 0), one.offset) for number, one in self._positions.items()}
        self._replay = replayed(self._api.scheduler.connection, self._positions, end)

    async def events(self) -> AsyncIterator[bytes]:
        """The text of the stream."""
        try:
            yield b": welcome\nretry: 1000\n\n"
            if self._replay is not None:
                async for one in iterate_in_threadpool(self._replay):
                    yield self._text(await self._seen(one))
            for one in self._first or ():
                if one.offset >= self._offset(one.partition):
                    yield self._text(await self._seen(one))
            self._first = None
            while not (self._lost and self._queue.empty()):
                try:
                    one = await asyncio.wait_for(self._queue.get(), _QUIET_S)
                except TimeoutError:
                    yield b": still here\n\n"
                else:
                    yield self._text(await self._seen(one))
        except Exception as error:
            log.warning("a reader of the stream is let go", why=str(error))

    async def _seen(self, one: Happened) -> Happened:
        """What of a record is in queues of the caller; a fact that does not name its queue is looked up."""
        if self._own == ALL_QUEUES:
            return one
        facts = [fact for fact in one.facts if fact.outcome != TOO_LATE]
        unsaid = [fact.key for fact in facts if fact.queue is None]
        found = await run_in_threadpool(self._queues, unsaid) if unsaid else {}
        return one._replace(facts=tuple(fact for fact in facts if self._own.has(fact.queue or found.get(fact.key))))

    def _queues(self, keys: list[TaskKey]) -> dict[TaskKey, str]:
        queues = {}
        for key in dict.fromkeys(keys):
            with contextlib.suppress(SchedulerError):
                queues[key] = self._api.tasks.status(key).queue
        return queues

    def _offset(self, partition: int) -> int:
        assert self._positions is not None
        return self._positions.get(partition, Position(0)).offset

    def _text(self, one: Happened) -> bytes:
        assert self._positions is not None
        self._positions[one.partition] = Position(one.offset + 1, one.epoch)
        parts = [_event(fact) for fact in one.facts if fact.outcome != TOO_LATE]
        return "".join(
            [*parts[:-1], *(f"id: {positions_text(self._positions)}\n{part}" for part in parts[-1:])]
        ).encode(errors="replace")

    def _heard(self, happened: Happened) -> None:
        """In the tail's thread."""
        with contextlib.suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(self._put, happened)

    def _put(self, happened: Happened) -> None:
        try:
            self._queue.put_nowait(happened)
        except asyncio.QueueFull:
            self._lost = True
            self._api.tail.leave(self._heard)

    def end(self) -> None:
        """Listens no longer."""
        self._api.tail.leave(self._heard)
        self._room.close()


def _event(fact: Fact) -> str:
    data = key_view(fact.key) | {
        "attempt": fact.attempt, "outcome": fact.outcome, "planned_at": iso_us(fact.planned_us or None),
        "started_at": iso_us(fact.started_us or None), "finished_at": iso_us(fact.finished_us or None), "next_at": iso_us(fact.next_us),
        "result": json.loads(fact.result) if fact.result is not None else None, "error": error_view(fact.failure),
    }  # fmt: skip
    return f"event: {'end' if fact.terminal else 'attempt'}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"
