"""The Python face: enqueue tasks, look at them, wait for them, cancel them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Literal, Self, TypeVar, Unpack, overload

from scylla_spark.client import notification_rules, stored_definitions
from scylla_spark.client.connection import Connection
from scylla_spark.client.handlers import HandlerWarnings
from scylla_spark.client.notification_rules import RuleStatus
from scylla_spark.client.queues.handle import QueueHandle, is_reusable
from scylla_spark.client.queues.tasks import QueueTasks
from scylla_spark.client.schedules.calendars import calendar_fields
from scylla_spark.client.schedules.handle import ScheduleHandle, ScheduleStatus, status_of
from scylla_spark.client.tasks import enqueue_arguments, same_enqueue
from scylla_spark.client.tasks.enqueue_result import EnqueueResult, Refused, broken_off
from scylla_spark.client.tasks.handle import TaskHandle
from scylla_spark.client.tasks.unique_keys import UniqueKeys, sent_if_free
from scylla_spark.clock import from_us, now_us
from scylla_spark.config.settings import Settings
from scylla_spark.core.tasks.enqueue_options import EnqueueOptions
from scylla_spark.core.tasks.key import Name, TaskKey, instant_us
from scylla_spark.core.tasks.tags import channels_in
from scylla_spark.core.tasks.task import Task
from scylla_spark.defaults import DEFAULT_QUEUE
from scylla_spark.definitions.notification_rule import NotificationRule
from scylla_spark.duration import duration_ms
from scylla_spark.errors import ArgumentError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from scylla_spark.client.handlers import Catalogue
    from scylla_spark.client.schedules.schedule import Schedule
    from scylla_spark.client.schedules.selection import Selection
    from scylla_spark.definitions.queue import Queue

P = TypeVar("P")
R = TypeVar("R")


class Scheduler:
    """One deployment, seen by a client. Thread safe; connections are made when first needed.

    `connection` is what handles and the command line ask through; `handler_warnings` says which handlers no dispatcher has.

    Args:
        settings: how to reach Kafka and the tables; `connect` reads them from the usual sources.
        spark: session for the DataFrame methods; default: the one of this process, or a new one.
    """

    def __init__(self, settings: Settings, *, spark: SparkSession | None = None) -> None:
        self.connection = Connection(settings, spark)
        self.handler_warnings = HandlerWarnings(self.connection)
        self._unique_keys = UniqueKeys(self.connection, partial(_is_reusable, self.connection))

    @classmethod
    def connect(
        cls,
        settings: Settings | str | Path | None = None,
        *,
        data_dir: str | Path | None = None,
        spark: SparkSession | None = None,
    ) -> Self:
        """A client of a deployment that exists; asks nobody yet.

        Args:
            settings: settings, or the path of a TOML file; default: environment, `.env` and `scyllaspark.toml`.
            data_dir: folder of a deployment on this machine, as in `scylla-spark up --data DIR`; default: as the settings say.
            spark: session for the DataFrame methods.

        Raises:
            ConfigError: the settings are not valid.
        """
        folder = {} if data_dir is None else {"data_dir": Path(data_dir)}
        if isinstance(settings, Settings):
            chosen = settings.model_copy(update=folder)
        else:
            chosen = Settings.load(Path(settings) if settings is not None else None, **folder)
        return cls(chosen, spark=spark)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Sends what is under way and closes the connections; idempotent."""
        self.connection.close()

    # -- single tasks ---------------------------------------------------------------------------------------------------

    @overload
    def enqueue(
        self, handler: str | None, payload: Mapping[str, Any] | None = None, **options: Unpack[EnqueueOptions]
    ) -> TaskHandle: ...
    @overload
    def enqueue(
        self,
        handler: Callable[Concatenate[Task, ...], Awaitable[R]],
        payload: Mapping[str, Any] | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> TaskHandle[R]: ...
    @overload
    def enqueue(
        self,
        handler: Callable[Concatenate[Task, ...], R],
        payload: Mapping[str, Any] | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> TaskHandle[R]: ...
    @overload
    def enqueue(
        self,
        handler: Callable[Concatenate[P, ...], Awaitable[R]],
        payload: P | Mapping[str, Any],
        **options: Unpack[EnqueueOptions],
    ) -> TaskHandle[R]: ...
    @overload
    def enqueue(
        self,
        handler: Callable[Concatenate[P, ...], R],
        payload: P | Mapping[str, Any],
        **options: Unpack[EnqueueOptions],
    ) -> TaskHandle[R]: ...
    def enqueue(self, handler: Any, payload: Any = None, **options: Unpack[EnqueueOptions]) -> TaskHandle[Any]:
        """Enqueues one task; when this returns, Kafka has acknowledged it and it will run.

        The same call again is the same task, also after the grace: what stands already is not refused as too late.
        If the task of a key has ended, nothing is sent, whatever the payload is. Then the handle has `repeated`. This is checked if
        `at` and `uniqueness_key` are given and that time has come, because only such a key can have ended by a run.

        Args:
            handler: name of a registered function, or the function; None: the deployment's default handler, or a lease.
            payload: JSON object for the handler, at most 256 KiB. Of a function that declares a type of payload: a value of
                that, or a JSON object that fits it.
            **options: see `EnqueueOptions`.

        Returns:
            A handle; of a function that declares what it returns, its `result` is of that type.

        Raises:
            ArgumentError: the task would be refused, or its payload does not fit; nothing was sent.
            UnreachableError: Kafka did not acknowledge it in time; it may exist all the same.
        """
        command = enqueue_arguments.command(now_us(), handler, payload, **options)
        named = options.get("uniqueness_key") is not None
        repeated = named and options.get("at") is not None and same_enqueue.has_ended(self.connection, command)
        try:
            if not repeated:
                self.connection.send(command)
        except ArgumentError as error:
            repeated = named and same_enqueue.stands(self.connection, command, error)
            if not repeated:
                raise
        self.handler_warnings.log([command.handler], channels_in(command.tags))
        return TaskHandle(self.connection, command.key, enqueue_arguments.returned_by(handler), repeated=repeated)

    def task(self, key: TaskKey | str) -> TaskHandle:
        """A handle on a task, by key or by the key's text form; asks nobody yet."""
        return TaskHandle(self.connection, TaskKey.parse(key) if isinstance(key, str) else key)

    def named_task(self, uniqueness_key: str, *, ordering_id: str | None = None) -> TaskHandle:
        """A handle on the task of a name: the only open one, or else the only one that has ended; duplicates do not count.

        Args:
            uniqueness_key: of the task.
            ordering_id: its lane. Default: the lane is called like the key.

        Raises:
            NotFoundError: no task has the name.
            ConflictError: several do; `fields["tasks"]` has the ids of the newest 20.
            UnreachableError: Kafka does not answer.
        """
        from scylla_spark.client.tasks.by_name import key_of_name

        name = Name(uniqueness_key if ordering_id is None else ordering_id, uniqueness_key)
        return self.task(key_of_name(self.connection, self.connection.task_tables.pages, name))

    def enqueue_many(self, tasks: Iterable[Mapping[str, Any]]) -> EnqueueResult:
        """Enqueues tasks one after the other without waiting for each; those that would be refused are left out.

        Args:
            tasks: keyword arguments of `enqueue`, one mapping per task.

        Returns:
            How many Kafka acknowledged, their keys, and those that were refused.

        Raises:
            UnreachableError: some were not acknowledged; `fields["sent"]` were.
            SchedulerError: the iterable raised, which is the cause, or Kafka takes no more. `fields["keys"]` are those of the
                tasks that were sent before, and `fields["refused"]` those that were refused.
        """
        refused: list[Refused] = []
        keys: list[TaskKey] = []
        handlers, channels = set[str | None](), set[str]()
        futures, sender = [], self.connection.sender
        try:
            for index, task in enumerate(tasks):
                try:
                    command = enqueue_arguments.command(now_us(), **enqueue_arguments.keywords(task))
                    record = sender.record(command)
                except ArgumentError as error:
                    refused.append(Refused(index, str(error.fields.get("reason", "wrong_value")), str(error)))
                    continue
                futures.append(sender.begin(record))
                keys.append(command.key)
                handlers.add(command.handler)
                channels.update(channels_in(command.tags))
        except Exception as error:
            sender.finish(futures)
            raise broken_off(error, tuple(keys), tuple(refused)) from error
        ends = sender.finish(futures)
        self.handler_warnings.log(handlers, channels)
        return EnqueueResult(self.connection, len(futures), ends, tuple(refused), keys=tuple(keys))

    def enqueue_unique(
        self, handler: Any, payload: Any = None, *, key: str, **options: Unpack[EnqueueOptions]
    ) -> TaskHandle[Any]:
        """Enqueues one task, unless its lane has one of that uniqueness key, at any time; see `client/tasks/unique_keys.py`.

        Args:
            handler: as in `enqueue`.
            payload: likewise.
            key: the uniqueness key; it is free if no task of the lane has it; where the queue says `key_reuse = "when_done"`, no open one.
            **options: as in `enqueue`. Without `ordering_id` the lane is called like the key.

        Raises:
            ConflictError: the key is held; `fields["reason"]` is "key_exists".
            ArgumentError: as in `enqueue`, like UnreachableError.
        """
        options["uniqueness_key"] = key
        command = enqueue_arguments.command(now_us(), handler, payload, **options)
        self._unique_keys.send(command)
        self.handler_warnings.log([command.handler], channels_in(command.tags))
        return TaskHandle(self.connection, command.key, enqueue_arguments.returned_by(handler))

    def enqueue_unique_many(self, tasks: Iterable[Mapping[str, Any]]) -> EnqueueResult:
        """Enqueues those of some tasks whose uniqueness keys are free; of several with one key the first.

        Args:
            tasks: as in `enqueue_many`; each names its `uniqueness_key`.

        Returns:
            How many Kafka acknowledged, their keys, and those that were refused; reason "key_exists": the key is held.

        Raises:
            UnreachableError: some were not acknowledged; those that were, stand.
        """
        return sent_if_free(self.connection, self._unique_keys, tasks, now_us())

    # -- lists, without Spark -------------------------------------------------------------------------------------------

    def list_tasks(self, where: str = "", *, limit: int | None = None, as_of: datetime | None = None) -> pa.Table:
        """Tasks in the order of their keys, from the tables, as the API lists them; no JVM is started.

        Args:
            where: the filter of the API and the command line, such as "state:failed queue:mail late:>5m"; empty: all.
            limit: most rows; None: all.
            as_of: as it was then (aware), as far as the rows of the tables tell. Default: now.

        Raises:
            ArgumentError: the filter is none; `fields["position"]` says where. Or the limit is no number from 1.
        """
        return self.stream_tasks(where, limit=limit, as_of=as_of).read_all()

    def stream_tasks(
        self, where: str = "", *, limit: int | None = None, as_of: datetime | None = None
    ) -> pa.RecordBatchReader:
        """The same as `list_tasks`, but read as it is taken, so that a million tasks need not be in memory.

        Args:
            where: as in `list_tasks`, like all others.
            limit: most rows.
            as_of: a moment.
        """
        return self.connection.task_tables.tasks(where, limit, as_of, now_us())

    def list_attempts(self, where: str = "", *, limit: int | None = None) -> pa.Table:
        """Attempts of tasks, one row each in the order of keys and numbers, with how each ended; no JVM is started.

        Args:
            where: which tasks: as in `list_tasks`.
            limit: most tasks; None: all.
        """
        return self.connection.task_tables.attempts(where, limit, now_us()).read_all()

    def list_logs(self, where: str = "", *, limit: int | None = None) -> pa.Table:
        """Returns what attempts have printed and logged, one row per line in the order of keys, attempts and lines; no JVM is started.

        From the tables alone, which are up to `logs.trigger` (30 s) behind: `TaskHandle.logs` of one task has the newest lines too.

        Args:
            where: which tasks: as in `list_tasks`.
            limit: most tasks; None: all.
        """
        return self.connection.task_tables.lines(where, limit, now_us()).read_all()

    # -- schedules ------------------------------------------------------------------------------------------------------

    def put_schedules(
        self,
        *schedules: Schedule,
        prune: str | None = None,
        only_new: bool = False,
        dry_run: bool = False,
        author: str = "",
    ) -> dict[str, str]:
        """Stores schedules; those that are the same stay as they are, with all that they wait for.

        Args:
            *schedules: each replaces the one of its name, and keeps whether that is paused unless it says so itself.
            prune: an owner: what else of theirs is stored is removed.
            only_new: those that are stored stay as they are, so that what somebody has changed since survives.
            dry_run: change nothing, and only say what would become of each.
            author: who changes them.

        Returns:
            Name → "added", "changed", "unchanged", "removed", or "kept" where only new ones are stored and another definition is there.

        Raises:
            ConflictError: only new ones are to be stored, and somebody has stored one of them meanwhile.
            ArgumentError: one of them is refused, and nothing of its part is changed: a part holds as many as fit in half a megabyte.
            UnreachableError: no planner answers; what was sent is done when one runs.
        """
        from scylla_spark.client.schedules import sets as schedule_sets

        if dry_run:
            return schedule_sets.compared(self.connection.plan.state(), schedules, prune, only_new=only_new)
        self.handler_warnings.log(one.handler for one in schedules)
        return schedule_sets.put(self.connection.plan, schedules, prune, author, only_new=only_new)

    def list_schedules(
        self, *, kind: str | None = None, state: str | None = None, tag: str | None = None, owner: str | None = None
    ) -> list[ScheduleStatus]:
        """The schedules as the planner knows them now, by name; without Spark.

        Args:
            kind: only those that listen to "time", "event", "partitions", "table", "topic", "after", "batch" or "manual".
            state: only those that are "active", "paused" or "completed".
            tag: only those that have it.
            owner: only theirs.

        Raises:
            ArgumentError: there is no such kind or state.
        """
        from scylla_spark.client.schedules.selection import Selection, chosen

        plan, now = self.connection.plan.state(), now_us()
        return [status_of(entry, plan, now) for entry in chosen(plan, Selection(kind, state, tag, owner), now)]

    def pause_schedules(
        self,
        *,
        tag: str | None = None,
        changed_from: datetime | None = None,
        changed_until: datetime | None = None,
        note: str = "",
        until: datetime | None = None,
        author: str = "",
    ) -> list[str]:
        """Pauses all active schedules that have something in common, as `ScheduleHandle.pause` does one; returns their names.

        Args:
            tag: that they have.
            changed_from: they were changed, paused or resumed last at or after this (aware) …
            changed_until: … and before this (aware).
            note: why, for people.
            until: when they go on by themselves (aware).
            author: who wants it.

        Raises:
            ArgumentError: neither a tag nor a time is given.
        """
        wanted = _selection(tag, changed_from, changed_until)
        return self._steered(
            "pause", wanted, author, note=note or None, until=None if until is None else instant_us(until)
        )

    def resume_schedules(
        self,
        *,
        tag: str | None = None,
        changed_from: datetime | None = None,
        changed_until: datetime | None = None,
        begin: Literal["pause", "now"] = "pause",
        author: str = "",
    ) -> list[str]:
        """Resumes all paused schedules that have something in common, from now on; returns their names.

        Args:
            tag: that they have.
            changed_from: they were changed or paused last at or after this (aware) …
            changed_until: … and before this (aware).
            begin: where they go on in the tables that they watch: see `ScheduleHandle.resume`.
            author: who wants it.

        Raises:
            ArgumentError: neither a tag nor a time is given, or one of them cannot begin now.
        """
        from scylla_spark.client.schedules.selection import is_now

        return self._steered("resume", _selection(tag, changed_from, changed_until), author, fromNow=is_now(begin))

    def _steered(self, kind: str, wanted: Selection, author: str, **more: Any) -> list[str]:
        from scylla_spark.client.schedules.selection import names_of, steer, to_steer

        plan = self.connection.plan
        return list(steer(plan, kind, names_of(to_steer(plan.state().entries, kind, wanted)), author, **more))

    def schedule(self, name: str, *, author: str = "") -> ScheduleHandle:
        """A handle on a schedule, by name; asks nobody yet."""
        return ScheduleHandle(self.connection, name, author)

    def emit(self, event: str, fields: Mapping[str, Any] | None = None) -> None:
        """Tells the planner of an event; when this returns, it is acknowledged and will be counted once.

        Args:
            event: its name, as triggers call it.
            fields: JSON values that triggers compare and templates read, at most 16 KiB.

        Raises:
            UnreachableError: it was not acknowledged; it may be counted all the same.
        """
        self.connection.plan.tell("event", name=event, fields=dict(fields or {}))

    def notify_partitions(self, dataset: str, partitions: Iterable[Mapping[str, Any]]) -> None:
        """Tells the planner of new partitions of a dataset.

        Args:
            dataset: its name, as triggers call it.
            partitions: one mapping each, with `values`, `count`, `rows`, `bytes`, all of which may be left out.
        """
        self.connection.plan.tell("partitions", name=dataset, partitions=[dict(one) for one in partitions])

    def put_calendar(self, name: str, days: Iterable[date] | Mapping[date, str]) -> None:
        """Replaces the days of a calendar of holidays, which triggers by time name.

        Args:
            name: as triggers call it.
            days: on which nothing fires; as a mapping with what each is, such as {date(2027, 12, 25): "Christmas Day"}.

        Raises:
            ArgumentError: there are too many days, or what they are is too long.
        """
        self.connection.plan.ask("calendar", **calendar_fields(name, days))

    def schedules(self, as_of: datetime | None = None) -> DataFrame:
        """One row per change of a schedule, the definitions among them; lazy.

        Args:
            as_of: only what was changed until then (aware); default: all.
        """
        return self._until("schedules", "changed_at", as_of)

    def jobs(self, as_of: datetime | None = None) -> DataFrame:
        """One row per change of a job: a round of a schedule, from its first event to the end of its run; lazy.

        Args:
            as_of: only what was changed until then (aware); default: all.
        """
        return self._until("jobs", "changed_at", as_of)

    def fires(self, as_of: datetime | None = None) -> DataFrame:
        """One row per decision: why something ran, or did not; lazy.

        Args:
            as_of: only what was decided until then (aware); default: all.
        """
        return self._until("fires", "decided_at", as_of)

    # -- queues ---------------------------------------------------------------------------------------------------------

    def put_queue(self, queue: Queue, *, author: str = "") -> str:
        """Stores the definition of a queue, as a whole; dispatchers obey it within a second, while everything runs.

        Args:
            queue: it replaces the definition of its name, and the start values of the settings.
            author: who changes it.

        Returns:
            "added", "changed" or "unchanged".

        Raises:
            ArgumentError: it is refused; nothing is changed.
            UnreachableError: no planner answers; what was sent is done when one runs.
        """
        return self.put_queues(queue, author=author)[queue.name]

    def put_queues(self, *queues: Queue, author: str = "") -> dict[str, str]:
        """Stores several; name → what became of it. See `put_queue`."""
        done = stored_definitions.put(self.connection.plan, queues, author)
        return {name: str(one["became"]) for name, one in done.items()}

    def queue(self, name: str, *, author: str = "") -> QueueHandle:
        """A handle on a queue, by name; asks nobody yet."""
        return QueueHandle(self.connection, name, author, self._tasks_of)

    def queues(self, as_of: datetime | None = None) -> DataFrame:
        """One row per change of the definition of a queue; lazy.

        Args:
            as_of: only what was changed until then (aware); default: all.
        """
        return self._until("queues", "changed_at", as_of)

    # -- notifications --------------------------------------------------------------------------------------------------

    def put_notification_rule(self, rule: NotificationRule, *, author: str = "") -> str:
        """Stores a rule that says who is told of what.

        Args:
            rule: it replaces the one of its name, and begins anew: it has told of nothing.
            author: who changes it.

        Returns:
            "added", "changed" or "unchanged".

        Raises:
            ArgumentError: it is refused, such as for a channel that the planner's settings do not have.
            UnreachableError: no planner answers; what was sent is done when one runs.
        """
        return str(stored_definitions.put(self.connection.plan, [rule], author)[rule.name]["became"])

    def notification_rules(self) -> dict[str, RuleStatus]:
        """The rules that are stored, by name, with what they have told of and is not over."""
        return notification_rules.statuses(self.connection.plan.state())

    def delete_notification_rule(self, name: str, *, author: str = "") -> None:
        """Forgets a rule, and what it has told of.

        Raises:
            NotFoundError: it is not stored.
        """
        stored_definitions.delete(self.connection.plan, NotificationRule, [name], author)

    def test_notification_rule(self, name: str) -> TaskHandle:
        """Sends a message to the channel of a rule; a handle on the task that carries it.

        Raises:
            NotFoundError: the rule is not stored.
        """
        return self.task(notification_rules.send_test(self.connection.plan, name))

    def handlers(self) -> Catalogue:
        """The handlers that tasks can name, as the dispatchers say that own partitions now; see `client.handlers`."""
        from scylla_spark.client.handlers import catalogue

        return catalogue(self.connection)

    # -- access to the HTTP API ------------------------------------------------------------------------------------------

    def create_token(
        self,
        name: str,
        scopes: Sequence[str],
        *,
        namespaces: Sequence[str] = (),
        expires_at: datetime | None = None,
        author: str = "",
    ) -> str:
        """Makes a token for the HTTP API; its text, which nobody can show again. See `client.tokens.create`.

        Args:
            name: for people.
            scopes: what it allows, such as ["read", "lease:gpu"].
            namespaces: beginnings of the names of the queues that exist for it; empty: all do.
            expires_at: from when on it is worth nothing (aware); default: never.
            author: who makes it.
        """
        from scylla_spark.client import tokens

        return tokens.create(self.connection.plan, name, scopes, namespaces, expires_at, author)

    # -- frames ---------------------------------------------------------------------------------------------------------

    def enqueue_df(
        self,
        df: DataFrame,
        *,
        handler: str | Column | None,
        ordering_id: str | Column | None,
        uniqueness_key: str | Column,
        scheduled_time: str | Column | datetime | None = None,
        payload: str | Column | None = None,
        queue: str | Column = DEFAULT_QUEUE,
        priority: int | Column = 0,
        expires: object = None,
        tags: Iterable[str] | Column | None = None,
        unique: str | None = None,
        name: str | Column | None = None,
        description: str | Column | None = None,
        enqueued_by: str | Column | None = None,
    ) -> EnqueueResult:
        """Enqueues one task per row, through Spark's Kafka sink.

        Args:
            df: any frame; it is evaluated twice, first to check all rows. snake_case names find camelCase columns and vice versa.
            handler: name, or a column of names.
            ordering_id: column of the lanes; None: the uniqueness key serves, so each task is its own lane.
            uniqueness_key: column. It has no default because the sink is at-least-once: a random key would double tasks.
            scheduled_time: column of timestamps, or one aware datetime. Default: the moment of this call, for all rows (of the write,
                if checking them takes minutes); a second run then enqueues the rows again under other keys.
            payload: column: a struct, a map, or the text of a JSON object. Default: empty.
            queue: name, or a column of names.
            priority: 0-255, or a column of integers.
            expires: how long after its time each ends as expired unless it has begun: a duration, or a column of intervals, whole
                seconds or texts such as "10m"; null: it does not. Default: none does.
            tags: of all of them, at most 16 short texts, or a column of arrays of texts; null: none.
            unique: "open": each ends as a duplicate if an earlier task of its lane and uniqueness key is open. Default: none does.
            name: a title of all tasks, or a column of texts; null: none. Bounds are those of `EnqueueOptions`.
            description: what all tasks are for, or a column of texts.
            enqueued_by: who enqueues them, or a column of texts; it is shown as unverified.

        Returns:
            Once Kafka has acknowledged every row.

        Raises:
            ArgumentError: some rows would be refused; nothing was sent. `fields["refused"]` counts them per reason.
            UnreachableError: the write failed midway; call again with the same frame: same keys are the same tasks. A frame with rows
                that are more than the grace behind by then is refused, although they may stand: leave those out that do. Also a write
                that takes longer than 50 minutes: readers believe for an hour when a row was enqueued. Split such a frame.
        """
        from scylla_spark.client.tasks import frames

        columns = frames.Columns(
            handler=handler, ordering_id=ordering_id, uniqueness_key=uniqueness_key, scheduled_time=scheduled_time, payload=payload,
            queue=queue, priority=priority, expires=expires, tags=tags, unique=unique,
            name=name, description=description, enqueued_by=enqueued_by,
        )  # fmt: skip
        sent = frames.enqueue(df, columns, self.connection.located, self.connection.rules, now_us())
        return EnqueueResult(self.connection, sent, self.connection.ends())

    def enqueue_stream(
        self,
        df: DataFrame,
        *,
        checkpoint: str | Path,
        handler: str | Column | None,
        ordering_id: str | Column | None,
        uniqueness_key: str | Column,
        scheduled_time: str | Column,
        payload: str | Column | None = None,
        queue: str | Column = DEFAULT_QUEUE,
        priority: int | Column = 0,
        expires: object = None,
        tags: Iterable[str] | Column | None = None,
        unique: str | None = None,
        name: str | Column | None = None,
        description: str | Column | None = None,
        enqueued_by: str | Column | None = None,
        trigger: object = "1s",
    ) -> StreamingQuery:
        """Starts a query that enqueues one task per row of a streaming frame; at-least-once, so keys must come from the data.

        Unlike `enqueue_df` it checks nothing: a row that the rules refuse becomes a row of `rejected`, and the stream goes on.
        Times are judged against the moment Kafka takes the record: what is overdue by more than the grace then, such as after an
        outage of the stream, is refused; docs/operations.md#limits-worth-knowing says how it runs all the same.

        Args:
            df: streaming frame.
            checkpoint: folder or URI of the query's own state.
            trigger: pause between micro-batches (duration).
            handler: as in `enqueue_df`, like all others.
            ordering_id: column.
            uniqueness_key: column.
            scheduled_time: column of timestamps.
            payload: column.
            queue: name or column.
            priority: number or column.
            expires: duration or column.
            tags: of all tasks, or a column.
            unique: "open", or None.
            name: text or column.
            description: text or column.
            enqueued_by: text or column.
        """
        from scylla_spark.client.tasks import frames

        columns = frames.Columns(
            handler=handler, ordering_id=ordering_id, uniqueness_key=uniqueness_key, scheduled_time=scheduled_time, payload=payload,
            queue=queue, priority=priority, expires=expires, tags=tags, unique=unique,
            name=name, description=description, enqueued_by=enqueued_by,
        )  # fmt: skip
        return frames.stream(
            df, columns, self.connection.located, self.connection.rules, str(checkpoint), duration_ms(trigger)
        )

    def cancel_df(
        self,
        keys: DataFrame,
        *,
        scheduled_time: str | Column = "scheduled_time",
        ordering_id: str | Column = "ordering_id",
        uniqueness_key: str | Column = "uniqueness_key",
    ) -> EnqueueResult:
        """Sends a cancel per row; whether it came in time shows in `status()` or by each handle.

        Args:
            keys: frame with the three parts of the keys, such as a filtered `status()`.
            scheduled_time: column of timestamps.
            ordering_id: column.
            uniqueness_key: column.

        Raises:
            ArgumentError: a part of a key is null or too long; nothing was sent.
        """
        from scylla_spark.client.tasks import frames

        columns = frames.Columns(None, ordering_id, uniqueness_key, scheduled_time)
        sent = frames.cancel(keys, columns, self.connection.located, self.connection.rules, now_us())
        return EnqueueResult(self.connection, sent, self.connection.ends())

    def status(self, as_of: datetime | None = None) -> DataFrame:
        """One row per task of the tables: key, data, `state`, `attempts`, `next_attempt_at` and how it ended; lazy.

        Args:
            as_of: as it was then (aware), by the times in the rows; default: as of this call.
        """
        from scylla_spark.client.tasks import frames

        return frames.status(
            self.spark,
            self.connection.readers.path,
            now_us() if as_of is None else instant_us(as_of),
            history=as_of is not None,
        )

    def attempts(self) -> DataFrame:
        """One row per recorded start and per attempt that did not end its task; lazy."""
        return self._table("attempts")

    def completions(self) -> DataFrame:
        """One row per ended task (a repeat is possible after a crash); lazy."""
        return self._table("completions")

    def rejected(self) -> DataFrame:
        """One row per refused record, with the reason and the raw bytes; lazy."""
        return self._table("rejected")

    @property
    def settings(self) -> Settings:
        """The settings as they were given."""
        return self.connection.settings

    @property
    def spark(self) -> SparkSession:
        """The session of the DataFrame methods: given, running, or new."""
        return self.connection.spark

    def _tasks_of(self, queue: str) -> QueueTasks:
        return QueueTasks(self.connection, self.connection.task_tables.pages, queue)

    def _until(self, name: str, column: str, as_of: datetime | None) -> DataFrame:
        rows = self._table(name)
        return rows if as_of is None else rows.where(rows[column] <= from_us(instant_us(as_of)))

    def _table(self, name: str) -> DataFrame:
        from scylla_spark.client.tasks import frames

        return frames.table(self.spark, self.connection.readers.path, name)


def _is_reusable(connection: Connection, queue: str) -> bool:
    return is_reusable(connection.plan.state(), connection.settings, queue)


def _selection(tag: str | None, changed_from: datetime | None, changed_until: datetime | None) -> Selection:
    from scylla_spark.client.schedules.selection import Selection

    window = [None if one is None else instant_us(one) for one in (changed_from, changed_until)]
    return Selection(None, None, tag, None, *window)
