"""Settings given as flags: texts such as "dispatch.look_ahead=10m"."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from scylla_spark.errors import ArgumentError


def nested(texts: Iterable[str]) -> dict[str, Any]:
    """Settings as nested dicts, one level per section.

    Raises:
        ArgumentError: a text is not section.key=value. The text itself may be a password, so only its number is told.
    """
    tree: dict[str, Any] = {}
    for number, text in enumerate(texts, 1):
        path, equals, value = text.partition("=")
        if not equals or not path.strip():
            raise ArgumentError(
                f"--set number {number} is not section.key=value.", hint="Such as --set dispatch.look_ahead=10m."
            )
        section = tree
        *parents, name = path.strip().split(".", 2 if path.strip().startswith(_TABLES) else -1)
        for parent in parents:
            section = section.setdefault(parent, {})
            if not isinstance(section, dict):
                raise ArgumentError(
                    f"--set number {number} puts {path.strip()} below a value.", hint="Set one of them."
                )
        section[name] = value
    return tree


_TABLES = ("kafka.python_options.", "kafka.java_options.")  # Java's names have dots of their own
