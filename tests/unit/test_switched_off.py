"""What an executor that is off does with tasks: it fails each of them, at once, with words that say what to set."""

from scylla_spark.core.key import TaskKey
from scylla_spark.core.task import FAILED, Invocation
from scylla_spark.executors import catalog
from scylla_spark.executors.switched_off import SwitchedOff


def invocation(number):
    return Invocation(number, TaskKey(1, "lane", str(number)), 1, 1, "mail", "default", None, 0, 1, 1_000, 0)


def test_every_task_fails_at_once_and_is_told_what_to_set():
    reported = []
    off = SwitchedOff("spark", catalog.turned_on_by("spark"))
    off.start(reported.extend)
    assert off.room() > 0, "tasks fail; they do not wait"
    off.submit([invocation(1), invocation(2)])
    assert [(one.id, one.outcome, one.failure.kind) for one in reported] == [
        (1, FAILED, "handler_unknown"),
        (2, FAILED, "handler_unknown"),
    ]
    assert reported[0].failure.message == (
        "Handler 'mail' runs on 'spark', which is off here: "
        'set dispatch.spark_slots to 1 or more for the dispatchers (with dispatch.scan = "spark").'
    )
    assert all(one.started_us == one.finished_us > 0 for one in reported)


def test_every_executor_says_what_turns_it_on():
    assert all(catalog.turned_on_by(name) for name in catalog.EXECUTORS)
