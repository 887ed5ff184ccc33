"""Spark sessions: take the one that exists, else make one with our jars; the only home of SparkSession.builder."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from scylla_spark.config.settings import Settings
from scylla_spark.errors import ConfigError, ExitCode, SetupError, UnreachableError
from scylla_spark.io.host.java import find_java, jvm_environment
from scylla_spark.io.host.s3_options import is_s3, s3_options
from scylla_spark.log import get_logger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = get_logger("spark")

_launch: threading.Thread | None = None
_launch_failure: Exception | None = None
_submitted_by = os.getppid() if "PYSPARK_GATEWAY_PORT" in os.environ else 0  # the JVM that started us
_LAUNCH_S = 20.0
_LOCAL_MASTER = re.compile(r"^local(?:\[(\d+|\*)\])?$")
_TASK_TRIES = 4  # Spark's own default on clusters
_NICENESS = 5  # about a third of the weight of a process of normal priority
_ALWAYS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    "spark.speculation": "false",
    # what plans and events show of options: Spark's own default, and our private key
    "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|keystore[.]key",
    "spark.scheduler.mode": "FAIR",
    "spark.sql.streaming.stopTimeout": "60s",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.databricks.delta.properties.defaults.enableDeletionVectors": "false",
    "spark.databricks.delta.properties.defaults.checkpointInterval": "100",
}
# At 100 tasks a second whole-stage code generation costs a seventh of the whole system's CPU; large scans do without it as well.
_SERVICES = {"spark.sql.codegen.wholeStage": "false"}
# Java's optimising compiler waits for ten times as many calls as by default: what only the start-up and a few batches run is not
# worth its time, what ingest runs at full rate is.
_SERVICES_JAVA = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000"
    " -XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
_LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    # -Xss: stopping a query during a Python foreachBatch can overflow the stack and hang the stream
    "spark.driver.extraJavaOptions": "-Xss16m -XX:+UseSerialGC -Duser.timezone=UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.log.level": "ERROR",
    # on a local disk a plain file is a sound commit log, and three times faster; not on HDFS or object stores
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
# Spark's and Delta's own numbers, 200 and 50, are for large queries on large clusters: a batch of 500 records would make thousands of
# tasks. The most that helps: a shuffle as many tasks as there are cores, the log of a table a few.
_MOST_TASKS = {"spark.sql.shuffle.partitions": 200, "spark.databricks.delta.snapshotPartitions": 8}
_LISTS = {"spark.jars": ",", "spark.driver.extraJavaOptions": " "}


def open_session(settings: Settings, name: str, *, services: bool = False) -> SparkSession:
    """The session of this process, or a new one on `settings.master` with Delta and Kafka.

    A session that is there belongs to somebody, and stays as it is; services get another one of its application.

    Args:
        settings: of the deployment.
        name: of the Spark application.
        services: a new session is for ingest and dispatch, whose many small batches are better off without compiled code.

    Raises:
        SetupError: pyspark, Java or the jars are missing.
        UnreachableError: the JVM did not start.
    """
    global _launch
    require_pyspark()
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        if not services:
            return running
        ours = running.newSession()
        ours.conf.set("spark.sql.session.timeZone", "UTC")
        return ours
    chosen = options(settings, services=services)
    launching = launch_jvm(settings, services=services)
    if launching is not None:
        launching.join()
        if _launch_failure is not None:
            _launch = None
            raise UnreachableError(
                "Spark's JVM did not start: its last lines, above, say why.",
                hint="Run `scylla-spark doctor`: it looks for what this machine lacks.",
            ) from _launch_failure
    builder = SparkSession.builder
    for key, value in (chosen | {"spark.app.name": name}).items():
        builder = builder.config(key, value)
    if services:
        _make_context(chosen | {"spark.app.name": name})
    session: SparkSession = builder.getOrCreate()
    if settings.master.startswith("local"):
        session.sparkContext.setLogLevel("ERROR")
    return session


def require_pyspark() -> None:
    """Checks that pyspark can be imported.

    Raises:
        SetupError: it is not installed.
    """
    if find_spec("pyspark") is None:
        raise SetupError("pyspark is not installed.", hint="pip install 'scylla-spark[spark]'")


def fit_to_cluster(*sessions: SparkSession) -> None:
    """Sets how many tasks a shuffle and a read of a table's log make: one per core that the application has now.

    What the configuration of the application sets (`spark-submit --conf`, its properties file, `spark.options`) stays as it is.

    Args:
        sessions: of one application.
    """
    context = sessions[0].sparkContext
    cores = max(2, context.defaultParallelism)
    configured = context._conf  # noqa: SLF001 - `getConf` copies it, option by option, through py4j
    for name, most in _MOST_TASKS.items():
        if not configured.contains(name):
            for session in sessions:
                session.conf.set(name, min(cores, most))


def is_one_machine(master: object) -> bool:
    """Returns True if Spark of this master runs its tasks on this machine, with its files and packages."""
    return str(master).startswith("local") and "cluster" not in str(master)


def master_of(settings: Settings) -> str:
    """The Spark master of the session that this process has, or will have.

    Args:
        settings: hold the master of a session that we make ourselves.
    """
    if find_spec("pyspark") is None:
        return settings.master
    from pyspark import SparkConf, SparkContext

    context = SparkContext._active_spark_context  # noqa: SLF001 - the only way to ask without making one
    if context is not None:
        return str(context.master)
    if _submitted_by:  # spark-submit knows it before there is a context
        SparkContext._ensure_initialized()  # noqa: SLF001
        return str(SparkConf().get("spark.master", settings.master))
    return settings.master


def _make_context(chosen: Mapping[str, str]) -> None:
    """Makes the context of a session to come, in a thread: made by the main one it has Ctrl-C cancel all jobs, whoever serves here."""
    from pyspark import SparkConf, SparkContext

    conf = SparkConf().setAll(list(chosen.items()))
    with ThreadPoolExecutor(1) as thread:
        context = thread.submit(SparkContext.getOrCreate, conf).result()
    if context.getConf().get("spark.submit.deployMode") == "cluster":
        _ignore_sigterm(context._jvm)  # noqa: SLF001 - the only way to its signals


def _ignore_sigterm(jvm: Any) -> None:
    """Makes a JVM ignore SIGTERM, which YARN sends to it and to this process: it would end before this process has drained."""
    jvm.sun.misc.Signal.handle(jvm.sun.misc.Signal("TERM"), jvm.sun.misc.SignalHandler.SIG_IGN)


def launch_jvm(settings: Settings, *, services: bool) -> threading.Thread | None:
    """Begins to start the JVM of a session on this machine; `open_session` waits for it. Does nothing where there is one.

    It runs at low priority, so that it yields to the dispatcher, the broker and the handlers: lateness does not depend on how
    fast the tables are written. Niceness belongs to a thread and is inherited by what it starts.

    Raises:
        SetupError: pyspark, Java or the jars are missing.
    """
    global _launch, _launch_failure
    require_pyspark()
    from pyspark import SparkConf, SparkContext, java_gateway

    chosen = options(settings, services=services)
    if not chosen.get("spark.master", "").startswith("local") or not hasattr(os, "setpriority"):
        return None
    if SparkContext._gateway is not None:  # noqa: SLF001 - no other way to ask
        return None
    if _launch is not None and (_launch.is_alive() or _launch_failure is not None):
        return _launch
    find_java()
    _launch_failure = None
    start: Any = java_gateway.launch_gateway  # untyped

    def launch() -> None:
        global _launch_failure
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        conf = SparkConf(loadDefaults=False).setAll(list(chosen.items()))
        try:
            gateway = start(conf, _OwnSession(start_new_session=True))
            SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001
        except Exception as error:
            _launch_failure = error

    _launch = threading.Thread(target=launch, name="spark-launch")
    _launch.start()
    return _launch


def jvm_ended() -> str | None:
    """Returns how the JVM of this process's session ended, in words; None while it runs, or where there was none."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway  # noqa: SLF001 - no other way to ask
    if gateway is None:
        return None
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if process is None:  # under spark-submit it is our parent
        return None if _submitted_by in (0, os.getppid()) else "killed"
    code = process.poll()
    if code is None:
        return None
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def silence(spark: SparkSession) -> None:
    """Has the JVM of a session of ours say nothing more: what it says of work that is cut off is no news, and goes on for pages."""
    spark.sparkContext.setLogLevel("OFF")
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - the only way to System.err, to which Scala's thread pools write
    jvm.java.lang.System.setErr(jvm.java.io.PrintStream(jvm.java.io.OutputStream.nullOutputStream()))


