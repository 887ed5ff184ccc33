"""A task as a command that enqueues one like it: for curl, for the command line, and in Python.

Each carries all that was said of the task but its time and trace, and its key only where it is unique by that: with its whole key a
command would be the same task once more, which runs nothing where that has ended.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any, Final

_OPTIONS: Final = ("queue", "priority", "timeout", "expires", "tags", "retry", "unique")


def copies(task: Mapping[str, Any], address: str) -> dict[str, str]:
    """Name of a tool → text that enqueues a task like it, due at once.

    Args:
        task: as the API shows it.
        address: where the API is reached.
    """
    wanted = _wanted(task)
    return {"curl": _curl(wanted, address), "CLI": _command_line(wanted), "Python": _python(wanted)}


def _wanted(task: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the new task, by the names that the API and Python have for them."""
    named = ("uniqueness_key",) if task["unique"] else ()
    given = {name: task[name] for name in ("ordering_id", *named, *_OPTIONS)}
    return {"handler": task["handler"], "payload": task["payload"]} | {
        name: value for name, value in given.items() if value not in (None, [])
    }


def _curl(wanted: Mapping[str, Any], address: str) -> str:
    text = shlex.quote(json.dumps(wanted, ensure_ascii=True))
    return f"curl -X POST {shlex.quote(f'{address}/v1/tasks')} --json {text}"


def _command_line(wanted: Mapping[str, Any]) -> str:
    if wanted["handler"] is None:
        return "# The command line enqueues only tasks that name a handler."
    values = {"payload": json.dumps(wanted["payload"], ensure_ascii=True)} | {
        name: wanted[name]
        for name in ("ordering_id", "uniqueness_key", "queue", "priority", "timeout", "expires")
        if name in wanted
    }
    words = [f"--{name.replace('_', '-')}={value}" for name, value in values.items()]
    words += [f"--tag={tag}" for tag in wanted.get("tags", ())] + (["--unique"] if "unique" in wanted else [])
    retry, left_out = wanted.get("retry"), ""
    if retry is not None and type(retry["max_retries"]) is int:
        words.append(f"--max-retries={retry['max_retries']}")
    if retry is not None:
        words += [f"--retry-{name}={retry[name]}" for name in ("base", "cap") if retry[name] is not None]
    if retry is not None and retry["max_retries"] is None:
        left_out = f"  # It cannot say all of its retries: {json.dumps(retry)}"
    return " ".join(map(_quoted, ["scylla-spark", "task", "enqueue", *words, "--", wanted["handler"]])) + left_out


def _python(wanted: Mapping[str, Any]) -> str:
    texts = {name: repr(value) for name, value in wanted.items()}
    if "retry" in wanted:
        said = {name: value for name, value in wanted["retry"].items() if not _is_left_out(name, value)}
        texts["retry"] = f"Retry({', '.join(f'{name}={value!r}' for name, value in said.items())})"
    handler, payload = texts.pop("handler"), texts.pop("payload")
    arguments = [handler, payload, *(f"{name}={text}" for name, text in texts.items())]
    return "scheduler.enqueue(\n" + "".join(f"    {one},\n" for one in arguments) + ")"


def _quoted(word: str) -> str:
    """A word of a shell's command line; what cannot be seen is written as an escape, which bash and zsh read."""
    if word.isprintable():
        return shlex.quote(word)
    letters = [one if one.isprintable() and one not in "'\\" else f"\\U{ord(one):08x}" for one in word]
    return f"$'{''.join(letters)}'"


def _is_left_out(name: str, value: object) -> bool:
    """Returns whether a field of a retry policy is unset; null means retries without end."""
    return value == "inherited" or (value is None and name != "max_retries")
