"""What a dispatcher does with definitions that it is told: the engine has them at once, and what was left behind is looked for."""

from concurrent.futures import Future

import pytest

from scylla_spark.config.settings import Settings
from scylla_spark.core.records.command import Command
from scylla_spark.core.tables.progress import Mark
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.definitions.queue import Queue
from scylla_spark.services.dispatch.dispatcher import Dispatcher, Surroundings

NOW = 1_700_000_000_000_000


class Runner:
    def __init__(self):
        self.asked = []

    def run(self, line, work):
        self.asked.append(line)
        work.close()
        return Future()

    def later(self, seconds, call):
        raise AssertionError("nothing waits here")


class Tail:
    """Membership that is certain."""

    failure = None

    def certain_until_us(self):
        return 1 << 62


@pytest.fixture
def runner():
    return Runner()


@pytest.fixture
def dispatcher(tmp_path, runner):
    settings = Settings(data_dir=tmp_path, queues={"mail": {"concurrency": 7}})
    made = Dispatcher(settings, {}, lambda _: Surroundings(lambda: NOW, lambda: NOW, None, runner))
    made.use(None, Tail(), None)
    return made


def put(dispatcher, **definitions):
    dispatcher._put_queues(definitions)
    dispatcher.step()


def test_the_engine_has_what_was_put_and_then_again_what_the_settings_say(dispatcher):
    gate = dispatcher.engine.gate
    assert gate("mail").limits.concurrency == 7
    put(dispatcher, mail=Queue(name="mail", rate=2), gpu=Queue(name="gpu", paused=True))
    assert (gate("mail").limits.concurrency, gate("mail").limits.rate, gate("gpu").limits.paused) == (None, 2, True)
    assert dispatcher.queues.paused() == ["gpu"]
    put(dispatcher, mail=None, gpu=None)
    assert gate("mail").limits.concurrency == 7
    assert gate("gpu") is gate("never heard of")


def test_when_a_queue_is_not_paused_any_more_what_was_left_to_the_tables_is_looked_for(dispatcher, runner):
    tenure = dispatcher.engine.assign(0, Mark(), NOW)
    dispatcher.scanner.add(tenure, NOW)
    dispatcher.scanner._reach[0].looked_us = NOW
    put(dispatcher, mail=Queue(name="mail", paused=True))
    assert runner.asked == []
    put(dispatcher, mail=Queue(name="mail"))
    assert runner.asked == ["scan"]
    assert dispatcher.scanner._reach[0].looked_us == 0
    put(dispatcher, mail=Queue(name="mail", rate=5))
    assert runner.asked == ["scan"], "nothing can have been left behind"
    put(dispatcher, mail=Queue(name="mail", default_handler="send"))
    assert runner.asked == ["scan", "scan"]


def test_nothing_starts_before_definitions_are_known_even_if_there_are_none(dispatcher, monkeypatch):
    ticks = []
    tick = dispatcher.engine.tick
    monkeypatch.setattr(
        dispatcher.engine, "tick", lambda *args, start_by_us: ticks.append(start_by_us) or tick(*args, start_by_us=0)
    )
    dispatcher._queues_known = False
    dispatcher.step()
    put(dispatcher)
    assert [start_by > 0 for start_by in ticks] == [False, True]


def test_a_task_is_run_as_its_queue_says_from_when_that_is_put(dispatcher):
    command = Command("enqueue", TaskKey(NOW, "a", "u"), 0, handler="h", queue="mail")
    before = dispatcher._policies.of(command).retry.max_retries
    put(dispatcher, mail=Queue(name="mail", max_retries=3))
    assert (before, dispatcher._policies.of(command).retry.max_retries) == (100, 3)


def test_tasks_that_wait_are_looked_at_anew_where_their_queue_is_to_be_kept_apart(dispatcher, monkeypatch):
    asked = []
    monkeypatch.setattr(dispatcher.engine, "reconsider", lambda queue, _now: asked.append(queue))
    put(dispatcher, mail=Queue(name="mail", paused=True))
    asked.clear()
    put(dispatcher, mail=Queue(name="mail", isolation="sandbox"))
    assert asked == ["mail"]
