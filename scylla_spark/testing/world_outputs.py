"""Files that handlers of a world leave behind: kept in memory, within the bounds of a deployment."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import BinaryIO

from scylla_spark.config.settings import Settings
from scylla_spark.core.tasks.output import OutputTerms
from scylla_spark.errors import NotFoundError
from scylla_spark.io.host.output_files import Source, Stored, attempt_over, opened, stored_of, too_much


class MemoryFiles:
    """Stands for a folder of outputs."""

    def __init__(self) -> None:
        self._content: dict[tuple[str, str], bytes] = {}

    def write(
        self, place: str, name: str, source: Source | BinaryIO, most: int, over: Callable[[], bool] = lambda: False
    ) -> Stored:
        """Keeps a file; see `OutputFiles.write`."""
        with opened(source) as content:
            data = content.read(most + 1)
        if len(data) > most:
            raise too_much(most)
        if over():
            raise attempt_over()
        self._content[place, name] = data
        return stored_of(data)

    def open(self, place: str, name: str, size: int) -> BinaryIO:
        """A file to be read; see `OutputFiles.open`."""
        found = self._content.get((place, name))
        if found is None or len(found) != size:
            raise NotFoundError(f"The file {name!r} is not the one that was left behind.")
        return BytesIO(found)


def terms_of(settings: Settings) -> OutputTerms:
    """Returns what a world says of outputs; its one partition has no folder."""
    return OutputTerms("", 1, settings.outputs.max_bytes)
