"""The stream of what happens to tasks, as server-sent events: attempts and ends, in the order of the log of each partition."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, Final

from fastapi import Header
from pydantic import BaseModel
from starlette.concurrency import iterate_in_threadpool, run_in_threadpool
from starlette.responses import Response

from scylla_spark.api import problems
from scylla_spark.api.answer_json import answer_json
from scylla_spark.api.context import Api, Asked, Own, Routes, iso_us
from scylla_spark.api.follow.recent_records import OutcomeEvent
from scylla_spark.api.follow.stream_positions import Position, positions_text, read_positions
from scylla_spark.api.follow.stream_replay import Missing, replayed
from scylla_spark.api.http.event_stream import STREAM, EventStream
from scylla_spark.api.problems import Problem
from scylla_spark.api.tasks.views import ErrorView, KeyView, error_view
from scylla_spark.core.access.scopes import ALL_QUEUES, QueueBounds
from scylla_spark.core.records.fact import TOO_LATE, Fact
from scylla_spark.core.tasks.key import TaskKey, key_view
from scylla_spark.errors import SchedulerError
from scylla_spark.log import get_logger

log = get_logger("api")
routes = Routes()

_QUIET_S: Final = 10.0  # then a comment is sent, so that both sides know of each other
_BEGIN_S: Final = 10.0
_MOST_WAITING: Final = 2_000  # records that a reader may be behind; then it must come back by Last-Event-ID …
_MOST_WAITING_BYTES: Final = 16 * 1024 * 1024  # … or bytes of such records, but for the first of them


class MissingView(BaseModel):
    """Records of `outcomes` that Kafka no longer has, so that nobody can tell them; the data of events of type `missing`."""

    partition: int
    first_offset: int
    next_offset: int


class EventView(KeyView):
    """An attempt or the end of a task; the data of events of type `attempt` and `end`."""

    attempt: int
    outcome: str
    planned_at: str | None
    started_at: str | None
    finished_at: str | None
    next_at: str | None
    result: Any
    error: ErrorView | None


_ANSWER: Final = {
    "description": "Server-sent events of type `attempt` and `end` (their data is an EventView) and `missing` (a MissingView)",
    "content": STREAM,
}


@routes.get("/v1/stream", None, shown=_ANSWER)
async def stream_events(
    api: Asked,
    own: Own,
    last_event_id: Annotated[
        str | None, Header(max_length=30_000, description="`id` of the last event that was seen")
    ] = None,
) -> Response:
    """Stream attempts and ends of tasks, from now on or from an event on. Delivery is at least once: events may repeat after a reconnect.

    A `missing` event names records that Kafka no longer has. The answer ends if the server loses its position: connect again.
    """
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
        self._queue: asyncio.Queue[OutcomeEvent | None] = asyncio.Queue(_MOST_WAITING)  # None: the answer ends here
        self._bytes = 0  # of the queue
        self._lost = False
        self._first: list[OutcomeEvent] | None = None
        self._replay: Iterator[OutcomeEvent | Missing] | None = None
        self._room = contextlib.ExitStack()

    async def begin(self) -> None:
        """Begins to listen.

        Raises:
            Problem: too many listen, the log cannot be read now, or it ends before the place where the reader wants to begin.
        """
        until = self._loop.time() + _BEGIN_S
        self._room.enter_context(self._api.waits.room())
        try:
            while not self._listens():
                if self._loop.time() > until:
                    raise self._never_began()
                await asyncio.sleep(0.05)
        except BaseException:
            self.end()
            raise

    def _listens(self) -> bool:
        """Begins to listen, if the tail is where the reader wants to begin; what it has let go of is read from the log."""
        tail, places = self._api.tail, self._api.tail.places()
        begin = self._positions or {number: Position(*place) for number, place in places.items()}
        if not places or any(one.offset > places[number][0] for number, one in begin.items()):
            return False
        since = tail.since({number: one.offset for number, one in begin.items()}, self._heard, self._missed)
        if since is None:
            return False
        self._positions, self._first = begin, since.happened
        if any(one.offset < since.floors[number] for number, one in begin.items()):
            end = {number: max(since.floors[number], one.offset) for number, one in begin.items()}
            self._replay = replayed(self._api.scheduler.connection, dict(begin), end)
        return True

    def _never_began(self) -> Problem:
        if not self._api.tail.places():
            return Problem(problems.UNREACHABLE, "The log cannot be read now.")
        return Problem(
            problems.INVALID,
            "Last-Event-ID is a position beyond the end of the log.",
            hint="Omit it to start with new events.",
        )

    async def events(self) -> AsyncIterator[bytes]:
        """The text of the stream."""
        try:
            yield f": welcome\nretry: 1000\n{self._place()}\n".encode()
            if self._replay is not None:
                async for one in iterate_in_threadpool(self._replay):
                    yield self._gap(one) if isinstance(one, Missing) else self._text(await self._seen(one))
            for happened in self._first or ():
                if self._is_news(happened):
                    yield self._text(await self._seen(happened))
            self._first = None
            while not (self._lost and self._queue.empty()):
                try:
                    heard = await asyncio.wait_for(self._queue.get(), _QUIET_S)
                except TimeoutError:
                    yield f": still here\n{self._place()}\n".encode()
                    continue
                self._bytes -= heard.size if heard is not None else 0
                if heard is not None and self._is_news(heard):
                    yield self._text(await self._seen(heard))
        except Exception as error:
            log.warning("a reader of the stream is let go", why=str(error))

    async def _seen(self, one: OutcomeEvent) -> OutcomeEvent:
        """Returns the part of a record in queues of the caller. The queue of a fact without one is looked up."""
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

    def _is_news(self, one: OutcomeEvent) -> bool:
        assert self._positions is not None
        return one.offset >= self._positions.get(one.partition, Position(0)).offset

    def _place(self) -> str:
        """Returns the position of the reader as the id of an event, also before the first event."""
        return f"id: {positions_text(self._positions or {})}\n"

    def _text(self, one: OutcomeEvent) -> bytes:
        assert self._positions is not None
        self._positions[one.partition] = Position(one.offset + 1, one.epoch)
        parts = [_event(fact) for fact in one.facts if fact.outcome != TOO_LATE]
        return "".join([*parts[:-1], *(f"{self._place()}{part}" for part in parts[-1:])]).encode(errors="replace")

    def _gap(self, one: Missing) -> bytes:
        assert self._positions is not None
        self._positions[one.partition] = Position(one.next)
        data = MissingView(partition=one.partition, first_offset=one.first, next_offset=one.next)
        return f"{self._place()}event: missing\ndata: {data.model_dump_json()}\n\n".encode()

    def _heard(self, happened: OutcomeEvent) -> None:
        """In the tail's thread."""
        with contextlib.suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(self._put, happened)

    def _missed(self) -> None:
        """In the tail's thread: what comes next is beyond what was told, so the reader must come back to have that read for it."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._put, None)

    def _put(self, happened: OutcomeEvent | None) -> None:
        if self._lost:
            return
        size = happened.size if happened is not None else 0
        if self._queue.full() or (self._bytes and self._bytes + size > _MOST_WAITING_BYTES):
            self._lose()
            return
        self._queue.put_nowait(happened)
        self._bytes += size
        if happened is None:
            self._lose()

    def _lose(self) -> None:
        self._lost = True
        self._api.tail.leave(self._heard)

    def end(self) -> None:
        """Listens no longer."""
        self._api.tail.leave(self._heard)
        self._room.close()


def _event(fact: Fact) -> str:
    data = key_view(fact.key) | {
        "attempt": fact.attempt,
        "outcome": fact.outcome,
        "planned_at": iso_us(fact.planned_us or None),
        "started_at": iso_us(fact.started_us or None),
        "finished_at": iso_us(fact.finished_us or None),
        "next_at": iso_us(fact.next_us),
        "result": json.loads(fact.result) if fact.result is not None else None,
        "error": error_view(fact.failure),
    }
    return f"event: {'end' if fact.terminal else 'attempt'}\ndata: {answer_json(data)}\n\n"
