"""The commands `scylla-spark calendar …`: days on which nothing fires."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scylla_spark.cli.context import Context, context
from scylla_spark.core.plan.times.breaks import Days
from scylla_spark.errors import ArgumentError, NotFoundError, SetupError

if TYPE_CHECKING:
    from scylla_spark.client.scheduler import Scheduler

app = typer.Typer(help="Keep calendars of holidays, which triggers by time name.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The calendar")]


@app.command()
def show(ctx: typer.Context, name: Name) -> None:
    """List the days of a calendar."""
    cli = context(ctx)
    with cli.scheduler() as scheduler:
        days = _days(scheduler, name)
    if not days:
        raise NotFoundError(f"The calendar {name!r} has no days.", hint="`calendar fill` and `calendar put` fill it.")
    rows = [{"day": day.isoformat(), "weekday": f"{day:%a}", "note": days.get(day)} for day in sorted(days)]
    cli.output.rows(rows, ("day", "weekday", "note"))


@app.command()
def put(
    ctx: typer.Context,
    name: Name,
    file: Annotated[
        Path,
        typer.Argument(help="One day per line, such as 2027-12-24, and what it is, if you like; # begins a comment"),
    ],
) -> None:
    """Replace the days of a calendar by those of a file; an empty file empties it."""
    days = _read(file)
    cli = context(ctx)
    with cli.scheduler() as scheduler:
        scheduler.put_calendar(name, days)
    cli.output.record({"calendar": name, "days": len(days)})


@app.command()
def fill(
    ctx: typer.Context,
    name: Name,
    years: Annotated[list[int], typer.Argument(metavar="YEAR…", help="Years whose days are replaced; others stay")],
    country: Annotated[str, typer.Option(help="ISO code, such as de")],
    subdivision: Annotated[str | None, typer.Option(help="Its part, such as by")] = None,
    language: Annotated[str | None, typer.Option(help="Of their names, such as en_US; else the country's own")] = None,
) -> None:
    """Put the public holidays of a country into a calendar, for some years."""
    found = _holidays(country, subdivision, language, years)
    cli = context(ctx)
    with cli.scheduler() as scheduler:
        kept = {day: note for day, note in _days(scheduler, name).items() if day.year not in years}
        scheduler.put_calendar(name, kept | found)
    _say(cli, name, len(found), len(kept))


def _say(cli: Context, name: str, new: int, kept: int) -> None:
    cli.output.record({"calendar": name, "days": new + kept, "of_these_years": new})


def _days(scheduler: Scheduler, name: str) -> dict[date, str]:
    days = scheduler.connection.plan.state().calendars.get(name, Days())
    return {day: days.notes.get(day, "") for day in days}


def _read(file: Path) -> dict[date, str]:
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"{file} cannot be read: {error}.") from None
    found = {}
    for number, line in enumerate(lines, 1):
        text, *note = line.partition("#")[0].split(maxsplit=1)[:2] or [""]
        try:
            if text:
                found[date.fromisoformat(text)] = "".join(note).strip()
        except ValueError:
            raise ArgumentError(f"{file}, line {number}: {text!r} is no day.", hint="Write 2027-12-24.") from None
    return found


def _holidays(country: str, subdivision: str | None, language: str | None, years: list[int]) -> dict[date, str]:
    try:
        import holidays
    except ModuleNotFoundError as error:
        raise SetupError(
            "Holidays of countries need the package holidays.",
            hint="Install scylla-spark[calendars], or list the days in a file: `calendar put`.",
        ) from error
    if any(not 1970 <= year <= 2261 for year in years):
        raise ArgumentError(f"{years} are no years.", hint="Years lie between 1970 and 2261.")
    country, subdivision = country.upper(), subdivision and subdivision.upper()
    try:
        known = holidays.country_holidays(country, subdivision)
    except Exception as error:  # whatever the library raises, it knows no such country
        raise ArgumentError(
            f"No holidays are known: {error}.", hint="Pass an ISO code, such as --country de."
        ) from None
    if language and language not in known.supported_languages:
        raise ArgumentError(
            f"Holidays of {country} have no names in {language}.",
            hint=f"Pass one of {', '.join(known.supported_languages)}."
            if known.supported_languages
            else "Leave it out.",
        )
    # The language is told: else the locale of whoever fills a calendar decides what everybody reads.
    language = language or known.default_language
    try:
        return dict(holidays.country_holidays(country, subdivision, years=years, language=language))
    except Exception as error:
        raise ArgumentError(
            f"The holidays of {country} cannot be reckoned: {error}.",
            hint="Give fewer years, or list the days in a file.",
        ) from None
