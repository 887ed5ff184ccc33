"""What the global options say, and what commands make of it when they need it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from scylla_spark.cli.output import FORMATS, Output
from scylla_spark.config.assignments import nested
from scylla_spark.errors import ArgumentError

if TYPE_CHECKING:
    from scylla_spark.client.scheduler import Scheduler
    from scylla_spark.config.settings import Settings
    from scylla_spark.io.delta.table_reader import TableReader
    from scylla_spark.io.delta.task_pages import TaskPages


@dataclass(slots=True)
class Context:
    """Global options of one call.

    Attributes:
        file: settings file.
        overrides: settings given as flags, nested.
        debug: show tracebacks.
    """

    output: Output = field(default_factory=Output)
    file: Path | None = None
    overrides: dict[str, Any] = field(default_factory=dict)
    debug: bool = False

    def settings(self, **more: Any) -> Settings:
        """The settings; flags win over every other source."""
        from scylla_spark.config.settings import Settings

        return Settings.load(self.file, **self.overrides | more)

    @contextmanager
    def scheduler(self) -> Iterator[Scheduler]:
        """A client, closed afterwards."""
        from scylla_spark.client.scheduler import Scheduler

        with Scheduler(self.settings()) as scheduler:
            yield scheduler

    def readers(self) -> TableReader:
        """The tables."""
        from scylla_spark.io.delta.table_reader import TableReader

        return TableReader.of(self.settings())

    def pages(self) -> TaskPages:
        """The tables, for lists of tasks."""
        from scylla_spark.io.delta.task_pages import TaskPages

        return TaskPages(self.readers())

    def confirmed(self, what: str, *, yes: bool) -> bool:
        """Asks before a bulk change.

        Raises:
            ArgumentError: nobody can be asked, and --yes was not given.
        """
        import sys

        if yes:
            return True
        if not sys.stdin.isatty():
            raise ArgumentError(f"This would {what}.", hint="Pass --yes to do it, or --dry-run to look first.")
        return typer.confirm(f"{what[0].upper()}{what[1:]}?", err=True)


def context(ctx: typer.Context) -> Context:
    """The global options of a call."""
    found = ctx.find_object(Context)
    return found if found is not None else Context()


def parsed(columns: str | None, output: str, sets: list[str], **other: Any) -> Context:
    """A context from the texts of the global options.

    Args:
        columns: names divided by commas; None: all.
        output: table, json, jsonl or csv.
        sets: settings as section.key=value.
        **other: fields of the context that need no reading.

    Raises:
        ArgumentError: an option has no usable value.
    """
    if output not in FORMATS:
        raise ArgumentError(f"There is no output format {output!r}.", hint=f"Formats: {', '.join(FORMATS)}.")
    names = tuple(name.strip() for name in columns.split(",") if name.strip()) if columns else ()
    overrides = nested(sets)
    if other["data"] is not None:
        overrides["data_dir"] = other["data"]
    look = Output(output, names, color=other["color"], quiet=other["quiet"])
    return Context(look, other["file"], overrides, other["debug"])


def author() -> str:
    """Who asks, as the machine knows them; empty if it does not."""
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""


def instant(text: str, now: int | None = None) -> int:
    """Microseconds since the epoch of an instant, "now", a duration from now such as "+1h" or "-30m", or a local time (see `due_us`).

    Raises:
        ArgumentError: it is none of these, or has no time zone.
    """
    from scylla_spark.clock import now_us, read_instant, to_us
    from scylla_spark.core.tasks.local_time import due_us
    from scylla_spark.duration import duration_us

    moment = now_us() if now is None else now
    if text == "now":
        return moment
    if text[:1] in ("+", "-"):
        return moment + (1 if text[0] == "+" else -1) * duration_us(text[1:])
    if " " in text:
        return due_us(text, moment)
    try:
        return to_us(read_instant(text))
    except ValueError as error:
        raise ArgumentError(
            f"{text!r} is no instant: {error}.",
            hint="Write 2026-01-31T09:00:00Z, now, +1h, -30m or 'monday noon Europe/Berlin'.",
        ) from None


def file_or_text(text: str) -> str:
    """The text itself, or of the file after an "@"; "-" reads stdin.

    Raises:
        ArgumentError: the file cannot be read.
    """
    import sys

    if text == "-":
        return sys.stdin.read()
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"{text[1:]} cannot be read: {error}.") from None


MAX_LIMIT: Final = 10_000  # rows of a list


def check_limit(limit: int) -> None:
    """Refuses limits out of range.

    Raises:
        ArgumentError: not in 1 to 10,000.
    """
    if not 1 <= limit <= MAX_LIMIT:
        raise ArgumentError(f"The limit is {limit}.", hint=f"Pass 1 to {MAX_LIMIT}.")
