"""The commands `scylla-spark task …`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scylla_spark.cli.context import Context, author, context, file_or_text, instant
from scylla_spark.cli.task_ids import task_key
from scylla_spark.defaults import DEFAULT_QUEUE
from scylla_spark.duration import duration_ms
from scylla_spark.errors import ArgumentError, ConflictError, ExitCode

if TYPE_CHECKING:
    from scylla_spark.client.scheduler import Scheduler
    from scylla_spark.core.tasks.filter import TaskFilter
    from scylla_spark.core.tasks.key import TaskKey
    from scylla_spark.core.tasks.status import Attempt, TaskStatus
    from scylla_spark.core.tasks.task import Failure

app = typer.Typer(help="Enqueue, look at, and end tasks.", no_args_is_help=True)

Key = Annotated[
    list[str],
    typer.Argument(
        metavar="ID",
        help="Of the task, or a beginning that no other has; or TIME ORDERING_ID UNIQUENESS_KEY; "
        "or its name: name:ORDERING_ID,UNIQUENESS_KEY, name:UNIQUENESS_KEY",
    ),
]
OptionalKey = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[ID]", help="Of a task, or its name as `task show` takes it; or choose tasks by the options"
    ),
]
OrderingId = Annotated[str | None, typer.Option(help="The lane")]
Queue = Annotated[str | None, typer.Option(help="The queue")]
States = Annotated[
    list[str] | None, typer.Option("--state", help="A state; repeatable. `open`: all that have not ended")
]
Start = Annotated[str | None, typer.Option("--from", help="Scheduled at or after: an instant, now, -1h")]
Stop = Annotated[str | None, typer.Option("--to", help="Scheduled before")]
Chosen = Annotated[
    str | None,
    typer.Option(
        "--filter",
        help="Terms instead of other options: 'state:failed queue:mail error:Timeout late:>5m scheduled:<2026-12-01'",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask")]
TIMES = ("scheduled_time", "next_attempt_at", "enqueued_at", "expires_at", "ended_at", "planned_at")
_OF_ALL = (
    "attempt",
    "outcome",
    "planned_at",
    "started_at",
    "finished_at",
    "next_at",
    "error",
    "error_class",
    "error_message",
    "error_stack",
)
"""Columns of attempts that are always shown, or never; others are shown where an attempt has a value."""
_BULK = 10_000


@app.command()
def enqueue(
    ctx: typer.Context,
    handler: Annotated[str, typer.Argument(help="Name of a registered function")],
    payload: Annotated[str, typer.Option(help="JSON object; @FILE or - for stdin")] = "{}",
    ordering_id: Annotated[str | None, typer.Option(help="The lane; default: one of its own")] = None,
    uniqueness_key: Annotated[str | None, typer.Option(help="Default: a new one")] = None,
    at: Annotated[
        str | None, typer.Option(help="When it is due: an instant, now, +1h, 'monday noon Europe/Berlin'")
    ] = None,
    delay: Annotated[str | None, typer.Option(help="Or how long from now, such as 90s")] = None,
    queue: Annotated[str, typer.Option(help="The queue")] = DEFAULT_QUEUE,
    priority: Annotated[int, typer.Option(help="0-255, higher is more urgent")] = 0,
    max_retries: Annotated[int | None, typer.Option(help="Attempts after the first")] = None,
    retry_base: Annotated[str | None, typer.Option(help="Wait before the second attempt")] = None,
    retry_cap: Annotated[str | None, typer.Option(help="Longest wait before an attempt")] = None,
    timeout: Annotated[str | None, typer.Option(help="Longest run of an attempt")] = None,
    expires: Annotated[str | None, typer.Option(help="It expires unless it begins so soon after its time")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="By which it is found; may be given several times")] = None,
    notify: Annotated[
        str | None, typer.Option(help="Channel that is notified of its end; its definition must allow it")
    ] = None,
    name: Annotated[str | None, typer.Option(help="A title for people; it need not be unique")] = None,
    description: Annotated[str | None, typer.Option(help="What the task is for")] = None,
    traceparent: Annotated[str | None, typer.Option(help="Trace that it belongs to (W3C Trace Context)")] = None,
    unique: Annotated[
        bool, typer.Option("--unique", help="End it as a duplicate if its lane has an open task of its uniqueness key")
    ] = False,
) -> None:
    """Enqueue one task; prints its key."""
    from scylla_spark.clock import from_us
    from scylla_spark.core.records.command import OPEN_NAME
    from scylla_spark.core.tasks.task import INHERITED, Retry

    cli = context(ctx)
    retry = Retry(INHERITED if max_retries is None else max_retries, retry_base, retry_cap)
    with cli.scheduler() as scheduler:
        handle = scheduler.enqueue(
            handler, _object(file_or_text(payload)), ordering_id=ordering_id, uniqueness_key=uniqueness_key,
            at=None if at is None else from_us(instant(at)), delay=delay, queue=queue, priority=priority,
            retry=None if retry == Retry() else retry, timeout=timeout,
            expires=expires, tags=tag, notify=notify, traceparent=traceparent,
            name=name, description=description, enqueued_by=author() or None,
            unique=OPEN_NAME if unique else None,
        )  # fmt: skip
        for warning in scheduler.handler_warnings.of([handler], [notify] if notify else ()):
            cli.output.say(warning)
    if handle.repeated:
        cli.output.say("Nothing was sent: the task of this key has ended, or the same was enqueued before.")
    cli.output.value("key", str(handle.key))


@app.command(name="import")
def import_(
    ctx: typer.Context,
    file: Annotated[str, typer.Argument(help="jsonl, csv or parquet file; - for stdin")],
    form: Annotated[str | None, typer.Option("--format", help="jsonl, csv or parquet; default: by the name")] = None,
    handler: Annotated[str | None, typer.Option(help="For rows that name none; default: none, as on the wire")] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Enqueue one task per row; columns are the names of the wire format or of `task enqueue`, and others are refused."""
    from scylla_spark.cli.commands import task_import

    cli = context(ctx)
    tasks = task_import.tasks(file, form, handler)
    with cli.scheduler() as scheduler:
        if dry_run:
            refused = task_import.check(scheduler, tasks)
            report: dict[str, Any] = {"would_send": len(tasks) - len(refused), "refused": len(refused)}
        elif cli.confirmed(f"enqueue {len(tasks)} tasks", yes=yes or file != "-"):
            result = scheduler.enqueue_many(tasks)
            refused = list(result.refused)
            report = {"sent": result.sent, "refused": len(refused)}
        else:
            return
        channels = [channel for task in tasks if isinstance(channel := task.get("notify"), str)]
        for warning in scheduler.handler_warnings.of((task.get("handler") for task in tasks), channels):
            cli.output.say(warning)
    for line in refused[:10]:
        cli.output.say(f"row {line.index + 1}: {line.detail}")
    cli.output.record(report)
    if refused:
        raise typer.Exit(ExitCode.FAILED)


