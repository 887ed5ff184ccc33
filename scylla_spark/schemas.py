"""Every table: columns with meaning and unit, keys, partitioning. Plain data; `io.delta.spark_tables` turns it into Spark schemas.

Instants are UTC timestamps in microseconds, durations whole milliseconds, `hour` = floor(unix seconds / 3600) of the
scheduled time as int (independent of any session time zone).
"""

from __future__ import annotations

from typing import Final, NamedTuple

VERSION: Final = 10
"""Of all tables together, stored in `deployment` as `schema_version`; raised with every change that tables must be migrated for.

1, which stands nowhere: as first released. 2: names of appends are forgotten after an hour.
3: leases of attempts and completions (`work`). 4: what attempts print and log (`attempt_logs`, `log_progress`).
6: what attempts leave behind (`outputs`); tasks expire (`expires_ms`), and have tags and the trace in which they were enqueued
(`tags`, `traceparent`). 7: names of tasks are unique (`first_offset`, `unique_open`).
8: what attempts say in words of how far they are (`progress_note`). 9: what days of calendars are (`note`).
10: what people read of tasks (`about`).
A new table raises it, too: once a version is stored, all its tables are there.
Readers of an older or newer version go on: columns they do not find are null to them, columns they do not know are not read.
"""


class Column(NamedTuple):
    """One column: name, Spark SQL type, what it means."""

    name: str
    type: str
    comment: str


class Table(NamedTuple):
    """One Delta table."""

    name: str
    columns: tuple[Column, ...]
    partitioned_by: tuple[str, ...]
    comment: str
    clustered_by: tuple[str, ...] = ()

    @property
    def ddl(self) -> str:
        """The columns as a Spark schema string."""
        return ", ".join(f"`{column.name}` {column.type}" for column in self.columns)

    @property
    def names(self) -> list[str]:
        """Column names in order."""
        return [column.name for column in self.columns]


KEY: Final = (
    Column("partition_id", "int", "partition of both topics that the lane belongs to"),
    Column("hour", "int", "hours since the Unix epoch of scheduled_time"),
    Column("scheduled_time", "timestamp", "when the task is due"),
    Column("ordering_id", "string", "the lane"),
    Column("uniqueness_key", "string", "tells tasks of one lane and time apart"),
)
KEY_NAMES: Final = tuple(column.name for column in KEY)

DATA: Final = (
    Column("handler", "string", "registered function that runs the task; null: waits for a lease"),
    Column("queue", "string", "queue"),
    Column("priority", "int", "0-255, higher is more urgent"),
    Column("payload", "string", "JSON object"),
    Column("timeout_ms", "bigint", "longest run of an attempt; null: as the handler says"),
    Column(
        "retry",
        "struct<max_retries: int, base_ms: bigint, cap_ms: bigint>",
        "null: as the handler says; null max_retries: for ever; -1: left out, as the handler, the queue or the deployment says",
    ),
    Column("enqueued_at", "timestamp", "the client's stamp, or the append time"),
    Column("extra", "string", "JSON object of fields of the record that we do not know"),
    Column("data_offset", "bigint", "Kafka offset of the newest enqueue; null where only a cancel was seen"),
    Column("cancel_offset", "bigint", "Kafka offset of the newest cancel; null: not cancelled"),
    Column("expires_ms", "bigint", "the task expires unless it has begun so long after scheduled_time; null: never"),
    Column("tags", "array<string>", "texts by which it is found; null: none"),
    Column(
        "traceparent", "string", "trace and span in which it was enqueued, as W3C Trace Context writes them; null: none"
    ),
    Column(
        "first_offset",
        "bigint",
        "Kafka offset of the oldest enqueue; null: only a cancel was seen, or an older version wrote the row",
    ),
    Column(
        "unique_open",
        "boolean",
        "the oldest enqueue asks for its lane and uniqueness key to be unique among open tasks",
    ),
    Column(
        "about",
        "struct<name: string, description: string, enqueued_by: string, proof: string>",
        "what people read of it: name, description, who enqueued it, as the record says, and the signature of the API; null: nothing",
    ),
)

TASKS: Final = Table(
    "tasks", KEY + DATA, ("partition_id", "hour"), "one row per task key: its newest data and whether it was cancelled"
)

