"""The scope that each operation needs, in one table. An operation that is missing here needs the scope `admin`."""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from scylla_spark.core.access.scopes import ADMIN, LEASE, QUEUES_WRITE, READ, SCHEDULES_WRITE, TASKS_WRITE


class About(Enum):
    """Of which queues an operation is, and so how a request is compared with scopes of one queue and with namespaces."""

    NOTHING = "of none"
    ALL = "of all"
    OWN = "of all that the caller may see: the route leaves out what is in other queues, by `context.Own`"
    PATH_QUEUE = "of the queue in the path"
    PATH_TASK = "of the queue of the task in the path"
    PATH_SCHEDULE = "of the queue into which the schedule in the path sends"
    PUT_TASK = "of the queue in the body, and of the queue that the task has now"
    NEW_TASK = "of the queue in the body; the key may be that of a task that exists"
    WANTS = "of all queues in `want`"
    LEASES = "of leases, whose tokens are proof enough"


class Need(NamedTuple):
    """The requirements of an operation.

    Attributes:
        scope: that a token must have; empty: any token will do; None: not even that is needed.
        about: which queues it is about.
    """

    scope: str | None
    about: About = About.ALL


_READS_TASK: Final = Need(READ, About.PATH_TASK)
_WRITES_TASK: Final = Need(TASKS_WRITE, About.PATH_TASK)
_READS_QUEUE: Final = Need(READ, About.PATH_QUEUE)
_WRITES_QUEUE: Final = Need(QUEUES_WRITE, About.PATH_QUEUE)
_ENDS_LEASES: Final = Need(LEASE, About.LEASES)
_READS: Final = Need(READ)
_LISTS: Final = Need(READ, About.OWN)
_READS_SCHEDULE: Final = Need(READ, About.PATH_SCHEDULE)
_STEERS_SCHEDULE: Final = Need(SCHEDULES_WRITE, About.PATH_SCHEDULE)
_SCHEDULES: Final = Need(SCHEDULES_WRITE)

