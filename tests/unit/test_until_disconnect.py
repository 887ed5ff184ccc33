"""Work for a caller who hangs up is given up."""

import asyncio

import pytest
from starlette.requests import ClientDisconnect, Request

from scylla_spark.api.http import until_disconnect as caller_gone
from scylla_spark.api.http.until_disconnect import until_disconnect


def request(gone):
    async def receive():
        await gone.wait()
        return {"type": "http.disconnect"}

    return Request({"type": "http"}, receive)


def test_work_for_somebody_who_listens_is_done():
    async def play():
        return await until_disconnect(request(asyncio.Event()), asyncio.sleep(0.01, "done"))

    assert asyncio.run(play()) == "done"


def test_work_for_somebody_who_hangs_up_is_cancelled(monkeypatch):
    monkeypatch.setattr(caller_gone, "_LOOK_S", 0.01)
    ended = []

    async def play():
        gone = asyncio.Event()

        async def work():
            try:
                gone.set()
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

        with pytest.raises(ClientDisconnect):
            await until_disconnect(request(gone), work())
        await asyncio.sleep(0)

    asyncio.run(play())
    assert ended == ["cancelled"]
