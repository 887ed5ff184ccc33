"""A heartbeat that waits in the API for whoever owns its lease is known to be there until the desk has heard it."""

import asyncio
import random
import threading

import httpx
import pytest

from scylla_spark.api.app import guarded
from scylla_spark.api.leases.pending_calls import PendingCall
from scylla_spark.config.settings import Settings
from scylla_spark.core.leases.messages import OK, Answer, new_token
from scylla_spark.services.dispatch.lease_desk import Desk
from tests.support.api_site import Site
from tests.support.delta_tables import make

NOW = 1_700_000_000_000_000
TOKEN = new_token(0, random.Random(1))


class Engine:
    """Takes every call for good, and notes in which order it hears what."""

    sessions = ()

    def __init__(self):
        self.heard = []
        self.desk = None

    def call(self, call, now, *, certain):
        self.heard.append([sign.token for sign in call.signs])
        self.desk.answer(Answer(call.number, (OK,) * len(call.signs)), now)

    def listened(self, number):
        self.heard.append(number)

    def cut_off(self, now):
        pass

    def hang_up(self, numbers):
        pass


class Mailbox:
    def post(self, message):
        message(NOW)


@pytest.fixture
def desk(tmp_path):
    engine = Engine()
    engine.desk = Desk(Settings(_env_file=None, data_dir=tmp_path), Mailbox(), engine, lambda: 1 << 62)
    engine.desk.start()
    yield engine.desk
    engine.desk.stop()


async def comes(condition):
    """Waits until a condition is true."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


def test_a_lease_is_not_over_while_its_heartbeat_waits_for_a_slow_look_at_who_owns_it(desk, tmp_path, monkeypatch):
    make(f"{tmp_path}/tables")
    site = Site(str(tmp_path))
    desks, begun, found, looks = site.app.state.api.lease_servers, threading.Event(), threading.Event(), []

    def concerns(call, address, real=PendingCall.concerns):
        looks.append(address)
        return real(call, address)

    monkeypatch.setattr(PendingCall, "concerns", concerns)

    def slowly():
        begun.set()
        assert found.wait(20)
        return dict.fromkeys(range(desks.partitions), desk.address)

    desks._look = slowly

    async def play():
        transport = httpx.ASGITransport(guarded(site.app, site.settings))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            await desks.at(desk.address)  # as others have called before
            extending = asyncio.create_task(client.post("/v1/leases:extend", json={"leases": [{"lease": TOKEN}]}))
            await comes(begun.is_set)
            desk.listen(7)
            await comes(lambda: len(looks) >= 5)  # the API waits for the call before it answers the desk
            assert desk._engine.heard == []
            found.set()
            answer = await asyncio.wait_for(extending, 20)
            await comes(lambda: len(desk._engine.heard) == 2)
        desks.close()
        return answer.json()["leases"][0]["status"]

    assert asyncio.run(play()) == "ok"
    assert desk._engine.heard == [[TOKEN], 7]


def test_a_body_that_comes_slowly_keeps_no_lease_in_force(desk, tmp_path, monkeypatch):
    monkeypatch.setattr("scylla_spark.api.leases.lease_servers._BODY_TURNS", 5)
    make(f"{tmp_path}/tables")
    site = Site(str(tmp_path))

    async def play():
        transport = httpx.ASGITransport(guarded(site.app, site.settings))
        more = asyncio.Event()

        async def slowly():
            yield b'{"leases": '
            await more.wait()
            yield b"[]}"

        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            await site.app.state.api.lease_servers.at(desk.address)
            slow = asyncio.create_task(client.post("/v1/leases:extend", content=slowly()))
            on_the_way = site.app.state.api.lease_servers.pending
            await comes(lambda: any(call.waits_for_body for call in on_the_way.now(desk.address)))
            desk.listen(7)
            await comes(lambda: desk._engine.heard)
            more.set()
            assert (await slow).status_code == 422
        site.app.state.api.lease_servers.close()

    asyncio.run(play())
    assert desk._engine.heard == [7]
