"""An act on all tasks that a filter chooses, beside somebody who asks for something quick."""

from __future__ import annotations

import json
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest

from scylla_spark.api.context import LONG_THREADS
from scylla_spark.api.tasks.lists import _SENT_AT_ONCE
from scylla_spark.core.tasks.key import TaskKey, id_of
from scylla_spark.schemas import TASKS
from tests.support.api_site import Site
from tests.support.delta_tables import append, at, make_filled, task

MANY = 11_000  # three portions
LIMIT_S = 60.0
MOST_BYTES = 16 * 1024 * 1024
ONE = TaskKey(at(10), "lane-0", "u")


@pytest.fixture
def site(tmp_path):
    make_filled(f"{tmp_path}/tables", filled)
    return Site(str(tmp_path))


def filled(path: str) -> None:
    keys = (TaskKey(at(10) + number, f"lane-{number}", "u") for number in range(MANY))
    append(path, TASKS, [task(key, number) for number, key in enumerate(keys)])


class SlowBroker:
    """Acknowledges a portion once somebody else was answered meanwhile, and notes what is under way; what was sent is let go of."""

    def __init__(self, sender):
        self.begun = self.came = self.most = 0
        self.answered = threading.Event()
        self.begin = self._begin
        self.record = sender.record

    def _begin(self, record):
        self.begun += 1
        self.most = max(self.most, self.begun - self.came)
        return record

    def finish(self, some):
        self.answered.clear()
        assert self.answered.wait(LIMIT_S), "who asks for something quick waits for the whole act"
        self.came += len(some)
        assert all(json.loads(one.value)["type"] == "cancel" for one in some[:1])
        return {}


@pytest.mark.slow
def test_an_act_on_very_many_tasks_holds_few_at_once_and_holds_up_nobody(site):
    broker = site.connection.sender = SlowBroker(site.connection.sender)
    with site.client() as client, ThreadPoolExecutor(1) as beside:
        assert client.get(f"/v1/tasks/{id_of(ONE)}").status_code == 200, "what is read once is read"
        tracemalloc.start()
        act = beside.submit(client.post, "/v1/tasks:cancel?filter=state:open")
        while not act.done():
            assert client.get("/healthz").status_code == 200
            assert client.get(f"/v1/tasks/{id_of(ONE)}").status_code == 200
            broker.answered.set()
        most_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert (act.result().json()["matched"], act.result().json()["sent"], broker.came) == (MANY, MANY, MANY)
    assert broker.most <= _SENT_AT_ONCE
    assert most_bytes < MOST_BYTES


@pytest.mark.parametrize(
    "path", ["/v1/tasks:retry?filter=state:open", "/v1/tasks:cancel?filter=state:open", "/v1/queues/mail:clear"]
)
def test_who_looks_at_one_thing_does_not_wait_for_acts_on_filters(tmp_path, path):
    make_filled(f"{tmp_path}/tables", lambda path: None)
    site, begun, over = Site(str(tmp_path)), threading.Semaphore(0), threading.Event()

    def keys(*given, **more):
        begun.release()
        assert over.wait(LIMIT_S)
        return iter(())

    site.app.state.api.pages.keys = keys
    with site.client() as client, ThreadPoolExecutor(LONG_THREADS + 1) as beside:
        acts = [beside.submit(client.post, path) for _ in range(LONG_THREADS)]
        try:
            assert all(begun.acquire(timeout=LIMIT_S) for _ in acts)
            looks = [beside.submit(client.get, place) for place in ("/v1/lanes/lane", "/v1/overview")]
            assert [look.result(LIMIT_S / 4).status_code for look in looks] == [404, 200]
        finally:
            over.set()
        assert [act.result().status_code for act in acts] == [200] * LONG_THREADS
