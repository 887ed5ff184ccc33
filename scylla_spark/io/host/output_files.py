"""Files that attempts leave behind, in a folder of this machine or one that is mounted here.

A file is written under another name, synced and then renamed, so that whoever sees one sees all of it. Every path is made of a
place (see `core.tasks.output.outputs_place`) and of a name that was checked, and no link is followed on the way to a file.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedIOBase, BytesIO
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, cast

from scylla_spark.errors import ArgumentError, NotFoundError

Source = bytes | bytearray | memoryview | str | os.PathLike[str]
"""What can be left behind: bytes, a text (as UTF-8), or the path of a file, which is copied."""

_CHUNK_BYTES: Final = 1024 * 1024
_IDENTITY: Final = ".identity"
_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_FILE_MODE: Final = 0o640
_FOLDER_MODE: Final = 0o750


class Stored(NamedTuple):
    """A file that was written.

    Attributes:
        bytes: its size.
        sha256: of its content, in hexadecimal digits.
    """

    bytes: int
    sha256: str


class Draft(NamedTuple):
    """A file that was written under a name that nobody reads; it is to be kept or dropped.

    Attributes:
        path: where it lies. Who is killed meanwhile leaves it there, and it is purged with the files of its task.
        stored: its size and digest.
    """

    path: Path
    stored: Stored


class OutputFiles:
    """The files below a folder, which is made when the first is written.

    Args:
        root: the folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(
        self, place: str, name: str, source: Source | BinaryIO, most: int, over: Callable[[], bool] = lambda: False
    ) -> Stored:
        """Writes a file whole, or not at all; one of that name is replaced.

        Args:
            place: of the attempt.
            name: of the file, checked.
            source: its content.
            most: bytes that it may have.
            over: whether its attempt is over; asked when all is written, just before another file would be replaced.

        Raises:
            ArgumentError: it has more, or is no content, or the attempt is over.
            OSError: it cannot be stored, or its source cannot be read.
        """
        draft = self.draft(place, source, most)
        try:
            if over():
                raise attempt_over()
            self.keep(draft, name)
        except BaseException:
            self.drop(draft)
            raise
        return draft.stored

    def draft(self, place: str, source: Source | BinaryIO, most: int) -> Draft:
        """Writes a file whole, or not at all, and replaces none; errors as of `write`.

        Args:
            place: of the attempt.
            source: its content.
            most: bytes that it may have.
        """
        with opened(source) as content:
            folder = self.root / place
            folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
            scratch = folder / f".{os.getpid()}-{os.urandom(8).hex()}"
            try:
                return Draft(scratch, _copied(content, scratch, most))
            except BaseException:
                with suppress(FileNotFoundError):
                    scratch.unlink()
                raise

    def keep(self, draft: Draft, name: str) -> None:
        """Gives a draft its name; a file that has it is replaced.

        Args:
            draft: of this folder, neither kept nor dropped.
            name: of the file, checked.

        Raises:
            OSError: it cannot have it.
        """
        os.replace(draft.path, draft.path.with_name(name))
        _sync_folder(draft.path.parent)

    def drop(self, draft: Draft) -> None:
        """Deletes a draft, unless it was kept; what cannot be deleted goes with its task."""
        with suppress(OSError):
            draft.path.unlink()

    def identity(self) -> str:
        """Returns what tells this folder from one of the same path on another machine; it is given to it when it is first asked for.

        Raises:
            OSError: the folder cannot be written or read.
        """
        self.root.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        fresh = self.root / f"{_IDENTITY}-{os.urandom(8).hex()}"
        if not (self.root / _IDENTITY).exists():
            _copied(BytesIO(os.urandom(16).hex().encode()), fresh, 32)
            _link(fresh, self.root / _IDENTITY)
        return (self.root / _IDENTITY).read_text()

    def is_identified(self, identity: str) -> bool:
        """Returns True if this is the folder that has this identity, and can be read."""
        try:
            return (self.root / _IDENTITY).read_text() == identity
        except (OSError, UnicodeDecodeError):
            return False

    def scratch(self) -> BinaryIO:
        """A file without a name on the same disk, to gather what comes in pieces; it is gone when it is closed."""
        self.root.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        return cast(BinaryIO, tempfile.TemporaryFile(dir=self.root))

    def open(self, place: str, name: str, size: int) -> BinaryIO:
        """A file to be read.

        Args:
            place: of the attempt.
            name: of the file, checked.
            size: what it must have, in bytes.

        Raises:
            NotFoundError: it is not here, or it is another one.
        """
        try:
            number = os.open(self.root / place / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise NotFoundError(
                f"The file {name!r} cannot be read here: {error.strerror}.",
                hint="It was purged, or the folder of outputs (outputs.path) is not mounted on this machine.",
            ) from None
        file = os.fdopen(number, "rb")
        found = os.fstat(number)
        if stat.S_ISREG(found.st_mode) and found.st_size == size:
            return file
        file.close()
        raise NotFoundError(f"The file {name!r} is not the one that was left behind.", hint="It was changed since.")

    def hours(self) -> Iterator[tuple[int, int]]:
        """(partition, hour) of all files that there are, by the names of their folders."""
        for partition in _numbered(self.root):
            for hour in _numbered(self.root / str(partition)):
                yield partition, hour

    def remove_hour(self, partition: int, hour: int) -> None:
        """Deletes all files of an hour of a partition; what cannot be deleted stays for the next time."""
        shutil.rmtree(self.root / str(partition) / str(hour), ignore_errors=True)

    def remove_task(self, place: str) -> None:
        """Deletes all files of a task, of which `place` names an attempt; what cannot be deleted stays."""
        shutil.rmtree((self.root / place).parent, ignore_errors=True)


@contextmanager
def opened(source: Source | BinaryIO) -> Iterator[BinaryIO]:
    """The content of what can be left behind; what is open already is left open.

    Raises:
        ArgumentError: it has none.
        OSError: it cannot be read.
    """
    if isinstance(source, str):
        try:
            yield BytesIO(source.encode())
        except UnicodeEncodeError:
            raise ArgumentError("The text is no Unicode.", hint="Pass bytes.", reason="wrong_value") from None
    elif isinstance(source, bytes | bytearray | memoryview):
        yield BytesIO(source)
    elif isinstance(source, os.PathLike):
        with os.fdopen(os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ArgumentError(f"{os.fspath(source)!r} is no plain file.", hint="Pass the path of one, or bytes.")
            yield file
    elif isinstance(source, BufferedIOBase):
        yield source
    else:
        kind = type(source).__name__
        raise ArgumentError(f"A {kind} is no content of a file.", hint="Pass bytes, a text, or a pathlib.Path.")


def attempt_over() -> ArgumentError:
    """The error of a file that comes when nobody would hear of it any more, and which might replace one that is recorded."""
    return ArgumentError("The attempt is over.", hint="Leave files behind before the handler returns.")


def too_much(most: int) -> ArgumentError:
    """The error of a file that has more bytes than it may have."""
    return ArgumentError(
        f"The outputs of the attempt have more bytes than it may leave behind; {most} are left for this one.",
        hint="Raise outputs.max_bytes, or store it elsewhere and leave behind where.",
        reason="too_large",
    )


def stored_of(data: bytes) -> Stored:
    """Size and digest of a content."""
    return Stored(len(data), hashlib.sha256(data).hexdigest())


def _copied(content: BinaryIO, scratch: Path, most: int) -> Stored:
    """Writes at most so many bytes to a new file, and syncs it."""
    digest, size = hashlib.sha256(), 0
    number = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _FILE_MODE)
    with os.fdopen(number, "wb") as file:
        while chunk := content.read(_CHUNK_BYTES):
            size += len(chunk)
            if size > most:
                raise too_much(most)
            digest.update(chunk)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    return Stored(size, digest.hexdigest())


def _link(fresh: Path, to: Path) -> None:
    """Gives a new file its name; of several that do so at once, one succeeds where the storage has links, and else the last."""
    try:
        os.link(fresh, to)
    except FileExistsError:
        pass
    except OSError:
        os.replace(fresh, to)
    with suppress(FileNotFoundError):
        fresh.unlink()


def _sync_folder(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _numbered(folder: Path) -> list[int]:
    """The folders in a folder whose names are numbers; of others nothing is known."""
    try:
        with os.scandir(folder) as entries:
            names = [one.name for one in entries if _NUMBER.fullmatch(one.name) and one.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return sorted(int(name) for name in names if str(int(name)) == name)
