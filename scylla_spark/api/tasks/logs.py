"""The log lines of a task, as pages or as a stream of server-sent events until the task has ended."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Generator
from contextlib import ExitStack
from itertools import islice
from typing import Annotated, Any, Final

import anyio
import anyio.to_thread
from fastapi import Header, Query, Request
from pydantic import BaseModel
from starlette.responses import Response

from scylla_spark.api import problems
from scylla_spark.api.answer_json import answer_json
from scylla_spark.api.context import Api, Asked, Routes, answer
from scylla_spark.api.http.event_stream import MEDIA_TYPE, STREAM, EventStream
from scylla_spark.api.problems import Problem
from scylla_spark.api.tasks.ids import TaskId
from scylla_spark.client.tasks.logs import LineFilter, TaskLine, followed, lines_of, place_of
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.log import get_logger

log = get_logger("api")
routes = Routes()

_MOST_LINES: Final = 10_000
_CURSOR: Final = re.compile(r"(\d{1,10})\.(\d{1,19})\.(\d{1,10})\.([01])")


class LineView(BaseModel):
    """One line that an attempt has written; also the data of events of type `line`."""

    attempt: int
    seq: int
    at: str
    stream: str
    level: str | None
    text: str
    fields: dict[str, Any] | None


class LinesView(BaseModel):
    """A page of lines; `next` is the `cursor` of the page behind, null at the end."""

    lines: list[LineView]
    next: str | None


Attempt = Annotated[int | None, Query(ge=1, le=2**31 - 1, description="Only this attempt")]
Cursor = Annotated[str | None, Query(max_length=50, description="`next` of the page before")]
Limit = Annotated[int, Query(ge=1, le=_MOST_LINES, description="Most lines of a page")]
LastEvent = Annotated[str | None, Header(max_length=50, description="`id` of the last event that was seen")]
_ANSWER: Final = {
    "description": "OK; if the request accepts them, server-sent events of type `line`, whose data is a LineView, and `end`",
    "content": STREAM,
}


@routes.get("/v1/tasks/{key}/logs", LinesView, problems.NOT_FOUND, problems.CONFLICT, shown=_ANSWER)
async def get_task_logs(
    api: Asked,
    request: Request,
    key: TaskId,
    attempt: Attempt = None,
    cursor: Cursor = None,
    limit: Limit = 1_000,
    last_event_id: LastEvent = None,
) -> Response:
    """Return the lines that the attempts of a task printed and logged.

    With `Accept: text/event-stream` lines follow until the task has ended.
    """
    task = TaskKey.parse(key)
    streams = MEDIA_TYPE in request.headers.get("accept", "")
    wanted = LineFilter(attempt, _place((last_event_id if streams else None) or cursor))
    handle = api.scheduler.task(task)
    await api.slowly(handle.status)
    connection = api.scheduler.connection
    if not streams:
        found = await api.slowly(lambda: list(islice(lines_of(connection, task, wanted), limit + 1)))
        more = _cursor(found[limit - 1]) if len(found) > limit else None
        return answer({"lines": [_view(line) for line in found[:limit]], "next": more})
    room = ExitStack()
    room.enter_context(api.followers.room())
    source = followed(connection, task, wanted, handle.has_ended)
    return EventStream(_events(api, source), room.close)


async def _events(api: Api, source: Generator[list[TaskLine], None, None]) -> AsyncIterator[bytes]:
    """The text of the stream; a comment where nothing is new, so that both sides know of each other."""
    threads = api.followers.threads
    try:
        yield b": welcome\nretry: 1000\n\n"
        while (lines := await anyio.to_thread.run_sync(next, source, None, limiter=threads)) is not None:
            yield b"".join(map(_event, lines)) or b":\n\n"
        yield b"event: end\ndata: {}\n\n"
    except Exception as error:
        log.warning("one who follows the lines of a task is let go", why=str(error))
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(source.close, limiter=threads)


def _event(line: TaskLine) -> bytes:
    return f"id: {_cursor(line)}\nevent: line\ndata: {answer_json(_view(line))}\n\n".encode(errors="replace")


def _view(line: TaskLine) -> dict[str, Any]:
    return {name: value for name, value in line._asdict().items() if name != "epoch"}


def _cursor(line: TaskLine) -> str:
    attempt, epoch, seq, plain = place_of(line)
    return f"{attempt}.{epoch}.{seq}.{int(plain)}"


def _place(cursor: str | None) -> tuple[int, int, int, bool]:
    """The place that a cursor names.

    Raises:
        Problem: it names none.
    """
    if cursor is None:
        return LineFilter().after
    match = _CURSOR.fullmatch(cursor)
    if match is None:
        raise Problem(problems.INVALID, "The cursor is not valid.", hint="Pass `next` of the page before, as it is.")
    attempt, epoch, seq, plain = map(int, match.groups())
    return attempt, epoch, seq, bool(plain)
