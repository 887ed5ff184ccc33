"""Whoever looks at a dispatcher again and again leaves the engine its time."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from scylla_spark.services.dispatch.looks import Looks


class Engine:
    """A mailbox whose engine is asked at once, and notes what for; one question at a time."""

    def __init__(self):
        self.asked, self.busy = [], threading.Lock()

    def ask(self, question, timeout_s):
        assert self.busy.acquire(blocking=False), "two look at once"
        try:
            return question(len(self.asked))
        finally:
            self.busy.release()

    def seeing(self, what, took_s=0.0):
        def question(now):
            self.asked.append((what, time.monotonic()))
            time.sleep(took_s)
            return what, now

        return question


@pytest.fixture
def engine():
    return Engine()


@pytest.mark.slow
def test_all_who_look_at_the_same_within_a_moment_are_shown_what_one_has_seen(engine):
    looks = Looks(engine)
    with ThreadPoolExecutor(16) as threads:
        seen = list(threads.map(lambda _: looks.look(engine.seeing("status"), "status"), range(200)))
    assert len(set(seen)) == len(engine.asked) <= 3
    looks.look(engine.seeing("handlers"), "handlers")
    assert engine.asked[-1][0] == "handlers"
    before = len(engine.asked)
    time.sleep(0.3)
    looks.look(engine.seeing("status"), "status")
    assert len(engine.asked) == before + 1


@pytest.mark.slow
def test_looks_that_differ_have_a_fifth_of_the_engines_time(engine):
    looks, begun = Looks(engine), time.monotonic()
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda lane: looks.look(engine.seeing(lane, 0.02)), range(9)))
    assert len(engine.asked) == 9
    assert time.monotonic() - begun > 8 * 5 * 0.02


def test_what_fails_is_shown_to_nobody_else(engine):
    looks = Looks(engine)
    with pytest.raises(KeyError):
        looks.look(lambda _now: {}["x"], "status")
    assert looks.look(engine.seeing("status"), "status") == ("status", 0)


@pytest.mark.slow
def test_who_waits_for_others_gives_up_in_time(engine, monkeypatch):
    monkeypatch.setattr("scylla_spark.services.dispatch.looks._PATIENCE_US", 100_000)
    looks = Looks(engine)
    with looks._turn, pytest.raises(TimeoutError):
        looks.look(engine.seeing("lane"))
    assert engine.asked == []
