"""The history of leases on real processes: whatever dies, freezes or is cut off, the log and what workers wrote down agree.

Two dispatchers, an API, and workers work off some thousand tasks without ingest and Spark. Meanwhile a worker is killed, another freezes
for longer than its leases last and wakes up, a third talks through a network that breaks again and again, and both dispatchers and the
API are killed. LEASED says how many tasks there are.
"""

import json
import os
import signal
import sys
from collections import Counter, defaultdict
from types import SimpleNamespace

import pytest

from scylla_spark import Scheduler
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.task import STARTED
from scylla_spark.io.delta.new_tables import ensure_tables
from scylla_spark.io.host.broker_files import free_port
from scylla_spark.io.kafka.topic_setup import ensure_topics
from scylla_spark.testing import judge
from tests.acceptance.http_api import Wire, api_process
from tests.acceptance.place import HANDLERS, PATIENCE, ROOT, Place, Process, now
from tests.faults.site import PARTITIONS
from tests.simulation.lease_judge import LeaseJudge
from tests.support.cutting_proxy import CuttingProxy
from tests.support.outcomes_log import OutcomesLog
from tests.support.shared_broker import as_words, settings_on
from tests.support.waiting import eventually

TASKS = int(os.environ.get("LEASED", "1500"))
EVERY_S = 0.7  # so long lives a connection of the worker behind the proxy
LANES = 150
FROZEN_S = 7
OPTIONS = (
    "dispatch.scan=reader", "dispatch.session_timeout=6s", "queues.gpu.mode=pull",
    "queues.gpu.lease=4s", "queues.gpu.max_retries=20", "queues.gpu.retry_base=100ms", "queues.gpu.retry_cap=200ms",
)  # fmt: skip
PROGRAM = """
import json, os, sys, time
from scylla_spark import Worker
from scylla_spark.io.host.broker_files import free_port
url, name, journal = sys.argv[1:]
out = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def write(lease, what, **more):
    key = lease.task.key
    line = {"worker": name, "what": what, "token": lease.token, "key": [key.time_us, key.ordering_id, key.uniqueness_key],
            "attempt": lease.attempt, "at": time.time_ns() // 1000, **more}
    os.write(out, json.dumps(line).encode() + b"\\n")

print('{"ready": true}', flush=True)
number = 0
for lease in Worker(url, "gpu", name=name).leases(n=8):
    write(lease, "begun")
    time.sleep(0.005)
    number += 1
    outcome = "yielded" if number % 17 == 5 else "failed" if number % 19 == 7 else "succeeded"
    write(lease, "done", outcome=outcome)
    {"yielded": lease.yield_, "failed": lambda: lease.fail("E1"), "succeeded": lambda: lease.complete({"by": name})}[outcome]()
    if number % 5 == 0:
        try:
            lease.recorded(20)
        except Exception as error:
            write(lease, "unknown", error=type(error).__name__)
        else:
            write(lease, "told", outcome=outcome, status=lease.status)
"""


