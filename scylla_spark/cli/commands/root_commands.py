"""Commands that set up, serve, check and measure: `init`, `up`, `run`, `demo`, `doctor`, `bench`."""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scylla_spark.cli.context import Context, context
from scylla_spark.errors import ArgumentError, ExitCode, SchedulerError
from scylla_spark.processes.roles import ROLES, role_named
from scylla_spark.visible import visible

if TYPE_CHECKING:
    from scylla_spark.client.schedules.schedule import Schedule
    from scylla_spark.config.settings import Settings

Handlers = Annotated[
    list[str] | None, typer.Option("--handlers", help="Module or .py file of @handler functions; repeatable")
]

LogFormat = Annotated[
    str | None, typer.Option("--log", help="auto, plain or json; default: plain lines on a terminal, else JSON")
]


Schedules = Annotated[
    bool,
    typer.Option("--schedules", help="Once ready, do what `schedule apply --from` does for each module of handlers"),
]


def register(app: typer.Typer) -> None:
    """Adds the commands to the tree."""
    for command in (init, up, run, demo, doctor):
        app.command()(command)
    # its --help is that of the benchmarks
    passed_on = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    app.command(context_settings=passed_on)(bench)


def init(
    ctx: typer.Context,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be made")] = False,
    print_topics: Annotated[
        bool,
        typer.Option("--print-topics", help="Only list the topics with their settings, for whoever may make them"),
    ] = False,
) -> None:
    """Make topics and tables, or check existing ones."""
    from scylla_spark.io.kafka.topic_setup import ensure_topics, plan_topics
    from scylla_spark.io.kafka.topics import located
    from scylla_spark.schemas import TABLES

    cli = context(ctx)
    settings = cli.settings()
    topics = plan_topics(settings)
    if print_topics:
        listed = [
            {"topic": name, "partitions": plan["num_partitions"], "replication": plan["replication_factor"]}
            | {"settings": " ".join(f"{key}={value}" for key, value in plan["configs"].items())}
            for name, plan in topics.items()
        ]
        cli.output.rows(listed, ("topic", "partitions", "replication", "settings"))
        return
    rows = [
        {"kind": "topic", "name": name, "detail": f"{plan['num_partitions']} partitions"}
        for name, plan in topics.items()
    ]
    rows += [
        {"kind": "table", "name": table.name, "detail": f"{settings.tables_path}/{table.name}"} for table in TABLES
    ]
    if not dry_run:
        from scylla_spark.clock import now_us
        from scylla_spark.io.delta.new_tables import ensure_tables

        settings = located(settings)
        ensure_tables(settings, ensure_topics(settings), now=now_us())
    cli.output.rows(rows, ("kind", "name", "detail"))
    cli.output.say(
        "This is what init would make." if dry_run else "Topics and tables are there and agree with the settings."
    )


def up(ctx: typer.Context, handlers: Handlers = None, log: LogFormat = None, schedules: Schedules = False) -> None:
    """Serve everything on one machine until stopped: Kafka (unless one is configured), ingest, dispatch, plan and the HTTP API."""
    cli = context(ctx)
    _serve(cli, _settings(cli, handlers, log), schedules=schedules)


def run(
    ctx: typer.Context,
    roles: Annotated[list[str] | None, typer.Argument(help=f"{', '.join(ROLES)}; default: all")] = None,
    handlers: Handlers = None,
    log: LogFormat = None,
    schedules: Schedules = False,
    available_now: Annotated[
        bool, typer.Option("--available-now", help="Of ingest alone: write what the topics hold now, then end")
    ] = False,
) -> None:
    """Serve some roles until stopped, with the configured Kafka, or the one that `up` has started."""
    from scylla_spark.io.kafka.topics import located

    cli = context(ctx)
    if available_now:
        cli.overrides["ingest"] = {**cli.overrides.get("ingest", {}), "available_now": True}
    _serve(cli, located(_settings(cli, handlers, log)), roles, schedules=schedules)


def demo(
    ctx: typer.Context, as_json: Annotated[bool, typer.Option("--json", help="The summary as one JSON object")] = False
) -> None:
    """The tour: schedule, run and check tasks end to end."""
    cli = context(ctx)
    data = cli.overrides.get("data_dir")
    _examine(cli, [Path(data or tempfile.gettempdir())])
    from scylla_spark_tools.demo import main

    raise typer.Exit(main(as_json=as_json or cli.output.form in ("json", "jsonl"), data=Path(data) if data else None))