DEFERRED: Final = Table(
    "deferred",
    KEY + DATA,
    (),
    "one row per key and batch of tasks due later than progress's folded_until; folded into `tasks` before their time comes",
    clustered_by=("scheduled_time",),
)

_ATTEMPT: Final = (
    Column("attempt", "int", "number of the attempt, from 1; 0: ended before any"),
    Column(
        "outcome",
        "string",
        "succeeded, failed, aborted, cancelled, expired, duplicate, timed_out, yielded; `attempts` also: started",
    ),
    Column("epoch", "bigint", "fencing number of the dispatcher that wrote it"),
    Column("planned_at", "timestamp", "when the attempt could start at the earliest"),
    Column("started_at", "timestamp", "when it started; null: never"),
    Column("finished_at", "timestamp", "when it ended; null: not known yet"),
    Column("used", "int", "attempts so far that count against the retry policy"),
    Column("result", "string", "JSON value that the handler returned"),
    Column("error_class", "string", "exception class or a code of ours"),
    Column("error_message", "string", "message"),
    Column("error_stack", "string", "stack trace"),
    Column("fact_offset", "bigint", "Kafka offset of the record in `outcomes`"),
)
_WORK: Final = Column(
    "work",
    "struct<worker: string, lease: string, lease_ms: bigint, since_us: bigint, until_us: bigint, progress: double, "
    "checkpoint: string, metrics: string>",
    "worker that leased it, digest and length of the lease, its beginning and latest end (microseconds since the Unix epoch; "
    "`since_us` without a lease: from when the times of what the handler enqueued are counted), "
    "progress from 0 to 1, JSON of the last checkpoint, JSON of the worker's metrics; null: nothing is known",
)
_ISOLATION: Final = Column(
    "isolation", "string", "level at which the attempt ran: process, sandbox; null: its handler asks for none"
)
_OUTPUTS: Final = Column(
    "outputs",
    "string",
    "JSON list of the files that the attempt left behind: name, bytes, sha256, media_type; null: there are none",
)
_PROGRESS_NOTE: Final = Column(
    "progress_note", "string", "in words, what the attempt was at when it said so last; null: it has not said"
)

