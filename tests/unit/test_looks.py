"""Whoever looks at a dispatcher again and again leaves the engine its time."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from scylla_spark.services.dispatch.looks import Looks

LOOK_US = 20_000


class Engine:
    """A mailbox whose engine is asked at once, and notes what for; one question at a time, on virtual time."""

    def __init__(self):
        self.asked, self.busy, self.at_us = [], threading.Lock(), 0

    def ask(self, question, timeout_s):
        assert self.busy.acquire(blocking=False), "two look at once"
        try:
            return question(len(self.asked))
        finally:
            self.busy.release()

    def seeing(self, what):
        def question(now):
            self.asked.append((what, self.at_us))
            self.at_us += LOOK_US
            return what, now

        return question

    def pause(self, seconds):
        self.at_us += round(seconds * 1e6)


@pytest.fixture
def engine():
    return Engine()


@pytest.fixture
def looks(engine):
    return Looks(engine, now=lambda: engine.at_us, pause=engine.pause)


def test_all_who_look_at_the_same_within_a_moment_are_shown_what_one_has_seen(engine, looks):
    with ThreadPoolExecutor(16) as threads:
        seen = list(threads.map(lambda _: looks.look(engine.seeing("status"), "status"), range(200)))
    assert len(set(seen)) == len(engine.asked) == 1
    looks.look(engine.seeing("handlers"), "handlers")
    assert [what for what, _ in engine.asked] == ["status", "handlers"]
    engine.pause(0.25)
    looks.look(engine.seeing("status"), "status")
    assert [what for what, _ in engine.asked] == ["status", "handlers", "status"]


def test_looks_that_differ_have_a_fifth_of_the_engines_time(engine, looks):
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda lane: looks.look(engine.seeing(lane)), range(9)))
    assert [at_us for _, at_us in engine.asked] == [n * 5 * LOOK_US for n in range(9)]


def test_what_fails_is_shown_to_nobody_else(engine, looks):
    with pytest.raises(KeyError):
        looks.look(lambda _now: {}["x"], "status")
    assert looks.look(engine.seeing("status"), "status") == ("status", 0)


def test_who_waits_for_others_gives_up_in_time(engine, looks, monkeypatch):
    monkeypatch.setattr("scylla_spark.services.dispatch.looks._PATIENCE_US", 1_000)
    with looks._turn, pytest.raises(TimeoutError):
        looks.look(engine.seeing("lane"))
    assert engine.asked == []
