"""Who owns what, as the API knows it: it looks again by itself, so that no worker waits for work at the wrong desks for ever."""

import asyncio
from types import SimpleNamespace

import pytest

from scylla_spark.api.leases import lease_servers as module
from scylla_spark.api.leases.lease_servers import LeaseServers


class Looks(LeaseServers):
    """LeaseServers that see, look by look, what a test tells."""

    def __init__(self, *seen):
        super().__init__(SimpleNamespace(rules=SimpleNamespace(partitions=2)), "secret")
        self.seen = list(seen)

    def _look(self):
        return self.seen.pop(0) if len(self.seen) > 1 else self.seen[0]


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(module, "_LOOK_S", 0.02)
    monkeypatch.setattr(module, "_KNOWN_S", 0.05)


async def becomes(desks, wanted):
    async with asyncio.timeout(10):
        while await desks.owners() != wanted:
            await asyncio.sleep(0.005)


@pytest.mark.slow
def test_a_partition_whose_owner_died_is_looked_for_until_it_has_another(impatient):
    desks = Looks({0: "a", 1: "b"}, {1: "b"}, {1: "b"}, {0: "c", 1: "b"})
    asyncio.run(becomes(desks, {0: "c", 1: "b"}))


def test_a_partition_that_moved_while_its_old_owner_lives_is_found(impatient):
    asyncio.run(becomes(Looks({0: "a", 1: "a"}, {0: "a", 1: "b"}), {0: "a", 1: "b"}))


@pytest.mark.slow
def test_while_nobody_can_be_asked_what_was_known_stays(impatient):
    desks = Looks({0: "a", 1: "a"}, {}, {0: "b", 1: "a"})

    async def seen():
        found = [await desks.owners()]
        async with asyncio.timeout(10):
            while found[-1] != {0: "b", 1: "a"}:
                await asyncio.sleep(0.005)
                found.append(await desks.owners())
        return found

    assert {} not in asyncio.run(seen())


def test_what_is_known_is_told_without_a_look():
    desks = Looks({0: "a", 1: "a"}, {0: "b", 1: "b"})

    async def twice():
        return [await desks.owners(), await desks.owners()]

    assert asyncio.run(twice()) == [{0: "a", 1: "a"}] * 2
    assert desks.seen == [{0: "b", 1: "b"}]
