"""How triggers call a table: by its place, or by a name that a setting gives a place."""

from __future__ import annotations


def is_place(table: str) -> bool:
    """Whether a text says itself where a table lies: an absolute path or a URI; anything else is a name, or a relative path.

    Args:
        table: as a trigger has it.
    """
    return table.startswith(("/", "file:/")) or "://" in table
