"""Questions of an engine to small tables, answered by the real threads."""

import pytest

from scylla_spark.clock import now_us
from scylla_spark.core.feed import ScanRow
from scylla_spark.core.key import HOUR_US, TaskKey, partition_of
from scylla_spark.core.lanes import Limits
from scylla_spark.core.partition import Mark
from scylla_spark.core.wire import Command
from scylla_spark.io.readers import Readers
from scylla_spark.schemas import COMPLETIONS, TASKS
from scylla_spark.services import questions
from scylla_spark.services.mailbox import Mailbox
from scylla_spark.services.questions import Questions
from tests.unit.delta_tables import append, fact, make, task
from tests.unit.engine_harness import NOW, SECOND, Harness

LANE = next(f"lane-{n}" for n in range(99) if partition_of(f"lane-{n}", 4) == 0)
FIRST = NOW // HOUR_US * HOUR_US - HOUR_US
COUNT = 30


class Shell:
    """An engine whose lane is cut after its first two tasks, and what answers it."""

    def __init__(self, path):
        self.world = Harness(Limits(lane_depth=4))
        self.engine, self.mailbox = self.world.engine, Mailbox()
        self.questions = Questions(Readers(path), self.mailbox, self.engine)
        rows = [ScanRow(Command("enqueue", key_of(n), n, "h")) for n in range(2)]
        self.engine.rows(0, rows, NOW)
        self.engine.scanned(0, NOW + 300 * SECOND, {LANE: key_of(1)}, Mark(), NOW)
        self.engine.tick(NOW, {}, start_by_us=0)
        (self.asked,) = self.engine.actions

    def answers(self, wanted=1):
        """Hands over messages until so many have come; returns how many there were."""
        count, until = 0, now_us() + 20 * SECOND
        while count < wanted and now_us() < until:
            self.mailbox.wait(1.0)
            for message in self.mailbox.drain():
                message(NOW)
                count += 1
        return count

    def loaded(self):
        return sorted(self.engine.partitions[0].lanes[LANE].entries)


def key_of(number):
    return TaskKey(FIRST + number, LANE, "u")


@pytest.fixture
def shell(tmp_path):
    make(tmp_path)
    append(str(tmp_path), TASKS, [task(key_of(n), n) for n in range(COUNT)])
    append(str(tmp_path), COMPLETIONS, [fact(key_of(3), 1, "succeeded")])
    shell = Shell(str(tmp_path))
    yield shell
    shell.questions.stop()


def test_the_next_open_tasks_of_a_lane_come_in_parts(shell, monkeypatch):
    monkeypatch.setattr(questions, "ROWS_PER_MESSAGE", 3)
    shell.questions.reload(shell.asked)
    assert shell.answers(2) == 2
    assert shell.loaded() == [key_of(n) for n in (0, 1, 2, 4, 5, 6)]
    assert not shell.engine.partitions[0].lanes[LANE].reloading


def test_what_was_asked_in_an_earlier_take_is_not_answered_in_a_later(shell, tmp_path):
    shell.questions.reload(shell.asked)
    later = Shell(str(tmp_path)).engine.partitions[0]  # it asks, too, but has no answer yet
    shell.engine.partitions[0] = later
    assert shell.answers() == 1
    assert shell.loaded() == [key_of(0), key_of(1)]
    assert later.lanes[LANE].reloading


def test_tables_that_cannot_be_read_are_tried_again(shell, monkeypatch):
    monkeypatch.setattr(questions, "_AGAIN_S", 0.01)
    tries = iter([OSError("away"), OSError("away")])
    read = shell.questions._openings.lanes

    def fails(*words):
        for error in tries:
            raise error
        return read(*words)

    monkeypatch.setattr(shell.questions._openings, "lanes", fails)
    shell.questions.reload(shell.asked)
    assert shell.answers() == 1
    assert len(shell.loaded()) == 6
