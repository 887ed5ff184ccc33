"""Files that the attempts of a task have left behind: their links are facts, the files lie in a folder of this machine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.output import OutputLink, outputs_place
from scylla_spark.core.tasks.status import Attempt
from scylla_spark.errors import ConflictError

_CHUNK_BYTES: Final = 1024 * 1024


class ReadsFiles(Protocol):
    """What has the files."""

    def open(self, place: str, name: str, size: int) -> BinaryIO:
        """A file to be read; see `OutputFiles.open`."""


@dataclass(frozen=True, slots=True)
class TaskOutput:
    """One file that an attempt has left behind.

    Attributes:
        attempt: its number.
        link: name, bytes, sha256 and media type, as they were recorded.
        files: of the deployment.
        place: of the attempt among them.
    """

    attempt: int
    link: OutputLink
    files: ReadsFiles = field(repr=False, compare=False)
    place: str = field(repr=False, compare=False)

    @property
    def name(self) -> str:
        """As the handler called it."""
        return self.link.name

    def open(self) -> BinaryIO:
        """The file, to be read.

        Raises:
            NotFoundError: it was purged, or is not on this machine.
        """
        return self.files.open(self.place, self.link.name, self.link.bytes)

    def read(self) -> bytes:
        """All of it; errors as of `open`."""
        with self.open() as file:
            return file.read()

    def save(self, folder: str | Path) -> Path:
        """Copies it into a folder, under its name, and checks it against its digest.

        Args:
            folder: is made where it is missing.

        Returns:
            The copy.

        Raises:
            NotFoundError: it was purged, or is not on this machine.
            ConflictError: the folder has a file of that name, or the content is not what was recorded.
        """
        copy = Path(folder) / self.link.name
        digest = hashlib.sha256()
        with self.open() as file:
            copy.parent.mkdir(parents=True, exist_ok=True)
            try:
                target = copy.open("xb")
            except FileExistsError:
                raise ConflictError(f"{copy} is there already.", hint="Choose another folder.") from None
            with target:
                while chunk := file.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    target.write(chunk)
        if digest.hexdigest() != self.link.sha256:
            copy.unlink()
            raise ConflictError(f"{self.link.name!r} is not what was recorded.", hint="Somebody has changed the file.")
        return copy


def outputs_of(attempts: Iterable[Attempt], key: TaskKey, files: ReadsFiles, partitions: int) -> list[TaskOutput]:
    """The files of some attempts of a task, in order.

    Args:
        attempts: of the task.
        key: of the task.
        files: of the deployment.
        partitions: of the deployment.
    """
    return [
        TaskOutput(one.number, link, files, outputs_place(key, one.number, partitions))
        for one in attempts
        for link in one.outputs
    ]
