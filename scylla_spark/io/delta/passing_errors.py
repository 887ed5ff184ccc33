"""Which errors of a read of tables pass by themselves: tables that changed meanwhile, and places that do not answer."""

from __future__ import annotations

import re
from typing import Final

from scylla_spark.errors import UnreachableError

_OF_THE_JVM: Final = re.compile(r"DELTA_|FileNotFound|\bjava\.(io|net)\.|\bhadoop\.fs\.|\bsoftware\.amazon\.")
"""Kinds of errors that Spark names in its texts: commits that came between, and whatever file systems raise."""


def is_passing(error: BaseException) -> bool:
    """Returns True if the same read may work a moment later.

    Args:
        error: of Spark, delta-rs, polars, the operating system, or ours.
    """
    from deltalake.exceptions import DeltaError
    from polars.exceptions import ComputeError

    if isinstance(error, OSError | UnreachableError | DeltaError | ComputeError):
        return True
    return type(error).__module__.partition(".")[0] in ("pyspark", "py4j") and bool(_OF_THE_JVM.search(str(error)))
