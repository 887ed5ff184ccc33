"""The folder of a runner: all that its containers are given and leave behind lies there, and is found when the runner is gone.

The name says which process made it. A process that cannot be seen from here, such as one of another container that has the same /dev/shm,
holds a lock on it as long as it lives.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from scylla_spark.errors import SetupError
from scylla_spark.worker.containers import watchdog
from scylla_spark.worker.containers.maker_identity import lives
from scylla_spark.worker.containers.podman import Podman

_log = logging.getLogger(__name__)
_MEMORY: Final = Path("/dev/shm")
_PREFIX: Final = "scylla-spark-containers-"
_NAME: Final = re.compile(rf"{_PREFIX}(\d+-\d+-[0-9a-f]+)-\w+")
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def runner_folder(podman: Podman, runner: str, *, in_memory: bool) -> Iterator[Path]:
    """Makes the folder of a runner, of its owner only, and removes it at the end.

    Args:
        podman: whose users may own folders in it.
        runner: `identity` of this process.
        in_memory: whether it has to lie there.

    Raises:
        SetupError: there is no memory to lie in.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{runner}-", dir=memory_folder() if in_memory else None))
    held = os.open(folder, _FOLDER)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: nobody else takes one there, either
            fcntl.flock(held, fcntl.LOCK_EX)
        yield folder
    finally:
        remove_folder(podman, folder)
        os.close(held)


def remove_left_folders(podman: Podman) -> list[Path]:
    """Removes folders of runners that have ended without doing so, such as killed with their watchdogs; returns them.

    Args:
        podman: whose users may own folders in them.
    """
    places = {_MEMORY, Path(tempfile.gettempdir())}
    left = [folder for place in places for folder in place.glob(f"{_PREFIX}*") if _is_left(folder)]
    for folder in left:
        remove_folder(podman, folder)
    return left


def remove_folder(podman: Podman, folder: Path) -> None:
    """Removes a folder with all that programs have made in it. Nothing is raised: what cannot be removed is logged.

    Args:
        podman: whose users may own folders in it.
        folder: to remove.
    """
    if not watchdog.remove_folder([*podman.command], str(folder), podman.environment):
        _log.warning("a folder of containers cannot be removed: %s", folder)


def memory_folder() -> Path:
    """Returns where folders in memory can be made on this machine.

    Raises:
        SetupError: nowhere.
    """
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split(" ")
        if (place, kind) == (str(_MEMORY), "tmpfs"):
            return _MEMORY
    raise SetupError(
        f"{_MEMORY} does not lie in memory on this machine, so programs could fill a disk with what they leave behind.",
        hint="Mount a tmpfs there, or do without files of tasks: --out 0.",
    )


def _is_left(folder: Path) -> bool:
    """Returns True if the runner of a folder has ended. One of another user is none of ours."""
    form = _NAME.fullmatch(folder.name)
    if form is None or lives(form[1]):
        return False
    try:
        descriptor = os.open(folder, _FOLDER)
    except OSError:
        return False
    try:
        return os.fstat(descriptor).st_uid == os.geteuid() and _is_free(descriptor)
    finally:
        os.close(descriptor)


def _is_free(descriptor: int) -> bool:
    """Returns True if nobody holds a lock on it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
