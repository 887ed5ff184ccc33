"""Questions of an engine to small tables, answered by the real threads."""

from types import SimpleNamespace

import pytest

from scylla_spark.clock import now_us
from scylla_spark.core.engine.action import AskNames, Reload
from scylla_spark.core.engine.bounds import Limits
from scylla_spark.core.records.command import Command
from scylla_spark.core.tables.progress import Basis, Mark
from scylla_spark.core.tasks.key import HOUR_US, Name, TaskKey, partition_of
from scylla_spark.core.tasks.stored_records import ScanRow
from scylla_spark.io.delta.open_tasks import OpenTasksReader
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.schemas import COMPLETIONS, TASKS
from scylla_spark.services.dispatch import lookups, scanner
from scylla_spark.services.dispatch.lookups import Lookups
from scylla_spark.services.dispatch.mailbox import Mailbox
from scylla_spark.services.dispatch.stepwise_work import Ask, Read, Threads
from tests.support.delta_tables import append, fact, make, task
from tests.support.engine_harness import NOW, SECOND, Harness

LANE = next(f"lane-{n}" for n in range(99) if partition_of(f"lane-{n}", 4) == 0)
FIRST = NOW // HOUR_US * HOUR_US - HOUR_US
COUNT = 30


class Shell:
    """An engine whose lane is cut after its first two tasks, and what answers it."""

    def __init__(self, path):
        self.world = Harness(Limits(lane_depth=4))
        self.engine, self.mailbox = self.world.engine, Mailbox()
        self.threads = Threads(self.mailbox)
        self.tables = OpenTasksReader(TableReader(path))
        self.questions = Lookups(self.tables, self.mailbox, self.engine, self.threads)
        self.world.read_on(COUNT)
        rows = [ScanRow(Command("enqueue", key_of(n), n, "h")) for n in range(2)]
        self.engine.rows(self.world.tenure, rows, Basis(), NOW)
        self.engine.scanned(self.world.tenure, NOW + 300 * SECOND, {LANE: key_of(1)}, Mark(), NOW)
        self.engine.tick(NOW, {}, start_by_us=0)
        (self.asked,) = self.engine.take_actions()

    def answers(self, holds):
        """Hands over messages until the condition holds, twenty seconds at most."""
        until = now_us() + 20 * SECOND
        while not holds() and now_us() < until:
            self.mailbox.wait(0.05)
            for message in self.mailbox.drain():
                message(NOW)
        assert holds()

    @property
    def lane(self):
        return self.engine.partitions[0].lanes[LANE]

    def loaded(self):
        return sorted(self.engine.partitions[0].lanes[LANE].entries)


def iter_nothing():
    """Work that ends at once."""
    yield Read(lambda: None)


def key_of(number):
    return TaskKey(FIRST + number, LANE, "u")


@pytest.fixture
def shell(tmp_path):
    make(tmp_path)
    append(str(tmp_path), TASKS, [task(key_of(n), n) for n in range(COUNT)])
    append(str(tmp_path), COMPLETIONS, [fact(key_of(3), 1, "succeeded")])
    shell = Shell(str(tmp_path))
    yield shell
    shell.threads.stop()


def test_the_next_open_tasks_of_a_lane_come_in_parts(shell, monkeypatch):
    monkeypatch.setattr(scanner, "ROWS_PER_MESSAGE", 3)
    shell.questions.reload(shell.asked)
    shell.answers(lambda: not shell.lane.reloading)
    assert shell.loaded() == [key_of(n) for n in (0, 1, 2, 4, 5, 6)]


def test_what_was_asked_in_an_earlier_tenure_is_not_answered_in_a_later(shell):
    shell.questions.reload(shell.asked)
    shell.engine.assign(0, Mark(), NOW)
    later = shell.threads.run("reload", iter_nothing())
    shell.answers(later.done)
    assert shell.engine.partitions[0].lanes == {}


def test_a_lane_is_read_again_only_from_tables_that_hold_what_it_let_go_of(shell, tmp_path, monkeypatch):
    monkeypatch.setattr(lookups, "AGAIN_S", 0.01)
    progressed = iter([0, 0, COUNT])
    real, last = shell.tables.marks, []

    def marks():
        last.append(next(progressed, COUNT))
        return {0: real().get(0, Mark())._replace(tasks_offset=last[-1])}

    monkeypatch.setattr(shell.tables, "marks", marks)
    shell.questions.reload(shell.asked._replace(covering=5))
    shell.answers(lambda: not shell.lane.reloading)
    assert last[:3] == [0, 0, COUNT]
    assert len(shell.loaded()) == 6


