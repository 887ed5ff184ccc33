"""The command `schedule import`: a crontab as a file of schedules, with a report of each line."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Annotated, Final

import typer

from scylla_spark.cli.context import context
from scylla_spark.errors import ArgumentError, ExitCode

_SYSTEM: Final = ("/etc/crontab", "/etc/cron.d")
_MOST_BYTES: Final = 1024 * 1024


def import_(
    ctx: typer.Context,
    file: Annotated[
        str, typer.Argument(help="A crontab; - reads stdin, as in: crontab -l | scylla-spark schedule import -")
    ],
    handler: Annotated[str, typer.Option(help="The handler that runs the commands")],
    tz: Annotated[str, typer.Option(help="The time zone of the machine that runs the crontab, such as Europe/Berlin")],
    system: Annotated[
        bool | None,
        typer.Option(
            "--system/--user", help="Lines name a user before the command. Default: for /etc/crontab and /etc/cron.d"
        ),
    ] = None,
    to: Annotated[str | None, typer.Option(metavar="FILE.toml", help="Write the schedules to this new file")] = None,
) -> None:
    """Report what becomes of each line of a crontab, and write its schedules to a file for `schedule apply`."""
    from scylla_spark.client.schedules.crontab import DIFFERS, REFUSED, TAKEN, file_of_schedules, read_crontab
    from scylla_spark.client.schedules.files import text_of

    cli = context(ctx)
    if to is not None and not to.endswith(".toml"):
        raise ArgumentError(f"--to {to}: the file is written as TOML.", hint="Name it FILE.toml.")
    path = os.path.abspath(file)
    is_system = (path in _SYSTEM or os.path.dirname(path) in _SYSTEM) if system is None else system
    lines = read_crontab(text_of(file, _MOST_BYTES, "Is it a crontab?"), handler, tz, system=is_system)
    rows = [
        {
            "line": one.number,
            "verdict": one.verdict,
            "schedule": one.schedule and one.schedule["name"],
            "text": one.text,
            "why": one.why,
        }
        for one in lines
    ]
    cli.output.rows(rows, ("line", "verdict", "schedule", "text", "why"), empty="The crontab has no lines.")
    counts = Counter(one.verdict for one in lines)
    cli.output.say(", ".join(f"{counts[verdict]} {verdict}" for verdict in (TAKEN, DIFFERS, REFUSED)))
    if to is None:
        cli.output.say("Nothing is written. Add --to FILE.toml for a file of schedules.")
    elif any(one.schedule is not None for one in lines):
        _write(to, file_of_schedules(lines))
        cli.output.say(f"Look at {to}, then: scylla-spark schedule apply {to}")
    if counts[REFUSED]:
        raise typer.Exit(ExitCode.FAILED)


def _write(file: str, text: str) -> None:
    try:
        with Path(file).open("x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError:
        raise ArgumentError(f"{file} exists.", hint="Name another file, or remove it.") from None
    except OSError as error:
        raise ArgumentError(f"{file} cannot be written: {error.strerror}.") from None
