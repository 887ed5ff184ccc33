"""A task scheduler for people who live on Spark and a lakehouse; see `Scheduler`, `handler` and the README.

Importing this package starts nothing and loads neither pyspark nor Kafka: names are imported when first used.
"""

TYPE_CHECKING = False  # as in typing; importing that takes most of the time before the command line begins
if TYPE_CHECKING:
    from typing import Any, Final

    from scylla_spark.client.async_scheduler import AsyncScheduler
    from scylla_spark.client.schedules.schedule import Constraint, Schedule, Trigger
    from scylla_spark.client.tasks.enqueue_result import EnqueueResult
    from scylla_spark.client.tasks.handle import TaskHandle
    from scylla_spark.config.settings import Settings
    from scylla_spark.core.tasks.key import TaskKey
    from scylla_spark.core.tasks.task import Retry, Task, TaskContext
    from scylla_spark.definitions.notification_rule import NotificationRule
    from scylla_spark.definitions.queue import Queue
    from scylla_spark.errors import Abort, RateLimited, SchedulerError, TaskFailed, Yield
    from scylla_spark.handlers.registry import handler
    from scylla_spark.handlers.shared_resources import setup
    from scylla_spark.processes.scheduler import Scheduler
    from scylla_spark.worker.worker import Worker

__version__ = "0.1.0"

_HOMES: "Final" = {
    "AsyncScheduler": "client.async_scheduler",
    "Scheduler": "processes.scheduler",
    "Schedule": "client.schedules.schedule",
    "Trigger": "client.schedules.schedule",
    "Constraint": "client.schedules.schedule",
    "NotificationRule": "definitions.notification_rule",
    "Queue": "definitions.queue",
    "Settings": "config.settings",
    "Task": "core.tasks.task",
    "TaskContext": "core.tasks.task",
    "Retry": "core.tasks.task",
    "TaskKey": "core.tasks.key",
    "TaskHandle": "client.tasks.handle",
    "EnqueueResult": "client.tasks.enqueue_result",
    "handler": "handlers.registry",
    "setup": "handlers.shared_resources",
    "Abort": "errors",
    "Yield": "errors",
    "RateLimited": "errors",
    "TaskFailed": "errors",
    "SchedulerError": "errors",
    "Worker": "worker.worker",
}

__all__ = [
    "Abort",
    "AsyncScheduler",
    "Constraint",
    "EnqueueResult",
    "NotificationRule",
    "Queue",
    "RateLimited",
    "Retry",
    "Schedule",
    "Scheduler",
    "SchedulerError",
    "Settings",
    "Task",
    "TaskContext",
    "TaskFailed",
    "TaskHandle",
    "TaskKey",
    "Trigger",
    "Worker",
    "Yield",
    "handler",
    "setup",
]


def __getattr__(name: str) -> "Any":
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