def end_jvm(code: int) -> None:
    """Ends the JVM of this process's session at once, however it is: for a stop that takes too long.

    Args:
        code: its exit code under spark-submit, which is that of the whole command.
    """
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway  # noqa: SLF001
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if process is not None:
        process.kill()
    elif gateway is not None:
        with contextlib.suppress(Exception):  # there is no answer to this
            gateway.jvm.java.lang.Runtime.getRuntime().halt(code)


def discard_jvm() -> None:
    """Ends a JVM that was launched for a session that was never made; left alone it would report for pages that nobody wants it."""
    global _launch
    from pyspark import SparkContext

    if _launch is None or SparkContext._active_spark_context is not None:  # noqa: SLF001
        return
    _launch.join(_LAUNCH_S)
    _launch = None
    end_jvm(ExitCode.OUTAGE)
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001 - the next session launches another


class _OwnSession(dict[str, Any]):
    """Arguments of Popen for a JVM that signals for its parent do not reach: it ends when its standard input does.

    Ctrl-C goes to all processes of a terminal's group, a stop of systemd to all of a control group: a JVM that ended at once would take
    away from its parent what that drains with. PySpark has it ignore SIGINT by a `preexec_fn` of its own; this puts ours in its place.
    A JVM leaves signals alone that are ignored when it starts.

    Its environment is that of all our JVMs, and names this host localhost: where the host's own name does not resolve, as in many
    containers, Spark does not start otherwise.
    """

    def __setitem__(self, name: str, value: Any) -> None:
        if name == "env":
            value = {"SPARK_LOCAL_HOSTNAME": "localhost"} | jvm_environment(value)
        super().__setitem__(name, _ignore_signals if name == "preexec_fn" else value)


