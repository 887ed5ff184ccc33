"""The line by which a process of ours says that it accepts and runs tasks: one JSON object on stdout, written and read here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

_BEGIN: Final = '{"ready": true'


def ready_line(*, roles: Sequence[str], pid: int, kafka: str, data: str, metrics: str | None) -> str:
    """The line, without its end.

    Args:
        roles: services that run in the process.
        pid: of the process.
        kafka: host:port of the brokers.
        data: its data folder.
        metrics: address of metrics and state.
    """
    facts = {"ready": True, "roles": roles, "pid": pid, "kafka": kafka, "data": data, "metrics": metrics}
    return json.dumps(facts)


def read_ready_line(line: str) -> Mapping[str, Any] | None:
    """The facts in a line of a process's stdout, or None if it says something else, such as a log line of Spark's."""
    if not line.startswith(_BEGIN):
        return None
    try:
        facts: dict[str, Any] = json.loads(line)
    except ValueError:
        return None
    return facts
