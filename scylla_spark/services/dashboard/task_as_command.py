"""A task as a command that would enqueue it: for curl, for the command line, and in Python."""

from __future__ import annotations

import json
import shlex
from typing import Any


def copies(task: dict[str, Any], address: str) -> dict[str, str]:
    """Name of a tool → text that enqueues the same task.

    Args:
        task: as the API shows it.
        address: where the API is reached.
    """
    return {"curl": _curl(task, address), "CLI": _command_line(task), "Python": _python(task)}


def _curl(task: dict[str, Any], address: str) -> str:
    body = {
        name: task[name]
        for name in ("handler", "payload", "queue", "priority", "scheduled_time", "ordering_id", "uniqueness_key")
    }
    text = shlex.quote(json.dumps(body, ensure_ascii=True))
    return f"curl -X POST {shlex.quote(f'{address}/v1/tasks')} --json {text}"


def _command_line(task: dict[str, Any]) -> str:
    options = {
        "payload": json.dumps(task["payload"], ensure_ascii=True), "ordering-id": task["ordering_id"],
        "uniqueness-key": task["uniqueness_key"], "at": task["scheduled_time"], "queue": task["queue"], "priority": str(task["priority"]),
    }  # fmt: skip
    words = [f"--{name}={value}" for name, value in options.items()]
    return " ".join(map(_quoted, ["scylla-spark", "task", "enqueue", *words, "--", task["handler"] or ""]))


def _python(task: dict[str, Any]) -> str:
    return (
        f"scheduler.enqueue(\n    {task['handler']!r},\n    {task['payload']!r},\n    ordering_id={task['ordering_id']!r},\n"
        f"    uniqueness_key={task['uniqueness_key']!r},\n    at=datetime.fromisoformat({task['scheduled_time']!r}),\n"
        f"    queue={task['queue']!r},\n    priority={task['priority']},\n)"
    )


def _quoted(word: str) -> str:
    """A word of a shell's command line; what cannot be seen is written as an escape, which bash and zsh read."""
    if word.isprintable():
        return shlex.quote(word)
    letters = [one if one.isprintable() and one not in "'\\" else f"\\U{ord(one):08x}" for one in word]
    return f"$'{''.join(letters)}'"