def doctor(
    ctx: typer.Context,
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[kafka|cluster]",
            help="Only the way to Kafka, step by step; or the executors of `master`, which must be a cluster",
        ),
    ] = None,
) -> None:
    """Check this machine and the way to Kafka, and print what solves each problem; exit code 1 if something is missing."""
    from scylla_spark.doctor import examine, examine_cluster, examine_kafka

    cli = context(ctx)
    settings = cli.settings()
    if what not in (None, "kafka", "cluster"):
        raise ArgumentError(
            f"There is nothing to look at that is called {what!r}.",
            hint="`doctor`, `doctor kafka` or `doctor cluster`.",
        )
    checks = [] if what else examine(settings.data_dir)
    if what == "cluster":
        checks = examine_cluster(settings)
    # an embedded broker that is not running is no fault: it is started on demand
    if what == "kafka" or (what is None and settings.kafka.bootstrap_servers):
        from scylla_spark.io.kafka.topics import located

        checks += examine_kafka(located(settings))
    rows = [{"check": check.name, "ok": check.ok, "detail": check.detail, "mend": check.mend} for check in checks]
    if cli.output.form == "table" and not cli.output.columns:
        shown = [row | {"ok": "ok" if row["ok"] else "MISSING"} for row in rows]
        cli.output.rows(shown, ("check", "ok", "detail"))
        for row in rows:
            if not row["ok"]:
                cli.output.say(f"{row['check']}: {row['mend']}")
    else:
        cli.output.rows(rows, ("check", "ok", "detail", "mend"))
    if not all(check.ok for check in checks):
        raise typer.Exit(ExitCode.FAILED)


def bench(
    ctx: typer.Context, name: Annotated[str, typer.Argument(help="Which one, or `all`; --help lists them")] = "all"
) -> None:
    """Measure lateness, rates and recovery of a whole deployment; `bench --help` lists the benchmarks, `bench NAME --help` options."""
    from scylla_spark_tools.bench import main

    raise typer.Exit(main(name, list(ctx.args)) or 0)


def _settings(cli: Context, handlers: Sequence[str] | None, log: str | None) -> Settings:
    if log is not None:
        cli.overrides["log"] = {**cli.overrides.get("log", {}), "format": log}
    return cli.settings(**({"handlers": tuple(handlers)} if handlers else {}))


def _serve(cli: Context, settings: Settings, roles: Sequence[str] | None = None, *, schedules: bool = False) -> None:
    """Starts the services, all if none is named, says once that they are ready, and drains them when told to stop."""
    from scylla_spark.log import configure
    from scylla_spark.processes import process_main
    from scylla_spark.processes.deployment import Deployment

    configure(settings.log)
    deployment = Deployment(settings, roles=roles or ROLES)
    spark = any(role_named(role).needs_session(settings) for role in deployment.roles)
    folders = [folder for folder in (settings.data_dir, settings.tables_folder) if folder is not None]
    _examine(cli, folders, java=spark or not settings.kafka.bootstrap_servers, spark=spark)
    brought = _brought(settings.handlers) if schedules else []
    process_main.serve(deployment, partial(_say_ready, cli, brought))


def _brought(modules: Sequence[str]) -> list[Schedule]:
    """The schedules of the modules of handlers: a wrong one is an error before anything is started.

    A handler that two of the modules bring along, such as a package and one of its modules, is of the first.
    """
    from scylla_spark.cli.commands.schedule_apply import of_module

    found: list[Schedule] = []
    for module in modules:
        known = {one.handler for one in found}
        found += [one for one in of_module(module) if one.handler not in known]
    return found


def _examine(cli: Context, folders: Sequence[Path], *, java: bool = True, spark: bool = True) -> None:
    """Looks at this machine before anything is started, and says what is short.

    Raises:
        SetupError: something is missing.
    """
    from scylla_spark.doctor import require

    for check in require(folders, java=java, spark=spark):
        cli.output.say(f"{check.name}: {check.detail}: {check.mend}")


def _say_ready(cli: Context, schedules: Sequence[Schedule], deployment: Any) -> None:
    from scylla_spark.processes.ready_line import ready_block, ready_facts, ready_line

    told = ready_facts(deployment)
    if cli.output.form in ("json", "jsonl"):
        text = ready_line(told)
    elif sys.stdout.isatty():
        text = ready_block(told, _handler_names(deployment), one_machine=deployment.broker is not None)
    else:
        text = "ready: " + ", ".join(
            f"{name} {told[name]}" for name in ("kafka", "data", "metrics", "api") if told.get(name)
        )
    sys.stdout.write("".join(visible(line) + "\n" for line in text.splitlines()))
    sys.stdout.flush()
    if schedules:  # not here: without a planner it takes half a minute, and this thread has to see a request to stop
        threading.Thread(target=_store, args=(cli, schedules), name="schedules", daemon=True).start()


def _store(cli: Context, schedules: Sequence[Schedule]) -> None:
    """Stores the schedules of each module of handlers, and removes those that it does not name any more."""
    for owner in dict.fromkeys(one.owner or "" for one in schedules):
        own = [one for one in schedules if one.owner == owner]
        try:
            with cli.scheduler() as scheduler:
                done = scheduler.put_schedules(*own, prune=owner, author=owner)
                missing = scheduler.handler_warnings.of_schedules()
        except SchedulerError as error:
            cli.output.say(f"error: the schedules of {owner} were not applied: {error}")
        else:
            cli.output.say(f"schedules of {owner}: {', '.join(f'{name} {verdict}' for name, verdict in done.items())}")
            for words in missing:
                cli.output.say(words)


def _handler_names(deployment: Any) -> list[str] | None:
    """Names of the handlers that can run here; None: this process dispatches nothing."""
    from scylla_spark.services.dispatch.service import DispatchService

    return deployment.service(DispatchService).dispatcher.handler_names() if "dispatch" in deployment.roles else None
