"""Which attributes of modules user code has replaced: `json.dumps = None` reaches every later task of the process."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any, Final

_OTHERS: Final = ("builtins", "time")  # no Python source, and often patched
_IMPORTS: Final = "importlib"
_missing: Final = object()
_replaced: list[str] = []
_watching: list[int] = []  # how many modules were loaded when they were looked at last; empty: nothing is watched


class _Watched(ModuleType):
    """A module that notes when code of another package replaces or deletes one of its attributes.

    Code of its own package may keep state there, and the import system adds submodules. New attributes disturb nobody.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        before = self.__dict__.get(name, _missing)
        super().__setattr__(name, value)
        if before is not value and before is not _missing:
            self._note(name)

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        self._note(name)

    def __reduce__(self) -> tuple[Any, ...]:
        return importlib.import_module, (self.__name__,)  # cloudpickle knows modules by their exact type

    def _note(self, name: str) -> None:
        changer = str(sys._getframe(2).f_globals.get("__name__")).partition(".")[0]  # noqa: SLF001 - who did it
        if changer not in (_IMPORTS, self.__name__.partition(".")[0]):
            _replaced.append(f"{self.__name__}.{name}")


def watch_modules() -> None:
    """Watches every module that is written in Python and loaded by now, and each that is loaded later once it is counted.

    Reading an attribute of such a module costs some 20 ns more. Modules in C are left alone: they are what tight loops call.
    """
    _watching[:] = [len(sys.modules)]
    for module in list(sys.modules.values()):
        if type(module) is ModuleType and (
            str(getattr(module, "__file__", "")).endswith(".py") or module.__name__ in _OTHERS
        ):
            module.__class__ = _Watched


def count_replaced() -> int:
    """Returns how many attributes of modules code of other packages has replaced in this process."""
    if _watching and len(sys.modules) != _watching[0]:
        watch_modules()
    return len(_replaced)
