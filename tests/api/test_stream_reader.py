"""A reader of the stream who is too far behind."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace

from scylla_spark.core.key import TaskKey
from scylla_spark.core.records.fact import Fact
from scylla_spark.services.api.follow.recent_log_records import Happened
from scylla_spark.services.api.follow.stream import _MOST_WAITING, _Reader
from scylla_spark.services.api.follow.stream_positions import Position
from tests.support.delta_tables import at


def happened(offset: int) -> Happened:
    return Happened(0, offset, 1, (Fact(TaskKey(at(10), "lane", f"u{offset}"), 1, "succeeded"),))


def test_who_is_too_far_behind_is_told_nothing_beyond_what_had_no_room():
    """The tail may have more under way for a reader that it lets go of; an id beyond the gap would hide it for ever."""

    async def play():
        api = SimpleNamespace(tail=SimpleNamespace(leave=lambda listener: None))
        reader = _Reader(api, {0: Position(0)})
        texts = reader.events()
        assert (await anext(texts)).startswith(b": welcome")
        for offset in range(_MOST_WAITING + 1):
            reader._heard(happened(offset))
        told = [await anext(texts)]
        reader._heard(happened(_MOST_WAITING + 1))
        with contextlib.suppress(StopAsyncIteration):
            while True:
                told.append(await anext(texts))
        return told

    told = asyncio.run(asyncio.wait_for(play(), 30))
    assert len(told) == _MOST_WAITING
    assert told[-1].startswith(f"id: 0:{_MOST_WAITING}.1\n".encode())
