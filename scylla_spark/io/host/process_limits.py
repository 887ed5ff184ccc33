"""What limits of this process, and options of its Python, make Kafka, Spark or their clients fail with errors that name something else."""

from __future__ import annotations

import os
import resource
import sys
from typing import Final

from scylla_spark.errors import SetupError

OPTIMIZED: Final = (
    "Python leaves out assertions (PYTHONOPTIMIZE or -O), and kafka-python cannot read answers without them"
)
OPTIMIZED_MEND: Final = "unset PYTHONOPTIMIZE"
_GIB: Final = 1024**3
_LEAST: Final = (
    # limit, its option of `ulimit`, the least that works, and the unit of `ulimit`
    ("open files", "n", resource.RLIMIT_NOFILE, 1024, 1),  # Spark's JVM alone opens 450
    ("virtual memory", "v", resource.RLIMIT_AS, 16 * _GIB, 1024),  # Spark's JVM reserves 13 GiB of addresses
    ("size of files", "f", resource.RLIMIT_FSIZE, 2 * _GIB, 512),  # a segment of the broker has up to 1 GiB
    ("processes", "u", resource.RLIMIT_NPROC, 1024, 1),  # the two JVMs have 250 threads
)


def low_limits() -> list[tuple[str, str]]:
    """The limits of this process (`ulimit`) that are too low for a Spark driver and a broker.

    Returns:
        Per limit what was found, and the command that raises it.
    """
    found = []
    for name, option, kind, least, unit in _LEAST:
        soft, _ = resource.getrlimit(kind)
        exempt = kind == resource.RLIMIT_NPROC and os.geteuid() == 0  # the kernel does not count processes of root
        if soft != resource.RLIM_INFINITY and soft < least and not exempt:
            wanted = str(4 * least) if unit == 1 else "unlimited"
            detail = f"{name}: at most {soft // unit} (ulimit -{option}); {least // unit} are needed"
            found.append((detail, f"ulimit -{option} {wanted}"))
    return found


def refuse_optimized_python() -> None:
    """Refuses a Python that leaves out assertions: kafka-python reads a byte of every answer inside an `assert`.

    Raises:
        SetupError: it does.
    """
    if sys.flags.optimize:
        raise SetupError(f"{OPTIMIZED}.", hint=f"Run: {OPTIMIZED_MEND}")
