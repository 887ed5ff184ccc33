"""Separate processes under spark-submit: dispatchers share the partitions, take over from one that dies, and drain when told to."""

import os
import signal
from pathlib import Path

import pytest

from scylla_spark import TaskKey
from scylla_spark.core.key import partition_of
from scylla_spark.io.host.broker import EmbeddedBroker
from scylla_spark.io.host.http_get import fetch
from scylla_spark.testing import judge
from tests.acceptance.place import HANDLERS, PATIENCE, ROOT, SECOND, SETTINGS, Foreign, Place, Process, now
from tests.support import connect_handlers
from tests.support.waiting import eventually

SESSION = 6 * SECOND
LANES = 40
SPARK = (
    "--master local[2] --driver-memory 1g --conf spark.ui.enabled=false --conf spark.driver.host=127.0.0.1"
    " --conf spark.sql.shuffle.partitions=2 --conf spark.databricks.delta.snapshotPartitions=1"
)


class Cluster(Place):
    """A broker of its own, one ingest and dispatchers, each under spark-submit."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.broker = EmbeddedBroker(self.data / "kafka").start()
        self.environment["SCYLLASPARK_SUBMIT_ARGS"] = SPARK
        self.ingest = self.submit("ingest")
        self.metrics = self.ingest.ready()["metrics"]
        self.dispatchers = [self.submit("dispatch", "one"), self.submit("dispatch", "two")]
        self.drivers = [process.ready()["pid"] for process in self.dispatchers]

    def submit(self, job: str, name: str = "") -> Process:
        settings = (
            f"kafka.bootstrap_servers={self.broker.bootstrap}",
            f"data_dir={self.data}",
            *SETTINGS,
            "connect.url=own",
        )
        options = [word for text in settings for word in ("--set", text)]
        handlers = ["--handlers", HANDLERS, "--handlers", connect_handlers.__file__] if job == "dispatch" else []
        command = [str(ROOT / "spark-submit.sh"), job, *options, *handlers]
        return Process(job + name, command, self.folder, self.environment)

    def driver_of(self, pool: int) -> int:
        """The driver that a pool of children belongs to; 0 if it is gone."""
        try:
            return int(Path(f"/proc/{pool}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return 0


@pytest.fixture(scope="module")
def cluster(shared, tmp_path_factory):
    shared.stop()
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.clear()
    cluster.broker.stop()


@pytest.fixture
def producer(cluster):
    producer = Foreign(cluster.broker.bootstrap, linger_ms=5)
    yield producer
    producer.close()


def test_handlers_have_sessions_of_the_application_that_was_submitted(cluster, producer):
    keys = [TaskKey(now(), f"connect-{lane}", "u") for lane in range(4)]
    for key in keys:
        producer.put(key, {"sql": "SELECT sum(id) FROM range(10)"}, handler="query")
    producer.flush()
    assert {row["result"] for row in cluster.completed(keys).values()} == {"[[45]]"}


def test_they_share_the_partitions_and_the_survivor_takes_over_the_lanes_of_one_that_is_killed(cluster, producer):
    shares = eventually(lambda: _shares(cluster, producer), PATIENCE, "both own partitions")
    victim, survivor = cluster.drivers
    assert shares.keys() == {victim, survivor}
    assert shares[victim] | shares[survivor] == set(range(8))
    assert shares[victim] & shares[survivor] == set()

    due = now() + SECOND
    keys = [TaskKey(due + n * 25_000, f"move-{n % LANES}", f"{n:04}") for n in range(800)]
    for key in keys:
        producer.put(key, {"ms": 5})
    producer.flush()
    eventually(lambda: len(cluster.history("move-")) > 100, PATIENCE)
    os.kill(victim, signal.SIGKILL)
    death = now()
    cluster.deaths.append(death)
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
    assert 'scyllaspark_ingested_total{topic="tasks"}' in counted, "an ingest of its own serves what it counts"
    moved = [run for run in runs if run.start > death and partition_of(run.key.ordering_id, 8) in shares[victim]]
    assert moved, "too slow: nothing was left to move"
    assert min(run.start for run in moved) - death < SESSION + 14 * SECOND
    assert cluster.dispatchers[0].ended() != 0
    assert not Path(f"/proc/{victim}").exists()


def test_they_drain_and_end_with_0_at_sigterm_to_the_driver_and_at_ctrl_c(cluster, producer):
    dispatcher, driver = cluster.dispatchers[1], cluster.drivers[1]
    key = TaskKey(now(), "drain", "u")
    follower = key._replace(time_us=key.time_us + 1, uniqueness_key="follower")
    producer.put(key, {"ms": 1500})
    producer.put(follower)
    producer.flush()
    eventually(lambda: cluster.history("drain"), PATIENCE)
    os.kill(driver, signal.SIGTERM)
    assert dispatcher.ended() == 0, dispatcher.told()[-3000:]
    assert [(run.key, run.ok) for run in cluster.history("drain")] == [(key, True)], "what ran has ended, no more began"
    assert cluster.completed([key])[key]["outcome"] == "succeeded", "and was recorded"

    os.killpg(cluster.ingest.pid, signal.SIGINT)  # what a terminal does at Ctrl-C
    assert cluster.ingest.ended() == 0, cluster.ingest.told()[-3000:]
    assert "Traceback" not in cluster.ingest.told() + dispatcher.told()


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
