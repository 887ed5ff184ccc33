"""A process whose settings say another partition count than the tables: it refuses to run by them, or goes by the tables."""

from types import SimpleNamespace

import pytest
from deltalake.exceptions import DeltaError
from kafka import TopicPartition

from scylla_spark.client.connection import Connection
from scylla_spark.config.settings import Settings
from scylla_spark.core.records.command import Rules
from scylla_spark.errors import ConfigError
from scylla_spark.services.dispatch.dispatcher import Dispatcher
from scylla_spark.services.dispatch.tasks_tail import TasksTail
from scylla_spark.services.metrics_server import MetricsServer
from scylla_spark.services.plan import service
from scylla_spark.services.plan.service import PlanService
from tests.support.delta_tables import make
from tests.support.waiting import eventually

WORDS = r"made with 4 partitions; the settings say 16.*set partitions = 4"


@pytest.fixture
def settings(tmp_path):
    """Of a deployment with four partitions; they say sixteen."""
    return Settings(
        _env_file=None, data_dir=tmp_path, tables={"path": str(tmp_path / "tables")}, partitions=16,
        kafka={"bootstrap_servers": "127.0.0.1:1"}, metrics={"port": 0},
    )  # fmt: skip


@pytest.fixture
def planner(settings, monkeypatch):
    """A planner that tells of each time that it asks for the right to plan."""
    asked = []

    class Holder:
        def __init__(self, *_):
            asked.append(True)

        def held(self, patience_s):
            return False

        def release(self):
            pass

    monkeypatch.setattr(service, "SoleHolder", Holder)
    monkeypatch.setattr(service, "_AGAIN_S", 0.01)
    made = PlanService(settings, MetricsServer(settings.metrics))
    made.asked = asked
    yield made
    made.stop()


@pytest.mark.slow
def test_a_dispatcher_refuses_to_begin(settings, tmp_path):
    make(tmp_path / "tables", 4)
    dispatcher = Dispatcher(settings, {})
    with pytest.raises(ConfigError, match=WORDS):
        dispatcher.start()
    assert dispatcher._thread.ident is None


def test_a_planner_refuses_before_it_asks_for_the_right_to_plan(settings, tmp_path, planner):
    make(tmp_path / "tables", 4)
    planner.start()
    eventually(lambda: planner._failure is not None, 10)
    with pytest.raises(ConfigError, match=WORDS):
        planner.alive()
    assert planner.asked == []


@pytest.mark.slow
def test_a_planner_waits_for_tables_and_looks_then(settings, tmp_path, planner):
    planner.start()
    planner._stop.wait(0.1)
    assert planner.alive()
    assert planner.asked == []
    make(tmp_path / "tables", settings.partitions)
    eventually(lambda: planner.asked, 10)
    assert planner.alive()


@pytest.mark.parametrize(("error", "passes"), [(DeltaError("503 SlowDown"), True), (KeyError("a defect"), False)])
def test_storage_that_does_not_answer_for_a_moment_ends_no_planner(monkeypatch, planner, error, passes):
    troubles = [error]

    def rules(_tables, _partitions):
        if troubles:
            raise troubles.pop()

    monkeypatch.setattr(service.TableReader, "agreed_rules", rules)
    planner.start()
    eventually(lambda: planner.asked or planner._failure is not None, 10)
    assert planner._failure is (None if passes else error)


def test_clients_go_by_the_tables(settings, tmp_path):
    make(tmp_path / "tables", 4)
    assert Connection(settings).of_deployment.partitions == 4


def test_the_tail_of_tasks_goes_by_the_rules_that_it_judges_by(settings):
    taken, sought = [], []
    taker = SimpleNamespace(gained=lambda marks: taken.extend(marks) or {})
    tail = TasksTail(settings, Rules(4), None, None, taker, dict)
    tail.use(SimpleNamespace(seek=lambda *_: None, seek_to_end=lambda *places: sought.extend(places)))
    tail._take_or_leave([3, 4])
    assert (taken, sought) == ([3], [TopicPartition("tasks", 4)])
