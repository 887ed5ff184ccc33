"""A resource manager and a node manager of YARN on loopback, and jobs whose drivers run in containers."""

from __future__ import annotations

import json
import shutil
import urllib.request
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from scylla_spark.io.host import jars
from scylla_spark.io.host.broker_files import free_port
from scylla_spark.io.host.http_get import AnswerError, fetch
from scylla_spark.io.host.java import find_java
from tests.acceptance.journal_handlers import JOURNAL
from tests.acceptance.place import PATIENCE, ROOT, Place, Process
from tests.acceptance.spark_cluster.standalone import BARE_PYTHON, JAVA, PARTITIONS
from tests.support.shared_broker import settings_on
from tests.support.waiting import eventually

_LISTS = Path(__file__).with_name("yarn")  # of jars
_PASSED = ("JAVA_HOME", "JDK_JAVA_OPTIONS", "SPARK_LOCAL_IP", "PATH", "ACCEPTANCE_DATA", JOURNAL)


class YarnCluster(Place):
    """Both servers of YARN, with room for some small containers.

    Args:
        folder: of data, journal, output and containers.
        broker: address of Kafka.
    """

    java = f"{Place.java} {JAVA}"

    def __init__(self, folder: Path, broker: str) -> None:
        super().__init__(folder)
        self.settings = settings_on(broker, self.data, partitions=PARTITIONS)
        spark = find_spec("pyspark")
        assert spark is not None
        assert spark.origin is not None
        self._spark = Path(spark.origin).parent
        self._conf = folder / "hadoop"
        self._conf.mkdir()
        self._number = 0
        java = find_java().resolve()
        self.environment |= {
            "JAVA_HOME": str(java.parents[1]), "JDK_JAVA_OPTIONS": self.java, "SPARK_LOCAL_IP": "127.0.0.1",
            "HADOOP_CONF_DIR": str(self._conf), "PYSPARK_PYTHON": BARE_PYTHON, "PYSPARK_DRIVER_PYTHON": BARE_PYTHON,
        }  # fmt: skip
        self._pages = free_port()
        self._configure()
        self.toml = folder / "cluster.toml"
        self._write_settings()
        servers = ("resourcemanager.ResourceManager", "nodemanager.NodeManager")
        self.manager, self.node = (self._server(name) for name in servers)
        eventually(self._nodes, PATIENCE, "the node is registered", lambda: self.manager.told() + self.node.told())

    def submit(self, job: str, *words: str, options: str = "") -> Process:
        """Starts a job in cluster deploy mode."""
        self._number += 1
        conf = (
            f"yarn.jars=local:{self._spark}/jars/*", f"yarn.stagingDir=file://{self.folder}/staging", "yarn.maxAppAttempts=1",
            "executor.instances=1", "executor.cores=4", "executor.memory=512m", "driver.memory=512m", "ui.enabled=false",
        )  # fmt: skip
        submit = " ".join(f"--conf spark.{text}" for text in conf)
        environment = self.environment | {
            "SCYLLASPARK_SUBMIT_ARGS": f"--master yarn --deploy-mode cluster {submit} {options}"
        }
        command = [str(ROOT / "spark-submit.sh"), job, "--config", str(self.toml), *words]
        return Process(f"{self._number:02}-{job}", command, self.folder, environment)

    def applications(self) -> dict[str, dict[str, Any]]:
        """The applications by their ids, as the resource manager shows them."""
        found = self._ask("/ws/v1/cluster/apps")["apps"] or {"app": []}
        return {one["id"]: one for one in found["app"]}

    def signal_driver(self, application: str) -> None:
        """Sends SIGTERM to the container of a driver, as YARN does when it ends one."""
        address = self.applications()[application]["amContainerLogs"]  # …/node/containerlogs/CONTAINER/USER
        container = address.rstrip("/").split("/")[-2]
        self._ask(f"/ws/v1/cluster/containers/{container}/signal/GRACEFUL_SHUTDOWN?user.name=root", b"")

    def told_in(self, application: str) -> str:
        """All that the containers of an application have written."""
        files = sorted((self.folder / "logs" / application).rglob("std*"))
        return "\n".join(file.read_text(errors="replace")[-6000:] for file in files)

    def _write_settings(self) -> None:
        settings = self.settings
        topics = "\n".join(
            f'{kind} = "{getattr(settings.topics, kind)}"' for kind in ("tasks", "outcomes", "schedules", "logs")
        )
        self.toml.write_text(
            f'data_dir = "{self.data}"\npartitions = {PARTITIONS}\n'
            f'[kafka]\nbootstrap_servers = "{settings.kafka.bootstrap_servers}"\n[topics]\n{topics}\n'
            f'[dispatch]\ngroup_id = "{settings.dispatch.group_id}"\nsession_timeout = "6s"\npass_environment = ["ACCEPTANCE_*"]\n'
            '[ingest]\ntrigger = "5s"\n[metrics]\nport = 0\n'
        )

    def _configure(self) -> None:
        host, disk = "127.0.0.1", "yarn.nodemanager.disk-health-checker"
        names = {
            f"yarn.resourcemanager.{name}.address": f"{host}:{free_port()}"
            for name in ("scheduler", "resource-tracker", "admin")
        }
        site = names | {
            "yarn.resourcemanager.hostname": host, "yarn.resourcemanager.address": f"{host}:{free_port()}",
            "yarn.resourcemanager.webapp.address": f"{host}:{self._pages}",
            "yarn.nodemanager.hostname": host, "yarn.nodemanager.address": f"{host}:0",
            "yarn.nodemanager.localizer.address": f"{host}:{free_port()}", "yarn.nodemanager.webapp.address": f"{host}:0",
            "yarn.nodemanager.local-dirs": str(self.folder / "local"), "yarn.nodemanager.log-dirs": str(self.folder / "logs"),
            "yarn.nodemanager.resource.memory-mb": "8192", "yarn.nodemanager.resource.cpu-vcores": "12",
            "yarn.scheduler.minimum-allocation-mb": "128", "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.nodemanager.pmem-check-enabled": "false", f"{disk}.max-disk-utilization-per-disk-percentage": "100",
            "yarn.nodemanager.env-whitelist": ",".join(_PASSED),
        }  # fmt: skip
        queues = "yarn.scheduler.capacity"
        capacity = {
            f"{queues}.root.queues": "default", f"{queues}.root.default.capacity": "100",
            f"{queues}.maximum-am-resource-percent": "1.0",
        }  # fmt: skip
        core = {
            "fs.defaultFS": "file:///",
            "hadoop.tmp.dir": str(self.folder / "tmp"),
            "hadoop.http.staticuser.user": "root",
        }
        for name, values in {"yarn-site": site, "capacity-scheduler": capacity, "core-site": core}.items():
            rows = "".join(
                f"<property><name>{key}</name><value>{value}</value></property>" for key, value in values.items()
            )
            (self._conf / f"{name}.xml").write_text(f"<configuration>{rows}</configuration>")

    def _server(self, name: str) -> Process:
        lists = self.folder / "lists"
        if not lists.exists():
            shutil.copytree(_LISTS, lists)
            shutil.copy(jars.conf_dir() / "ivysettings.xml", lists)
        servers = [str(jar) for jar in jars.ensure("yarn", conf=lists)["yarn"]]
        path = ":".join([str(self._conf), *servers, str(self._spark / "jars" / "*")])
        command = [str(find_java()), "-cp", path, "-Xmx256m", f"org.apache.hadoop.yarn.server.{name}"]
        environment = {key: value for key, value in self.environment.items() if key != "PYTHONPATH"}
        return Process(name, command, self.folder, environment)

    def _nodes(self) -> list[Any]:
        assert self.manager.running, self.manager.told()[-3000:]
        assert self.node.running, self.node.told()[-3000:]
        try:
            found = self._ask("/ws/v1/cluster/nodes")["nodes"]
        except AnswerError:
            return []
        return [one for one in (found or {"node": []})["node"] if one["state"] == "RUNNING"]

    def _ask(self, path: str, body: bytes | None = None) -> Any:
        address = f"http://127.0.0.1:{self._pages}{path}"
        if body is None:
            return json.loads(fetch(address, timeout_s=10.0))
        with urllib.request.urlopen(urllib.request.Request(address, body, method="POST"), timeout=10) as answer:
            return answer.read()
