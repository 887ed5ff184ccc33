"""Every executor by the name that handlers choose it by (`runs_on`), and where it is.

A module is imported when its executor is made. The names are `EXECUTOR_NAMES` in `handlers.description`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Final

from scylla_spark.executors.interface import Executor, Kind

if TYPE_CHECKING:
    from scylla_spark.config.settings import Settings

EXECUTORS: Final[Mapping[str, str]] = {
    "local": "scylla_spark.executors.local.local_executors",
    "spark": "scylla_spark.executors.spark.pool",
    "connect": "scylla_spark.executors.connect.pool",
}
"""Name → module; each has a `KIND`."""
BUILT_IN: Final[Mapping[str, str]] = {"notify": "scylla_spark.executors.notify.executor"}
"""Those that run handlers of ours alone, so that no handler can choose them."""
_ALL: Final = {**EXECUTORS, **BUILT_IN}


def executors(settings: Settings) -> dict[str, Executor]:
    """The executors that the settings ask for, by name; not started."""
    return {name: kind.make(settings) for name, kind in _wanted(settings).items()}


def needs_session(settings: Settings) -> bool:
    """Returns True if one of them needs a session of Spark."""
    return any(kind.needs_session(settings) for kind in _wanted(settings).values())


def turned_on_by(runs_on: str) -> str:
    """Returns what to set so that there is an executor for handlers with this `runs_on`; the end of a sentence."""
    return _kind(runs_on).turned_on_by


def _wanted(settings: Settings) -> dict[str, Kind]:
    kinds = {name: _kind(name) for name in _ALL}
    return {name: kind for name, kind in kinds.items() if kind.wanted(settings)}


def _kind(name: str) -> Kind:
    found: Kind = import_module(_ALL[name]).KIND
    return found
