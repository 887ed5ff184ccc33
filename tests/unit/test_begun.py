"""What Spark workers tell the driver while their jobs run: signed, bounded, and lost without harm."""

from __future__ import annotations

import random
import socket
from dataclasses import replace

import pytest

from scylla_spark.executors.spark.start_signals import BegunListener, Teller, messages, read
from tests.support.waiting import holds

SECRET = b"s" * 32


@pytest.fixture
def listener():
    heard: dict[int, int] = {}
    listener = BegunListener("127.0.0.1", "127.0.0.1", heard.update)
    listener.heard = heard
    yield listener
    listener.close()


def test_what_a_worker_tells_is_heard(listener):
    begun = {number: 1_800_000_000_000_000 + number for number in range(1200)}
    teller = Teller(listener.address)
    assert holds(lambda: teller.tell(begun) or listener.heard == begun)


def test_datagrams_without_the_secret_are_not_heard(listener):
    Teller(replace(listener.address, secret=b"x" * 32)).tell({1: 1})
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        for data in (b"", b"x", b"[[1,1]]", b"0" * 32 + b"[[1,1]]"):
            stranger.sendto(data, ("127.0.0.1", listener.address.port))
    Teller(listener.address).tell({2: 2})
    assert holds(lambda: listener.heard)
    assert listener.heard == {2: 2}


def test_any_change_to_a_datagram_makes_it_say_nothing():
    (data,) = messages(SECRET, [(7, 8)])
    assert read(SECRET, data) == {7: 8}
    dice = random.Random(1)
    for _ in range(500):
        wrong = bytearray(data)
        wrong[dice.randrange(len(wrong))] ^= 1 << dice.randrange(8)
        assert read(SECRET, bytes(wrong)) == {}
        assert read(SECRET, dice.randbytes(dice.randrange(200))) == {}


@pytest.mark.parametrize("begun", [[(1, "x")], [("1", 1)], [(1, -1)], [(1, 1 << 70)], [(1, 1.5)], [(True, 1)]])
def test_signed_nonsense_names_nothing(begun):
    (data,) = messages(SECRET, begun)
    assert read(SECRET, data) == {}


def test_driver_that_cannot_be_reached_does_no_harm(listener):
    unknown = replace(listener.address, host="nowhere.invalid")
    Teller(unknown).tell({1: 1})
    gone = Teller(listener.address)
    listener.close()
    for _ in range(3):
        gone.tell({1: 1})


def test_secret_does_not_show(listener):
    assert repr(listener.address.secret) not in repr(listener.address)
