"""Schedules whose handler no dispatcher has: when they are paused, and what of that is told."""

import json

import pytest

from scylla_spark.services.plan import dispatchers, handler_watcher
from scylla_spark.services.plan.handler_watcher import HandlerWatcher
from tests.support.planner_harness import PlannerHarness

EVERY = {"kind": "cron", "expression": "* * * * *"}


@pytest.fixture
def world():
    made = PlannerHarness()
    made.put("job", EVERY)
    made.pass_s(60)
    assert len(made.sent) == 1
    return made


def told(world):
    return [(fire["verdict"], fire["planned_us"]) for fire in world.fires if fire["verdict"] == "no_handler"]


def missing(world, *names):
    world.planner.missing_handlers(names, world.now)
    world.turn()


def test_a_schedule_is_paused_once_a_run_has_waited_while_three_more_planned_times_passed(world):
    launched_us = world.now
    world.pass_s(170)
    assert world.planner.handlers_in_question(world.now) == set()
    missing(world, "work")
    assert not world.planner.state.entries["job"].paused
    world.pass_s(10)
    assert world.planner.handlers_in_question(world.now) == {"work"}
    missing(world, "work")
    entry = world.planner.state.entries["job"]
    assert (entry.paused, told(world)) == (True, [("no_handler", launched_us)])
    assert "no dispatcher has the handler 'work'" in entry.note
    missing(world, "work")
    assert len(told(world)) == 1
    world.ask("resume", names=["job"])
    missing(world, "work")
    assert not world.planner.state.entries["job"].paused, "it has as long as before"


def test_a_run_that_has_ended_and_a_handler_that_is_there_pause_nothing(world):
    world.pass_s(200)
    missing(world, "another")
    world.end()
    missing(world, "work")
    assert not world.planner.state.entries["job"].paused


def test_what_waits_for_workers_needs_no_handler_here(world):
    world.put("job", EVERY, queue="gpu")
    world.ask("put_queue", queues=[{"name": "gpu", "mode": "pull"}])
    world.pass_s(400)
    assert world.planner.handlers_in_question(world.now) == set()


class Planner:
    """Asks for one handler, and keeps what it is told."""

    def __init__(self):
        self.told = []

    def handlers_in_question(self, now):
        return {"work", "there"}

    def missing_handlers(self, names, now):
        self.told.append(names)


@pytest.mark.parametrize(
    ("owners", "answers", "expected"),
    [
        (["http://a", "http://b"], {"http://a": ["there"], "http://b": []}, [{"work"}]),
        (["http://a", "http://b"], {"http://a": ["there"], "http://b": ["work"]}, []),
        (["http://a", ""], {"http://a": ["there"]}, []),
        (["http://a", "http://b"], {"http://a": ["there"]}, []),
    ],
)
def test_a_handler_is_missing_only_where_all_dispatchers_answer_and_none_has_it(monkeypatch, owners, answers, expected):
    def fetch(address, **_):
        names = answers.get(address.removesuffix("/handlers"))
        return (
            b"no JSON" if names is None else json.dumps({"handlers": [{"name": name} for name in names] + [7]}).encode()
        )

    watcher, planner = HandlerWatcher(None), Planner()
    monkeypatch.setattr(dispatchers, "fetch", fetch)
    monkeypatch.setattr(handler_watcher, "owners", lambda _: owners)
    monkeypatch.setattr(watcher._threads, "do", lambda call: call())
    watcher.exchange(planner, 0)
    watcher.exchange(planner, 0)
    assert planner.told == expected
