"""`/healthz` and `/readyz` at the metrics port: 200 while all is in order, else 503 and the reason in words."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from scylla_spark.config.settings import Metrics, Settings
from scylla_spark.errors import UnreachableError
from scylla_spark.processes import deployment as module
from scylla_spark.processes.deployment import Deployment
from scylla_spark.processes.health import Health
from scylla_spark.services.dispatch.dispatcher import Dispatcher
from scylla_spark.services.ingest.service import IngestService
from scylla_spark.services.metrics_server import MetricsServer
from scylla_spark.services.plan.service import PlanService
from scylla_spark.services.service import Role
from tests.support.waiting import eventually

OK = (200, {"status": "ok"})


def asked(address, path):
    try:
        with urlopen(f"{address}{path}", timeout=30) as answer:
            return answer.status, json.loads(answer.read())
    except HTTPError as refused:
        with refused:
            return refused.code, json.loads(refused.read())


class Part:
    """A service whose trouble a test sets."""

    def __init__(self):
        self.why = None
        self.gate = threading.Event()
        self.ended = None

    def start(self):
        assert self.gate.wait(30)

    def trouble(self):
        return self.why

    def ready(self):
        return True

    def alive(self):
        if self.ended is not None:
            raise self.ended
        return True

    def stop(self):
        assert self.gate.wait(30)


@pytest.fixture
def part():
    return Part()


@pytest.fixture
def running(part, monkeypatch, tmp_path):
    role = Role(lambda _settings, _server: part, lambda _settings: False, own_port=None)
    monkeypatch.setattr(module, "ROLES", {"part": role})
    monkeypatch.setattr(module, "role_named", lambda _name: role)
    found = Deployment(Settings(data_dir=tmp_path, kafka={"bootstrap_servers": "127.0.0.1:1"}), roles=["part"])
    yield found
    part.gate.set()
    found.stop()


def test_a_process_is_ready_from_its_start_to_its_stop_while_no_service_has_trouble(running, part):
    starting = threading.Thread(target=running.start)
    starting.start()
    address = eventually(lambda: running.metrics, 30, "the server is there")
    assert asked(address, "/healthz") == OK
    part.why = "It starts."
    told = (503, {"error": "part: It starts."})
    eventually(lambda: asked(address, "/readyz") == told, 30, "it starts")
    part.gate.set()
    starting.join()
    part.why = None
    eventually(lambda: asked(address, "/readyz") == OK, 30, "it is ready")
    part.why = "Kafka is silent."
    silent = (503, {"error": "part: Kafka is silent."})
    eventually(lambda: asked(address, "/readyz") == silent, 30, "it has trouble")
    assert asked(address, "/healthz") == OK, "a restart would not help"
    part.gate.clear()
    stopping = threading.Thread(target=running.stop)
    stopping.start()
    eventually(lambda: "stops" in str(asked(address, "/readyz")), 30, "it says that it stops")
    part.gate.set()
    stopping.join()


def test_the_end_of_a_part_is_told_until_the_process_has_stopped(running, part):
    part.gate.set()
    running.start()
    part.ended = UnreachableError("The thread of x has ended.")
    with pytest.raises(UnreachableError, match="thread of x"):
        running.serve(threading.Event())
    told = (503, {"error": "A part of this process has ended: The thread of x has ended."})
    assert [asked(running.metrics, path) for path in ("/healthz", "/readyz")] == [told, told]


def test_a_service_that_is_not_there_yet_starts_and_one_that_does_not_answer_has_trouble():
    class Silent(Part):
        def trouble(self):
            raise TimeoutError

    server = MetricsServer(Metrics())
    services = {}
    server.answer(Health(("dispatch",), services).routes())
    server.start()
    try:
        assert asked(server.address, "/readyz") == (503, {"error": "dispatch: It starts."})
        services["dispatch"] = Silent()
        eventually(lambda: "in time" in str(asked(server.address, "/readyz")), 30, "it does not answer")
    finally:
        server.stop()


def test_many_questions_at_once_are_one_question_to_a_service(part):
    time, looks = SimpleNamespace(now=0), []
    part.trouble = lambda: looks.append(time.now)
    ready = Health(("dispatch",), {"dispatch": part}, now=lambda: time.now).routes()["/readyz"].answer
    for time.now in (0, 1, 249_999, 250_000, 250_001):
        assert ready({})
    assert looks == [0, 250_000]


def test_a_jvm_that_stands_still_makes_a_process_unready_after_fifteen_seconds(part):
    time = SimpleNamespace(now=0)
    health = Health(("ingest",), {"ingest": part}, now=lambda: time.now)
    health.looked_us = 0
    ready = health.routes()["/readyz"].answer
    time.now = 15_000_000
    assert json.loads(ready({}).body) == {"status": "ok"}
    time.now += 1
    with pytest.raises(UnreachableError, match="has not answered this process for 15 s"):
        ready({})


# -- why a role is not ready ---------------------------------------------------------------------------------------------


def partition(state="active", stalled=False):
    return SimpleNamespace(state=state, stalled=stalled)


@pytest.mark.parametrize(
    ("partitions", "certain", "why"),
    [
        ([], True, "No partition is assigned"),
        (["loading", "active", "fencing", "loading"], True, "Of 4 partitions some release no tasks yet: 1 fencing, 2 loading."),
        (["active"], False, "Kafka has not confirmed"),
        (["active"], True, None),
    ],
)  # fmt: skip
def test_a_dispatcher_says_why_it_releases_nothing(tmp_path, monkeypatch, partitions, certain, why):
    found = Dispatcher(Settings(data_dir=tmp_path), {})
    found.engine = SimpleNamespace(partitions=dict(enumerate(map(partition, partitions))))
    monkeypatch.setattr(found, "_certain_until_us", lambda: int(certain))
    told = found._trouble()
    assert told is None if why is None else why in told
    found._queues_known = False
    assert "definitions of queues" in found._trouble()


def test_a_dispatcher_whose_outcomes_are_not_acknowledged_is_not_ready(tmp_path, monkeypatch):
    found = Dispatcher(Settings(data_dir=tmp_path), {})
    found.engine = SimpleNamespace(partitions={0: partition(), 1: partition(stalled=True)})
    monkeypatch.setattr(found, "_certain_until_us", lambda: 1)
    assert "outcomes of 1 of 2 partitions" in found._trouble()


def test_ingest_says_what_it_waits_for(tmp_path):
    found = IngestService(Settings(data_dir=tmp_path), MetricsServer(Metrics()))
    assert "Spark" in found.trouble()
    found._ingest = SimpleNamespace(kafka_is_silent=True)
    assert "one writer" in found.trouble()
    gate = threading.Event()
    found._starting = threading.Thread(target=gate.wait)
    found._starting.start()
    assert "queries start" in found.trouble()
    gate.set()
    found._starting.join()
    assert "Kafka" in found.trouble()
    found._ingest.kafka_is_silent = False
    assert found.trouble() is None


def test_a_planner_that_stands_by_is_ready_and_one_that_begins_again_says_why(tmp_path):
    found = PlanService(Settings(data_dir=tmp_path), MetricsServer(Metrics()))
    assert "reads" in found.trouble()
    found._why = "the log is silent."
    assert found.trouble() == "Planning begins again: the log is silent."
    found._waits.set()
    assert found.trouble() is None
    found._waits.clear()
    found._tenure = SimpleNamespace(active=True)
    assert found.trouble() is None
