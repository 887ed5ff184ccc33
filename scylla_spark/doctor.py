"""Checks what this machine lacks for running scylla-spark, and names the command that helps. It changes nothing."""

from __future__ import annotations

import importlib.metadata
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scylla_spark.config.settings import Settings
from scylla_spark.config.spark_workers import SparkWorkers
from scylla_spark.errors import SchedulerError, SetupError
from scylla_spark.io.host import jars
from scylla_spark.io.host.foreign_errors import existing, free_bytes
from scylla_spark.io.host.java import INSTALL_HINT, MINIMUM, find_java, java_version
from scylla_spark.io.host.process_limits import OPTIMIZED, OPTIMIZED_MEND, low_limits

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from scylla_spark.io.kafka.probe import Entry

PINNED = {"pyspark": "4.2.0", "delta-spark": "4.4.0"}
_MIN_DISK = 2 * 1024**3
_MIN_MEMORY = 3 * 1024**3
_GIB = 1024**3


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: what was looked at, in two words or three.
        ok: whether it is as needed.
        detail: what was found, with the values that matter.
        mend: the command or step that puts it right; empty when `ok`.
    """

    name: str
    ok: bool
    detail: str
    mend: str = ""


def examine(data_dir: Path, cache: Path | None = None) -> list[Check]:
    """All checks of this machine, in the order in which a newcomer would have to mend them.

    Args:
        data_dir: where tables, records and checkpoints go; need not exist yet.
        cache: root of the jar cache; default: the usual one.

    Returns:
        One `Check` per thing. Nothing is raised for what is missing.
    """
    checks = [check_python(sys.version_info[:3]), check_optimized(sys.flags.optimize), check_limits()]
    checks += [check_java(), check_java_home(os.environ.get("JAVA_HOME"))]
    checks += [check_package(name, wanted, installed_version(name)) for name, wanted in PINNED.items()]
    checks += [check_jars(jar_set, cache) for jar_set in jars.SETS]
    checks += [check_data_dir(data_dir), check_disk(data_dir, free_bytes(data_dir)), check_memory(memory_bytes())]
    return checks


def require(folders: Iterable[Path], *, java: bool, spark: bool) -> list[Check]:
    """Checks what a process that serves cannot do without, before anything is started; takes 0.3 s.

    Args:
        folders: where it writes on this machine; the first is the data folder.
        java: whether it starts a JVM.
        spark: whether it needs PySpark.

    Returns:
        What is short, but may be enough: space and memory.

    Raises:
        SetupError: something is missing, with the command that mends it.
    """
    checks = [check_python(sys.version_info[:3]), check_optimized(sys.flags.optimize)]
    if spark:
        checks += [check_package(name, wanted, installed_version(name)) for name, wanted in PINNED.items()]
    checks += [check_limits(), check_java()] if java else []
    checks += [check_data_dir(folder) for folder in folders]
    for check in checks:
        if not check.ok:
            raise SetupError(f"{check.name}: {check.detail.rstrip('.')}.", hint=check.mend)
    short = [check_disk(folder, free_bytes(folder)) for folder in folders] + [check_memory(memory_bytes())]
    return [check for check in short if not check.ok]


def examine_kafka(settings: Settings) -> list[Check]:
    """Checks the way to the brokers step by step: name, port, certificate, login, then topics and rights.

    Args:
        settings: with the brokers' addresses.

    Returns:
        One `Check` per broker address, and if one of them lets us in, per topic and consumer group.
    """
    # here, not on top: the other checks must work where kafka-python itself is broken
    try:
        from scylla_spark.io.kafka import probe
    except ImportError:
        return [Check("Kafka", False, "kafka-python is not installed", "pip install 'kafka-python==3.0.*'")]
    try:
        addresses = list(probe.entries(settings.kafka.bootstrap_servers))
    except probe.Fault as fault:
        return [Check("Kafka", False, str(fault), fault.mend)]
    checks = [check_broker(settings, entry) for entry in addresses]
    return checks + (check_rights(settings) if any(check.ok for check in checks) else [])


def check_broker(settings: Settings, entry: Entry) -> Check:
    """A broker lets us in, as far as the login."""
    from scylla_spark.io.kafka import probe

    name, kafka = f"Kafka {entry.text}", settings.kafka
    try:
        probe.examine(settings, entry)
    except probe.Fault as fault:
        return Check(name, False, str(fault), fault.mend)
    except SchedulerError as error:
        return Check(name, False, error.message, error.hint)
    who = f" as {kafka.username}" if kafka.username else ""
    return Check(name, True, f"{kafka.security_protocol}, {kafka.auth}{who}")


def check_rights(settings: Settings) -> list[Check]:
    """Topics exist, and we may do with topics and consumer groups what we must."""
    from scylla_spark.io.kafka import rights as kafka_rights

    try:
        found = list(kafka_rights.findings(settings))
    except SchedulerError as error:
        return [Check("Kafka rights", False, error.message, error.hint)]
    return [
        Check(f"{kind} {name}", not fault, fault or "may be used", _mend(kind, name, fault) if fault else "")
        for kind, name, fault in found
    ]


def _mend(kind: str, name: str, fault: str) -> str:
    if "exist" in fault:
        return "scylla-spark init"
    from scylla_spark.io.kafka.rights import NEEDED

    rights = " ".join(f"--operation {right.title().replace('_', '')}" for right in NEEDED[kind])
    return f"kafka-acls --add --allow-principal User:… {rights} --{kind} '{name}'"


def check_python(version: tuple[int, ...]) -> Check:
    """Python is 3.11 or newer."""
    text = ".".join(map(str, version))
    if version >= (3, 11):
        return Check("Python", True, text)
    return Check("Python", False, f"{text}; 3.11 or newer is needed", "make clean setup PYTHON=python3.12")


def check_optimized(level: int) -> Check:
    """Python does not leave out assertions.

    Args:
        level: of `sys.flags.optimize`.
    """
    if level:
        return Check("Python's options", False, OPTIMIZED, OPTIMIZED_MEND)
    return Check("Python's options", True, "assertions are not left out")


def check_limits() -> Check:
    """The limits of this process (`ulimit`) are high enough for a Spark driver and a broker."""
    low = low_limits()
    if not low:
        return Check("limits", True, "open files, memory, files and processes")
    mend = "; ".join(command for _, command in low)
    return Check(
        "limits", False, "; ".join(detail for detail, _ in low), f"{mend}  (as root: in /etc/security/limits.conf)"
    )


def check_java() -> Check:
    """There is a Java, it runs, and it is 17 or newer."""
    try:
        java = find_java()
    except SchedulerError as error:
        return Check("Java", False, error.message, INSTALL_HINT)
    version = java_version(java)
    if version is None:
        return Check("Java", False, f"{java} does not run", INSTALL_HINT)
    if version < MINIMUM:
        return Check("Java", False, f"{java} is Java {version}; {MINIMUM} or newer is needed", INSTALL_HINT)
    return Check("Java", True, f"{version} ({java})")


def check_java_home(home: str | None) -> Check:
    """`JAVA_HOME` is unset, or names a folder with a Java in it."""
    if not home:
        return Check("JAVA_HOME", True, "not set; the java on PATH is used")
    if os.access(Path(home) / "bin" / "java", os.X_OK):
        return Check("JAVA_HOME", True, home)
    return Check("JAVA_HOME", False, f"{home} has no bin/java", "unset JAVA_HOME")


def check_package(name: str, wanted: str, installed: str | None) -> Check:
    """A Python package has exactly the version that the jars were chosen for.

    Args:
        name: as pip knows it.
        wanted: its version.
        installed: the version that is there; None: it is missing.
    """
    if installed == wanted:
        return Check(name, True, installed)
    detail = f"{installed} is installed; {wanted} is needed" if installed else f"not installed; {wanted} is needed"
    what = f"{name}=={wanted}" if installed else "scylla-spark[spark]"
    return Check(name, False, detail, f"pip install '{what}'  (in a checkout: make setup)")


def check_jars(jar_set: str, cache: Path | None = None) -> Check:
    """Every jar of a set is in the cache and has the SHA-256 that is pinned."""
    name = f"{jar_set} jars"
    try:
        wrong = jars.faults(jar_set, cache)
    except SchedulerError as error:
        return Check(name, False, error.message, error.hint)
    if not wrong:
        return Check(name, True, f"{len(jars.pinned(jar_set))} in {jars.folder(jar_set, cache)}")
    more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    return Check(name, False, f"{wrong[0]}{more}", "python -m scylla_spark.io.host.prepare")


def check_data_dir(data_dir: Path) -> Check:
    """The data folder, or the nearest folder above it that exists, can be written; tried with a real file."""
    place = existing(data_dir)
    if not place.is_dir():
        return Check("data folder", False, f"{place} is a file", "choose a folder: --data DIR")
    try:
        with tempfile.NamedTemporaryFile(dir=place, prefix=".doctor-"):
            pass
    except OSError as error:
        mend = f"sudo chown -R \"$USER\" '{place}'  (or choose another folder with --data)"
        return Check("data folder", False, f"{place} cannot be written: {error.strerror}", mend)
    return Check("data folder", True, str(data_dir) if place == data_dir else f"{data_dir} (will be made)")


def check_disk(data_dir: Path, free: int) -> Check:
    """At least 2 GiB are free where the data goes."""
    detail = f"{free / _GIB:.1f} GiB free at {existing(data_dir)}"
    if free >= _MIN_DISK:
        return Check("disk space", True, detail)
    return Check("disk space", False, f"{detail}; 2 GiB are needed", f"df -h '{existing(data_dir)}'  (then make room)")


def check_memory(total: int | None) -> Check:
    """The machine, or the container we are in, has at least 3 GiB: a Spark driver, a broker and some Python."""
    if total is None:
        return Check("memory", True, "unknown on this system")
    detail = f"{total / _GIB:.1f} GiB"
    if total >= _MIN_MEMORY:
        return Check("memory", True, detail)
    return Check("memory", False, f"{detail}; 3 GiB are needed", "give the machine or the container more memory")


def installed_version(package: str) -> str | None:
    """The version of an installed Python package, None if it is not there."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def memory_bytes() -> int | None:
    """Memory of the machine, or the limit of our container where that is lower; None where the system does not say."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
    except (OSError, ValueError):  # no control group, or "max"
        return total
    return min(total, limit)


def examine_cluster(settings: Settings) -> list[Check]:
    """Checks if the executors of `master` can run handlers: their Python and machine, the way back to this process, and their number.

    Args:
        settings: with `master`, `handlers` and `spark.options`. Unless those options ship another archive, ours is shipped.

    Returns:
        One `Check` per thing, up to the first without which the rest cannot be looked at.
    """
    from scylla_spark.io.host.session import is_one_machine, open_session

    if is_one_machine(settings.master):
        mend = "scylla-spark doctor cluster --set master=spark://HOST:7077"
        return [Check("master", False, f"{settings.master} is no cluster", mend)]
    try:
        settings = _with_archive(settings)
    except SchedulerError as error:
        return [Check("archive", False, error.message, error.hint)]
    try:
        spark = open_session(settings, "scylla-spark doctor")
    except SchedulerError as error:
        return [Check("master", False, error.message, error.hint)]
    except Exception as error:  # of the JVM
        return [Check("master", False, str(error).splitlines()[0][:300], f"Does {settings.master} answer?")]
    try:
        return [Check("master", True, settings.master), *_examine_executors(spark, settings.spark_workers)]
    finally:
        spark.stop()


def _with_archive(settings: Settings) -> Settings:
    from scylla_spark.executors.spark.archive import shipping

    if "spark.archives" in settings.spark.options:
        return settings
    options = shipping(settings.handlers) | dict(settings.spark.options)
    return settings.model_copy(update={"spark": settings.spark.model_copy(update={"options": options})})


def _examine_executors(spark: SparkSession, workers: SparkWorkers) -> list[Check]:
    from scylla_spark.executors.spark import probe
    from scylla_spark.executors.spark.application import count_slots

    never = threading.Event()
    try:
        if not probe.check_executors(spark, never):
            return [
                Check("executors", False, "none has taken a job within a minute", "Does the cluster have free cores?")
            ]
    except SchedulerError as error:
        return [Check("executors", False, error.message, error.hint)]
    checks = [Check("executors", True, "run this version of this package")]
    checks.append(_way_back(spark, workers, never))
    checks.append(check_slots(count_slots(spark.sparkContext), workers))
    return checks


def _way_back(spark: SparkSession, workers: SparkWorkers, stop: threading.Event) -> Check:
    from scylla_spark.executors.spark import probe
    from scylla_spark.executors.spark.application import addresses

    bind, host = addresses(spark.sparkContext, workers.advertise)
    mend = f"{probe.MEND_REACH}, and let the ports of the driver through."
    try:
        family = socket.AF_INET6 if ":" in bind else socket.AF_INET
        with socket.create_server((bind, workers.port), family=family) as listener:
            why = probe.unreachable(spark, host, listener.getsockname()[1], stop)
    except OSError as error:
        why = f"this process cannot listen on {bind}, port {workers.port}: {error.strerror or error}"
        mend = (
            "Stop the dispatcher that has the port, or choose another spark_workers.port or spark.driver.bindAddress."
        )
    return Check("way back", not why, why or f"executors connect to {host}", mend if why else "")


def check_slots(slots: int, workers: SparkWorkers) -> Check:
    """Executors have room for a worker beside the queries.

    Args:
        slots: tasks that the application can run at once.
        workers: how many of them may be workers.
    """
    from scylla_spark.executors.spark.elastic import most_workers

    room = most_workers(workers, slots)
    mend = (
        ""
        if slots > 1
        else "Give the application two cores or more, such as spark.cores.max=4 and spark.executor.cores=2."
    )
    return Check("slots", slots > 1, f"{slots}, of which workers take at most {room}", mend)
