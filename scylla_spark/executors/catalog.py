"""Every executor by the name that handlers choose it by (`runs_on`), and where it is.

Modules stand here by name, and are imported by whoever makes an executor: handlers are registered in processes that know nothing of
pools.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Final, NamedTuple

from scylla_spark.executors.interface import Executor, HandlerInfo

if TYPE_CHECKING:
    from scylla_spark.config.settings import Settings

EXECUTORS: Final[Mapping[str, str]] = {
    "local": "scylla_spark.executors.local.pool",
    "spark": "scylla_spark.executors.spark.pool",
    "connect": "scylla_spark.executors.connect.pool",
}
"""Name → module; each has a `KIND`."""
_LOOPS: Final = "scylla_spark.executors.loops.pool"
_APART: Final = "scylla_spark.executors.local.isolated_pools"
BUILT_IN: Final[Mapping[str, str]] = {"notify": "scylla_spark.executors.notify.executor"}
"""Those that run handlers of ours alone, so that no handler can choose them."""
_ALL: Final = {**EXECUTORS, **BUILT_IN}


class Kind(NamedTuple):
    """What is known of an executor before it is made.

    Attributes:
        make: from the settings to an executor that is not started.
        wanted: whether the settings ask for it.
        turned_on_by: what to set where they do not; the end of a sentence.
        needs_session: whether it waits for a session of Spark in this process, as an `OnSession`.
    """

    make: Callable[[Settings], Executor]
    wanted: Callable[[Settings], bool]
    turned_on_by: str
    needs_session: Callable[[Settings], bool]


def executors(settings: Settings) -> dict[str, Executor]:
    """The executors that the settings ask for, by name; not started."""
    return {name: kind.make(settings) for name, kind in _wanted(settings).items()}


def asked_for(settings: Settings, handlers: Mapping[str, HandlerInfo]) -> dict[str, Executor]:
    """Executors that are there only where handlers ask for them, by name; not started.

    Args:
        settings: of the deployment.
        handlers: all that are known.
    """
    found: dict[str, Executor] = {}
    for module in (_LOOPS, _APART):
        found |= import_module(module).executors(settings, handlers)
    return found


def needs_session(settings: Settings) -> bool:
    """Whether one of them needs a session of Spark."""
    return any(kind.needs_session(settings) for kind in _wanted(settings).values())


def turned_on_by(name: str) -> str:
    """What to set so that there is an executor of this name; the end of a sentence."""
    return _kind(name).turned_on_by


def _wanted(settings: Settings) -> dict[str, Kind]:
    kinds = {name: _kind(name) for name in _ALL}
    return {name: kind for name, kind in kinds.items() if kind.wanted(settings)}


def _kind(name: str) -> Kind:
    found: Kind = import_module(_ALL[name]).KIND
    return found
