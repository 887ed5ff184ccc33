"""The folder /out of a container: what its program tells of its work while it runs, and the files that it leaves behind.

It lies in memory of the container, so that its size and the memory of the container bound it, and nothing of it ever touches a disk
here. The runner opens it before the program begins and holds it open, so it outlives the container. Names and contents are the
program's: no link is followed, and of everything only so much is read.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Final

from scylla_spark.core.output import MAX_OUTPUTS, is_output_name
from scylla_spark.core.work_note import MAX_CHECKPOINT_BYTES
from scylla_spark.errors import ArgumentError, SetupError
from scylla_spark.executors.local.attempt_outputs import checked_media_type
from scylla_spark.worker.lease import Lease, Output

OUT_PATH: Final = "/out"
PROGRESS: Final = ".progress"
CHECKPOINT: Final = ".checkpoint"
_NOTES: Final = {PROGRESS: 100, CHECKPOINT: MAX_CHECKPOINT_BYTES}
_MOST_ENTRIES: Final = 1_000
_TOLD_NAMES: Final = 10
_NO_LINKS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class OutFolder:
    """The folder of one container.

    Args:
        descriptor: of the folder; None: there is none.
        lease: of the task.

    Attributes:
        left_out: names in it that are no outputs, and notes that say nothing.
    """

    def __init__(self, descriptor: int | None, lease: Lease) -> None:
        self.left_out: set[str] = set()
        self._descriptor = descriptor
        self._lease = lease
        self._told: dict[str, bytes] = {}

    def look(self) -> None:
        """Tells how far the program is, and from where another attempt could go on, where it has said something else than before."""
        if self._descriptor is None:
            return
        for name, most in _NOTES.items():
            said = self._said(name, most)
            if said and said != self._told.get(name):
                self._told[name] = said
                self._tell(name, said)

    def send(self) -> None:
        """Sends what the program has left behind, by name; it must have ended.

        Raises:
            ArgumentError: these are too many files, or too large ones, or the lease is over.
            UnreachableError: the server cannot be reached.
            OSError: a file cannot be read.
        """
        if self._descriptor is None:
            return
        names = self._outputs(self._descriptor)
        if len(names) > MAX_OUTPUTS:
            raise ArgumentError(f"There are more than {MAX_OUTPUTS} files in {OUT_PATH}.", hint="Pack them.")
        holds = os.fstatvfs(self._descriptor)
        most = left = holds.f_blocks * holds.f_frsize
        for name in names:
            with self._opened(name) as file:
                left -= os.fstat(file.fileno()).st_size  # which may be more than all that it takes in memory
                if left < 0:
                    raise ArgumentError(f"The files in {OUT_PATH} have more than {most} bytes together.")
                where = f"/proc/self/fd/{file.fileno()}"
                self._lease.send_output(Output(name, checked_media_type(None, name), where))

    def metrics(self) -> dict[str, object]:
        """What the metrics of the attempt say of it."""
        return {"left_out": sorted(self.left_out)[:_TOLD_NAMES]} if self.left_out else {}

    def _outputs(self, descriptor: int) -> list[str]:
        found = []
        with os.scandir(descriptor) as entries:
            for entry in islice(entries, _MOST_ENTRIES):
                if is_output_name(entry.name) and entry.is_file(follow_symlinks=False):
                    found.append(entry.name)
                elif entry.name not in _NOTES:
                    self.left_out.add(entry.name.encode(errors="replace").decode()[:200])
        return sorted(found)

    def _tell(self, name: str, said: bytes) -> None:
        try:
            if name == PROGRESS:
                self._lease.progress(float(said))
            else:
                self._lease.checkpoint(json.loads(said))
            self.left_out.discard(name)
        except (ValueError, RecursionError, ArgumentError):  # it may be half written, or never be more
            self.left_out.add(name)

    def _said(self, name: str, most: int) -> bytes:
        """The content of a note; empty: there is none, or more than may be."""
        with contextlib.suppress(OSError), self._opened(name) as file:
            said = file.read(most + 1)
            return said if len(said) <= most else b""
        return b""

    def _opened(self, name: str) -> BinaryIO:
        number = os.open(name, _NO_LINKS, dir_fd=self._descriptor)
        if stat.S_ISREG(os.fstat(number).st_mode):
            return os.fdopen(number, "rb")
        os.close(number)
        raise OSError(f"{name} is no plain file")


@contextmanager
def out_folder(pid_file: str, lease: Lease, *, wanted: bool) -> Iterator[OutFolder]:
    """Opens the folder of a container that is ready to begin.

    Args:
        pid_file: where podman has written the number of its first process.
        lease: of the task.
        wanted: whether there is one.

    Raises:
        SetupError: it cannot be opened on this machine.
    """
    descriptor = _descriptor_of(pid_file) if wanted else None
    try:
        yield OutFolder(descriptor, lease)
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _descriptor_of(pid_file: str) -> int:
    try:
        process = f"/proc/{int(Path(pid_file).read_text())}"
        descriptor = os.open(f"{process}/root{OUT_PATH}", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        if os.readlink(f"{process}/ns/mnt") != os.readlink("/proc/self/ns/mnt"):
            return descriptor
        os.close(descriptor)
        why = "the process is none of a container"
    except (OSError, ValueError) as error:
        why = str(error)
    raise SetupError(
        f"The folder {OUT_PATH} of a container cannot be opened from here: {why}",
        hint="Run podman and the runner as the same user, or do without files of tasks: --out 0.",
    )
