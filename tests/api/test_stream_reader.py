"""A reader of the stream who is too far behind."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace

from scylla_spark.api.follow.recent_records import OutcomeEvent
from scylla_spark.api.follow.stream import _MOST_WAITING, _MOST_WAITING_BYTES, _Reader
from scylla_spark.api.follow.stream_positions import Position
from scylla_spark.core.records.fact import Fact
from scylla_spark.core.tasks.key import TaskKey
from tests.support.delta_tables import at


def happened(offset: int, size: int = 0) -> OutcomeEvent:
    return OutcomeEvent(0, offset, 1, (Fact(TaskKey(at(10), "lane", f"u{offset}"), 1, "succeeded"),), size)


def told_of(sizes: list[int], *, after: list[int]) -> list[bytes]:
    """Returns what a reader is told who has taken nothing but the welcome when records of these sizes come, and then others."""

    async def play() -> list[bytes]:
        api = SimpleNamespace(tail=SimpleNamespace(leave=lambda listener: None))
        reader = _Reader(api, {0: Position(0)})
        texts = reader.events()
        assert (await anext(texts)).startswith(b": welcome")
        for offset, size in enumerate(sizes):
            reader._heard(happened(offset, size))
        told = [await anext(texts)]
        for offset, size in enumerate(after, len(sizes)):
            reader._heard(happened(offset, size))
        await asyncio.sleep(0)
        with contextlib.suppress(StopAsyncIteration, TimeoutError):
            while True:
                told.append(await asyncio.wait_for(anext(texts), 0.2))
        return told

    return asyncio.run(asyncio.wait_for(play(), 30))


def test_who_is_too_far_behind_is_told_nothing_beyond_what_had_no_room():
    """The tail may have more under way for a reader that it lets go of; an id beyond the gap would hide it for ever."""

    told = told_of([0] * (_MOST_WAITING + 1), after=[0])
    assert len(told) == _MOST_WAITING
    assert told[-1].startswith(f"id: 0:{_MOST_WAITING}.1\n".encode())


def test_who_is_behind_by_too_many_bytes_is_let_go_of_after_what_had_room():
    third = _MOST_WAITING_BYTES // 3
    assert len(told_of([third] * 5, after=[0, 0])) == 3


def test_what_was_taken_gives_room_and_one_record_has_room_however_large_it_is():
    assert len(told_of([2 * _MOST_WAITING_BYTES], after=[2 * _MOST_WAITING_BYTES])) == 2
