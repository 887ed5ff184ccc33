"""Options and arguments that are texts take UTF-8 only: other bytes come as lone surrogates, which no topic or table takes.

Names of files are not meant: those may have any bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Final

_TEXTS: Final = ("str", "text")  # what typer, and click before it, call the type


def strict(command: Any) -> Any:
    """The same command, which with all that are under it refuses texts that are no UTF-8 as wrong usage.

    Args:
        command: as typer has put it together.
    """
    for param in _parameters(command):
        if param.type.name in _TEXTS:
            kind: Any = type(param.type)
            param.type = _strict(kind)()
    return command


def _parameters(command: Any) -> Iterator[Any]:
    yield from command.params
    for one in getattr(command, "commands", {}).values():
        yield from _parameters(one)


@cache
def _strict(kind: Any) -> Any:
    class Strict(kind):  # type: ignore[misc]
        def convert(self, value: Any, param: Any, ctx: Any) -> Any:
            text = super().convert(value, param, ctx)
            try:
                text.encode()
            except UnicodeEncodeError:
                self.fail("The text is not UTF-8.", param, ctx)
            return text

    return Strict
