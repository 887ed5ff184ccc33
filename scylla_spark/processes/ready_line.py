"""The line by which a process of ours says that it accepts and runs tasks: one JSON object on stdout, written and read here."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from scylla_spark.processes.deployment import Deployment

_BEGIN: Final = '{"ready": true'


def tell_service_manager(state: str) -> None:
    """Reports a state of this process to systemd, as `sd_notify` does; nothing happens where no systemd has asked for it.

    Args:
        state: such as READY=1 or STOPPING=1.
    """
    place = os.environ.get("NOTIFY_SOCKET")
    if not place:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.sendto(state.encode(), "\0" + place[1:] if place.startswith("@") else place)


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


def ready_block(facts: Mapping[str, Any], names: Sequence[str] | None, *, one_machine: bool) -> str:
    """The same for people, as lines: where things are, which handlers can run, and a command to try next.

    Args:
        facts: of the deployment.
        names: of its handlers; None: this process dispatches nothing.
        one_machine: it is found by its data folder.
    """
    rows = {"data": facts["data"], "kafka": facts["kafka"], "metrics": facts["metrics"], "api": facts.get("api")}
    if rows["api"]:
        rows["dashboard"] = f"{rows['api']}/ui/"
    if names is not None:
        rows["handlers"] = ", ".join(names) or "none: no task can run. Start with --handlers MODULE"
    options = f"--data {shlex.quote(facts['data'])} " if one_machine else ""
    rows["next"] = f"scylla-spark {options}" + (f"task enqueue {shlex.quote(names[0])}" if names else "task list")
    return "\n".join(["ready", *(f"  {name:<10} {value}" for name, value in rows.items() if value)])


def read_ready_line(line: str) -> Mapping[str, Any] | None:
    """The facts in a line of a process's stdout, or None if it says something else, such as a log line of Spark's."""
    if not line.startswith(_BEGIN):
        return None
    try:
        facts: dict[str, Any] = json.loads(line)
    except ValueError:
        return None
    return facts
