"""What handlers find around them in their process, and what none of them leaves behind for the next: variables, folder and file mode."""

from __future__ import annotations

import contextlib
import os
from typing import Any


class Surroundings:
    """The environment variables, working directory and umask of this process, as they are now."""

    def __init__(self) -> None:
        self._live: dict[Any, Any] = os.environ._data  # type: ignore[attr-defined]  # noqa: SLF001 - to read it through costs ten times as much
        self._variables = dict(self._live)
        self._folder = os.getcwd()
        self._mask = _umask()

    def restore(self) -> None:
        """Makes all as it was; that costs some microseconds where nothing has changed."""
        if self._live != self._variables:
            self._restore_variables()
        if _folder() != self._folder:
            with contextlib.suppress(OSError):  # it is gone for everybody
                os.chdir(self._folder)
        os.umask(self._mask)

    def _restore_variables(self) -> None:
        before = {os.fsdecode(name): os.fsdecode(value) for name, value in self._variables.items()}
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update({name: value for name, value in before.items() if os.environ.get(name) != value})


def _folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # somebody has deleted it
        return None


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
