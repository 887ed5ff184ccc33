"""The route of bulks: many tasks in one request, as JSON lines or as an Arrow stream, each with an answer of its own."""

from __future__ import annotations

import json
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import Annotated, Any, Final, TypeVar

from fastapi import Request
from pydantic import BaseModel, Field, ValidationError
from pydantic_core import from_json
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from scylla_spark.api import problems
from scylla_spark.api.context import Api, Asked, Routes
from scylla_spark.api.problems import Problem
from scylla_spark.api.tasks.arrow_upload import rows_of, task_of
from scylla_spark.api.tasks.views import NewTask
from scylla_spark.clock import boot_us, now_us
from scylla_spark.core.tasks.key import id_of
from scylla_spark.core.tasks.tags import channels_in
from scylla_spark.errors import ArgumentError, SchedulerError, UnreachableError
from scylla_spark.io.kafka.command_sender import ACKNOWLEDGED_S, left_s

routes = Routes()

LINES: Final = "application/x-ndjson"
ARROW: Final = "application/vnd.apache.arrow.stream"
MOST_ITEMS: Final = 250_000
_AT_ONCE: Final = 1_000
_UNDER_WAY: Final = 20_000  # tasks that need not be acknowledged before more are read
_PIECE: Final = 1024 * 1024
_ACKNOWLEDGED_US: Final = round(ACKNOWLEDGED_S * 1e6)
_IN_MEMORY: Final = 4 * 1024 * 1024
_MOST_HANDLERS: Final = 100  # of a bulk that may be warned of
Item = dict[str, Any]
T = TypeVar("T")


class BulkItemView(BaseModel):
    """The result of one task: `id` or `problem`. The last line has `accepted` and `refused` instead."""

    index: int | None = None
    id: str | None = None
    problem: dict[str, Any] | None = None
    accepted: int | None = None
    refused: int | None = None
    warnings: Annotated[
        list[str] | None,
        Field(description="In the last line: unknown handlers and channels; left out where there are none"),
    ] = None


_BODY: Final = {
    "requestBody": {
        "required": True,
        "description": "One task per line, or per row with columns of the same names; at most 250,000.",
        "content": {
            LINES: {"schema": {"type": "string", "description": "JSON objects as `POST /v1/tasks` takes them"}},
            ARROW: {
                "schema": {
                    "type": "string",
                    "format": "binary",
                    "description": "Arrow IPC stream of plain values, lists and structs, not compressed; `payload` a struct or JSON text",
                }
            },
        },
    }
}
_ANSWER: Final = {
    "description": "One JSON line per task, in order, then one with both counts",
    "content": {LINES: {"schema": {"$ref": "#/components/schemas/BulkItemView"}}},
}