def test_tables_that_cannot_be_read_are_tried_again(shell, monkeypatch):
    monkeypatch.setattr(lookups, "AGAIN_S", 0.01)
    tries = iter([OSError("away"), OSError("away")])
    read = shell.tables.lanes

    def fails(*words):
        for error in tries:
            raise error
        return read(*words)

    monkeypatch.setattr(shell.tables, "lanes", fails)
    shell.questions.reload(shell.asked)
    shell.answers(lambda: not shell.lane.reloading)
    assert len(shell.loaded()) == 6


class Line:
    """Carries work out at once, and has times when told to; counts what it was asked to have one for."""

    def __init__(self):
        self.calls, self.refuses = [], False

    def run(self, line, work):
        answer = None
        try:
            while True:
                step = work.send(answer)
                answer = True if isinstance(step, Ask) else step.work()
        except StopIteration:
            pass

    def later(self, seconds, call):
        if self.refuses:
            raise RuntimeError("can't start new thread")
        self.calls.append(call)


class Behind:
    """Tables that hold little yet."""

    offset = 5

    def marks(self):
        return {0: Mark(tasks_offset=self.offset)}

    def bearers(self, partition, names, mark):
        return []


def test_names_that_wait_for_the_tables_wait_together_and_none_is_forgotten():
    line, tables, world = Line(), Behind(), Harness(Limits())
    mailbox = Mailbox()
    questions = Lookups(tables, mailbox, world.engine, line)
    for n in range(100):
        questions.ask_names(AskNames(world.tenure, [Name(f"lane{n}", "u")], 10))
    assert len(line.calls) == 1, "one time for all"
    line.refuses = True
    line.calls.pop()()
    questions.ask_names(AskNames(world.tenure, [Name("ready", "u")], -1))
    assert len(mailbox.drain(1_000)) == 1, "what can be told is told, though nothing can wait"
    line.refuses = False
    questions.ask_names(AskNames(world.tenure, [Name("late", "u")], 10))
    tables.offset = 20
    line.calls.pop()()
    assert len(mailbox.drain(1_000)) == 1
    assert not questions._late_names._items


@pytest.mark.parametrize("kind", ["reload", "names", "lookup"])
def test_a_question_that_always_fails_keeps_no_other_partition_waiting(monkeypatch, kind):
    monkeypatch.setattr(lookups, "AGAIN_S", 0.01)
    mailbox, world, fails = Mailbox(), Harness(Limits()), [True]
    other = world.engine.assign(1, Mark(), NOW)
    keys = {tenure: TaskKey(NOW, f"lane{tenure.partition}", "u") for tenure in (world.tenure, other)}

    def answer(number, value):
        if fails[0] and number == 0:
            raise KeyError("a defect")
        return value

    tables = SimpleNamespace(
        marks=lambda: {0: Mark(tasks_offset=5), 1: Mark(tasks_offset=5)},
        lanes=lambda number, *_: answer(number, {f"lane{number}": ([], False)}),
        bearers=lambda number, *_: answer(number, []),
        known=lambda asked: answer(int(asked[0].ordering_id[-1:]), {}),
    )
    threads = Threads(mailbox)
    questions, told = Lookups(tables, mailbox, world.engine, threads), []
    names = {"reload": "reloaded", "names": "named", "lookup": "looked_up"}
    monkeypatch.setattr(world.engine, names[kind], lambda tenure, *_, **__: told.append(tenure.partition))
    for tenure, key in keys.items():
        if kind == "reload":
            questions.reload(Reload(tenure, key.ordering_id, key, NOW + SECOND, 5, -1))
        elif kind == "names":
            questions.ask_names(AskNames(tenure, [Name(key.ordering_id, "u")], -1))
        else:
            questions.look_up(tenure, [key])
    answered(mailbox, lambda: told == [1])
    fails.clear()
    fails.append(False)
    answered(mailbox, lambda: told == [1, 0])
    threads.stop()


def answered(mailbox, holds):
    """Runs messages until the condition holds, twenty seconds at most."""
    until = now_us() + 20 * SECOND
    while not holds() and now_us() < until:
        mailbox.wait(0.05)
        for message in mailbox.drain():
            message(NOW)
    assert holds()