COMPLETIONS: Final = Table(
    "completions",
    (*KEY, *_ATTEMPT, _WORK, _ISOLATION, _OUTPUTS, _PROGRESS_NOTE),
    ("partition_id", "hour"),
    "one row per ended task; readers tolerate a repeat",
)
ATTEMPTS: Final = Table(
    "attempts",
    (
        *KEY,
        *_ATTEMPT,
        Column("next_at", "timestamp", "earliest start of the next attempt; null for a start"),
        _WORK,
        _ISOLATION,
        _OUTPUTS,
        _PROGRESS_NOTE,
    ),
    ("partition_id", "hour"),
    "one row per start of a long attempt and per attempt that did not end the task",
)
ATTEMPT_LOGS: Final = Table(
    "attempt_logs",
    (
        *KEY,
        Column("attempt", "int", "number of the attempt that wrote the line; of a batch, under its first task"),
        Column("epoch", "bigint", "fencing number of the dispatcher that started it"),
        Column("seq", "int", "number of the line within its attempt, from 1"),
        Column("at", "timestamp", "when it was written, by the clock of the machine that ran the attempt"),
        Column("stream", "string", "stdout, stderr, logging; scheduler: a marker of ours for lines that were left out"),
        Column("level", "string", "debug, info, warning, error, critical; null: it was printed"),
        Column("text", "string", "the line, without its end"),
        Column("fields", "string", "JSON object: logger and extra fields of a logging record"),
        Column("log_offset", "bigint", "Kafka offset of the record in `logs`"),
    ),
    ("partition_id", "hour"),
    "one row per line that an attempt has written; readers tolerate a repeat",
)
LOG_PROGRESS: Final = Table(
    "log_progress",
    (
        Column("partition_id", "int", "partition of `logs`"),
        Column("next_offset", "bigint", "all records below are in `attempt_logs`"),
        Column("updated_at", "timestamp", "when the row last changed"),
    ),
    (),
    "how far `attempt_logs` is: one row per partition, replaced as a whole",
)
REJECTED: Final = Table(
    "rejected",
    (
        Column("day", "date", "UTC day of the append"),
        Column("topic", "string", "topic of the record"),
        Column("partition_id", "int", "its partition"),
        Column("offset", "bigint", "its offset"),
        Column("appended_at", "timestamp", "its append time"),
        Column("reason", "string", "stable code, such as not_json, missing_field, wrong_partition, too_late"),
        Column("detail", "string", "the reason in words"),
        Column("key", "binary", "Kafka key, the first KiB"),
        Column("value", "binary", "Kafka value, the first MiB"),
        Column("value_bytes", "bigint", "full size of the value"),
    ),
    ("day",),
    "one row per refused record",
)
PROGRESS: Final = Table(
    "progress",
    (
        Column("topic", "string", "tasks or outcomes"),
        Column("partition_id", "int", "partition of the topic"),
        Column("next_offset", "bigint", "all records below are in the tables"),
        Column("epoch", "bigint", "outcomes: epoch of the fence that holds at next_offset"),
        Column("nonce", "string", "outcomes: its nonce"),
        Column("resigned", "boolean", "outcomes: its owner stopped cleanly"),
        Column("folded_until", "timestamp", "tasks: earlier due tasks are in `tasks` alone, not in `deferred`"),
        Column("closed_hour", "int", "tasks: in all hours below every task has its completion"),
        Column("open_hours", "array<int>", "tasks: except in these"),
        Column("appended_at", "timestamp", "tasks: append time of the last record below next_offset"),
        Column("updated_at", "timestamp", "when the row last changed"),
    ),
    (),
    "how far the tables are: one row per topic and partition, replaced as a whole",
)
DEPLOYMENT: Final = Table(
    "deployment",
    (
        Column("name", "string", "setting"),
        Column("value", "string", "JSON value"),
    ),
    (),
    "what is fixed for the life of the tables or must be the same for all parts: partition count, topic ids, grace, retention",
)
_PLAN_OFFSET: Final = Column("plan_offset", "bigint", "Kafka offset of the planner's record in `outcomes`")
_TASK: Final = (
    Column("scheduled_time", "timestamp", "of the task, if one was launched, or taken back before it began"),
    Column("ordering_id", "string", "its lane"),
    Column("uniqueness_key", "string", "the rest of its key"),
)
SCHEDULES: Final = Table(
    "schedules",
    (
        Column("name", "string", "of the schedule"),
        Column("revision", "int", "of its definition; null where only its state changed"),
        Column("changed_at", "timestamp", "when"),
        Column("change", "string", "put, paused, resumed, removed"),
        Column("definition", "string", "JSON object, as it was put"),
        Column("handler", "string", "what it runs"),
        Column("paused", "boolean", "it fires nothing"),
        Column("until", "timestamp", "when a pause ends by itself"),
        Column("note", "string", "why, for people"),
        Column("author", "string", "who changed it"),
        _PLAN_OFFSET,
    ),
    (),
    "one row per change of a schedule",
)
JOBS: Final = Table(
    "jobs",
    (
        Column("schedule", "string", "name of the schedule"),
        Column("generation", "int", "number of the round; the newest row of each tells its state"),
        Column(
            "state",
            "string",
            "pending_trigger, pending_constraint, pending_launch, launched, skipped, obsolete, failed, ended; joined: what it had seen is"
            " in an older job, which waits",
        ),
        Column("changed_at", "timestamp", "when it came into that state"),
        Column("revision", "int", "of the definition"),
        Column("planned_at", "timestamp", "the time it is named by"),
        Column("seen", "string", "JSON object: number of a leaf of the trigger → what it has seen"),
        *_TASK,
        Column("outcome", "string", "of its run: succeeded, failed, aborted, cancelled, expired"),
        Column("started_at", "timestamp", "start of the last attempt"),
        Column("finished_at", "timestamp", "end of the run"),
        _PLAN_OFFSET,
    ),
    (),
    "one row per change of a job: a round of a schedule, from its first event to the end of its run",
)
FIRES: Final = Table(
    "fires",
    (
        Column("schedule", "string", "name of the schedule"),
        Column("generation", "int", "of the job; null where there was none"),
        Column("revision", "int", "of the definition that was in force"),
        Column("planned_at", "timestamp", "the time that was decided about"),
        Column(
            "until_at", "timestamp", "the last such time, where one row stands for many that were missed or dropped"
        ),
        Column("decided_at", "timestamp", "when"),
        Column(
            "verdict", "string", "launched, skipped, waiting, missed, obsolete, failed; late, overdue, silent; trouble"
        ),
        Column("why", "string", "the reason, with its values"),
        Column("by_hand", "boolean", "started by hand"),
        Column("values", "string", "JSON object: what triggered it, as templates know it"),
        *_TASK,
        _PLAN_OFFSET,
    ),
    (),
    "one row per decision about a schedule: why something ran, or did not",
)
CALENDARS: Final = Table(
    "calendars",
    (
        Column("name", "string", "of the calendar"),
        Column("day", "date", "on which nothing fires; null: the calendar was emptied"),
        Column("note", "string", "what it is, such as the name of a holiday"),
        Column("changed_at", "timestamp", "rows of the newest change are those that count"),
        _PLAN_OFFSET,
    ),
    (),
    "one row per day and change of a calendar",
)
QUEUES: Final = Table(
    "queues",
    (
        Column("name", "string", "of the queue"),
        Column("revision", "int", "of all queues together; the row of a queue with the greatest is in force"),
        Column("changed_at", "timestamp", "when"),
        Column("deleted", "boolean", "the definition is gone: start values of the settings are in force again"),
        Column("definition", "string", "JSON object, as it was put; null: deleted"),
        Column("mode", "string", "push, pull"),
        Column("concurrency", "int", "most tasks at once; null: no limit"),
        Column("rate", "double", "most starts per second; null: no limit"),
        Column("paused", "boolean", "nothing of it starts"),
        Column("author", "string", "who changed it"),
        Column("request_id", "string", "id of the request that did; empty: it had none"),
        _PLAN_OFFSET,
    ),
    (),
    "one row per change of the definition of a queue",
)
NOTIFICATION_RULES: Final = Table(
    "notification_rules",
    (
        Column("name", "string", "of the rule"),
        Column("revision", "int", "of all rules together; the row of a rule with the greatest is in force"),
        Column("changed_at", "timestamp", "when"),
        Column("deleted", "boolean", "the rule is gone"),
        Column("definition", "string", "JSON object, as it was put; null: deleted"),
        Column("channel", "string", "of the settings, which is told"),
        Column("author", "string", "who changed it"),
        Column("request_id", "string", "id of the request that did; empty: it had none"),
        _PLAN_OFFSET,
    ),
    (),
    "one row per change of a notification rule",
)
TOKENS: Final = Table(
    "tokens",
    (
        Column("id", "string", "of the token, the part between the underscores; its newest row is in force"),
        Column("changed_at", "timestamp", "when"),
        Column("deleted", "boolean", "it is gone"),
        Column("name", "string", "for people; null: deleted"),
        Column("scopes", "string", "JSON list of what it allows"),
        Column("namespaces", "string", "JSON list of beginnings of names of queues; empty: all queues"),
        Column("expires_at", "timestamp", "from when on it is worth nothing; null: never"),
        Column("revoked", "boolean", "it is worth nothing any more"),
        Column("author", "string", "who changed it"),
        Column("request_id", "string", "id of the request that did; empty: it had none"),
        _PLAN_OFFSET,
    ),
    (),
    "one row per change of a token for the HTTP API; secrets and their digests are in no table",
)
AUDIT_TRAIL: Final = Table(
    "audit",
    (
        Column("at", "timestamp", "when it was answered"),
        Column("token", "string", "id of the token; empty: none that holds was shown"),
        Column("name", "string", "of the token"),
        Column("operation", "string", "`operationId` of docs/openapi.json"),
        Column("method", "string", "of the request"),
        Column("path", "string", "of the request, its first 300 characters"),
        Column("status", "int", "of the answer; 0: the caller was gone"),
        Column("client", "string", "network address"),
        _PLAN_OFFSET,
    ),
    (),
    "one row per change over HTTP, and per refused change; changes that leave rows of their own are left out",
)
TABLES: Final = (
    TASKS, DEFERRED, COMPLETIONS, ATTEMPTS, REJECTED, SCHEDULES, JOBS, FIRES, CALENDARS, QUEUES, TOKENS, NOTIFICATION_RULES, AUDIT_TRAIL,
    ATTEMPT_LOGS, LOG_PROGRESS, PROGRESS, DEPLOYMENT,
)  # fmt: skip
TABLES_OF_FIRST_VERSION: Final = (TASKS, DEFERRED, COMPLETIONS, ATTEMPTS, REJECTED, PROGRESS, DEPLOYMENT)
