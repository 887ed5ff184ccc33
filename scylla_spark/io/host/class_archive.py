"""The classes that a session's JVM loads, kept ready parsed beside the jars: a session takes two thirds of the time and the CPU.

An archive belongs to one Java and one PySpark. It is made once, by a session that does nothing else (`make setup`, or
`python -m scylla_spark.io.host.prepare`), since Java takes half a minute to write it. Without one all works as well, only slower; Java
itself leaves out an archive that does not fit.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
from pathlib import Path
from typing import Final

from scylla_spark.errors import SetupError
from scylla_spark.io.host import jars
from scylla_spark.io.host.java import find_java

_QUIET: Final = (
    "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"  # Java would tell stdout about what does not fit
)
DRAFT: Final = "SCYLLASPARK_CLASS_ARCHIVE_DRAFT"
"""Environment variable: where the JVM of this process is to write an archive."""


def flags() -> str:
    """Returns what a JVM of this machine is told, for `spark.driver.extraJavaOptions`; empty where there is no archive."""
    draft = os.environ.get(DRAFT)
    if draft is not None:
        return f"-XX:ArchiveClassesAtExit={draft} {_QUIET}"
    archive = place()
    usable = archive is not None and archive.is_file() and " " not in str(archive)
    return f"-XX:SharedArchiveFile={archive} {_QUIET}" if usable else ""


def place() -> Path | None:
    """Returns where the archive of this Java and this PySpark is, or would be; None where one of them is missing."""
    spec = importlib.util.find_spec("pyspark")
    try:
        java = find_java().resolve()
    except SetupError:
        return None
    if spec is None or spec.origin is None:
        return None
    parts = (java, Path(spec.origin))
    # whole seconds: the layers of container images keep no fractions
    key = ":".join(f"{part}:{part.stat().st_size}:{int(part.stat().st_mtime)}" for part in parts)
    return jars.folder("spark").with_name(f"spark-classes-{hashlib.sha256(key.encode()).hexdigest()[:12]}.jsa")
