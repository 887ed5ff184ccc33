"""A standalone cluster of Spark on loopback, its master and its worker daemons a process each, and a deployment that runs on it."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path

from scylla_spark import Scheduler
from scylla_spark.io.host import class_archive
from scylla_spark.io.host.broker_files import free_port
from scylla_spark.io.host.http_get import AnswerError, fetch
from scylla_spark.io.host.java import find_java
from tests.acceptance.place import PATIENCE, ROOT, Place, Process
from tests.acceptance.spark_cluster import executor_handlers
from tests.support.processes import parent_of
from tests.support.shared_broker import as_words, settings_on
from tests.support.waiting import eventually

PARTITIONS = 4
BARE_PYTHON = str(Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}")
CORES = 6  # of a daemon: the executors of both applications fit into one, so that the other can die
JAVA = f"-XX:+UseSerialGC -Xss4m {class_archive.flags()}"
OPTIONS = (
    "spark_workers.max=4", "dispatch.look_ahead=40s", "dispatch.retry_base=100ms", "dispatch.retry_cap=1s", "metrics.port=0",
    "ingest.trigger=10s",
)  # fmt: skip


class SparkCluster(Place):
    """A master, worker daemons, an ingest and a dispatcher; both are applications of the cluster, so nothing runs on a local master.

    Executors have a Python without our packages: what they run comes in the archive that `spark-submit.sh` ships.

    Args:
        folder: of data, journal and output.
        broker: address of Kafka.
    """

    java = f"{Place.java} {JAVA}"

    def __init__(self, folder: Path, broker: str) -> None:
        super().__init__(folder)
        self.settings = settings_on(broker, self.data, partitions=PARTITIONS)
        self.environment |= {"JDK_JAVA_OPTIONS": self.java, "SPARK_LOCAL_IP": "127.0.0.1"}
        self.environment |= {"PYSPARK_PYTHON": BARE_PYTHON, "PYSPARK_DRIVER_PYTHON": sys.executable}
        port, self._pages = free_port(), free_port()
        self.master_url = f"spark://127.0.0.1:{port}"
        self._number = 0
        self.master = self._java("master", "master.Master", f"--port {port} --webui-port {self._pages}")
        self.daemons = {}
        eventually(self._registered, PATIENCE, "the master answers", self.master.told)
        self.scheduler = Scheduler.connect(self.settings)
        self._clients.append(self.scheduler)

    def daemon(self, name: str) -> None:
        """Starts a worker daemon, and waits until the master knows it."""
        words = f"--port 0 --webui-port 0 --cores {CORES} --memory 3g --work-dir {self.folder / name} {self.master_url}"
        before = len(self._registered())
        self.daemons[name] = self._java(name, "worker.Worker", words)
        eventually(
            lambda: len(self._registered()) > before, PATIENCE, "the daemon is registered", self.daemons[name].told
        )

    def submit(self, job: str, cores: int, per_executor: int) -> Process:
        """Starts a job as an application of the cluster.

        Args:
            job: its name.
            cores: most cores that it takes.
            per_executor: cores of one of its executors.
        """
        self._number += 1
        conf = (
            "ui.enabled=false", "driver.host=127.0.0.1", f"cores.max={cores}", f"executor.cores={per_executor}",
            "executor.memory=512m",
        )  # fmt: skip
        options = " ".join(f"--conf spark.{text}" for text in conf)
        submit = f"--master {self.master_url} --driver-memory 512m {options}"
        words = [*self.command()[3:], *as_words(self.settings), *(w for o in OPTIONS for w in ("--set", o))]
        words += ["--handlers", executor_handlers.__file__] if job == "dispatch" else []
        environment = self.environment | {"SCYLLASPARK_SUBMIT_ARGS": submit}
        name = f"{self._number:02}-{job}"
        return Process(name, [str(ROOT / "spark-submit.sh"), job, *words], self.folder, environment)

    def daemon_of(self, executor: int) -> str:
        """The name of the daemon that started an executor."""
        above = parent_of(executor)
        return next(name for name, process in self.daemons.items() if process.pid == above)

    def _java(self, name: str, main: str, words: str) -> Process:
        spark = find_spec("pyspark")
        assert spark is not None
        assert spark.origin is not None
        home = Path(spark.origin).parent
        self._number += 1
        command = f"-cp {home / 'jars' / '*'} -Xmx192m org.apache.spark.deploy.{main} --host 127.0.0.1 {words}"
        bare = {name: value for name, value in self.environment.items() if name != "PYTHONPATH"}
        environment = bare | {"SPARK_HOME": str(home), "SPARK_SCALA_VERSION": "2.13"}
        return Process(f"{self._number:02}-{name}", [str(find_java()), *command.split()], self.folder, environment)

    def _registered(self) -> list[str]:
        """The ids of the daemons that the master counts as alive, with one more entry for the master itself."""
        try:
            page = json.loads(fetch(f"http://127.0.0.1:{self._pages}/json/", timeout_s=5.0))
        except AnswerError:
            return []
        return ["master", *(one["id"] for one in page["workers"] if one["state"] == "ALIVE")]
