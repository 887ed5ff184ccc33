"""Paths of settings that begin with `~`: the home folder is put in here, because not all that read a path know of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

from scylla_spark.table_place import is_place, table_place


def _expanded(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise ValueError(f"{path} begins with ~, and nobody's home folder is found by that: {error}") from None


def _expanded_text(path: str) -> str:
    return str(_expanded(Path(path))) if path.startswith("~") else path


def _watched(place: str) -> str:
    if not is_place(place):
        raise ValueError(f"{place!r} is neither an absolute path nor a URI")
    return table_place(place)


FilePath = Annotated[Path, AfterValidator(_expanded)]
"""A file or folder of this machine."""

FileOrUri = Annotated[str, AfterValidator(_expanded_text)]
"""A folder of this machine or of a store."""

PlaceOfTables = Annotated[FileOrUri, AfterValidator(lambda place: place and table_place(place))]
"""Where tables are stored, in its canonical form; or empty."""

PlaceOfWatched = Annotated[FileOrUri, AfterValidator(_watched)]
"""Where tables are stored that triggers watch: an absolute path or a URI, in its canonical form."""
