"""The folder /out of a container: what its program tells of its work while it runs, and the files that it leaves behind.

It lies in memory, which counts as the container's: the memory that a container may take bounds it, and nothing of it ever touches a
disk here. Names and contents are the program's: no link is followed, and of everything only so much is read.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import BinaryIO, Final

from scylla_spark.core.tasks.attempt_note import MAX_CHECKPOINT_BYTES
from scylla_spark.core.tasks.output import MAX_OUTPUTS, is_output_name
from scylla_spark.errors import ArgumentError
from scylla_spark.handlers.outputs import checked_media_type
from scylla_spark.worker.lease import Lease, Output

OUT_PATH: Final = "/out"
PROGRESS: Final = ".progress"
CHECKPOINT: Final = ".checkpoint"
_NOTES: Final = {PROGRESS: 1_000, CHECKPOINT: MAX_CHECKPOINT_BYTES}
_MOST_ENTRIES: Final = 1_000
_TOLD_NAMES: Final = 10
_NO_LINKS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class OutFolder:
    """The folder of one container.

    Args:
        descriptor: of the folder; None: there is none.
        lease: of the task.
        most_bytes: of all files together that are kept.

    Attributes:
        left_out: names in it that are no outputs, and notes that say nothing.
    """

    def __init__(self, descriptor: int | None, lease: Lease, most_bytes: int) -> None:
        self.left_out: set[str] = set()
        self._descriptor = descriptor
        self._lease = lease
        self._most_bytes = most_bytes
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
        left = self._most_bytes
        for name in names:
            with self._opened(name) as file:
                left -= os.fstat(file.fileno()).st_size  # which may be more than all that it takes in memory
                if left < 0:
                    raise ArgumentError(
                        f"The files in {OUT_PATH} have more than {self._most_bytes} bytes together.",
                        hint="Raise --out.",
                    )
                where = f"/proc/self/fd/{file.fileno()}"
                self._lease.send_output(Output(name, checked_media_type(None, name), where))

    def metrics(self) -> dict[str, object]:
        """Returns what the metrics of the attempt say of it."""
        return {"left_out": sorted(self.left_out)[:_TOLD_NAMES]} if self.left_out else {}

    def _outputs(self, descriptor: int) -> list[str]:
        """Names of its outputs.

        Raises:
            ArgumentError: there is more than is looked at, and an output may be among what is not.
        """
        found = []
        with os.scandir(descriptor) as entries:
            for entry in islice(entries, _MOST_ENTRIES):
                if is_output_name(entry.name) and entry.is_file(follow_symlinks=False):
                    found.append(entry.name)
                elif entry.name not in _NOTES:
                    self.left_out.add(entry.name.encode(errors="replace").decode()[:200])
            if next(entries, None) is not None:
                raise ArgumentError(
                    f"There are more than {_MOST_ENTRIES} files and folders in {OUT_PATH}.",
                    hint="Keep in /tmp what is no output.",
                )
        return sorted(found)

    def _tell(self, name: str, said: bytes) -> None:
        try:
            if name == PROGRESS:
                number, _, words = said.decode(errors="replace").strip().partition(" ")
                self._lease.progress(float(number), words or None)
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
def out_folder(path: str, lease: Lease, most_bytes: int) -> Iterator[OutFolder]:
    """Opens the folder of a container.

    Args:
        path: of it.
        lease: of the task.
        most_bytes: of all files together that are kept; 0: there is no folder.

    Raises:
        OSError: it cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC) if most_bytes else None
    try:
        yield OutFolder(descriptor, lease, most_bytes)
    finally:
        if descriptor is not None:
            os.close(descriptor)
