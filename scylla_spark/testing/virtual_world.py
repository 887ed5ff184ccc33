"""A deployment for tests: the real engine and the real planner on virtual time, in one process and one thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Final

from scylla_spark.client import stored_definitions
from scylla_spark.client.queues.handle import QueueHandle
from scylla_spark.client.schedules import sets as schedule_sets
from scylla_spark.client.schedules.calendars import calendar_fields
from scylla_spark.client.tasks import enqueue_arguments
from scylla_spark.client.tasks.outputs import TaskOutput, outputs_of
from scylla_spark.clock import from_us, iso
from scylla_spark.config.settings import Settings
from scylla_spark.core.records.command import CANCEL, Command, Rejection
from scylla_spark.core.tasks.key import TaskKey, instant_us
from scylla_spark.core.tasks.state import attempts_of
from scylla_spark.core.tasks.status import Attempt, TaskStatus, attempt_of
from scylla_spark.core.tasks.task import CANCELLED, Invocation, Outcome
from scylla_spark.defaults import DEFAULT_QUEUE
from scylla_spark.duration import duration_ms, duration_us
from scylla_spark.errors import ArgumentError, ConflictError, WaitTimeoutError
from scylla_spark.handlers import shared_resources
from scylla_spark.testing.handler_calls import Handlers, check_known, chosen, decoded, opens
from scylla_spark.testing.virtual_deployment import VirtualDeployment
from scylla_spark.testing.virtual_planner import VirtualPlanner
from scylla_spark.testing.virtual_worker import VirtualWorker
from scylla_spark.testing.world_handles import ScheduleOfWorld, TaskOfWorld
from scylla_spark.testing.world_runs_and_fires import Fire, HandlerRun
from scylla_spark.testing.world_settings import DefaultSettings

if TYPE_CHECKING:
    from scylla_spark.client.schedules.schedule import Schedule
    from scylla_spark.definitions.queue import Queue
    from scylla_spark.worker.lease import Lease

START: Final = datetime(2026, 1, 1, tzinfo=UTC)
_MOST_TURNS: Final = 100_000  # at one instant


class World:
    """Tasks, schedules, queues and leases in virtual time; `world` makes one.

    It takes what `Scheduler` takes, under the same names and by the same checks, so that code which enqueues can be given a world.
    Nothing starts by itself: handlers are called while `advance`, `advance_to` or `run_until_idle` let time pass, in the thread that
    calls these, and take no time unless `takes` says so.

    Args:
        handlers: see `world`.
        now: likewise.
        settings: likewise.

    Attributes:
        settings: what holds where nothing else is said.
        runs: every call of a handler, in the order of their beginnings: what ran, when, with which attempt, and how it ends.
    """

    def __init__(self, handlers: Handlers = None, now: datetime = START, settings: Settings | None = None) -> None:
        self.settings = settings if settings is not None else DefaultSettings()
        self.runs: list[HandlerRun] = []
        self._places: dict[int, int] = {}  # of runs, by the number of their invocation
        self._handlers = chosen(handlers)
        self._here = VirtualDeployment(self.settings, self._handlers, instant_us(now), self._note)
        self._worker = VirtualWorker(self._here)

    @property
    def plan(self) -> VirtualPlanner:
        """The planner, as handles ask it."""
        return self._here.planner

    @property
    def rejected(self) -> Sequence[Rejection]:
        """Returns what a schedule launched, and no deployment would take."""
        return self._here.rejected

    # -- time -----------------------------------------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        """Returns what time it is here, aware UTC."""
        return from_us(self._here.now)

    def advance(self, duration: object = 0) -> None:
        """Lets time pass: everything that is due until then happens, in its moment; what is due at its very end, too.

        Args:
            duration: how long (text such as "1h30m", seconds or a timedelta); 0: only what is due now.

        Raises:
            ArgumentError: it is no duration, or goes backwards.
            ConflictError: a handler asks for it, or something runs on and on without any time passing.
        """
        self._here.play(self._here.now + duration_us(duration))

    def advance_to(self, moment: datetime) -> None:
        """Lets time pass until a moment (an aware datetime); see `advance`.

        Raises:
            ArgumentError: it has no time zone, or is over.
        """
        until = instant_us(moment)
        if until < self._here.now:
            raise ArgumentError(
                f"{iso(until)} is over: it is {iso(self._here.now)} here.", hint="Time only goes forward."
            )
        self._here.play(until)

    def run_until_idle(self, limit: object = "7d") -> None:
        """Lets time pass until every task has ended, or waits for somebody: a worker, or the end of a pause.

        Schedules fire meanwhile, but only tasks that are there keep it going.

        Args:
            limit: how much time may pass (duration).

        Raises:
            WaitTimeoutError: some tasks are still to run then.
        """
        if not self._here.play_until_idle(self._here.now + duration_us(limit)):
            left = [str(one.key) for one in self.tasks() if one.open]
            raise WaitTimeoutError(
                f"{len(left)} tasks have not ended within {limit}, such as {left[0] if left else 'a lease'}.",
                hint="Pass a greater limit, or a retry policy that ends sooner.",
            )

    def use_spark(self, session: object) -> None:
        """Hands a session to handlers, which find it in `ctx.spark`; all of them share it.

        Args:
            session: a `pyspark.sql.SparkSession` of any kind, or what stands for one in a test.
        """
        self._here.dispatcher.session = opens(session)

    def takes(self, handler: str, duration: object) -> None:
        """Says how long calls of a handler last from now on; one that would exceed its timeout is not called, and has timed out.

        Args:
            handler: its name.
            duration: how long (duration); at first, all handlers take no time at all.

        Raises:
            NotFoundError: there is no such handler.
        """
        check_known(self._handlers, handler)
        self._here.dispatcher.lasts_us[handler] = duration_us(duration)

    # -- tasks ----------------------------------------------------------------------------------------------------------

    def enqueue(self, handler: Any, payload: Any = None, **options: Any) -> TaskOfWorld:
        """Enqueues one task, as `Scheduler.enqueue` does.

        Args:
            handler: its name, or whatever else `Scheduler.enqueue` takes; None: the queue's default handler, or a lease.
            payload: JSON object for the handler.
            **options: see `EnqueueOptions`.

        Raises:
            ArgumentError: a deployment would refuse it.
            NotFoundError: there is no such handler, and its queue is none that workers work on.
        """
        command = enqueue_arguments.command(self._here.now, handler, payload, **options)
        self._check_handler(command.handler, command.queue)
        self._here.send(command)
        return TaskOfWorld(self, command.key, enqueue_arguments.returned_by(handler))

    def cancel(self, key: TaskKey | str, *, running: bool = False, grace: object = "10s") -> str:
        """Ends a task without running it (again); no time passes.

        Args:
            key: of the task.
            running: end it also where it runs, when the grace is over.
            grace: how long it may go on then (duration).

        Returns:
            "cancelled", also of one that runs and will be ended; "too_late" where it runs on, or has ended otherwise.
        """
        key, here = _key(key), self._here
        grace_ms = max(1, duration_ms(grace)) if running else None
        request = enqueue_arguments.new_key(here.now)
        here.send(Command(CANCEL, key, 0, enqueued_us=here.now, request_id=request, grace_ms=grace_ms))
        here.dispatcher.write(here.now)
        ends = self.task(key).state == CANCELLED or here.dispatcher.will_be_cancelled(key)
        return CANCELLED if ends else "too_late"

    def retry(self, key: TaskKey | str) -> TaskOfWorld:
        """Enqueues a copy of an ended task, due now, as `TaskHandle.retry` does.

        Raises:
            ConflictError: it has not ended.
            NotFoundError: nobody has enqueued it.
        """
        command, now = self._here.dispatcher.command(_key(key)), self._here.now
        status = self.task(command.key)
        if status.open:
            raise ConflictError(
                f"{command.key} has not ended: {status.state}.", hint="Cancel it first.", state=status.state
            )
        return self._sent(enqueue_arguments.retried(command, now))

    def reschedule(self, key: TaskKey | str, at: datetime | None = None, *, delay: object = None) -> TaskOfWorld:
        """Moves a task to another time, as `TaskHandle.reschedule` does: cancels it, and enqueues a copy.

        Args:
            key: of the task.
            at: the new time (aware).
            delay: or how long from now (duration).

        Raises:
            ArgumentError: the copy would be refused; nothing was done.
            ConflictError: it runs, or has ended.
            NotFoundError: nobody has enqueued it.
        """
        command, now = self._here.dispatcher.command(_key(key)), self._here.now
        copy = enqueue_arguments.moved(command, enqueue_arguments.moment(now, at, delay), now)
        self._here.check(copy)
        copy = enqueue_arguments.under_unused_key(copy, self._here.dispatcher.is_known)
        if not self.task(command.key).open or self.cancel(command.key) != CANCELLED:
            raise ConflictError(f"{command.key} cannot be moved: it runs, or has ended.", hint="No copy was enqueued.")
        return self._sent(copy)

    def task(self, key: TaskKey | str) -> TaskStatus:
        """Returns how a task stands: `state`, `attempts` (how many), `result`, `error`, and more.

        Args:
            key: of the task, as `enqueue(…).key` has it, or its text form.

        Raises:
            NotFoundError: nobody has enqueued it.
        """
        return self._here.dispatcher.status(_key(key), self._here.now)

    def tasks(self, handler: str | None = None, *, state: str | None = None) -> list[TaskStatus]:
        """Returns how all tasks stand, in the order in which they were enqueued.

        Args:
            handler: only its tasks; None: all.
            state: only those in this state, such as "scheduled"; None: in any.
        """
        every = self._here.dispatcher.statuses(self._here.now)
        return [one for one in every if handler in (None, one.handler) and state in (None, one.state)]

    def attempts_of(self, key: TaskKey | str, newest: int | None = None, before: int | None = None) -> list[Attempt]:
        """The recorded attempts of a task, in order.

        Args:
            key: of the task.
            newest: only so many, the last ones; None: all.
            before: only those with smaller numbers.

        Raises:
            NotFoundError: nobody has enqueued it.
        """
        facts = self._here.dispatcher.facts(self.task(key).key)
        return [attempt_of(fact) for fact in attempts_of(facts, newest, before)]

    def outputs(self, key: TaskKey | str, attempt: int | None = None) -> list[TaskOutput]:
        """The files that attempts of a task have left behind, in order.

        Args:
            key: of the task.
            attempt: only of this one; None: of all.

        Raises:
            NotFoundError: nobody has enqueued it.
        """
        found = [one for one in self.attempts_of(key) if attempt in (None, one.number)]
        return outputs_of(found, _key(key), self._here.dispatcher.files, 1)

    def ran(self, handler: str, *, times: int | None = None) -> bool:
        """Returns True if a handler was called.

        Args:
            handler: its name.
            times: exactly so often; None: once at least.

        Raises:
            NotFoundError: there is no such handler.
        """
        check_known(self._handlers, handler)
        calls = sum(run.handler == handler for run in self.runs)
        return calls > 0 if times is None else calls == times

    # -- schedules ------------------------------------------------------------------------------------------------------

    def put_schedules(
        self, *schedules: Schedule, prune: str | None = None, only_new: bool = False, dry_run: bool = False,
        author: str = "",
    ) -> dict[str, str]:  # fmt: skip
        """Stores schedules, as `Scheduler.put_schedules` does.

        Args:
            *schedules: each replaces the one of its name.
            prune: an owner: what else of theirs is stored is removed.
            only_new: those that are stored stay as they are.
            dry_run: change nothing, and only say what would become of each.
            author: who changes them.

        Raises:
            ArgumentError: one of them is refused.
            NotFoundError: one names a handler that is not there.
        """
        for schedule in schedules:
            self._check_handler(schedule.handler, schedule.queue or DEFAULT_QUEUE)
        if dry_run:
            return schedule_sets.compared(self.plan.state(), schedules, prune, only_new=only_new)
        return schedule_sets.put(self.plan, schedules, prune, author, only_new=only_new)

    def schedule(self, name: str, *, author: str = "") -> ScheduleOfWorld:
        """A handle on a schedule: pause, resume, delete, run_now, status, next_runs."""
        return ScheduleOfWorld(self, name, author)

    def emit(self, event: str, fields: Mapping[str, Any] | None = None) -> None:
        """Tells the planner of an event, as `Scheduler.emit` does."""
        self.plan.tell("event", name=event, fields=dict(fields or {}))

    def notify_partitions(self, dataset: str, partitions: Iterable[Mapping[str, Any]]) -> None:
        """Tells the planner of new partitions of a dataset, as `Scheduler.notify_partitions` does."""
        self.plan.tell("partitions", name=dataset, partitions=[dict(one) for one in partitions])

    def grow_table(self, table: str, rows: int, *, operation: str = "append", size: int = 0) -> None:
        """Says that a table which schedules watch has a new version; there need be no such table.

        Args:
            table: its name, as triggers call it.
            rows: how many it has brought; of a delete, how many it took away.
            operation: append, update, delete, merge or overwrite.
            size: bytes of its files.

        Raises:
            ArgumentError: there is no such operation, or a trigger would look at the rows themselves (`where`, `per`).
        """
        self._here.planner.tables.commit(table, rows, operation, size)

    def put_calendar(self, name: str, days: Iterable[date] | Mapping[date, str]) -> None:
        """Replaces the days of a calendar of holidays, as `Scheduler.put_calendar` does."""
        self.plan.ask("calendar", **calendar_fields(name, days))

    @property
    def fires(self) -> Sequence[Fire]:
        """Returns what was decided about schedules, in order: why something ran, or did not."""
        return self.plan.fires

    # -- queues, and leases ---------------------------------------------------------------------------------------------

    def put_queue(self, queue: Queue, *, author: str = "") -> str:
        """Stores the definition of a queue, as `Scheduler.put_queue` does; it is in force at once."""
        return str(stored_definitions.put(self.plan, [queue], author)[queue.name]["became"])

    def queue(self, name: str, *, author: str = "") -> QueueHandle:
        """A handle on a queue: pause, resume, update, get, delete."""
        return QueueHandle(self, name, author)

    def lease(self, queue: str, n: int = 1, *, worker: str = "worker") -> list[Lease]:
        """Leases up to n tasks that are due of a queue whose tasks workers lease; each is used as `Worker.leases` gives it.

        Args:
            queue: its name.
            n: how many, at most.
            worker: who asks.
        """
        return self._worker.lease(queue, n, worker)

    # -- below ----------------------------------------------------------------------------------------------------------

    def _sent(self, copy: Command) -> TaskOfWorld:
        self._here.send(copy)
        return TaskOfWorld(self, copy.key)

    def _check_handler(self, name: str | None, queue: str) -> None:
        """Whether a handler is here, unless workers work on the queue: these have handlers of their own."""
        definition = self._here.dispatcher.queues.of(queue)
        if name is not None and (definition is None or definition.mode != "pull"):
            check_known(self._handlers, name)

    def _note(self, call: Sequence[Invocation], outcomes: Sequence[Outcome]) -> None:
        for item, one in zip(call, outcomes, strict=True):
            run = HandlerRun(
                item.key, item.handler, item.queue, decoded(item.payload), item.attempt, from_us(one.started_us),
                from_us(one.finished_us), one.outcome, decoded(one.result), one.failure,
            )  # fmt: skip
            place = self._places.setdefault(item.id, len(self.runs))
            self.runs[place : place + 1] = [run]


@contextmanager
def world(handlers: Handlers = None, now: datetime = START, settings: Settings | None = None) -> Iterator[World]:
    """A world for one test: no broker, no Spark, no child processes.

    Args:
        handlers: modules (or their names, or paths of .py files) and functions that may run; a function without `@handler` goes by its
            own name. Default: all that are registered in this process.
        now: what time it is at first (aware datetime). Default: the beginning of 2026.
        settings: limits, time-outs and retries where tasks and handlers say nothing, such as `Settings.load()`. Default: the defaults,
            whatever environment and files say.

    Raises:
        ArgumentError: something is no handler, or `now` has no time zone.
    """
    try:
        yield World(handlers, now, settings)
    finally:
        shared_resources.end_all()


def _key(key: TaskKey | str | TaskOfWorld) -> TaskKey:
    if isinstance(key, TaskOfWorld):
        return key.key
    return TaskKey.parse(key) if isinstance(key, str) else key
