"""Reads crontab files, as crontab(5) of Debian and cronie describe them, and makes schedules of their lines."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple

from scylla_spark.client.schedules.schedule import Schedule
from scylla_spark.core.plan.times import zone
from scylla_spark.errors import ArgumentError

TAKEN: Final = "taken"
DIFFERS: Final = "differs"
REFUSED: Final = "refused"

_SETTING: Final = re.compile(r"""(?:"([^"]+)"|'([^']+)'|([^\s=]+))\s*=\s*(.*)""", re.DOTALL)
_QUOTED: Final = re.compile(r"""(["'])(.*)\1""", re.DOTALL)
_NAMED: Final = re.compile(r"(@\S+)\s+(.*)", re.DOTALL)
_TIMED: Final = re.compile(r"((?:\S+\s+){4}\S+)\s+(.*)", re.DOTALL)
_OWNED: Final = re.compile(r"(\S+)\s+(.*)", re.DOTALL)
_COMMAND: Final = re.compile(r"(?:[^%\\]|\\.|\\$)*", re.DOTALL)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_PERCENT: Final = re.compile(r"\\?%")
_STEP_AFTER_NUMBER: Final = re.compile(r"(?:^|[\s,])[^\s,*/-]+/")
_MAIL: Final = ("MAILTO", "MAILFROM", "CONTENT_TYPE", "CONTENT_TRANSFER_ENCODING")
_MAX_DELAY_MIN: Final = 1_440
_AS_IN_CRON: Final = {"overlap": "allow_all", "catch_up": "none", "retry": {"max_retries": 0}}


class CrontabLine(NamedTuple):
    """The result for one line of a crontab.

    Attributes:
        number: of the line, from 1.
        text: the line.
        verdict: TAKEN, DIFFERS (it runs, but not in all as under cron) or REFUSED.
        why: what differs, or why nothing comes of it; empty if nothing is to be said.
        schedule: fields of a file of schedules, see `files.py`; None for lines that start nothing.
    """

    number: int
    text: str
    verdict: str
    why: str = ""
    schedule: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class _Settings:
    """The settings above a line, which hold for it."""

    tz: str | None
    shell: str = "/bin/sh"
    jitter: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


def read_crontab(text: str, handler: str, tz: str, *, system: bool = False) -> list[CrontabLine]:
    """Returns what becomes of each line that is neither empty nor a comment.

    A run has the payload `command` (list of texts: shell, "-c", command), and where the crontab says so `env` (texts by name), `stdin`
    (text) and `user`.

    Args:
        text: the crontab.
        handler: runs the commands.
        tz: IANA name of the zone in which cron reads the file; a line `CRON_TZ=…` sets another for the lines after it.
        system: each line names a user before its command, as in /etc/crontab and /etc/cron.d.

    Raises:
        ArgumentError: there is no such zone.
    """
    zone.zone(tz)
    settings, comment = _Settings(tz), ""
    found, names, numbers = list[CrontabLine](), set[str](), Counter[str]()
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip(" \t\r")
        if not line or line.startswith("#"):
            comment = line.lstrip("# \t")
            continue
        if setting := _SETTING.fullmatch(line):
            settings, verdict, why = _changed(settings, setting[1] or setting[2] or setting[3], _unquoted(setting[4]))
            found.append(CrontabLine(number, line, verdict, why))
        else:
            found.append(_judged(CrontabLine(number, line, TAKEN), handler, settings, system=system))
        if (fields := found[-1].schedule) is not None:
            name = _free_name(fields["name"], names, numbers)
            note = {"note": comment[:200]} if comment else {}
            found[-1] = found[-1]._replace(schedule={**fields, "name": name, **note})
        comment = ""
    if found and not text.endswith("\n"):
        found[-1] = _differing(found[-1], "The file has no newline at its end, so cron may have ignored this line.")
    return found


def file_of_schedules(lines: list[CrontabLine]) -> str:
    """Returns the text of a TOML file with the schedules of some lines."""
    parts = [
        "# Made from a crontab. As under cron, runs may overlap, missed runs do not start later, and failed runs are not retried.\n"
        "# Without `overlap`, `catch_up` and `retry`: one run at a time, the newest missed run starts, retries of the handler.\n"
        "# The timeout of the handler ends a run that takes longer; cron has none.\n"
    ]
    for line in lines:
        if line.schedule is not None:
            fields = "".join(f"{name} = {_toml(value)}\n" for name, value in line.schedule.items())
            parts.append(f"# line {line.number}{f': {line.why}' if line.why else ''}\n[[schedule]]\n{fields}")
    return "\n".join(parts)


# -- one line -----------------------------------------------------------------------------------------------------------