class Field(Place):
    """Two dispatchers, an API, and workers, each a process of its own; nothing of Spark."""

    def __init__(self, folder, broker, port):
        super().__init__(folder)
        self.settings = settings_on(broker, self.data, partitions=PARTITIONS)
        ensure_tables(self.settings, ensure_topics(self.settings), now=now())
        self.log = OutcomesLog(self.settings)
        self.port = port
        self.number = 0
        self.running = {}

    def role(self, name, role, *more):
        """Starts a dispatcher or the API."""
        self.number += 1
        words = [word for text in (*OPTIONS, f"api.port={self.port}") for word in ("--set", text)]
        process = Process(
            f"{self.number:02}-{name}",
            [*self.command(*as_words(self.settings), *words), "run", role, *more, "-o", "json"],
            self.folder,
            self.environment,
        )
        self.running[name] = process
        return process

    def worker(self, name, url):
        """Starts a worker."""
        command = [sys.executable, "-c", PROGRAM, url, name, str(self.folder / "leases.jsonl")]
        self.running[name] = Process(name, command, self.folder, self.environment | {"PYTHONPATH": str(ROOT)})

    def kill_worker(self, name):
        self.running[name].signal(signal.SIGKILL)
        self.running[name].ended()

    def ended(self):
        """How many tasks have ended, as the log says."""
        self.log.read()
        return len(self.log.completions)

    def reached(self, share):
        """Waits until that share of all tasks has ended."""
        eventually(
            lambda: self.ended() >= share * TASKS, PATIENCE, f"{share:.0%} of {TASKS} tasks have ended", self.ended
        )

    def lines(self):
        """What workers wrote down."""
        text = (self.folder / "leases.jsonl").read_text()
        found = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        return [line | {"key": TaskKey(*line["key"])} for line in found]

    def clear(self):
        self.log.close()
        super().clear()
        for process in self.running.values():
            process.ended(10)


@pytest.fixture
def field(broker, tmp_path):
    field = Field(tmp_path, broker, free_port())
    yield field
    field.clear()


@pytest.mark.promise
def test_lanes_of_a_killed_dispatcher_move_to_the_other_and_go_on_in_order(field):
    victim = field.role("victim", "dispatch", "--handlers", HANDLERS)
    victim.ready()
    field.role("survivor", "dispatch", "--handlers", HANDLERS).ready()
    lanes = [f"move-{n}" for n in range(24)]
    scheduler = Scheduler.connect(field.settings)
    with scheduler:
        first = [scheduler.enqueue("work", ordering_id=lane, uniqueness_key="0") for lane in lanes]
        for handle in first:
            handle.result(timeout=PATIENCE)
        served = {field.driver_of(run.pool) for run in field.history("move-")}
        assert len(served) == 2, "both own partitions"
        gate = (
            field.folder / "gate"
        )  # the last task of each lane waits for it, so the killed dispatcher leaves some of each
        tasks = [
            {
                "handler": "work",
                "payload": {"ms": 20} if n < 19 else {"until": str(gate)},
                "ordering_id": lane,
                "uniqueness_key": f"{n:02}",
            }
            for n in range(1, 20)
            for lane in lanes
        ]
        assert scheduler.enqueue_many(tasks).sent == len(tasks)
        eventually(lambda: len(field.history("move-")) > 2 * len(lanes), PATIENCE, "some have run")
        mine = {run.key.ordering_id for run in field.history("move-") if field.driver_of(run.pool) == victim.pid}
        field.kill(victim)
        gate.touch()
        eventually(lambda: field.ended() == len(tasks) + len(lanes), PATIENCE, "all have ended", field.ended)
    runs = field.history("move-")
    assert {fact.outcome for fact in field.log.completions.values()} == {"succeeded"}
    assert judge.overlapping(runs) == judge.disordered(runs) == judge.early(runs) == []
    moved = [run for run in runs if run.key.ordering_id in mine and run.start > field.deaths[-1]]
    assert {run.key.ordering_id for run in moved} == mine


