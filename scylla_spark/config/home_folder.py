"""Paths of settings: `~` is replaced here by the home folder, and a place that the setting cannot name is refused."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, BeforeValidator

from scylla_spark.table_place import is_place, scheme_of, table_place

_CATALOG: Final = re.compile(r"[\w-]+\.[\w-]+\.[\w-]+")
_MOUNTS: Final = ("/dbfs/", "/Volumes/")
"""Of Databricks, whose runtime sets DATABRICKS_RUNTIME_VERSION."""


def _expanded(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise ValueError(f"{path} begins with ~, and nobody's home folder is found by that: {error}") from None


def _expanded_text(path: str) -> str:
    return str(_expanded(Path(path))) if path.startswith("~") else path


def _of_this_machine(path: object) -> object:
    if isinstance(path, str | Path) and scheme_of(str(path)) is not None:
        raise ValueError(f"{str(path)!r} is a URI. Give a path of this machine, such as /srv/scylla-spark")
    return path


def _no_catalog_name(place: str) -> str:
    if _CATALOG.fullmatch(place):
        raise ValueError(
            f"{place!r} looks like a table or volume of a catalog, which cannot be opened by its name. Give its storage location; "
            f"for a folder of that name write ./{place}"
        )
    return place


def _place_of_tables(place: str) -> str:
    place = place and table_place(place)
    return _no_mount(os.path.abspath(place) if place and not is_place(place) else place)


def _no_mount(place: str) -> str:
    if "DATABRICKS_RUNTIME_VERSION" in os.environ and place.startswith(_MOUNTS):
        raise ValueError(
            f"{place!r} is a mount of Databricks, on which Delta tables are not safe. Give the location of an external table, such as "
            "s3://BUCKET/PATH or abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH"
        )
    return place


def _watched(place: str) -> str:
    if not is_place(place):
        raise ValueError(f"{place!r} is neither an absolute path nor a URI")
    return _no_mount(table_place(place))


FilePath = Annotated[Path, BeforeValidator(_of_this_machine), AfterValidator(_expanded)]
"""A file or folder of this machine."""

ModuleOrFile = Annotated[str, BeforeValidator(_of_this_machine)]
"""A dotted name, or a file of this machine."""

OptionalFolder = Annotated[
    str, BeforeValidator(_of_this_machine), AfterValidator(_no_catalog_name), AfterValidator(_expanded_text)
]
"""A folder of this machine, or empty."""

FileOrUri = Annotated[str, AfterValidator(_expanded_text)]
"""A folder of this machine or of a store."""

PlaceOfTables = Annotated[FileOrUri, AfterValidator(_no_catalog_name), AfterValidator(_place_of_tables)]
"""Where tables are stored, in its canonical form (a folder by its absolute path); or empty."""

PlaceOfWatched = Annotated[FileOrUri, AfterValidator(_watched)]
"""Where tables are stored that triggers watch: an absolute path or a URI, in its canonical form."""
