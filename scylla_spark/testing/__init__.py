"""For tests of who uses scylla-spark, and for our own: a world on virtual time, histories of a deployment and the one judge of them.

`world` and `call` are for tests of handlers and schedules: docs/testing.md. They are imported when first used, so that the plug-in of
pytest costs nobody anything who does not ask for its fixture.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from scylla_spark.testing.handler_calls import Called, call
    from scylla_spark.testing.virtual_world import World, world
    from scylla_spark.testing.world_runs_and_fires import Fire, HandlerRun

_HOMES: Final = {
    "Called": "handler_calls",
    "Fire": "world_runs_and_fires",
    "HandlerRun": "world_runs_and_fires",
    "World": "virtual_world",
    "call": "handler_calls",
    "world": "virtual_world",
}

__all__ = ["Called", "Fire", "HandlerRun", "World", "call", "world"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
