"""Files that the attempts of a task have left behind: lists of them, and each as a download, which no browser shows as a page of ours."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, BinaryIO, Final
from urllib.parse import quote, unquote

import anyio
from fastapi import Path
from pydantic import BaseModel
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from scylla_spark.api import problems
from scylla_spark.api.context import Api, Asked, Routes, answer
from scylla_spark.api.tasks.ids import TaskId
from scylla_spark.api.tasks.views import KeptOutputView, kept_output_view
from scylla_spark.client.tasks.outputs import TaskOutput, outputs_of
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.errors import NotFoundError
from scylla_spark.io.host.output_files import OutputFiles

routes = Routes()

_CHUNK_BYTES: Final = 256 * 1024
_NEVER_SHOWN: Final = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Cache-Control": "private, no-store",
}


class OutputsView(BaseModel):
    """All files that an attempt has left behind."""

    outputs: list[KeptOutputView]


Number = Annotated[int, Path(ge=1, le=2**31 - 1, description="Number of the attempt")]
Name = Annotated[str, Path(description="`name` of the output, percent-encoded")]
_FILE: Final = {
    "description": "The file, to be saved",
    "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
}


@routes.get("/v1/tasks/{key}/attempts/{attempt}/outputs", OutputsView, problems.NOT_FOUND, problems.CONFLICT)
async def list_outputs(api: Asked, key: TaskId, attempt: Number) -> Response:
    """List the output files of an attempt. Files of a running attempt appear after about a second."""
    task = TaskKey.parse(key)
    found = await api.slowly(lambda: _outputs(api, task, attempt))
    return answer({"outputs": [kept_output_view(task, attempt, one.link) for one in found]})


@routes.get(
    "/v1/tasks/{key}/attempts/{attempt}/outputs/{name}", None, problems.NOT_FOUND, problems.CONFLICT, shown=_FILE
)
async def get_output(api: Asked, key: TaskId, attempt: Number, name: Name) -> Response:
    """Download an output file of an attempt. `ETag` is its SHA-256.

    It is always sent as an attachment, because its content is not checked.
    """
    task, plain = TaskKey.parse(key), unquote(name)

    def opened() -> tuple[TaskOutput, BinaryIO]:
        for one in _outputs(api, task, attempt):
            if one.name == plain:
                return one, one.open()
        raise NotFoundError(f"Attempt {attempt} has no output {plain[:200]!r}.", hint="GET the list of outputs.")

    found, file = await api.slowly(opened)
    return _Download(api, found, file)


class _Download(StreamingResponse):
    """A file on its way to a client; it is closed however that ends."""

    def __init__(self, api: Api, output: TaskOutput, file: BinaryIO) -> None:
        self._file = file
        self._api = api
        link = output.link
        headers = _NEVER_SHOWN | {
            "Content-Disposition": f"attachment; filename*=UTF-8''{quote(link.name, safe='')}",
            "Content-Length": str(link.bytes),
            "ETag": f'"{link.sha256}"',
        }
        super().__init__(self._chunks(link.bytes), media_type=link.media_type, headers=headers)

    async def _chunks(self, left: int) -> AsyncIterator[bytes]:
        while left and (chunk := await self._api.slowly(partial(self._file.read, min(_CHUNK_BYTES, left)))):
            left -= len(chunk)
            yield chunk

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            with anyio.CancelScope(shield=True):
                await self._api.slowly(self._file.close)


def _outputs(api: Api, key: TaskKey, attempt: int) -> list[TaskOutput]:
    """The files of one attempt.

    Raises:
        NotFoundError: there is no such task, or it has no such attempt.
    """
    chosen = [one for one in api.tasks.attempts(key, 1, attempt + 1) if one.number == attempt]
    if not chosen:
        raise NotFoundError(f"The task has no attempt {attempt}.", hint="GET the list of attempts.")
    connection = api.scheduler.connection
    files = OutputFiles(connection.settings.outputs_path)
    return outputs_of(chosen, key, files, connection.rules.partitions)