@app.command()
def show(ctx: typer.Context, key: Key) -> None:
    """Show a task with its newest 20 attempts."""
    cli = context(ctx)
    with cli.scheduler() as scheduler:
        status = scheduler.task(task_key(cli, key)).status()
    attempts = status.attempt_details
    if not status.fresh:
        cli.output.say("Kafka did not answer in time: this is what the tables say.")
    record = _status(status)
    if cli.output.form == "table" and not cli.output.columns:
        record = {name: value for name, value in record.items() if value not in (None, False)}
    if cli.output.form == "json":
        cli.output.record(record | {"attempt_details": [_attempt(attempt) for attempt in attempts]})
        return
    cli.output.record(record)
    if attempts and cli.output.form == "table" and not cli.output.columns:
        cli.output.say("")
        rows = [_attempt(attempt) for attempt in attempts]
        told = [name for name in rows[0] if name not in _OF_ALL and any(row[name] is not None for row in rows)]
        cli.output.rows(rows, ("attempt", "outcome", "started_at", "finished_at", *told, "error"))
        stacks = [row["error_stack"] for row in rows if row["error_stack"]]
        if stacks:
            cli.output.say("")
            cli.output.lines(stacks[-1])


@app.command()
def explain(ctx: typer.Context, key: Key) -> None:
    """Explain why a task is not running."""
    cli = context(ctx)
    with cli.scheduler() as scheduler:
        told = scheduler.task(task_key(cli, key)).explain()
    if cli.output.form != "table" or cli.output.columns:
        cli.output.record(told)
        return
    cli.output.record({name: value for name, value in told.items() if name != "conditions"})
    if told["conditions"]:
        cli.output.say("")
        rows = [one | {"holds": "yes" if one["met"] else "no"} for one in told["conditions"]]
        cli.output.rows(rows, ("name", "holds", "detail"))


