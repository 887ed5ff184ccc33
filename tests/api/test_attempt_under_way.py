"""Who has an attempt, how far it is and when it was heard of last: what its dispatcher knows, over HTTP, in every face."""

import json
from datetime import timedelta

import pytest

from scylla_spark.cli.commands.task import _attempt
from scylla_spark.client.tasks.explain import told_by_owner
from scylla_spark.clock import from_us, iso
from scylla_spark.config.settings import Metrics
from scylla_spark.core.records.fact import Fact
from scylla_spark.core.tasks.attempt_note import WorkNote
from scylla_spark.core.tasks.key import TaskKey, id_of
from scylla_spark.core.tasks.status import attempt_of
from scylla_spark.schemas import ATTEMPTS, COMPLETIONS, TASKS
from scylla_spark.services.dispatch.describe import describe_attempt
from scylla_spark.services.metrics_server import MetricsServer
from scylla_spark.services.read_only_http_server import JSON, Reply, Route
from tests.support.api_site import Site
from tests.support.dashboard_site import seen
from tests.support.delta_tables import append, at, fact, make, task
from tests.support.engine_harness import SECOND, Harness
from tests.support.worker_harness import PullWorld

KEY = TaskKey(at(10), "a", "u")
NOTE = WorkNote("w", "d", 30_000, at(10), at(11), 0.25)


def told(world, key, began=None):
    return describe_attempt(world.engine, world.now, key, began or {})


@pytest.fixture
def dispatcher():
    """What answers as a dispatcher does; `said` is what it says."""
    said = {}
    server = MetricsServer(Metrics())
    names = ("scheduled_time", "ordering_id", "uniqueness_key")
    server.answer({"/attempt": Route(lambda _query: Reply(JSON, json.dumps(said).encode()), names)})
    server.start()
    yield server.address, said
    server.stop()


@pytest.fixture
def site(tmp_path, dispatcher):
    path = f"{tmp_path}/tables"
    make(path)
    append(path, TASKS, [task(KEY, 1), task(KEY._replace(uniqueness_key="done"), 2)])
    append(path, ATTEMPTS, [fact(KEY, 1, "started", 1, work=NOTE._asdict())])
    ended = NOTE._replace(progress=1.0, metrics='{"rows": 7}')
    append(
        path,
        COMPLETIONS,
        [fact(KEY._replace(uniqueness_key="done"), 1, "succeeded", 2, work=ended._asdict(), progress_note="the end")],
    )
    site = Site(str(tmp_path))
    site.connection.owner_address = lambda partition: dispatcher[0]
    return site


@pytest.fixture
def client(site):
    with site.client() as client:
        yield client


def test_a_lease_tells_who_has_it_how_far_it_is_and_until_when():
    world = PullWorld(lease_ms=30_000)
    key = world.put()
    (lease,) = world.leases(world.once(worker="w"))
    world.now += 5 * SECOND
    assert world.sign(lease.token, worker="w", progress=0.5, progress_note="page 3") == "ok"
    heard = world.now
    world.now += 3 * SECOND
    found = told(world, key)
    assert (found["known"], found["attempt"], found["worker"], found["progress"]) == (True, 1, "w", 0.5)
    assert found["progress_note"] == "page 3"
    assert (found["heard_at"], found["lease_until"]) == (iso(heard), iso(heard + 30 * SECOND))
    assert found["deadline"] > found["lease_until"]


def test_what_runs_in_a_child_was_heard_of_now_and_what_waits_for_one_not_at_all():
    world = Harness()
    key = world.enqueue()
    (run,) = world.pump()
    assert told(world, key) == {"known": False}
    began, world.now = world.now, world.now + 7 * SECOND
    found = told(world, key, {run.id: began})
    assert (found["known"], found["heard_at"]) == (True, iso(world.now))
    assert found["deadline"] == iso(began + run.timeout_ms * 1000)


def test_a_task_nobody_holds_has_no_attempt_under_way():
    assert told(PullWorld(), KEY) == {"known": False}


def test_an_attempt_under_way_is_shown_by_the_word_of_its_dispatcher(client, dispatcher):
    dispatcher[1].update(
        known=True, attempt=1, worker="w", progress=0.5, progress_note="page\n 3",
        heard_at=iso(at(10, 5)), lease_until=iso(at(10, 6)), deadline=iso(at(11))
    )  # fmt: skip
    found = client.get(f"/v1/tasks/{id_of(KEY)}").json()
    (attempt,) = client.get(f"/v1/tasks/{id_of(KEY)}/attempts").json()["attempts"]
    assert found["last_attempt"] == attempt
    assert (attempt["worker"], attempt["progress"], attempt["heard_at"]) == ("w", 0.5, iso(at(10, 5)))
    assert attempt["progress_note"] == "page 3"
    assert (attempt["lease_until"], attempt["deadline"]) == (iso(at(10, 6)), iso(at(11)))
    shown = _attempt(
        told_by_owner([attempt_of(Fact(KEY, 1, "started", at(10), work=NOTE))], KEY, lambda: dispatcher[0])[0]
    )
    assert (shown["worker"], shown["progress"], shown["lease_until"]) == ("w", 0.5, iso(at(10, 6)))
    assert shown["progress_note"] == "page 3"
    page = seen(client.get(f"/ui/tasks/{id_of(KEY)}"))
    assert "w 50 % page 3 last seen" in page


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"known": True, "attempt": 2, "worker": "x", "progress": 0.9},
        {
            "known": True,
            "attempt": 1,
            "worker": 7,
            "progress": 9,
            "progress_note": 8,
            "heard_at": "soon",
            "lease_until": 5,
        },
    ],
)
def test_what_is_no_word_on_this_attempt_changes_nothing(client, dispatcher, said):
    dispatcher[1].update(said)
    (attempt,) = client.get(f"/v1/tasks/{id_of(KEY)}/attempts").json()["attempts"]
    assert (attempt["worker"], attempt["progress"], attempt["deadline"]) == ("w", 0.25, iso(at(11)))
    assert (attempt["heard_at"], attempt["lease_until"], attempt["progress_note"]) == (None, None, None)


def test_a_dispatcher_that_is_gone_is_done_without(client, site):
    site.connection.owner_address = lambda partition: "http://127.0.0.1:9"
    assert client.get(f"/v1/tasks/{id_of(KEY)}").json()["last_attempt"]["worker"] == "w"


def test_an_ended_attempt_keeps_who_had_it_and_what_it_measured(client, site):
    site.connection.owner_address = lambda partition: pytest.fail("nobody is asked of what has ended")
    key = KEY._replace(uniqueness_key="done")
    found = client.get(f"/v1/tasks/{id_of(key)}").json()["last_attempt"]
    assert (found["worker"], found["progress"], found["metrics"]) == ("w", 1.0, {"rows": 7})
    assert (found["heard_at"], found["lease_until"], found["deadline"]) == (found["finished_at"], None, None)
    assert found["progress_note"] == "the end"


def test_metrics_that_are_no_json_are_shown_as_none():
    assert attempt_of(Fact(KEY, 1, "failed", work=WorkNote(metrics="{"))).metrics is None


def test_a_deadline_of_a_start_is_when_its_lease_ends_at_the_latest():
    attempt = attempt_of(Fact(KEY, 1, "started", at(10), work=NOTE))
    assert attempt.deadline == from_us(at(10)) + timedelta(hours=1)
