"""What each operation of the API needs: one table, so that nobody has to look through all routes. What is missing here is refused."""

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
    """What an operation needs.

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
    "say_whether_the_server_lives": Need(None, About.NOTHING),
    "say_whether_the_server_can_work": Need("", About.NOTHING),
    "say_who_asks": Need("", About.NOTHING),
    "make_a_login_code": Need("", About.NOTHING),
    "tell_how_the_deployment_is_doing": _LISTS,
    "describe_the_server": Need("", About.NOTHING),
    "show_the_metrics_of_the_server": Need(READ, About.NOTHING),
    "list_handlers": _LISTS,
    "get_a_handler": _LISTS,
    "put_a_task": Need(TASKS_WRITE, About.PUT_TASK),
    "enqueue_a_task": Need(TASKS_WRITE, About.NEW_TASK),
    "enqueue_many_tasks": Need(TASKS_WRITE),
    "get_a_task": _READS_TASK,
    "list_the_attempts_of_a_task": _READS_TASK,
    "explain_why_a_task_is_not_running": _READS_TASK,
    "read_the_lines_of_a_task": _READS_TASK,
    "list_the_outputs_of_an_attempt": _READS_TASK,
    "read_an_output_of_an_attempt": _READS_TASK,
    "wait_for_the_result_of_a_task": _READS_TASK,
    "cancel_a_task": _WRITES_TASK,
    "move_a_task_to_another_time": _WRITES_TASK,
    "run_a_task_now": _WRITES_TASK,
    "retry_a_task": _WRITES_TASK,
    "list_tasks": _LISTS,
    "count_tasks": _LISTS,
    "count_tasks_by_queue_and_state": _LISTS,
    "cancel_all_tasks_of_a_filter": Need(TASKS_WRITE, About.OWN),
    "retry_all_tasks_of_a_filter": Need(TASKS_WRITE, About.OWN),
    "restore_all_tasks_of_a_filter": Need(TASKS_WRITE, About.OWN),
    "tell_how_late_tasks_started": _LISTS,
    "look_at_a_lane": _LISTS,
    "skip_the_head_of_a_lane": Need(TASKS_WRITE, About.OWN),
    "follow_what_happens_to_tasks": _LISTS,
    "list_refused_records": Need(ADMIN),
    "get_a_refused_record": Need(ADMIN),
    "send_refused_records_again": Need(ADMIN),
    "list_who_changed_what": Need(ADMIN),
    "list_queues": _LISTS,
    "get_a_queue": _READS_QUEUE,
    "count_the_tasks_of_a_queue": _READS_QUEUE,
    "tell_what_waits_in_a_queue": _READS_QUEUE,
    "tell_what_would_have_been_under_other_limits": _READS,
    "put_a_queue": _WRITES_QUEUE,
    "change_fields_of_a_queue": _WRITES_QUEUE,
    "pause_a_queue": _WRITES_QUEUE,
    "resume_a_queue": _WRITES_QUEUE,
    "delete_a_queue": _WRITES_QUEUE,
    "clear_a_queue": Need(TASKS_WRITE, About.PATH_QUEUE),
    "list_schedules": _LISTS,
    "list_schedules_as_they_were": _LISTS,
    "get_a_schedule": _READS_SCHEDULE,
    "list_the_next_times_of_a_schedule": _READS_SCHEDULE,
    "list_the_last_times_of_a_schedule": _READS_SCHEDULE,
    "explain_why_a_schedule_ran_or_did_not": _READS_SCHEDULE,
    "list_the_decisions_about_a_schedule": _READS_SCHEDULE,
    "list_the_backfills_of_a_schedule": _READS_SCHEDULE,
    "list_the_decisions_about_all_schedules": _LISTS,
    "list_calendars": _READS,
    "get_a_calendar": _READS,
    "put_a_schedule": _SCHEDULES,
    "change_fields_of_a_schedule": _SCHEDULES,
    "delete_a_schedule": _STEERS_SCHEDULE,
    "store_a_set_of_schedules": _SCHEDULES,
    "pause_schedules": Need(SCHEDULES_WRITE, About.OWN),
    "resume_schedules": Need(SCHEDULES_WRITE, About.OWN),
    "delete_schedules": Need(SCHEDULES_WRITE, About.OWN),
    "pause_a_schedule": _STEERS_SCHEDULE,
    "resume_a_schedule": _STEERS_SCHEDULE,
    "run_a_schedule_now": _STEERS_SCHEDULE,
    "run_past_times_of_a_schedule": _STEERS_SCHEDULE,
    "pause_a_backfill": _STEERS_SCHEDULE,
    "resume_a_backfill": _STEERS_SCHEDULE,
    "cancel_a_backfill": _STEERS_SCHEDULE,
    "put_a_calendar": _SCHEDULES,
    "tell_of_an_event": _SCHEDULES,
    "tell_of_new_partitions": _SCHEDULES,
    "list_notification_rules": _READS,
    "get_a_notification_rule": _READS,
    "put_a_notification_rule": Need(ADMIN),
    "delete_a_notification_rule": Need(ADMIN),
    "test_a_notification_rule": Need(ADMIN),
    "sync_a_worker": Need(LEASE, About.WANTS),
    "leave_as_a_worker": _ENDS_LEASES,
    "lease_from_a_queue": Need(LEASE, About.PATH_QUEUE),
    "lease_a_task": Need(LEASE, About.PATH_TASK),
    "extend_leases": _ENDS_LEASES,
    "complete_leases": _ENDS_LEASES,
    "fail_leases": _ENDS_LEASES,
    "abort_leases": _ENDS_LEASES,
    "yield_leases": _ENDS_LEASES,
    "store_an_output_of_a_lease": _ENDS_LEASES,
    "tell_lines_of_a_lease": _ENDS_LEASES,
    "list_workers": _READS,
    "drain_a_worker": Need(QUEUES_WRITE),
    "stop_a_worker": Need(QUEUES_WRITE),
    "list_spark_workers": _READS,
    "drain_a_spark_worker": Need(QUEUES_WRITE),
    "list_partitions": _READS,
    "list_tables": _READS,
    "list_commits_of_tables": _READS,
    "list_tokens": Need(ADMIN),
    "create_a_token": Need(ADMIN),
    "revoke_a_token": Need(ADMIN),
}
UNSAID: Final = Need(ADMIN)
"""Of an operation that the table does not know."""
NOT_AUDITED: Final = frozenset({"sync_a_worker", "extend_leases", "tell_lines_of_a_lease"})
"""Signs of life: they come every few seconds, and what they end is recorded with the name of the worker."""
NOT_IN_TABLE: Final = NOT_AUDITED | {
    "put_a_task", "enqueue_a_task", "enqueue_many_tasks", "tell_of_an_event", "tell_of_new_partitions", "leave_as_a_worker",
    "lease_from_a_queue", "lease_a_task", "complete_leases", "fail_leases", "abort_leases", "yield_leases", "store_an_output_of_a_lease",
    "tell_what_would_have_been_under_other_limits",
}  # fmt: skip
"""What comes all the time, and leaves rows of its own: the log has who did it, the table `audit` only who may not."""
