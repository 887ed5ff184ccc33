"""Which errors of libraries, of the JVM and of the operating system are outages or faults of the set-up, and no defects of ours."""

from __future__ import annotations

import errno
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from scylla_spark.errors import DiskFullError, SchedulerError, SetupError, UnreachableError

_UNUSABLE: Final = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.EISDIR)
_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)
_SPACE_TEXT: Final = re.compile(r"No space left on device|Disk quota exceeded|not enough space", re.IGNORECASE)
_PROBE_BYTES: Final = 1 << 20  # less than this is left: nothing of ours can work there
_EXTRAS: Final = {
    "deltalake": "tables", "obstore": "tables", "polars": "tables", "pyarrow": "tables",
    "pyspark": "spark", "delta": "spark", "pandas": "spark", "numpy": "spark", "cryptography": "spark",
    "fastapi": "api", "starlette": "api", "uvicorn": "api", "jinja2": "api",
    "google": "connect", "grpc": "connect", "grpc_status": "connect", "zstandard": "connect",
    "botocore": "aws", "opentelemetry": "otel", "apprise": "apprise", "holidays": "calendars", "yaml": "yaml",
    "scylla_spark_tools": "tools",
}  # fmt: skip
"""Module → the extra of this package that installs it."""
_SPARK: Final = ("py4j", "pyspark")
_STORES: Final = ("deltalake", "polars", "pyarrow", "_internal")
_CUT_OFF: Final = ("Py4JNetworkError", "Py4JError")  # what py4j raises where the JVM gives no answer
_OF_SPARK: Final = re.compile(
    r"\bjava\.(io|net|nio|util\.concurrent)\.|OutOfMemory|InterruptedException|org\.apache\.kafka\.|\bhadoop\.|\bsoftware\.amazon\."
    r"|of a JVM that has ended|stopped SparkContext|SparkContext was shut down|DELTA_CONCURRENT|JAVA_GATEWAY_EXITED",
)
"""What Spark's texts name when storage, network, brokers, memory or the JVM itself have failed."""
_THROWN: Final = re.compile(r"(?:Caused by: |: )((?:java|org|io|scala)\.[\w.$]+: .+)")
_LONGEST: Final = 300


def outage_in(error: BaseException) -> SchedulerError | None:
    """An error of somebody else's code as one of ours, or None: it may be a defect of ours.

    Args:
        error: as it was raised; what it was raised from is looked at, too.
    """
    if isinstance(error, DiskFullError):
        return error
    for cause in _causes(error):
        if isinstance(cause, OSError) and cause.errno in _NO_SPACE:
            return no_space(cause.filename)
        if _SPACE_TEXT.search(_text(cause)):
            return no_space(None)
    if isinstance(error, SchedulerError):
        return error
    if _is_outage(error):
        return _set_up(error) or UnreachableError(f"{type(error).__name__}: {_gist(error)}")
    return _set_up(error)


def _set_up(error: BaseException) -> SetupError | None:
    """An error that the set-up of this machine explains, as one of ours."""
    if isinstance(error, ModuleNotFoundError) and (extra := _EXTRAS.get((error.name or "").partition(".")[0])):
        return SetupError(f"{error.name} is not installed.", hint=f"pip install 'scylla-spark[{extra}]'")
    if isinstance(error, Warning):
        return SetupError(
            f"Warnings are errors here (PYTHONWARNINGS or -W), and a library warns: {type(error).__name__}: {_gist(error)}",
            hint="Run: unset PYTHONWARNINGS",
        )
    if isinstance(error, OSError) and error.errno in _UNUSABLE and error.filename is not None:
        return SetupError(
            f"{error.filename} cannot be used: {error.strerror}.",
            hint="Choose another folder (--data DIR, or the setting that names it), or give this user the right to write there.",
        )
    return None


def is_cut_off(error: BaseException) -> bool:
    """Returns True if a process that was asked gave no answer: it may have ended a moment ago."""
    return isinstance(error, ConnectionError) or type(error).__name__ in _CUT_OFF


def no_space(place: object) -> DiskFullError:
    """The error for a disk that is full."""
    where = "on a disk that is needed" if place is None else f"on {place}"
    return DiskFullError(
        f"no space left {where}: free some space, and start again; nothing that was acknowledged is lost.", place=place
    )


def full_folder(folders: Iterable[Path]) -> Path | None:
    """The first folder that takes no further MiB, or None. Folders that do not exist stand for the nearest one that does."""
    return next((folder for folder in folders if not _takes(existing(folder))), None)


def existing(folder: Path) -> Path:
    """The folder itself, or the nearest one above it that exists."""
    return next(place for place in (folder, *folder.absolute().parents) if place.exists())


def free_bytes(folder: Path) -> int:
    """Bytes that we may still write where `folder` is or would be."""
    return shutil.disk_usage(existing(folder)).free


def _takes(folder: Path) -> bool:
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(_PROBE_BYTES))
            probe.flush()
    except OSError as error:
        return error.errno not in _NO_SPACE
    return True


def _is_outage(error: BaseException) -> bool:
    library = type(error).__module__.partition(".")[0]
    if isinstance(error, OSError | MemoryError) or library in ("kafka", *_STORES):
        return True
    return library in _SPARK and (type(error).__name__ in _CUT_OFF or bool(_OF_SPARK.search(_text(error))))


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


def _text(error: BaseException) -> str:
    """The text of an error; of one that has to be asked of a JVM that has ended, its kind."""
    try:
        return str(error)
    except Exception:
        return f"{type(error).__name__} of a JVM that has ended"


def _gist(error: BaseException) -> str:
    """The line of an error's text that says most: of the JVM's the innermost cause, else the first."""
    lines = [line.strip() for line in _text(error).strip().splitlines()] or ["no reason given"]
    line = next((found[1] for found in map(_THROWN.match, reversed(lines)) if found), lines[0])
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"
