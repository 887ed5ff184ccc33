"""Server-sent events: what an answer holds is let go of however it ends."""

import asyncio

import pytest

from scylla_spark.api.http.event_stream import EventStream


async def events():
    yield b": welcome\n\n"
    await asyncio.sleep(60)


async def receive():
    await asyncio.sleep(0.02)
    return {"type": "http.disconnect"}


@pytest.mark.parametrize("reach", ["headers", "welcome", "waits"])
def test_a_reader_who_goes_at_any_moment_leaves_nothing_behind(reach):
    ended = []

    async def send(message):
        if reach == "headers" or (reach == "welcome" and message["type"] == "http.response.body"):
            raise OSError("the connection is gone")

    async def play():
        scope = {"type": "http", "asgi": {"spec_version": "2.3"}}
        try:
            await EventStream(events(), lambda: ended.append(True))(scope, receive, send)
        except* OSError:
            pass

    asyncio.run(play())
    assert ended == [True]
