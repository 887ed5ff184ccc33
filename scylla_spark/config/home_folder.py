"""Paths of settings that begin with `~`: the home folder is put in here, because not all that read a path know of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator


def _expanded(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise ValueError(f"{path} begins with ~, and nobody's home folder is found by that: {error}") from None


def _expanded_text(path: str) -> str:
    return str(_expanded(Path(path))) if path.startswith("~") else path


FilePath = Annotated[Path, AfterValidator(_expanded)]
"""A file or folder of this machine."""

FileOrUri = Annotated[str, AfterValidator(_expanded_text)]
"""A folder of this machine or of a store."""
