"""The line by which a process of ours says that it accepts and runs tasks: one JSON object on stdout, written and read here."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from scylla_spark.services.deployment import Deployment

_BEGIN: Final = '{"ready": true'


def ready_facts(deployment: Deployment) -> dict[str, Any]:
    """What is told of a deployment: roles, process, brokers, data folder, address of metrics (None: none), and of services by role."""
    settings = deployment.settings
    return {
        "roles": deployment.roles, "pid": os.getpid(), "kafka": settings.kafka.bootstrap_servers,
        "data": str(settings.data_dir.absolute()), "metrics": deployment.metrics,
    } | deployment.addresses  # fmt: skip


def ready_line(facts: Mapping[str, Any]) -> str:
    """The line, without its end."""
    return json.dumps({"ready": True} | dict(facts))


def read_ready_line(line: str) -> Mapping[str, Any] | None:
    """The facts in a line of a process's stdout, or None if it says something else, such as a log line of Spark's."""
    if not line.startswith(_BEGIN):
        return None
    try:
        facts: dict[str, Any] = json.loads(line)
    except ValueError:
        return None
    return facts