@routes.post("/v1/tasks:bulk", None, problems.WRONG_MEDIA_TYPE, shown=_ANSWER, openapi_extra=_BODY)
async def enqueue_tasks(api: Asked, request: Request) -> Response:
    """Enqueue many tasks. A refused task does not affect the others. A task that was not acknowledged may still exist."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    told = _Answers(api)
    try:
        await _take(api, request, kind, told)
    except Problem as problem:
        return await api.sent(partial(told.broken_off, problem))
    await api.handlers.fresh()
    return Response(await api.sent(told.whole), media_type=LINES)


async def _take(api: Api, request: Request, kind: str, told: _Answers) -> None:
    """Reads a bulk, and sends its tasks as they come.

    Raises:
        Problem: it cannot be read, or not further.
    """
    if kind in (LINES, "application/jsonl", "application/json-seq"):  # no type that forms of other sites can have
        async for some in _lines(request, api.settings.api.max_body):
            await api.sent(partial(told.take_lines, some))
    elif kind == ARROW:
        with tempfile.SpooledTemporaryFile(_IN_MEMORY) as file:
            async for piece in request.stream():
                await run_in_threadpool(file.write, piece)
            file.seek(0)
            await api.at_length(lambda: told.take_all(rows_of(file)))
    else:
        raise Problem(
            problems.WRONG_MEDIA_TYPE, f"A bulk is {LINES} or {ARROW}, not {kind[:100] or 'without a media type'}."
        )


async def _lines(request: Request, most: int) -> AsyncIterator[list[bytes]]:
    """The lines of a body, some at a time; empty ones are left out.

    Raises:
        Problem: a line is too long.
    """
    rest = b""
    async for piece in request.stream():
        *whole, rest = (rest + piece).split(b"\n") if b"\n" in piece else [rest + piece]
        if len(rest) > most or any(len(line) > most for line in whole):
            raise Problem(problems.TOO_LARGE, f"A line has more than {most} bytes.", headers={"Connection": "close"})
        lines = [line for line in whole if line.strip()]
        for start in range(0, len(lines), _AT_ONCE):
            yield lines[start : start + _AT_ONCE]
    if rest.strip():
        yield [rest]


def _read_line(line: bytes) -> Item | Exception:
    try:
        return from_json(line, allow_inf_nan=False)  # type: ignore[no-any-return]
    except ValueError as error:
        return error


class _Answers:
    """Sends tasks, and collects what became of each; used by one thread at a time."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._index = 0
        self._accepted = 0
        self._handlers: set[str] = set()
        self._channels: set[str] = set()
        self._text = bytearray()
        self._lost: UnreachableError | None = None  # Kafka was waited for once: that is the answer of all that follow
        self._waiting: deque[tuple[int, Any, Any]] = deque()  # index, id or problem, future

    def take_lines(self, lines: Sequence[bytes]) -> None:
        """Sends the tasks of some lines."""
        self._take(lines, self._begun_line)

    def take_all(self, parts: Iterator[list[Item | Exception]]) -> None:
        """Sends all of some parts."""
        for part in parts:
            self._take(part, self._begun_row)

    def _take(self, items: Sequence[T], begin: Callable[[int, T], tuple[int, Any, Any]]) -> None:
        """Hands tasks over; when many are under way, waits for the oldest of them.

        Raises:
            Problem: there are too many in one bulk.
        """
        if self._index + len(items) > MOST_ITEMS:
            raise Problem(
                problems.TOO_LARGE, f"A bulk has at most {MOST_ITEMS} tasks.", headers={"Connection": "close"}
            )
        self._waiting += [begin(number, item) for number, item in enumerate(items, self._index)]
        self._index += len(items)
        self._settle(_UNDER_WAY)

    def whole(self) -> bytes:
        """The answer."""
        self._settle(0)
        warnings = self._api.handlers.all_unknown(self._handlers, self._channels)
        counts = {"accepted": self._accepted, "refused": self._index - self._accepted}
        self._say(counts | ({"warnings": warnings} if warnings else {}))
        return bytes(self._text)

    def broken_off(self, problem: Problem) -> Response:
        """The answer to a bulk that a problem ended before its end, with what became of the tasks before that."""
        self._settle(0)
        if not self._index:
            return problems.answer(problem.kind, str(problem.detail), problem.headers, **problem.members)
        words = f"{problem.detail} {self._accepted} of the {self._index} tasks before that were accepted: `items`."
        items = b"".join(
            (b"[", self._text[:-1].replace(b"\n", b","), b"]")
        )  # a text of JSON has no line breaks of its own
        return problems.answer(
            problem.kind,
            words,
            problem.headers,
            {"items": items},
            accepted=self._accepted,
            refused=self._index - self._accepted,
        )

    def _begun_row(self, index: int, row: Item | Exception) -> tuple[int, Any, Any]:
        return self._begun(index, row if isinstance(row, Exception) else task_of(row))

    def _begun_line(self, index: int, line: bytes) -> tuple[int, Any, Any]:
        """A line, read and judged at once, which is twice as fast; one that is refused so is read again, to say why."""
        try:
            return self._sent(index, NewTask.model_validate_json(line))
        except (ValueError, SchedulerError):
            return self._begun(index, _read_line(line))

    def _sent(self, index: int, task: NewTask) -> tuple[int, Any, Any]:
        command = task.new_command(now_us())
        if command.handler is not None and len(self._handlers) < _MOST_HANDLERS:
            self._handlers.add(command.handler)
        if command.tags and len(self._channels) < _MOST_HANDLERS:
            self._channels.update(channels_in(command.tags))
        sender = self._api.scheduler.connection.sender
        record = sender.record(command)
        if self._lost is not None:
            raise self._lost
        try:
            return index, id_of(command.key), sender.begin(record)
        except UnreachableError as error:
            self._lost = error
            raise

    def _begun(self, index: int, item: Item | Exception) -> tuple[int, Any, Any]:
        try:
            if isinstance(item, Exception):
                raise ArgumentError(f"It cannot be read: {item}.", reason="not_json")
            return self._sent(index, NewTask.model_validate(item))
        except ValidationError as error:
            faults = [problems.fault(one) for one in error.errors(include_url=False)[:5]]
            return index, problems.document(problems.INVALID, problems.said(faults), errors=faults), None
        except SchedulerError as error:
            return index, problems.problem_of(error) or problems.document(problems.DEFECT, error.message), None

    def _settle(self, left: int) -> None:
        """Waits until what was handed over is acknowledged, all but the newest.

        Args:
            left: how many need not be.
        """
        last: dict[int, Any] = {}
        deadline_us = boot_us() + _ACKNOWLEDGED_US
        while len(self._waiting) > left:
            index, told, future = self._waiting.popleft()
            if future is None:
                self._say({"index": index, "problem": told})
                continue
            try:
                place = future.value if future.succeeded() else future.get(timeout=left_s(deadline_us))
            except Exception as error:
                lost = UnreachableError(
                    f"Kafka did not acknowledge it ({type(error).__name__}); it may exist nevertheless."
                )
                self._say({"index": index, "problem": problems.problem_of(lost)})
            else:
                self._accepted += 1
                deadline_us = boot_us() + _ACKNOWLEDGED_US
                last[place.partition] = place
                self._text += b'{"index":%d,"id":"%b"}\n' % (index, told.encode())

        for place in last.values():  # of each partition the last one stands behind all others
            self._api.tasks.sent(place)

    def _say(self, line: Item) -> None:
        self._text += json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode(errors="replace") + b"\n"
