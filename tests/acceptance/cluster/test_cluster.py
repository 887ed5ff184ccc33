"""Ingest, dispatchers and planners as processes of their own: they share the work, and take over from one that dies or is frozen."""

import os
import signal
from datetime import datetime
from pathlib import Path

import pytest

from scylla_spark import Schedule, Scheduler, TaskKey, Trigger
from scylla_spark.core.tasks.key import partition_of
from scylla_spark.io.host.http_get import fetch
from scylla_spark.testing import judge
from scylla_spark.testing.history import NEVER
from tests.acceptance.place import HANDLERS, PATIENCE, ROOT, SECOND, Foreign, Place, Process, now
from tests.support import connect_handlers
from tests.support.shared_broker import as_words, settings_on
from tests.support.waiting import eventually, holds

SESSION = 6 * SECOND
TAKEN_OVER = SESSION + 20 * SECOND  # the machine may be busy
LANES = 40
SPARK = "--master local[2] --driver-memory 1g --conf spark.ui.enabled=false --conf spark.driver.host=127.0.0.1"


class Cluster(Place):
    """Topics of its own, an ingest and a dispatcher under spark-submit; further roles are plain processes."""

    def __init__(self, folder: Path, broker: str) -> None:
        super().__init__(folder)
        self.settings = settings_on(broker, self.data, partitions=8)
        self.environment |= {"SCYLLASPARK_SUBMIT_ARGS": SPARK, "JDK_JAVA_OPTIONS": self.java}
        self._words = [*as_words(self.settings), "--set", "metrics.port=0"]
        self.ingest = self.submit("ingest")
        self.metrics = self.ingest.ready()["metrics"]
        self.submitted = self.submit("dispatch", "--set", "connect.url=own", "--handlers", connect_handlers.__file__)
        self.driver = self.submitted.ready()["pid"]
        self.scheduler = Scheduler.connect(self.settings)
        self._clients.append(self.scheduler)

    def submit(self, job: str, *words: str) -> Process:
        """A job under spark-submit."""
        handlers = ["--handlers", HANDLERS] if job == "dispatch" else []
        options = self.command()[3:]  # the settings of every acceptance test, without program and data directory
        command = [str(ROOT / "spark-submit.sh"), job, *options, *self._words, *handlers, *words]
        return Process(job, command, self.folder, self.environment)

    def serve(self, role: str, name: str, *words: str) -> Process:
        """A role as a plain process."""
        command = [*self.command(*self._words), "run", role, *words, "-o", "json"]
        return Process(f"{role}-{name}", command, self.folder, self.environment)

    def seconds(self) -> list[int]:
        """The planned seconds of all runs of "tick", as their keys name them; by start."""
        found = [run for run in self.history() if run.key.uniqueness_key.startswith("tick/") and run.end != NEVER]
        return [round(datetime.fromisoformat(run.key.uniqueness_key.split("/")[1]).timestamp()) for run in found]

    def planners_told(self) -> str:
        """The ends of the planners' logs."""
        return "\n".join(path.read_text(errors="replace")[-1500:] for path in sorted(self.folder.glob("plan*.err")))

    def ticks_after(self, since: int) -> None:
        """Waits until a second after that instant has run."""
        eventually(
            lambda: self.seconds() and self.seconds()[-1] > since // SECOND, PATIENCE, "seconds run", self.planners_told
        )


@pytest.fixture(scope="module")
def cluster(broker, tmp_path_factory):
    cluster = Cluster(tmp_path_factory.mktemp("cluster"), broker)
    yield cluster
    cluster.clear()


@pytest.fixture
def producer(cluster):
    producer = Foreign(cluster.settings.kafka.bootstrap_servers, cluster.settings.topics.tasks, linger_ms=5)
    yield producer
    producer.close()


def test_handlers_have_sessions_of_the_application_that_was_submitted(cluster, producer):
    keys = [TaskKey(now(), f"connect-{lane}", "u") for lane in range(4)]
    for key in keys:
        producer.put(key, {"sql": "SELECT sum(id) FROM range(10)"}, handler="query")
    producer.flush()
    assert {row["result"] for row in cluster.completed(keys).values()} == {"[[45]]"}


