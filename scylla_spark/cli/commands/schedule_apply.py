"""The commands `schedule apply` and `schedule lint`: files of schedules, what they would change, and what is wrong with them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from scylla_spark.cli.context import Context, context
from scylla_spark.errors import ArgumentError, ExitCode
from scylla_spark.visible import visible_json

if TYPE_CHECKING:
    from scylla_spark.client.schedules.files import FileSchedule
    from scylla_spark.client.schedules.schedule import Schedule
    from scylla_spark.core.plan.state.plan_state import PlanState

Files = Annotated[list[str], typer.Argument(metavar="FILE…", help="TOML, YAML or JSON files of schedules")]
_ORDER = ("added", "changed", "removed")


def register(app: typer.Typer) -> None:
    """Adds the commands to `schedule`."""
    app.command()(apply)
    app.command()(lint)


def apply(
    ctx: typer.Context,
    files: Annotated[
        list[str] | None, typer.Argument(metavar="[FILE]…", help="TOML, YAML or JSON files of schedules; or --from")
    ] = None,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="MODULE",
            help="The schedules of @handler(schedules=…) of a module or .py file; those that it no longer has are removed",
        ),
    ] = None,
    prune: Annotated[str | None, typer.Option(metavar="OWNER", help="Remove what else of this owner is stored")] = None,
    only_new: Annotated[
        bool, typer.Option("--only-new", help="Leave those that are stored as they are, whatever the files say")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask")] = False,
) -> None:
    """Store the schedules of files: shows what is added, changed and removed, and asks."""
    from scylla_spark.cli.context import author
    from scylla_spark.client.schedules.files import read_files
    from scylla_spark.client.schedules.sets import compared

    cli = context(ctx)
    if bool(files) == bool(from_) or (from_ and prune):
        raise ArgumentError(
            "Schedules come from files, with --prune if need be, or from one module.",
            hint="Pass FILE…, or --from MODULE alone.",
        )
    schedules = of_module(from_) if from_ else read_files(files or [])
    prune = schedules[0].owner if from_ and schedules else prune
    with cli.scheduler() as scheduler:
        plan = scheduler.connection.plan.state()
        verdicts = compared(plan, schedules, prune, only_new=only_new)
        rows = _plan_rows(plan, schedules, verdicts)
        counts = Counter(verdicts.values())
        cli.output.rows(rows, ("name", "change", "field", "before", "after"), empty="Nothing would change.")
        cli.output.say(
            ", ".join(f"{counts[what]} {what}" for what in (*_ORDER, "unchanged", *(["kept"] if only_new else [])))
        )
        put = [one.handler for one in schedules if verdicts.get(one.name) != "kept"]
        for warning in scheduler.handler_warnings.of(put):
            cli.output.say(warning)
        if rows and not dry_run and cli.confirmed(_what(counts), yes=yes):
            scheduler.put_schedules(*schedules, prune=prune, only_new=only_new, author=author())
            cli.output.say("Done.")


def lint(
    ctx: typer.Context,
    files: Files,
    handlers: Annotated[
        list[str] | None, typer.Option("--handlers", help="Module or .py file of @handler functions; repeatable")
    ] = None,
) -> None:
    """Describe the schedules of files in words, with warnings and errors; exit code 1 on errors."""
    cli = context(ctx)
    modules = tuple(handlers or cli.settings().handlers)
    known = _Known(_registered(modules) if modules else None, cli.settings().plan.tables.keys())
    rows = [row for file in files for row in _linted(file, known)]
    if cli.output.form == "table" and not cli.output.columns:
        for row in rows:
            _tell(cli, row)
    else:
        cli.output.rows(rows, ("schedule", "means", "findings"))
    counts = Counter(finding["level"] for row in rows for finding in row["findings"])
    cli.output.say(f"schedules: {len(rows)}, errors: {counts['error']}, warnings: {counts['warning']}")
    if counts["error"]:
        raise typer.Exit(ExitCode.FAILED)


def of_module(module: str) -> list[Schedule]:
    """Returns the schedules that the handlers of a module bring along.

    Raises:
        ArgumentError: one of them is wrong.
        ConfigError: the module cannot be imported.
    """
    from scylla_spark.client.schedules.files import schedules_of_handlers
    from scylla_spark.handlers.registry import look_in_current_folder
    from scylla_spark.worker.handlers import defined_by

    look_in_current_folder()
    with redirect_stdout(sys.stderr):  # stdout is for rows
        handlers = defined_by(module)
    return schedules_of_handlers(module, handlers)


def _plan_rows(plan: PlanState, schedules: list[Schedule], verdicts: dict[str, str]) -> list[dict[str, Any]]:
    """What would change, field by field."""
    import json

    from scylla_spark.client.schedules.sets import changes

    definitions = {schedule.name: schedule.definition for schedule in schedules}
    rows = []
    for name in sorted(verdicts, key=lambda name: (verdicts[name] not in _ORDER, _rank(verdicts[name]), name)):
        row = {"name": name, "change": verdicts[name], "field": None, "before": None, "after": None}
        if verdicts[name] == "changed" and name not in definitions:  # it waits for one that is removed
            rows.append(row | {"field": "trigger", "after": "loses what is removed"})
        elif verdicts[name] == "changed":
            before = json.loads(plan.entries[name].text)
            found = changes(before, definitions[name])
            rows += [row | {"field": field, "before": _shown(old), "after": _shown(new)} for field, old, new in found]
        elif verdicts[name] not in ("unchanged", "kept"):
            rows.append(row | {"after": _brief(definitions[name]) if name in definitions else None})
    return rows


def _rank(verdict: str) -> int:
    return _ORDER.index(verdict) if verdict in _ORDER else len(_ORDER)


def _brief(definition: dict[str, Any]) -> str:
    from scylla_spark.client.schedules.trigger_words import brief
    from scylla_spark.core.plan.trigger_format import read_trigger

    return f"{definition['handler']}: {brief(read_trigger(definition['trigger']))}"


def _shown(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else visible_json(value)


def _what(counts: Counter[str]) -> str:
    verbs = {"added": "add", "changed": "change", "removed": "remove"}
    parts = [f"{verbs[what]} {counts[what]}" for what in _ORDER if counts[what]]
    return f"{' and '.join(parts)} schedule{'s' if sum(counts[what] for what in _ORDER) > 1 else ''}"


class _Known(NamedTuple):
    """Which handlers there are (None: nobody said), and to which names of tables the settings give a place."""

    handlers: set[str] | None
    tables: Collection[str]


def _registered(modules: tuple[str, ...]) -> set[str]:
    from scylla_spark.handlers.registry import look_in_current_folder
    from scylla_spark.worker.handlers import imported

    look_in_current_folder()
    with redirect_stdout(sys.stderr):
        return set(imported(modules))


def _linted(file: str, known: _Known) -> list[dict[str, Any]]:
    from scylla_spark.client.schedules.files import read_file

    found = read_file(file)
    names = Counter(one.name for one in found if one.name)
    return [_judged(one, known, twice=names[one.name] > 1) for one in found]


def _judged(one: FileSchedule, known: _Known, *, twice: bool) -> dict[str, Any]:
    from scylla_spark.client.schedules.lint import ERROR, findings
    from scylla_spark.client.schedules.trigger_words import in_words
    from scylla_spark.clock import now_us
    from scylla_spark.core.plan.trigger_format import read_trigger

    told = [{"level": ERROR, "text": "another schedule of the file has its name"}] if twice else []
    if one.schedule is None:
        told.append({"level": ERROR, "text": str(one.error).removeprefix(f"{one.place}: ")})
        return {"schedule": one.name, "place": one.place, "means": None, "findings": told}
    told += [finding._asdict() for finding in findings(one.schedule, now_us(), known.handlers, known.tables)]
    words = in_words(read_trigger(one.schedule.trigger.definition))
    return {"schedule": one.name, "place": one.place, "means": words, "findings": told}


def _tell(cli: Context, row: dict[str, Any]) -> None:
    cli.output.text(f"{row['schedule'] or row['place']}" + (f": runs {row['means']}" if row["means"] else ""))
    for finding in row["findings"]:
        cli.output.text(f"{finding['level']}: {finding['text']}", indent=2)
