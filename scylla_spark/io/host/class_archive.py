"""The classes that a session's JVM loads, kept ready parsed beside the jars: a session takes two thirds of the time and the CPU.

An archive belongs to one Java and one PySpark. It is made once, by a session that does nothing else (`make setup`, or
`python -m scylla_spark.io.host.jars`), since Java takes half a minute to write it. Without one all works as well, only slower; Java
itself leaves out an archive that does not fit.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from scylla_spark.errors import SetupError
from scylla_spark.io.host import jars
from scylla_spark.io.host.java import find_java

_KEPT: Final = 4  # archives of other Javas and PySparks that stay: each takes 200 MB
_MAKE_LIMIT_S: Final = 600
_QUIET: Final = (
    "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"  # Java would tell stdout about what does not fit
)
_PROGRAM: Final = (
    "import sys; from pathlib import Path; from scylla_spark.io.host import class_archive; "
    "class_archive.write(Path(sys.argv[1]))"
)
_draft: Path | None = None  # what the JVM of this process is to write


def flags() -> str:
    """What a JVM of this machine is told, for `spark.driver.extraJavaOptions`; empty where there is no archive."""
    if _draft is not None:
        return f"-XX:ArchiveClassesAtExit={_draft} {_QUIET}"
    archive = place()
    usable = archive is not None and archive.is_file() and " " not in str(archive)
    return f"-XX:SharedArchiveFile={archive} {_QUIET}" if usable else ""


def place() -> Path | None:
    """Where the archive of this Java and this PySpark is, or would be; None where one of them is missing."""
    spec = importlib.util.find_spec("pyspark")
    try:
        java = find_java().resolve()
    except SetupError:
        return None
    if spec is None or spec.origin is None:
        return None
    parts = (java, Path(spec.origin))
    key = ":".join(f"{part}:{part.stat().st_size}:{part.stat().st_mtime_ns}" for part in parts)
    return jars.folder("spark").with_name(f"spark-classes-{hashlib.sha256(key.encode()).hexdigest()[:12]}.jsa")


def make() -> bool:
    """Makes the archive if it is missing, in a process of its own; returns whether it is there. Never raises."""
    archive = place()
    if archive is None or archive.is_file():
        return archive is not None
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".archive-") as scratch:
        command = [sys.executable, "-c", _PROGRAM, scratch]
        try:
            subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_MAKE_LIMIT_S, check=True)
            draft = Path(scratch) / archive.name
            with draft.open("rb") as written:
                os.fsync(written.fileno())  # Java dies of half an archive
            draft.replace(archive)
        except (OSError, subprocess.SubprocessError):
            return False
    _forget_old(archive.parent)
    return True


def _forget_old(folder: Path) -> None:
    found = sorted(folder.glob("spark-classes-*.jsa"), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in found[_KEPT:]:
        file.unlink(missing_ok=True)


def write(scratch: Path) -> None:
    """Has a session load what every session loads, and its JVM write the archive into a folder when it ends."""
    global _draft
    from pyspark import SparkContext

    from scylla_spark.config.settings import Settings
    from scylla_spark.io.host.session import open_session

    archive = place()
    assert archive is not None
    _draft = scratch / archive.name
    spark = open_session(
        Settings(_env_file=None, data_dir=scratch / "data", master="local[2]"), "classes", services=True
    )
    spark.readStream.format("rate").load().writeStream.foreachBatch(lambda _batch, _number: None).start().stop()
    spark.range(10).groupBy("id").count().collect()
    spark.stop()
    gateway: Any = SparkContext._gateway  # noqa: SLF001 - there is no public way to end the JVM and wait for it
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(_MAKE_LIMIT_S)
