"""What failed around us is reported as an outage, and only our own failures as a defect."""

from __future__ import annotations

import errno
import re
import tomllib
from importlib.metadata import files
from pathlib import Path

import pytest
from kafka.errors import KafkaTimeoutError
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.errors import AnalysisException, StreamingQueryException

from scylla_spark.errors import ConfigError, DiskFullError, ExitCode, SetupError, UnreachableError
from scylla_spark.io.host import foreign_errors
from scylla_spark.io.host.foreign_errors import full_folder, outage_in
from tests.faults.site import fill, small_disk


class Mute(Py4JJavaError):
    """An error of a JVM that has ended, where py4j asks for its text."""

    __module__ = "py4j.protocol"

    def __init__(self, text: str) -> None:
        Exception.__init__(self, text)

    def __str__(self) -> str:
        raise Py4JNetworkError("Answer from Java side is empty")


def raised_from(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/data/x"), DiskFullError),
        (raised_from(ValueError("x"), OSError(errno.EDQUOT, "Disk quota exceeded")), DiskFullError),
        (StreamingQueryException("java.io.IOException: No space left on device"), DiskFullError),
        (ConnectionRefusedError(111, "Connection refused"), UnreachableError),
        (KafkaTimeoutError("no answer"), UnreachableError),
        (Py4JNetworkError("Answer from Java side is empty"), UnreachableError),
        (StreamingQueryException("org.apache.kafka.common.errors.TimeoutException: x"), UnreachableError),
        (MemoryError(), UnreachableError),
        (ModuleNotFoundError("No module named 'delta.tables'", name="delta.tables"), SetupError),
        (ModuleNotFoundError("No module named 'of_a_user'", name="of_a_user"), None),
        (DeprecationWarning("read_text is deprecated"), SetupError),
        (PermissionError(errno.EACCES, "Permission denied", "/data/up.lock"), SetupError),
        (OSError(errno.EROFS, "Read-only file system", "/data/up.lock"), SetupError),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory", "/data/up.lock"), SetupError),
        (PermissionError(errno.EACCES, "Permission denied"), UnreachableError),
        (Mute("its text is in the JVM"), UnreachableError),
        (raised_from(DiskFullError("no space left on x"), Mute("its text is in the JVM")), DiskFullError),
        (ConfigError("as it is"), ConfigError),
        (AnalysisException("no such column"), None),
        (ZeroDivisionError("division by zero"), None),
    ],
)
def test_which_errors_are_outages(error, kind):
    found = outage_in(error)
    assert type(found) is (type(None) if kind is None else kind)
    if isinstance(found, DiskFullError):
        assert str(found).startswith("no space left on ")
        assert "\n" not in str(found)
    if isinstance(found, SetupError):
        assert found.hint


def test_every_package_of_an_extra_is_named_with_that_extra():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    for extra, wanted in project["optional-dependencies"].items():
        names = [re.match(r"[\w-]+", line)[0] for line in wanted if not line.startswith("scylla-spark[")]
        for distribution in names if extra != "dev" else []:
            if extra == "tools":  # a folder of this checkout
                modules = {"scylla_spark_tools"}
            else:
                modules = {file.parts[0].removesuffix(".py") for file in files(distribution) if file.suffix == ".py"}
            assert any(foreign_errors._EXTRAS.get(module) == extra for module in modules), distribution


def test_of_what_the_jvm_says_the_innermost_cause_is_reported():
    said = """An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
py4j.protocol.Py4JJavaError: An error occurred while calling o334.collectToPython.
: org.apache.spark.SparkException: Job aborted
\tat org.apache.spark.A.b(A.scala:1)
Caused by: java.io.EOFException: the daemon has ended
\tat java.base/java.lang.Thread.run(Thread.java:840)
"""
    found = outage_in(StreamingQueryException(said))
    assert str(found) == "StreamingQueryException: java.io.EOFException: the daemon has ended"


def test_a_full_disk_is_found_also_under_a_folder_that_is_not_made_yet(tmp_path):
    try:
        with small_disk(tmp_path / "small", 2) as small:
            assert full_folder([tmp_path, small]) is None
            fill(small)
            assert full_folder([tmp_path, small / "data" / "tables"]) == small / "data" / "tables"
    except PermissionError as error:
        pytest.skip(str(error))


def test_the_table_of_exit_codes_in_the_documentation_is_that_of_the_code():
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    rows = re.findall(r"^\| (\d+) \| ([a-z ]+) \|", page.partition("| exit code |")[2], re.MULTILINE)
    assert [(int(code), meaning) for code, meaning in rows] == [(code.value, code.meaning) for code in ExitCode]
