"""Work for a caller who hangs up is given up."""

import asyncio

import pytest
from starlette.requests import ClientDisconnect, Request

from scylla_spark.api.http import caller_gone
from scylla_spark.api.http.caller_gone import while_heard


def request(gone):
    async def receive():
        await gone.wait()
        return {"type": "http.disconnect"}

    return Request({"type": "http"}, receive)


def test_work_for_somebody_who_listens_is_done():
    async def play():
        return await while_heard(request(asyncio.Event()), asyncio.sleep(0.01, "done"))

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
            await while_heard(request(gone), work())
        await asyncio.sleep(0)

    asyncio.run(play())
    assert ended == ["cancelled"]
