"""Makes the class archive of this Java and this PySpark; see `class_archive`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from scylla_spark.config.settings import Settings
from scylla_spark.io.host.class_archive import DRAFT, place
from scylla_spark.io.host.session import open_session

_KEPT: Final = 4  # archives of other Javas and PySparks that stay: each takes 200 MB
_MAKE_LIMIT_S: Final = 600


def make() -> bool:
    """Makes the archive if it is missing, in a process of its own; returns whether it is there. Never raises."""
    archive = place()
    if archive is None or archive.is_file():
        return archive is not None
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".archive-") as scratch:
        draft = Path(scratch) / archive.name
        command = [sys.executable, "-m", "scylla_spark.io.host.class_archive_maker", scratch]
        environment = os.environ | {DRAFT: str(draft)}
        try:
            subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_MAKE_LIMIT_S,
                check=True,
                env=environment,
            )
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
    """Has a session load what every session loads; its JVM writes the archive to `DRAFT` when it ends."""
    from pyspark import SparkContext

    settings = Settings(_env_file=None, data_dir=scratch / "data", master="local[2]")
    spark = open_session(settings, "classes", services=True)
    spark.readStream.format("rate").load().writeStream.foreachBatch(lambda _batch, _number: None).start().stop()
    spark.range(10).groupBy("id").count().collect()
    spark.stop()
    gateway: Any = SparkContext._gateway  # noqa: SLF001 - there is no public way to end the JVM and wait for it
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(_MAKE_LIMIT_S)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
