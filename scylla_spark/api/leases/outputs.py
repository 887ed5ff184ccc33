"""The route by which leased workers leave files behind, while they hold the lease."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated, Any, BinaryIO, Final, NamedTuple
from urllib.parse import unquote
from weakref import WeakValueDictionary

from fastapi import Header, Path, Request
from starlette.responses import Response

from scylla_spark.api import problems
from scylla_spark.api.context import Api, Asked, Routes, answer
from scylla_spark.api.leases.views import Token, not_held
from scylla_spark.api.problems import Problem
from scylla_spark.api.tasks.views import OutputView, output_view
from scylla_spark.core.leases.messages import OUTPUTS_FULL
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.output import (
    MAX_OUTPUTS,
    UNKNOWN_TYPE,
    OutputLink,
    checked_output_name,
    is_media_type,
    outputs_place,
)
from scylla_spark.io.host.output_files import OutputFiles, too_much

routes = Routes()

Name = Annotated[str, Path(description="File name of the output, percent-encoded")]
MediaType = Annotated[str, Header(max_length=200, description="What the file is said to be")]
_TURNS: Final[WeakValueDictionary[tuple[str, str], asyncio.Lock]] = WeakValueDictionary()
"""(place of the attempt, name) → held between the link and its file, so that of two uploads at once both are those of the later one."""
_BODY: Final = {
    "requestBody": {
        "required": True,
        "content": {UNKNOWN_TYPE: {"schema": {"type": "string", "format": "binary"}}},
        "description": "The file, at most `outputs.max_bytes` with the others of the attempt",
    }
}


@routes.put("/v1/leases/{lease}/outputs/{name}", OutputView, problems.CONFLICT, openapi_extra=_BODY)
async def put_output(
    api: Asked, request: Request, lease: Annotated[Token, Path()], name: Name, content_type: MediaType = UNKNOWN_TYPE
) -> Response:
    """Store an output file of the attempt, or replace the one of that name.

    The file stays however the lease ends. The answer is 409 after the lease has ended.
    """
    plain, told = checked_output_name(unquote(name)), content_type.partition(";")[0].strip()
    media_type = told if is_media_type(told) else UNKNOWN_TYPE
    room = await _room(api, lease, plain)
    files = OutputFiles(api.settings.outputs_path)
    if _told_bytes(request) > room.left:
        raise _refused(room.left)
    with await api.slowly(files.scratch) as scratch:
        await _received(api, request, scratch, room.left)
        room = await _room(api, lease, plain)  # the body may have taken long
        draft = await api.slowly(lambda: files.draft(room.place, scratch, room.left))
    link = OutputLink(plain, *draft.stored, media_type)
    turn = _TURNS.setdefault((room.place, plain), asyncio.Lock())
    try:
        async with turn:
            await _held(api, lease, link)
            await api.slowly(lambda: files.keep(draft, plain))
    finally:
        files.drop(draft)  # unless it has its name by now
    return answer(output_view(link))


class _Room(NamedTuple):
    """The bounds of an output file.

    Attributes:
        place: of the attempt.
        left: bytes that it may have.
    """

    place: str
    left: int


async def _room(api: Api, lease: str, name: str) -> _Room:
    """Returns the bounds of a file of that name. The owner of the lease checks them again for the stored file.

    Raises:
        Problem: the lease is over, nobody knows at the moment, or there are enough files.
    """
    held = await _held(api, lease, None)
    sizes: dict[str, int] = dict(held["sizes"])
    sizes.pop(name, None)
    if len(sizes) >= MAX_OUTPUTS:
        raise Problem(
            problems.CONFLICT,
            f"The attempt already has {MAX_OUTPUTS} output files.",
            hint="Pack several files into one.",
        )
    place = outputs_place(TaskKey(*held["key"]), held["attempt"], api.scheduler.connection.rules.partitions)
    return _Room(place, api.settings.outputs.max_bytes - sum(sizes.values()))


def _told_bytes(request: Request) -> int:
    """Returns the length of the body from its header; 0: there is no such header."""
    told = request.headers.get("Content-Length", "")
    return int(told[:20]) if told.isdecimal() else 0


async def _received(api: Api, request: Request, scratch: BinaryIO, left: int) -> None:
    """Writes the body of a request to a file.

    Raises:
        Problem: it has more bytes than are left.
    """
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > left:
            raise _refused(left)
        if chunk:
            await api.slowly(partial(scratch.write, chunk))
    await api.slowly(partial(scratch.seek, 0))


def _refused(left: int) -> Problem:
    """Returns the problem of a body that is too large."""
    error = too_much(left)
    more = {"reason": error.fields["reason"]}
    return Problem(problems.INVALID, error.message, hint=error.hint, headers={"Connection": "close"}, **more)


async def _held(api: Api, token: str, link: OutputLink | None) -> dict[str, Any]:
    """Asks the owner of a lease for its attempt.

    Raises:
        Problem: the lease is over, or nobody knows at the moment.
    """
    told = await api.lease_servers.output(token, link)
    if isinstance(told, dict):
        return told
    if told == OUTPUTS_FULL:
        raise Problem(
            problems.CONFLICT,
            "The attempt has too many output files or bytes.",
            hint="Raise outputs.max_bytes, or pack the files.",
        )
    raise not_held(told)
