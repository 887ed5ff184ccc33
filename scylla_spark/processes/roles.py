"""Every role that a process may have, in the order in which they start, and where it is.

They are attached to Spark, and stop, in the opposite order: what makes the tables starts first, so that all others find them, and
is attached last, so that what is due by then starts before batches compete for the cores.

Modules stand here by name, and are imported by whoever starts a role: the command line lists them without loading any.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from scylla_spark.services.service import Role

ROLES: Final[Mapping[str, str]] = {
    "ingest": "scylla_spark.services.ingest.service",
    "dispatch": "scylla_spark.services.dispatch.service",
    "plan": "scylla_spark.services.plan.service",
    "api": "scylla_spark.api.service",
}
"""Name → module; each has its `Role` under that name in capitals, such as `INGEST`."""


def role_named(name: str) -> Role:
    """The role of a name that stands in `ROLES`."""
    found: Role = getattr(import_module(ROLES[name]), name.upper())
    return found
