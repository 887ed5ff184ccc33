"""Options and arguments that are texts take UTF-8 only: other bytes come as lone surrogates, which no topic or table takes.

Names of files may have any bytes: their parameters are of type `Path`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import typer


def strict(app: typer.Typer) -> None:
    """Makes every command of an application, and its global options, refuse texts that are not UTF-8 as wrong usage.

    Args:
        app: with all its commands and groups; before typer puts them together.
    """
    for entry in (app.registered_callback, *app.registered_commands):
        if entry is not None and entry.callback is not None:
            entry.callback = _checked(entry.callback)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            strict(group.typer_instance)


def _checked(callback: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(callback)
    def checked(*args: Any, **given: Any) -> Any:
        for name, value in given.items():
            for text in value if isinstance(value, list | tuple) else (value,):
                if isinstance(text, str) and not _is_utf_8(text):
                    raise typer.BadParameter("The text is not UTF-8.", param_hint=name.strip("_").replace("_", "-"))
        return callback(*args, **given)

    return checked


def _is_utf_8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
