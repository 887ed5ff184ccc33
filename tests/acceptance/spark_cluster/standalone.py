"""A standalone cluster of Spark on loopback, its master and its worker daemons a process each, and a deployment that runs on it."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from scylla_spark import Scheduler
from scylla_spark.io.host import class_archive
from scylla_spark.io.host.broker_files import free_port
from scylla_spark.io.host.http_get import AnswerError, fetch
from scylla_spark.io.host.java import find_java
from tests.acceptance.place import PATIENCE, ROOT, Place, Process
from tests.acceptance.spark_cluster import executor_handlers
from tests.support.cutting_proxy import CuttingProxy
from tests.support.processes import parent_of
from tests.support.shared_broker import as_words, settings_on
from tests.support.waiting import eventually

PARTITIONS = 4
PATIENT = 3 * PATIENCE  # a machine that is busy takes minutes for a batch of ingest
BARE_PYTHON = str(Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}")
CORES = 6  # of a daemon: the executors of all applications fit into those that are left when one dies
JAVA = f"-XX:+UseSerialGC -Xss4m {class_archive.flags()}"
OPTIONS = (
    "spark_workers.max=4", "dispatch.retry_base=100ms", "dispatch.retry_cap=1s", "metrics.port=0",
)  # fmt: skip
APPLICATION = "ACCEPTANCE_APPLICATION"
_PROXY = "127.0.0.2"  # where Spark workers find their dispatcher; it listens on the same port of 127.0.0.1


@dataclass(slots=True)
class Dispatcher:
    """A dispatcher whose Spark workers reach it through a proxy.

    Attributes:
        name: of its application, as its executors have it in their environment.
        process: of `spark-submit.sh`.
        proxy: through which its workers reach it.
        driver: process id of its Python driver; 0: it is starting.
    """

    name: str
    process: Process
    proxy: CuttingProxy
    driver: int = 0

    def ready(self) -> None:
        """Waits until it runs tasks."""
        self.driver = self.process.ready(PATIENT)["pid"]

    def executors(self) -> list[int]:
        """The JVMs of its executors."""
        return [pid for pid in _executors() if application_of(pid) == self.name]


class SparkCluster(Place):
    """A master, worker daemons, and jobs that `spark-submit.sh` starts on them, so that nothing runs on a local master.

    Executors have a Python without our packages: what they run comes in the archive that `spark-submit.sh` ships.

    Args:
        folder: of data, journal and output.
        broker: addresses of Kafka.
        replication: of topics.
        options: further settings of all jobs, as `section.key=value`.
    """

    java = f"{Place.java} {JAVA}"

    def __init__(self, folder: Path, broker: str, *options: str, replication: int = 1) -> None:
        super().__init__(folder)
        self._options = (*OPTIONS, f"topics.replication={replication}", *options)
        self.settings = settings_on(broker, self.data, partitions=PARTITIONS)
        self.environment |= {"JDK_JAVA_OPTIONS": self.java, "SPARK_LOCAL_IP": "127.0.0.1"}
        self.environment |= {"PYSPARK_PYTHON": BARE_PYTHON, "PYSPARK_DRIVER_PYTHON": sys.executable}
        self._port, self._pages = free_port(), free_port()
        self.master_url = f"spark://127.0.0.1:{self._port}"
        self._number = 0
        self.start_master()
        self.daemons: dict[str, Process] = {}
        self.dispatchers: list[Dispatcher] = []
        self.scheduler = Scheduler.connect(self.settings)
        self._clients.append(self.scheduler)

    def start_master(self) -> None:
        """Starts the master, which finds what an earlier one of this cluster has known, and waits until it answers."""
        state = self.folder / "master"
        self.master = self._java(
            "master", "master.Master", f"--port {self._port} --webui-port {self._pages}",
            f"-Dspark.deploy.recoveryMode=FILESYSTEM -Dspark.deploy.recoveryDirectory={state}",
        )  # fmt: skip
        eventually(self._registered, PATIENCE, "the master answers", self.master.told)

    def daemon(self, name: str) -> None:
        """Starts a worker daemon, and waits until the master knows it."""
        words = f"--port 0 --webui-port 0 --cores {CORES} --memory 4g --work-dir {self.folder / name} {self.master_url}"
        before = set(self._registered())
        self.daemons[name] = self._java(name, "worker.Worker", words)
        eventually(
            lambda: set(self._registered()) - before, PATIENCE, "the daemon is registered", self.daemons[name].told
        )

    def submit(
        self, job: str, *words: str, cores: int = 1, per_executor: int = 1, conf: tuple[str, ...] = ()
    ) -> Process:
        """Starts a job as an application of the cluster.

        Args:
            job: its name.
            words: further arguments of the job.
            cores: most cores that it takes.
            per_executor: cores of one of its executors.
            conf: further settings of Spark, without "spark.".
        """
        self._number += 1
        conf = (
            "ui.enabled=false", "driver.host=127.0.0.1", f"cores.max={cores}", f"executor.cores={per_executor}",
            "executor.memory=512m", *conf,
        )  # fmt: skip
        options = " ".join(f"--conf spark.{text}" for text in conf)
        submit = f"--master {self.master_url} --driver-memory 512m {options}"
        own = (word for option in self._options for word in ("--set", option))
        words = (*self.command()[3:], *as_words(self.settings), *own, *words)
        environment = self.environment | {"SCYLLASPARK_SUBMIT_ARGS": submit}
        name = f"{self._number:02}-{job}"
        return Process(name, [str(ROOT / "spark-submit.sh"), job, *words], self.folder, environment)

    def dispatch(self, *conf: str, cores: int = 4, per_executor: int = 2) -> Dispatcher:
        """Starts a dispatcher; not waited for.

        Args:
            conf: further settings of Spark, without "spark.".
            cores: see `submit`.
            per_executor: see `submit`.
        """
        port = free_port()
        name = f"dispatch-{port}"
        process = self.submit(
            "dispatch", "--handlers", executor_handlers.__file__,
            "--set", f"spark_workers.port={port}", "--set", f"spark_workers.advertise={_PROXY}",
            cores=cores, per_executor=per_executor, conf=(f"executorEnv.{APPLICATION}={name}", *conf),
        )  # fmt: skip
        proxy = CuttingProxy(port, None, listen=(_PROXY, port)).__enter__()
        self.dispatchers.append(Dispatcher(name, process, proxy))
        return self.dispatchers[-1]

    def dispatcher_of(self, executor: int) -> Dispatcher:
        """The dispatcher whose application an executor belongs to."""
        name = application_of(executor)
        return next(one for one in self.dispatchers if one.name == name)

    def kill_dispatcher(self, dispatcher: Dispatcher) -> None:
        """kill -9 of its driver; returns when its executors have ended, too."""
        self.kill_part(dispatcher.driver, *dispatcher.executors())
        dispatcher.process.ended()
        dispatcher.proxy.__exit__(None, None, None)
        self.dispatchers.remove(dispatcher)

    def daemon_of(self, executor: int) -> str:
        """The name of the daemon that started an executor."""
        above = parent_of(executor)
        return next(name for name, process in self.daemons.items() if process.pid == above)

    def clear(self) -> None:
        """Ends what is left, and the proxies."""
        super().clear()
        for dispatcher in self.dispatchers:
            dispatcher.proxy.__exit__(None, None, None)

    def _java(self, name: str, main: str, words: str, options: str = "") -> Process:
        spark = find_spec("pyspark")
        assert spark is not None
        assert spark.origin is not None
        home = Path(spark.origin).parent
        self._number += 1
        command = (
            f"-cp {home / 'jars' / '*'} -Xmx192m {options} org.apache.spark.deploy.{main} --host 127.0.0.1 {words}"
        )
        bare = {name: value for name, value in self.environment.items() if name != "PYTHONPATH"}
        environment = bare | {"SPARK_HOME": str(home), "SPARK_SCALA_VERSION": "2.13"}
        return Process(f"{self._number:02}-{name}", [str(find_java()), *command.split()], self.folder, environment)

    def _registered(self) -> list[str]:
        """The ids of the daemons that the master counts as alive, with one more entry for the master itself."""
        try:
            page = json.loads(fetch(f"http://127.0.0.1:{self._pages}/json/", timeout_s=5.0))
        except AnswerError:
            return []
        if page["status"] != "ALIVE":  # it is recovering
            return []
        return ["master", *(one["id"] for one in page["workers"] if one["state"] == "ALIVE")]


def application_of(executor: int) -> str:
    """The name of the dispatcher that an executor works for; "": of none, or it has ended."""
    try:
        variables = Path(f"/proc/{executor}/environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    found = [one.partition(b"=")[2].decode() for one in variables if one.startswith(APPLICATION.encode() + b"=")]
    return found[0] if found else ""


def _executors() -> list[int]:
    """The JVMs of all executors of this machine."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and executor_handlers.EXECUTOR in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue  # it has ended meanwhile
    return found