@app.command()
def wait(
    ctx: typer.Context,
    key: Key,
    timeout: Annotated[str | None, typer.Option(help="How long; default: for ever")] = None,
) -> None:
    """Wait for the end of a task and print its result; exit code 1 if it did not succeed."""
    cli = context(ctx)
    with cli.scheduler() as scheduler:
        result = scheduler.task(task_key(cli, key)).result(timeout)
    cli.output.value("result", result)


@app.command()
def cancel(
    ctx: typer.Context,
    key: OptionalKey = None,
    state: States = None,
    queue: Queue = None,
    ordering_id: OrderingId = None,
    start: Start = None,
    stop: Stop = None,
    chosen: Chosen = None,
    timeout: Annotated[str, typer.Option(help="How long to wait for the answer")] = "10s",
    grace: Annotated[
        str | None,
        typer.Option(
            help="End also what a dispatcher runs: ask it to, and kill it after so long; "
            "what workers have leased ends anyway, at once"
        ),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Cancel a task, or all open tasks that the options choose. Leased tasks end, too."""
    cli = context(ctx)
    grace_ms = None if grace is None else duration_ms(grace)
    if chosen is not None:
        alone(key, state, queue, ordering_id, start, stop)
        keys = _passing(cli, chosen, _open())
    else:
        keys = (
            [task_key(cli, key)] if key else _chosen(cli, _filter(state or ["open"], queue, ordering_id, start, stop))
        )
    if dry_run or not keys:
        cli.output.rows([{"key": str(one)} for one in keys], ("key",), empty="No such tasks in the tables.")
    elif key:
        with cli.scheduler() as scheduler:
            _cancel_one(cli, scheduler, keys[0], timeout, grace)
    elif cli.confirmed(f"cancel {len(keys)} tasks", yes=yes):
        with cli.scheduler() as scheduler:
            for one in keys:
                scheduler.connection.request_cancel(one, grace_ms)
        cli.output.record({"cancels_sent": len(keys)})


@app.command()
def retry(
    ctx: typer.Context,
    key: OptionalKey = None,
    state: States = None,
    queue: Queue = None,
    ordering_id: OrderingId = None,
    start: Start = None,
    stop: Stop = None,
    chosen: Chosen = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Enqueue an ended task again, under a new key that is linked to the old one; or all that the options choose."""
    cli = context(ctx)
    if chosen is not None:
        alone(key, state, queue, ordering_id, start, stop)
        keys = _passing(cli, chosen, _ended())
    else:
        keys = (
            [task_key(cli, key)] if key else _chosen(cli, _filter(state or ["failed"], queue, ordering_id, start, stop))
        )
        if len(keys) == _BULK:  # what is enqueued again stays failed, so a second call would choose the same once more
            raise ArgumentError(
                f"{_BULK} tasks or more are chosen.",
                hint='Choose by --filter, which takes each once, such as --filter "state:failed queue:mail".',
            )
    if dry_run or not keys:
        cli.output.rows([{"key": str(one)} for one in keys], ("key",), empty="No such tasks in the tables.")
        return
    if key or cli.confirmed(f"enqueue {len(keys)} tasks again", yes=yes):
        with cli.scheduler() as scheduler:
            copies = [{"key": str(scheduler.task(one).retry().key), "retry_of": str(one)} for one in keys]
        cli.output.rows(copies, ("key", "retry_of"))


def _cancel_one(cli: Context, scheduler: Scheduler, key: TaskKey, timeout: str, grace: str | None) -> None:
    answer = scheduler.task(key).cancel(timeout, running=grace is not None, grace=grace or 0)
    if answer != "cancelled":
        raise ConflictError(
            f"{key} cannot be cancelled any more: it runs or has ended.", hint="`task show` says how it stands."
        )
    cli.output.record({"key": str(key), "answer": answer})


def _filter(
    states: list[str], queue: str | None, ordering_id: str | None, start: str | None, stop: str | None
) -> TaskFilter:
    if not (queue or ordering_id or start or stop):
        raise ArgumentError("Which tasks?", hint="Pass a key, or choose by --queue, --ordering-id, --from, --to.")
    return chosen_by(states, queue=queue, ordering_id=ordering_id, start=start, stop=stop)


def chosen_by(
    states: list[str] | None,
    *,
    queue: str | None,
    ordering_id: str | None,
    start: str | None,
    stop: str | None,
    handler: str | None = None,
    partition: int | None = None,
) -> TaskFilter:
    """Returns the filter of the options of a command; None does not restrict.

    Args:
        states: of the tasks; `open` means all open states.
        queue: of the tasks.
        ordering_id: the lane.
        start: scheduled at or after this instant.
        stop: scheduled before this instant.
        handler: of the tasks.
        partition: of the tasks.

    Raises:
        ArgumentError: there is no such state, or no such instant.
    """
    from scylla_spark.core.tasks.filter import OneOf, Range, TaskFilter

    given = {"state": state_names(states), "queue": queue, "lane": ordering_id, "handler": handler}
    conditions: list[OneOf | Range] = [
        OneOf(name, (value,) if isinstance(value, str) else tuple(value))
        for name, value in given.items()
        if value is not None
    ]
    if start is not None or stop is not None:
        conditions.append(Range("scheduled", moment(start), moment(stop)))
    return TaskFilter(tuple(conditions), partition=partition)


def _chosen(cli: Context, wanted: TaskFilter) -> list[TaskKey]:
    from scylla_spark.clock import now_us
    from scylla_spark.core.tasks.key import TaskKey

    rows = cli.pages().page(wanted, _BULK, now=now_us())
    if len(rows) == _BULK:
        cli.output.say(f"Only the first {_BULK} are taken; call again for the rest.")
    return [TaskKey(row["scheduled_time"], row["ordering_id"], row["uniqueness_key"]) for row in rows]


def _passing(cli: Context, text: str, states: tuple[str, ...]) -> list[TaskKey]:
    """All tasks that a filter chooses, of those that are in some states."""
    from scylla_spark.clock import now_us
    from scylla_spark.core.tasks.filter import OneOf, TaskFilter, read_filter

    now = now_us()
    wanted = read_filter(text, now).conditions
    if not wanted:
        raise ArgumentError("The filter is empty.", hint="To mean all, say so: state:open, or state:ended.")
    found = cli.pages().keys(TaskFilter((*wanted, OneOf("state", states))), now=now)
    return [key for some in found for key in some]


def _open() -> tuple[str, ...]:
    from scylla_spark.task_states import OPEN

    return OPEN


def _ended() -> tuple[str, ...]:
    from scylla_spark.task_states import ENDED

    return ENDED


def alone(*others: object) -> None:
    """Refuses options beside --filter, which would say the same in another way."""
    if any(one is not None for one in others):
        raise ArgumentError("--filter stands alone.", hint="Write the other options as terms: state:failed queue:mail.")


def state_names(names: list[str] | None) -> list[str] | None:
    """States of --state; `open` means all open states.

    Raises:
        ArgumentError: there is no such state.
    """
    from scylla_spark.task_states import OPEN, STATES

    found = [state for name in names or () for state in (OPEN if name == "open" else (name,))]
    if unknown := set(found) - set(STATES):
        raise ArgumentError(f"There is no state {sorted(unknown)}.", hint=f"States: {', '.join(STATES)}.")
    return found or None


def moment(text: str | None) -> int | None:
    """Microseconds since the epoch of --from or --to (see `instant`); None: not given."""
    return None if text is None else instant(text)


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ArgumentError(f"The payload is not JSON: {error}.") from None
    if not isinstance(value, dict):
        raise ArgumentError("The payload is not a JSON object.", hint="Such as '{\"invoice\": 17}'.")
    return value


def _status(status: TaskStatus) -> dict[str, Any]:
    from scylla_spark.core.tasks.status_view import status_view

    return {"key": str(status.key)} | status_view(status) | _error(status.error)


def _attempt(attempt: Attempt) -> dict[str, Any]:
    from scylla_spark.core.tasks.status_view import attempt_fields

    error = attempt.error
    row = attempt_fields(attempt) | _error(error)
    row |= {"error": f"{error.kind}: {error.message}" if error else None, "error_stack": error.stack if error else None}
    return row | ({"heard_at": None} if attempt.finished_at is not None else {})


def _error(error: Failure | None) -> dict[str, Any]:
    return {"error_class": error.kind if error else None, "error_message": error.message if error else None}
