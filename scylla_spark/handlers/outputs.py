"""What a call leaves behind as files: written by its child, within the bounds of its attempt."""

from __future__ import annotations

import mimetypes
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from scylla_spark.core.tasks.output import (
    MAX_OUTPUTS,
    UNKNOWN_TYPE,
    OutputLink,
    OutputTerms,
    checked_output_name,
    is_media_type,
    outputs_place,
)
from scylla_spark.core.tasks.task import Invocation
from scylla_spark.errors import ArgumentError, shown
from scylla_spark.io.host.output_files import OutputFiles, Source, Stored

_TYPES: Final = mimetypes.MimeTypes()  # those that Python knows; what a machine adds would make links differ


class WritesOutputs(Protocol):
    """What stores the files of one call."""

    def write(
        self, name: str, source: Source, media_type: str | None, over: Callable[[], bool] = lambda: False
    ) -> OutputLink:
        """Stores a file, unless the call is over by then; see `TaskContext.output`."""


class StoresFiles(Protocol):
    """What keeps files: a folder."""

    def write(
        self, place: str, name: str, source: Source | BinaryIO, most: int, over: Callable[[], bool] = lambda: False
    ) -> Stored:
        """Writes a file whole; see `OutputFiles.write`."""


class AttemptOutputs:
    """The files of one call; may be used from any thread, and writes one at a time.

    Args:
        terms: where files are kept, and how much of an attempt.
        item: its invocation.
        files: what keeps them; default: the folder.
    """

    def __init__(self, terms: OutputTerms, item: Invocation, files: StoresFiles | None = None) -> None:
        self._terms = terms
        self._item = item
        self._files = files
        self._sizes: dict[str, int] = {}
        self._lock = threading.Lock()

    def write(
        self, name: str, source: Source | BinaryIO, media_type: str | None, over: Callable[[], bool] = lambda: False
    ) -> OutputLink:
        """Stores a file, unless the call is over by then; see `TaskContext.output`."""
        checked_output_name(name)
        told = checked_media_type(media_type, name)
        with self._lock:
            if name not in self._sizes and len(self._sizes) >= MAX_OUTPUTS:
                raise ArgumentError(
                    f"The attempt leaves more than {MAX_OUTPUTS} files behind.", hint="Pack them.", reason="too_large"
                )
            left = self._terms.max_bytes - sum(size for other, size in self._sizes.items() if other != name)
            stored = self._folder().write(self._place(), name, source, left, over)
            self._sizes[name] = stored.bytes
        return OutputLink(name, stored.bytes, stored.sha256, told)

    def _folder(self) -> StoresFiles:
        """Made here and not with the call: most calls leave nothing behind."""
        if self._files is not None:
            return self._files
        folder, identity = OutputFiles(Path(self._terms.folder)), self._terms.identity
        if identity and not folder.is_identified(identity):
            raise ArgumentError(
                f"The folder of outputs, {self._terms.folder}, is not in reach of this machine.",
                hint="Mount it where Spark's executors run, under the same path, for the user that they run as (docs/outputs.md).",
                reason="outputs_out_of_reach",
            )
        return folder

    def _place(self) -> str:
        return outputs_place(self._item.key, self._item.attempt, self._terms.partitions)


def checked_media_type(media_type: str | None, name: str) -> str:
    """Returns what a file is said to be.

    Args:
        media_type: as the handler says; None: it does not.
        name: of the file.

    Raises:
        ArgumentError: it is no media type.
    """
    if media_type is None:
        return _TYPES.guess_type(name)[0] or UNKNOWN_TYPE
    if not is_media_type(media_type):
        raise ArgumentError(f"{shown(media_type)} is no media type.", hint="Such as text/csv.", reason="wrong_value")
    return media_type
