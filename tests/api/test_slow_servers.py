"""Requests while a server that is needed does not answer: each ends by our own clock, and leaves room for others."""

from __future__ import annotations

import asyncio
import threading

import pytest
from anyio import CapacityLimiter

from scylla_spark.api import context, problems
from scylla_spark.api.access import token_mirror
from scylla_spark.api.access.token_mirror import TokenView
from scylla_spark.api.http import readiness
from scylla_spark.api.http.readiness import Readiness
from scylla_spark.api.problems import Problem
from scylla_spark.core.plan.state.stored_token import StoredToken
from scylla_spark.errors import UnreachableError
from tests.support.api_site import Site
from tests.support.delta_tables import make


@pytest.fixture
def silent():
    """A server that answers once it is set; it is set in the end."""
    answers = threading.Event()
    yield answers
    answers.set()


def test_readiness_is_told_in_time_and_one_look_is_for_all(monkeypatch, silent):
    monkeypatch.setattr(readiness, "_MOST_S", 0.05)
    looks = []

    async def ask() -> list[BaseException | None]:
        ready = Readiness(lambda: (looks.append(1), silent.wait()))
        late = await asyncio.gather(ready.check(), ready.check(), return_exceptions=True)
        late += await asyncio.gather(ready.check(), return_exceptions=True)
        silent.set()
        await asyncio.wait([ready._looking])
        await ready.check()
        return late

    assert [type(one) for one in asyncio.run(ask())] == [UnreachableError] * 3
    assert len(looks) == 2, "the second one after the first has ended"


def test_readiness_tells_what_is_wrong():
    def fails() -> None:
        raise UnreachableError("Kafka is away.", hint="Start it.")

    with pytest.raises(UnreachableError, match="Kafka is away"):
        asyncio.run(Readiness(fails).check())


def test_who_comes_in_is_not_waited_for_again_and_again(monkeypatch, silent):
    monkeypatch.setattr(token_mirror, "_LONGEST_S", 0.5)
    stored, slow = {"id": StoredToken("digest", "t", ("read",), (), None, False, "", 0)}, []

    def read():
        if slow:
            silent.wait()
        return stored

    async def ask() -> None:
        view, loop = TokenView(read), asyncio.get_running_loop()
        assert await view.now("id") == stored
        slow.append(1)
        view._read_at -= 10 * token_mirror.OLDEST_S
        begun = loop.time()
        for _ in range(20):
            with pytest.raises(UnreachableError):
                await view.now("id")
        assert loop.time() - begun < 20 * 0.5, "each has waited"
        slow.clear()
        silent.set()
        await asyncio.wait([view._reading])
        assert await view.now("id") == stored

    asyncio.run(ask())


def test_a_request_that_finds_no_thread_to_wait_in_is_refused_in_time_and_gives_its_place_back(monkeypatch, silent):
    monkeypatch.setattr(context, "MOST_QUEUED_S", 0.05)

    async def ask() -> object:
        threads = CapacityLimiter(1)
        first = asyncio.create_task(context._run(silent.wait, threads))
        while not threads.borrowed_tokens:
            await asyncio.sleep(0.001)
        with pytest.raises(Problem) as refused:
            await context._run(lambda: "never", threads)
        silent.set()
        await first
        assert await context._run(lambda: "served", threads) == "served"
        return refused.value.kind

    assert asyncio.run(ask()) is problems.BUSY


def test_large_pages_are_made_one_at_a_time_and_small_ones_beside_them(tmp_path, silent):
    make(f"{tmp_path}/tables")
    api, begun = Site(str(tmp_path)).app.state.api, []

    def large() -> bool:
        begun.append("large")
        return silent.wait()

    async def ask() -> None:
        pages = [asyncio.create_task(api.paged(context.LARGE_PAGE + 1, large)) for _ in range(3)]
        while not begun:
            await asyncio.sleep(0.001)
        assert await api.paged(context.LARGE_PAGE, lambda: "small") == "small"
        assert begun == ["large"]
        silent.set()
        assert await asyncio.gather(*pages) == [True] * 3

    asyncio.run(ask())
