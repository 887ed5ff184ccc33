"""What an executor lacks so that it can run handlers: asked by a small job before the first worker starts there."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable
from queue import Empty, Queue
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

from scylla_spark.clock import boot_us
from scylla_spark.errors import SetupError
from scylla_spark.log import get_logger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = get_logger("spark")
_EXECUTOR_US: Final = 60_000_000
_POLL_S: Final = 0.2
_CONNECT_S: Final = 5.0
MEND_REACH: Final = (
    "Set spark_workers.advertise (or spark.driver.host) to an address of this machine that executors reach"
)
_MISSING: Final = re.compile(
    r"(ModuleNotFoundError: |ImportError: |\[PYTHON_VERSION_MISMATCH\] |Cannot run program )[^\n]*"
)
_T = TypeVar("_T")
_Described: TypeAlias = tuple[
    tuple[str, str, str], str, str
]  # fields of `Machine`, what is missing, version of this package


class Machine(NamedTuple):
    """What compiled libraries depend on.

    Attributes:
        python: minor version, such as "3.11".
        architecture: such as "x86_64".
        glibc: version, such as "2.36"; "": another C library.
    """

    python: str
    architecture: str
    glibc: str


def check_executors(spark: SparkSession, stop: threading.Event) -> bool:
    """Checks that an executor can run this package. Without an executor within a minute, the start goes on.

    Args:
        spark: a classic session.
        stop: ends the wait once it is set.

    Returns:
        False if no executor has answered.

    Raises:
        SetupError: the executor is another kind of machine, has another version of Python or of this package, or lacks it.
    """
    try:
        told = _asked(spark, _describer(), stop)
    except Exception as error:
        raise _unfit(spark.sparkContext.master, error) from None
    if told is None:
        if not stop.is_set():
            log.warning("no executor has taken a job within a minute; tasks on Spark wait for one")
        return False
    if why := _why_unfit(told, _describer()(None)):
        raise _unfit_error(spark.sparkContext.master, why)
    return True


def unreachable(spark: SparkSession, host: str, port: int, stop: threading.Event) -> str:
    """Returns why an executor cannot connect to an address of this process; "": it can, or no executor has answered within a minute.

    Args:
        spark: a classic session.
        host: name or address that executors use.
        port: on which this process listens.
        stop: ends the wait once it is set.
    """
    return _asked(spark, connector(host, port, _CONNECT_S), stop) or ""


def connector(host: str, port: int, within_s: float) -> Callable[[object], str]:
    """A function that connects once, and returns why that failed; "": it did not. It is pickled by value.

    Args:
        host: name or address.
        port: of TCP.
        within_s: how long one address may take.
    """

    def connect(_: object) -> str:
        import socket

        try:
            addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            return f"the name {host!r} is not known there (DNS: {error.strerror})"
        why = ""
        for family, kind, protocol, _, address in addresses:
            try:
                with socket.socket(family, kind, protocol) as connection:
                    connection.settimeout(within_s)
                    connection.connect(address)
            except TimeoutError:
                why = f"{address[0]} did not answer within {within_s:g} s (timed out)"
            except ConnectionRefusedError:
                why = f"nothing listens on port {port} of {address[0]} (refused)"
            except OSError as error:  # also where the machine has no IPv6, and the name has such an address, too
                why = f"{address[0]}: {error.strerror}"
            else:
                return ""
        return why

    return connect


def difference(ours: Machine, theirs: Machine) -> str:
    """Returns why libraries that are installed on one machine do not work on another; "": they do."""
    for what, one, other in zip(("Python", "architecture"), ours, theirs, strict=False):
        if one != other:
            return f"they have {what} {other}, this process has {one}"
    if ours.glibc and not theirs.glibc:
        return f"they have no glibc, this process has {ours.glibc}"
    if ours.glibc and _numbers(theirs.glibc) < _numbers(ours.glibc):
        return f"they have glibc {theirs.glibc}, which is older than {ours.glibc} of this process"
    return ""


def missing_on_executors(error: Exception) -> str:
    """Returns what an executor lacks so that none of our code can run there; "": the error says nothing of the kind.

    Args:
        error: of a Spark job. Errors of handlers are not among them: those are rows.
    """
    found = _MISSING.search(str(error))
    return found[0].strip().rstrip(".") if found is not None else ""


def _asked(spark: SparkSession, question: Callable[[Any], _T], stop: threading.Event) -> _T | None:
    """Returns what an executor answers; None: none has within a minute."""
    answers: Queue[tuple[_T | None, Exception | None]] = Queue()

    def ask() -> None:
        try:
            answers.put((spark.sparkContext.parallelize([0], 1).map(question).collect()[0], None))
        except Exception as error:
            answers.put((None, error))

    threading.Thread(target=ask, name="ask-executor", daemon=True).start()
    until = boot_us() + _EXECUTOR_US
    while boot_us() < until and not stop.is_set():
        with contextlib.suppress(Empty):
            answer, failure = answers.get(timeout=_POLL_S)
            if failure is not None:
                raise failure
            return answer
    return None


def _why_unfit(theirs: _Described, ours: _Described) -> str:
    (machine, missing, version), (own_machine, _, own_version) = theirs, ours
    if why := difference(Machine(*own_machine), Machine(*machine)) or missing:
        return why
    return f"they have version {version} of it, this process has {own_version}" if version != own_version else ""


def _describer() -> Callable[[object], _Described]:
    """A function that is pickled by value, so that it can be called where this package is missing."""

    def describe(_: object) -> _Described:
        import importlib
        import platform
        import sys

        library, glibc = platform.libc_ver()
        machine = (
            f"{sys.version_info[0]}.{sys.version_info[1]}",
            platform.machine(),
            glibc if library == "glibc" else "",
        )
        try:
            importlib.import_module("scylla_spark.executors.spark.worker")
        except ImportError as error:
            return machine, f"{type(error).__name__}: {error}", ""
        return machine, "", str(sys.modules["scylla_spark"].__version__)

    return describe


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


def _unfit(master: object, failure: Exception) -> Exception:
    why = missing_on_executors(failure)
    return _unfit_error(master, why) if why else failure


def _unfit_error(master: object, why: str) -> SetupError:
    return SetupError(
        f"The executors of {master} cannot run this package: {why}.",
        hint="Let spark-submit.sh ship it (`scylla-spark package` makes the archive), or install the same version in the Python of every "
        "executor. docs/spark-cluster.md says what executors need.",
    )