NEEDS: Final[dict[str, Need]] = {
    "check_liveness": Need(None, About.NOTHING),
    "check_readiness": Need("", About.NOTHING),
    "whoami": Need("", About.NOTHING),
    "create_login_code": Need("", About.NOTHING),
    "get_overview": _LISTS,
    "get_openapi": Need("", About.NOTHING),
    "get_metrics": Need(READ, About.NOTHING),
    "list_handlers": _LISTS,
    "get_handler": _LISTS,
    "put_task": Need(TASKS_WRITE, About.PUT_TASK),
    "enqueue_task": Need(TASKS_WRITE, About.NEW_TASK),
    "enqueue_tasks": Need(TASKS_WRITE),
    "get_task": _READS_TASK,
    "list_attempts": _READS_TASK,
    "explain_task": _READS_TASK,
    "get_task_logs": _READS_TASK,
    "list_outputs": _READS_TASK,
    "get_output": _READS_TASK,
    "get_task_result": _READS_TASK,
    "cancel_task": _WRITES_TASK,
    "reschedule_task": _WRITES_TASK,
    "run_task": _WRITES_TASK,
    "retry_task": _WRITES_TASK,
    "list_tasks": _LISTS,
    "count_tasks": _LISTS,
    "get_task_totals": _LISTS,
    "cancel_tasks": Need(TASKS_WRITE, About.OWN),
    "retry_tasks": Need(TASKS_WRITE, About.OWN),
    "restore_tasks": Need(TASKS_WRITE, About.OWN),
    "get_lateness": _LISTS,
    "get_lane": _LISTS,
    "skip_lane_head": Need(TASKS_WRITE, About.OWN),
    "stream_events": _LISTS,
    "list_rejected_records": Need(ADMIN),
    "get_rejected_record": Need(ADMIN),
    "replay_rejected_records": Need(ADMIN),
    "list_audit_log": Need(ADMIN),
    "list_queues": _LISTS,
    "get_queue": _READS_QUEUE,
    "get_queue_stats": _READS_QUEUE,
    "get_queue_scale": _READS_QUEUE,
    "simulate_queue": _READS,
    "put_queue": _WRITES_QUEUE,
    "update_queue": _WRITES_QUEUE,
    "pause_queue": _WRITES_QUEUE,
    "resume_queue": _WRITES_QUEUE,
    "delete_queue": _WRITES_QUEUE,
    "clear_queue": Need(TASKS_WRITE, About.PATH_QUEUE),
    "list_schedules": _LISTS,
    "list_past_schedules": _LISTS,
    "get_schedule": _READS_SCHEDULE,
    "list_next_times": _READS_SCHEDULE,
    "list_previous_times": _READS_SCHEDULE,
    "explain_schedule": _READS_SCHEDULE,
    "list_schedule_fires": _READS_SCHEDULE,
    "list_backfills": _READS_SCHEDULE,
    "list_fires": _LISTS,
    "list_calendars": _READS,
    "get_calendar": _READS,
    "put_schedule": _SCHEDULES,
    "update_schedule": _SCHEDULES,
    "delete_schedule": _STEERS_SCHEDULE,
    "apply_schedules": _SCHEDULES,
    "pause_schedules": Need(SCHEDULES_WRITE, About.OWN),
    "resume_schedules": Need(SCHEDULES_WRITE, About.OWN),
    "delete_schedules": Need(SCHEDULES_WRITE, About.OWN),
    "pause_schedule": _STEERS_SCHEDULE,
    "resume_schedule": _STEERS_SCHEDULE,
    "run_schedule": _STEERS_SCHEDULE,
    "backfill_schedule": _STEERS_SCHEDULE,
    "pause_backfill": _STEERS_SCHEDULE,
    "resume_backfill": _STEERS_SCHEDULE,
    "cancel_backfill": _STEERS_SCHEDULE,
    "put_calendar": _SCHEDULES,
    "emit_event": _SCHEDULES,
    "report_partitions": _SCHEDULES,
    "list_notification_rules": _READS,
    "get_notification_rule": _READS,
    "put_notification_rule": Need(ADMIN),
    "delete_notification_rule": Need(ADMIN),
    "test_notification_rule": Need(ADMIN),
    "sync_worker": Need(LEASE, About.WANTS),
    "end_worker_session": _ENDS_LEASES,
    "lease_tasks": Need(LEASE, About.PATH_QUEUE),
    "lease_task": Need(LEASE, About.PATH_TASK),
    "extend_leases": _ENDS_LEASES,
    "complete_leases": _ENDS_LEASES,
    "fail_leases": _ENDS_LEASES,
    "abort_leases": _ENDS_LEASES,
    "yield_leases": _ENDS_LEASES,
    "put_output": _ENDS_LEASES,
    "send_logs": _ENDS_LEASES,
    "list_workers": _READS,
    "drain_worker": Need(QUEUES_WRITE),
    "stop_worker": Need(QUEUES_WRITE),
    "list_spark_workers": _READS,
    "drain_spark_worker": Need(QUEUES_WRITE),
    "list_partitions": _READS,
    "list_tables": _READS,
    "list_commits": _READS,
    "list_tokens": Need(ADMIN),
    "create_token": Need(ADMIN),
    "revoke_token": Need(ADMIN),
}
UNDECLARED: Final = Need(ADMIN)
"""Of an operation that the table does not know."""
NOT_AUDITED: Final = frozenset({"sync_worker", "extend_leases", "send_logs"})
"""Signs of life: they come every few seconds, and what they end is recorded with the name of the worker."""
NOT_IN_TABLE: Final = NOT_AUDITED | {
    "put_task",
    "enqueue_task",
    "enqueue_tasks",
    "emit_event",
    "report_partitions",
    "end_worker_session",
    "lease_tasks",
    "lease_task",
    "complete_leases",
    "fail_leases",
    "abort_leases",
    "yield_leases",
    "put_output",
    "simulate_queue",
}
"""Frequent operations with rows of their own. The log has all of them, the table `audit` only refused ones."""
