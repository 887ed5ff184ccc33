"""What handlers find around them in their process, and what none of them leaves behind for the next: variables, folder and file mode."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Final

_live: Final[dict[bytes, bytes]] = os.environ._data  # type: ignore[attr-defined]  # noqa: SLF001 - ten times as quick to compare
_SPARKS: Final = (b"SPARK_", b"PYSPARK_")  # by which PySpark's modules, once imported, know what they are
_ours: list[Surroundings] = []


class Surroundings:
    """The environment variables, working directory and umask of this process, as they are now."""

    def __init__(self) -> None:
        self._variables = dict(_live)
        self._folder = _folder()
        self._mask = _umask()
        _ours.append(self)

    def restore(self) -> None:
        """Makes all as it was, but for what Spark and `setup` functions have changed; costs microseconds where nothing has changed."""
        if _live != self._variables:
            self._restore_variables()
        if self._folder is not None and _folder() != self._folder:
            with contextlib.suppress(OSError):  # it is gone for everybody
                os.chdir(self._folder)
        os.umask(self._mask)

    def keep(self, variables: dict[bytes, bytes | None], folder: str | None) -> None:
        """From now on these are as they are.

        Args:
            variables: name → value; None: it is not set.
            folder: the working directory; None: as it was.
        """
        for name, value in variables.items():
            if value is None:
                self._variables.pop(name, None)
            else:
                self._variables[name] = value
        self._folder = folder or self._folder

    def _restore_variables(self) -> None:
        for name in _live.keys() | self._variables.keys():
            before, now = self._variables.get(name), _live.get(name)
            if before == now:
                continue
            if name.startswith(_SPARKS):
                self.keep({name: now}, None)
            elif before is None:
                del os.environ[os.fsdecode(name)]
            else:
                os.environ[os.fsdecode(name)] = os.fsdecode(before)


@contextlib.contextmanager
def staying() -> Iterator[None]:
    """What is changed meanwhile stays for all that run in this process later."""
    variables, folder = dict(_live), _folder()
    try:
        yield
    finally:
        names = {name for name in _live.keys() | variables.keys() if _live.get(name) != variables.get(name)}
        moved = _folder() if _folder() != folder else None
        for one in _ours:
            one.keep({name: _live.get(name) for name in names}, moved)


def _folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # somebody has deleted it
        return None


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