def _ignore_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def options(settings: Settings, *, services: bool) -> dict[str, str]:
    """Spark settings of a session that we make ourselves; under spark-submit its properties file and flags win."""
    chosen = _ALWAYS | (_SERVICES if services else {})
    if _submitted_by:  # spark-submit has read conf/spark-defaults.conf and ships the jars
        return chosen
    from scylla_spark.io.host import class_archive, jars

    workers = (
        min(settings.spark_workers.max, _threads(settings.master)) if services and settings.has_spark_workers else 0
    )
    chosen["spark.master"] = _local_master(settings.master, workers)
    if workers and _LOCAL_MASTER.match(settings.master):
        chosen["spark.default.parallelism"] = str(
            _threads(settings.master)
        )  # of queries; workers have threads of their own
    chosen["spark.jars"] = session_jars(settings)
    if is_s3(settings.tables_path):
        chosen |= s3_options(os.environ)
    if settings.master.startswith("local"):
        chosen |= _LOCAL
        if settings.tables_folder is None:
            del chosen["spark.sql.streaming.checkpointFileManagerClass"]
        if not settings.master.startswith("local-cluster"):
            # Its ports on loopback deserialise Java objects; on one machine Spark makes the secret itself, so that it stands on no
            # command line, in no setting and in no environment. Elsewhere the cluster's own configuration has it.
            chosen["spark.authenticate"] = "true"
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        logging = f"-Dlog4j2.configurationFile=file:{jars.conf_dir() / 'log4j2.properties'}"
        chosen["spark.driver.extraJavaOptions"] += (
            f" {logging} {_SERVICES_JAVA if services else ''} {class_archive.flags()}"
        )
        chosen["spark.local.dir"] = str(settings.data_dir.absolute() / "spark-tmp")
        chosen["spark.sql.warehouse.dir"] = str(settings.data_dir.absolute() / "warehouse")
    return _with_theirs(chosen, settings.spark.options)


def _local_master(master: str, workers: int) -> str:
    """A local master with a thread for each Spark worker, which holds it as long as it lives, beside those for queries.

    A task is tried as often as on a cluster: a Python worker that was killed must not end a query.
    """
    if _LOCAL_MASTER.match(master) is None:
        return master
    return f"local[{_threads(master) + workers},{_TASK_TRIES}]"


def _threads(master: str) -> int:
    found = _LOCAL_MASTER.match(master)
    threads = "1" if found is None else found[1] or "1"
    return os.cpu_count() or 1 if threads == "*" else int(threads)


def session_jars(settings: Settings) -> str:
    """The jars of a session of a deployment, separated by commas: Delta, Kafka, and a client of S3 where the tables lie there."""
    from scylla_spark.io.host import jars

    wanted = [*jars.spark_jars(), *(jars.s3_jars() if is_s3(settings.tables_path) else [])]
    return ",".join(map(str, wanted))


def _with_theirs(chosen: dict[str, str], theirs: Mapping[str, str]) -> dict[str, str]:
    """Our options with those of the settings, which win, except where both are lists.

    Raises:
        ConfigError: one would take away what our tables and queries need.
    """
    if lost := sorted(name for name in theirs if name in _ALWAYS and theirs[name] != _ALWAYS[name]):
        raise ConfigError(f"spark.options cannot change {', '.join(lost)}.", hint="Leave that out.")
    both = {
        name: sep.join((chosen[name], theirs[name]))
        for name, sep in _LISTS.items()
        if name in theirs and name in chosen
    }
    return chosen | dict(theirs) | both