def _changed(settings: _Settings, name: str, value: str) -> tuple[_Settings, str, str]:
    """The settings for the lines after `name = value`, the verdict and the reason."""
    if name == "CRON_TZ":
        try:
            zone.zone(value)
        except ArgumentError as error:
            return replace(settings, tz=None), REFUSED, f"{error.message} The lines after it are refused."
        return replace(settings, tz=value), TAKEN, ""
    if name in _MAIL:
        lost = name == "MAILTO" and value != ""
        why = "Output is not mailed. It is in the logs of each attempt; a notification rule reports failures."
        return settings, REFUSED if lost else TAKEN, why if lost else ""
    if name == "SHELL":
        return replace(settings, shell=value), TAKEN, ""
    if name == "RANDOM_DELAY":
        if not value.isdecimal() or int(value) > _MAX_DELAY_MIN:
            return settings, REFUSED, f"{value!r} is no number of minutes."
        why = "The delay of a run is always the same for one schedule and time; under cron it is another after each restart."
        return replace(settings, jitter=f"{int(value)}m" if int(value) else None), DIFFERS, why
    return replace(settings, environment={**settings.environment, name: value}), TAKEN, ""


def _judged(line: CrontabLine, handler: str, settings: _Settings, *, system: bool) -> CrontabLine:
    """A line with a time and a command."""
    text = line.text
    if text.startswith("-"):
        line, text = _differing(line, "The dash at its begin (do not log) is left out."), text[1:]
    parts = (_NAMED if text.startswith("@") else _TIMED).fullmatch(text)
    owned = _OWNED.fullmatch(parts[2]) if parts and system else None
    if parts is None or (system and owned is None):
        form = "five fields of time or a name such as @daily, " + (
            "a user, and a command" if system else "and a command"
        )
        return line._replace(verdict=REFUSED, why=f"It is no line of a {'system ' if system else ''}crontab: {form}.")
    if settings.tz is None:
        return line._replace(verdict=REFUSED, why="The zone in CRON_TZ above it is not known.")
    expression, rest = " ".join(parts[1].split()), owned[2] if owned else parts[2]
    if _STEP_AFTER_NUMBER.search(expression):
        why = "A step after one number: Debian's cron refuses it, others ignore the step. Write a range, as in 5-59/15."
        return line._replace(verdict=REFUSED, why=why)
    if "~" in expression:
        why = "A random time (~) is not possible. Write a fixed time, and `jitter` to spread runs."
        return line._replace(verdict=REFUSED, why=why)
    if expression.lower() == "@reboot":
        why = "A schedule does not depend on the start of a machine. Run the command by a unit of systemd."
        return line._replace(verdict=REFUSED, why=why)
    command, stdin = _without_percent(rest)
    payload: dict[str, Any] = {"command": [_as_template(settings.shell), "-c", _as_template(command)]}
    if settings.environment:
        payload["env"] = {name: _as_template(value) for name, value in settings.environment.items()}
    if stdin is not None:
        payload["stdin"] = _as_template(stdin)
        line = _differing(line, "The text after % is in `stdin` of the payload; the handler has to pass it on.")
    if owned:
        payload["user"] = owned[1]
        line = _differing(line, f"It runs as the user of the dispatcher; {owned[1]!r} is in `user` of the payload.")
    times = {"cron": expression, "tz": settings.tz} | ({"jitter": settings.jitter} if settings.jitter else {})
    fields = {"name": _name(command), "handler": handler, **times, **_AS_IN_CRON, "payload": payload}
    try:
        _check(fields)
    except ArgumentError as error:
        return line._replace(verdict=REFUSED, why=" ".join(filter(None, (error.message, error.hint))))
    return line._replace(schedule=fields)


def _check(fields: Mapping[str, Any]) -> None:
    from scylla_spark.client.schedules.files import definition_of

    Schedule.of(definition_of(fields))


def _differing(line: CrontabLine, why: str) -> CrontabLine:
    verdict = REFUSED if line.verdict == REFUSED else DIFFERS
    return line._replace(verdict=verdict, why=f"{line.why} {why}".lstrip())


def _unquoted(value: str) -> str:
    quoted = _QUOTED.fullmatch(value)
    return quoted[2] if quoted else value


def _without_percent(rest: str) -> tuple[str, str | None]:
    r"""The command and its input: the first % ends the command, later ones are ends of lines, `\%` is a percent sign."""
    ends = _COMMAND.match(rest)
    assert ends is not None
    command = _ESCAPED.sub(lambda found: "%" if found[1] == "%" else found[0], ends[0])
    stdin = _PERCENT.sub(_percent, rest[ends.end() + 1 :])
    return command, (stdin if stdin.endswith("\n") else f"{stdin}\n") if stdin else None


def _percent(found: re.Match[str]) -> str:
    return "\n" if found[0] == "%" else "%"


def _as_template(text: str) -> str:
    """The template that becomes a text."""
    return text.replace("{{", '{{ "{{" }}')


def _name(command: str) -> str:
    """A name for a schedule: that of the program."""
    program = next((word for word in command.split() if "=" not in word), "")
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", PurePosixPath(program).name).strip("-.")[:100] or "command"


def _free_name(name: str, names: set[str], numbers: Counter[str]) -> str:
    """Returns the name, or the first one with a number that is free, and takes it."""
    free = name
    while free in names:
        numbers[name] += 1
        free = f"{name}-{numbers[name] + 1}"
    names.add(free)
    return free


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return (
            "{ "
            + ", ".join(f"{json.dumps(name, ensure_ascii=False)} = {_toml(one)}" for name, one in value.items())
            + " }"
        )
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
