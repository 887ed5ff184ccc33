"""Settings given as flags: texts such as "dispatch.look_ahead=10m", read and written.

A name that has dots of its own stands in quotes, as in TOML: `queues."mail.fast".order=replay`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from scylla_spark.errors import ArgumentError

_TABLES: Final = (
    "kafka.python_options.",
    "kafka.java_options.",
    "spark.options.",
)  # Java's names have dots of their own
_STEP: Final = r'(?:"[^"]+"|[^."]+)'
_PATH: Final = re.compile(rf"{_STEP}(?:\.{_STEP})*")


def nested(texts: Iterable[str]) -> dict[str, Any]:
    """Settings as nested dicts, one level per section.

    Args:
        texts: such as "section.key=value"; a value is text, `null`, or a list or an object in JSON.

    Raises:
        ArgumentError: a text has another form. The text itself may be a password, so only its number is told.
    """
    tree: dict[str, Any] = {}
    for number, text in enumerate(texts, 1):
        path, equals, value = text.partition("=")
        steps = _steps(path.strip())
        if not equals or not steps:
            raise ArgumentError(
                f"--set number {number} is not section.key=value.",
                hint="Such as --set dispatch.look_ahead=10m; names with dots in quotes.",
            )
        section = tree
        for parent in steps[:-1]:
            section = section.setdefault(parent, {})
            if not isinstance(section, dict):
                raise ArgumentError(
                    f"--set number {number} puts {path.strip()} below a value.", hint="Set one of them."
                )
        section[steps[-1]] = _value(value)
    return tree


def written(settings: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Nested settings as the texts that `nested` reads."""
    found: list[str] = []
    for name, value in settings.items():
        path = prefix + quoted(name)
        found += written(value, f"{path}.") if isinstance(value, Mapping) else [f"{path}={_text(value)}"]
    return found


def quoted(name: str) -> str:
    """A name as it stands in a path: in quotes if it has dots of its own."""
    return f'"{name}"' if "." in name else name


def _steps(path: str) -> list[str]:
    """The names along a path; none if it is no path."""
    for table in _TABLES:
        if path.startswith(table) and '"' not in path:
            return [*table[:-1].split("."), path.removeprefix(table)]
    return [step.strip('"') for step in re.findall(_STEP, path)] if _PATH.fullmatch(path) else []


def _value(text: str) -> Any:
    """The value of a text: what is no JSON list, object or null stays text, whatever it looks like."""
    if text == "null":
        return None
    try:
        return json.loads(text) if text[:1] in ("[", "{") else text
    except (ValueError, RecursionError):
        return text


def _text(value: Any) -> str:
    return json.dumps(value) if value is None or isinstance(value, list | tuple) else str(value)