def test_dispatchers_share_the_partitions_and_the_survivor_takes_over_the_lanes_of_one_that_is_killed(
    cluster, producer
):
    second = cluster.serve("dispatch", "plain", "--handlers", HANDLERS, "--set", "dispatch.scan=reader")
    victim = second.ready()["pid"]
    shares = eventually(lambda: _shares(cluster, producer), PATIENCE, "both own partitions")
    assert shares.keys() == {victim, cluster.driver}
    assert shares[victim] | shares[cluster.driver] == set(range(8))
    assert shares[victim] & shares[cluster.driver] == set()

    due = now() + SECOND
    gate = (
        cluster.folder / "gate"
    )  # the last task of each lane waits for it, so the killed dispatcher leaves some of each
    keys = [TaskKey(due + n * 25_000, f"move-{n % LANES}", f"{n:04}") for n in range(800)]
    for key in keys[:-LANES]:
        producer.put(key, {"ms": 5})
    for key in keys[-LANES:]:
        producer.put(key, {"until": str(gate)})
    producer.flush()
    eventually(lambda: len(cluster.history("move-")) > 100, PATIENCE)
    cluster.kill(second)
    death = cluster.deaths[-1]
    gate.touch()
    ended = cluster.completed(keys)

    runs = cluster.history("move-")
    assert {row["outcome"] for row in ended.values()} == {"succeeded"}
    assert judge.lost(keys, {run.key for run in runs if run.ok}) == []
    assert judge.overlapping(runs) == []
    assert judge.disordered(runs) == []
    assert judge.early(runs) == []
    assert judge.misnumbered(runs) == []
    assert judge.revived(runs, {key: row["finished_at"] for key, row in ended.items()}) == []
    counted = fetch(f"{cluster.metrics}/metrics", timeout_s=10.0).decode()
    assert "scyllaspark_ingested_total{topic=" in counted, "an ingest of its own serves what it counts"
    moved = [run for run in runs if run.start > death and partition_of(run.key.ordering_id, 8) in shares[victim]]
    assert moved, "the killed dispatcher had lanes"
    assert min(run.start for run in moved) - death < TAKEN_OVER
    assert second.ended() != 0


def test_one_of_two_planners_plans_and_the_other_takes_over_from_it_when_it_dies_or_is_frozen(cluster):
    told = cluster.planners_told
    first = cluster.serve("plan", "first")
    first.ready()
    eventually(lambda: _plans(first) == 1, PATIENCE)
    second = cluster.serve("plan", "second")
    second.ready()
    every = Schedule("tick", "work", Trigger.every("1s"), overlap="buffer_all", catch_up="all")
    cluster.scheduler.put_schedules(every)
    cluster.ticks_after(now())
    assert not holds(lambda: _plans(second), 2), "it stands by"

    first.signal(signal.SIGKILL)
    first.ended()
    died = now()
    eventually(lambda: _plans(second) == 1, TAKEN_OVER / SECOND, "the other takes over", told)
    cluster.ticks_after(died)

    third = cluster.serve("plan", "third")
    third.ready()
    second.signal(signal.SIGSTOP)
    frozen = now()
    eventually(lambda: _plans(third) == 1, TAKEN_OVER / SECOND, "a frozen one is replaced", told)
    cluster.ticks_after(frozen)
    second.signal(signal.SIGCONT)
    thawed = now()
    eventually(lambda: "planning begins again" in second.told(), TAKEN_OVER / SECOND, "it was fenced out", told)
    cluster.ticks_after(thawed + 3 * SECOND)
    assert _plans(second) == 1, "it stands by"

    cluster.scheduler.schedule("tick").pause("enough")
    seconds = cluster.seconds()
    assert seconds == list(range(seconds[0], seconds[-1] + 1)), "each second once and in order"
    assert not holds(lambda: len(cluster.seconds()) > len(seconds), 2)
    for process in (second, third):
        assert process.stop() == 0, process.told()[-3000:]


def test_submitted_jobs_drain_and_end_with_0_at_sigterm_to_the_driver_and_at_ctrl_c(cluster, producer):
    key = TaskKey(now(), "drain", "u")
    follower = key._replace(time_us=key.time_us + 1, uniqueness_key="follower")
    producer.put(key, {"ms": 1500})
    producer.put(follower)
    producer.flush()
    eventually(lambda: cluster.history("drain"), PATIENCE)
    os.kill(cluster.driver, signal.SIGTERM)
    assert cluster.submitted.ended() == 0, cluster.submitted.told()[-3000:]
    assert [(run.key, run.ok) for run in cluster.history("drain")] == [(key, True)], "what ran has ended, no more began"
    assert cluster.completed([key])[key]["outcome"] == "succeeded", "and was recorded"

    os.killpg(cluster.ingest.pid, signal.SIGINT)  # what a terminal does at Ctrl-C
    assert cluster.ingest.ended() == 0, cluster.ingest.told()[-3000:]
    assert "Traceback" not in cluster.ingest.told() + cluster.submitted.told()


def _plans(process: Process) -> int:
    """Returns how often a planner has begun to plan."""
    return process.told().count('"event": "planning"')


def _shares(cluster, producer):
    """Sends a task to every lane; driver → partitions whose tasks it ran, if every partition was served and both served."""
    moment = now()
    keys = [TaskKey(moment, f"share-{lane}", f"{moment}") for lane in range(LANES)]
    for key in keys:
        producer.put(key)
    producer.flush()

    def served():
        runs = [run for run in cluster.history("share-") if run.key.time_us == moment]
        return runs if len(runs) == LANES else None

    shares: dict[int, set[int]] = {}
    for run in eventually(served, PATIENCE, "every lane is served"):
        shares.setdefault(cluster.driver_of(run.pool), set()).add(partition_of(run.key.ordering_id, 8))
    return shares if len(shares) == 2 else None
