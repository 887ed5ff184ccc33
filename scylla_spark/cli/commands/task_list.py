"""The command `scylla-spark task list`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from scylla_spark.cli.commands.task import (
    TIMES,
    Chosen,
    OrderingId,
    Queue,
    Start,
    States,
    Stop,
    alone,
    chosen_by,
    moment,
)
from scylla_spark.cli.context import Context, check_limit, context
from scylla_spark.cli.output import printable
from scylla_spark.cli.task_ids import task_key
from scylla_spark.errors import ArgumentError, UnreachableError

_COLUMNS: Final = ("key", "state", "reason", "handler", "queue", "attempts")
MAX_WINDOW_US: Final = 8 * 3_600_000_000
_MOST_READ: Final = 10_000  # records that the tables do not have yet


def register(app: typer.Typer) -> None:
    """Adds the command to those of tasks."""
    app.command(name="list")(list_)


def list_(
    ctx: typer.Context,
    state: States = None,
    queue: Queue = None,
    ordering_id: OrderingId = None,
    handler: Annotated[str | None, typer.Option(help="The handler")] = None,
    partition: Annotated[int | None, typer.Option(help="The partition")] = None,
    start: Start = None,
    stop: Stop = None,
    after: Annotated[str | None, typer.Option(help="Go on behind the task of this id, the last of a listing")] = None,
    limit: Annotated[
        int | None, typer.Option(help="Most rows, to 10000; needed with --from and --to, else 100")
    ] = None,
    chosen: Chosen = None,
    urgent: Annotated[
        bool, typer.Option("--urgent", help="The highest priority first, of equals the newest; with --filter")
    ] = False,
) -> None:
    """List tasks from the tables, the latest first; with --from and --to those still to run in at most 8 hours, the earliest first."""
    from scylla_spark.clock import now_us
    from scylla_spark.core.tasks.filter import OneOf, read_filter
    from scylla_spark.core.tasks.state import READY
    from scylla_spark.task_states import OPEN

    cli = context(ctx)
    if chosen is not None:
        alone(state, queue, ordering_id, handler, partition, start, stop)
    window = start is not None and stop is not None and state is None
    if window and limit is None:
        raise ArgumentError("A window needs a limit.", hint="Pass --limit, and continue with --after ID.")
    if urgent and (chosen is None or after is not None):
        raise ArgumentError(
            "--urgent stands beside --filter, and goes without --after.", hint="--filter state:open --urgent"
        )
    now, most = now_us(), 100 if limit is None else limit
    last = task_key(cli, [after]) if after else None
    check_limit(most)
    if chosen is not None:
        wanted = read_filter(chosen, now)
    else:
        wanted = chosen_by(
            state, queue=queue, ordering_id=ordering_id, start=start, stop=stop, handler=handler, partition=partition
        )
    if urgent:
        rows = cli.pages().urgent_page(wanted, most, now=now)
    elif window:
        _check_window(moment(start), moment(stop))
        still_open = wanted._replace(conditions=(*wanted.conditions, OneOf("state", OPEN)))
        rows = cli.pages().page(still_open, most, now=now, after=last)
    else:
        rows = cli.pages().newest_page(wanted, most, now=now, before=last)
    waiting = _waiting(cli) if any(row["state"] == READY for row in rows) else {}
    shown = [{"key": _key_of(row)} | printable(row, TIMES) | {"reason": None} for row in rows]
    for row in shown:
        if row["state"] == READY:
            row["reason"] = waiting.get((row["queue"], row["handler"]))
    columns = _COLUMNS if any(row["reason"] for row in shown) else [name for name in _COLUMNS if name != "reason"]
    cli.output.rows(shown, columns, empty="No such tasks in the tables.")
    if rows and len(rows) == (limit or 100) and not urgent:
        cli.output.say(f"There may be more: --after {_key_of(rows[-1])}")
    if not cli.output.quiet:
        _say_what_is_missing(cli)


def _check_window(start_us: int | None, stop_us: int | None) -> None:
    """Refuses a window that is empty or too wide.

    Raises:
        ArgumentError: it is.
    """
    width_us = (stop_us or 0) - (start_us or 0)
    if width_us <= 0:
        raise ArgumentError("The window is empty: its start is not before its end.")
    if width_us > MAX_WINDOW_US:
        raise ArgumentError("The window is wider than 8 hours.", hint="Ask for less, and go on from its end.")


def _key_of(row: dict[str, Any]) -> str:
    from scylla_spark.core.tasks.key import TaskKey

    return str(TaskKey(row["scheduled_time"], row["ordering_id"], row["uniqueness_key"]))


def _waiting(cli: Context) -> Mapping[tuple[str, str], str]:
    """Queue and handler of tasks that wait for a handler or a Spark worker → why."""
    with cli.scheduler() as scheduler:
        try:
            return scheduler.handler_warnings.waiting()
        except UnreachableError:
            cli.output.say("Kafka did not answer in time: why a task waits is not known.")
            return {}


def _say_what_is_missing(cli: Context) -> None:
    """Says how many tasks the tables do not have yet, where a broker is known."""
    from scylla_spark.io.kafka.topics import located

    try:
        located(cli.settings())
    except UnreachableError:
        return
    try:
        with cli.scheduler() as scheduler:
            missing = scheduler.connection.keys_beyond_tables(_MOST_READ)
    except UnreachableError:
        cli.output.say("Kafka did not answer in time: the newest tasks may be missing.")
        return
    count = f"More than {_MOST_READ}" if missing is None else len(missing)
    are, them = ("task is", "it") if count == 1 else ("tasks are", "them")
    if count:
        cli.output.say(f"{count} {are} not in the tables yet; `task show ID` finds {them}.")