@pytest.mark.promise
def test_whatever_dies_freezes_or_is_cut_off_no_lease_is_lost_doubled_or_acted_on_when_it_is_stale(field):
    for name in ("dispatch-one", "dispatch-two"):
        field.role(name, "dispatch")
    api = field.role("api", "api")
    url = api.ready()["api"]
    for name in ("dispatch-one", "dispatch-two"):
        field.running[name].ready()
    wire = Wire(url)
    lines = [{"queue": "gpu", "ordering_id": f"lane-{n % LANES:04}", "uniqueness_key": f"{n:06}"} for n in range(TASKS)]
    with CuttingProxy(int(url.rpartition(":")[2]), every_s=EVERY_S) as proxy:
        field.worker("cut", f"http://127.0.0.1:{proxy.port}")
        for name in ("steady", "victim", "frozen"):
            field.worker(name, url)
        assert wire("POST", "/v1/tasks:bulk", lines=lines)[-1] == {"accepted": TASKS, "refused": 0}
        field.reached(0.1)
        field.kill_worker("victim")
        field.worker("heir", url)
        field.reached(0.2)
        freeze = now()
        field.running["frozen"].signal(signal.SIGSTOP)
        field.reached(0.35)
        field.kill_worker("dispatch-one")
        field.role("dispatch-one", "dispatch")
        field.reached(0.5)
        os.kill(api_process(api.pid), signal.SIGKILL)
        field.reached(0.65)
        eventually(lambda: now() > freeze + FROZEN_S * 1_000_000, PATIENCE)
        field.running["frozen"].signal(signal.SIGCONT)
        field.kill_worker("dispatch-two")
        field.role("dispatch-two", "dispatch")
        field.reached(1)
        cuts = proxy.cuts
    assert cuts > 3
    verdict(field)


def verdict(field):
    """What the log says is judged by the rules of the simulation, and what workers wrote down by the log."""
    facts = [recorded.fact for recorded in field.log.recorded]
    leases = LeaseJudge(AssertionError)
    for fact in facts:
        leases.note(fact)  # of a lane one lease is in force, and what is not leased does not end
    assert len(field.log.completions) == TASKS, "none is lost"
    assert set(Counter(fact.key for fact in facts if fact.terminal).values()) == {1}, "none ends twice"
    assert {fact.outcome for fact in field.log.completions.values()} == {"succeeded"}
    in_order(facts)
    counted(facts)
    told = Counter()
    for line in field.lines():
        task = SimpleNamespace(key=line["key"], attempt=line["attempt"])
        granted = SimpleNamespace(task=task, token=line["token"])
        if line["what"] == "begun":
            leases.begun(SimpleNamespace(name=line["worker"]), granted)
        elif line["what"] == "told":
            told[line["status"]] += 1
            if line["status"] == "ok":
                leases.reported(granted, line["outcome"])
    alone(field.lines())
    ends = Counter(
        (fact.outcome, fact.failure.kind if fact.failure else "") for fact in facts if fact.outcome != STARTED
    )
    print("told:", dict(told), "ends:", dict(ends), "leases begun:", leases.begun_leases)
    assert leases.begun_leases > TASKS / 2
    assert told["ok"] > TASKS / 20
    assert leases.expired > 0, "those of the killed and the frozen worker"


def in_order(facts):
    """Tasks of a lane end in the order of their keys, and attempts of a task are numbered upwards."""
    ends, attempts = defaultdict(list), defaultdict(list)
    for fact in facts:
        if fact.terminal:
            ends[fact.key.ordering_id].append(fact.key)
        elif fact.outcome == STARTED:
            attempts[fact.key].append(fact.attempt)
    assert all(keys == sorted(keys) for keys in ends.values())
    assert all(numbers == sorted(numbers) for numbers in attempts.values())


def counted(facts):
    """An attempt counts unless its worker gave the task back, or never heard of it."""
    used = Counter()
    for fact in facts:
        if fact.outcome == "yielded":
            assert fact.used == used[fact.key], fact
        else:
            assert fact.used == used[fact.key] + 1, fact
            used[fact.key] += fact.outcome != STARTED


def alone(lines):
    """Nobody begins what the steady worker, to which nothing is done, is at."""
    mine = {}
    for line in lines:
        if line["worker"] == "steady" and line["what"] in ("begun", "done"):
            mine.setdefault((line["key"], line["attempt"]), {})[line["what"]] = line["at"]
    others = defaultdict(list)
    for line in lines:
        if line["worker"] != "steady" and line["what"] == "begun":
            others[line["key"]].append(line["at"])
    met = [
        (key, attempt)
        for (key, attempt), span in mine.items()
        if "done" in span and any(span["begun"] < at < span["done"] for at in others[key])
    ]
    assert met == []
