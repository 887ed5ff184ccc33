"""What passes in a test passes in production: the same calls, in a world and in a deployment, end alike; and lists tell of them."""

from __future__ import annotations

from typing import Any, NamedTuple

from scylla_spark import Queue, Retry, Schedule, TaskKey, Trigger
from scylla_spark.core.tasks.status import TaskStatus
from scylla_spark.testing import world
from tests.acceptance import journal_handlers
from tests.acceptance.place import PATIENCE
from tests.support.waiting import eventually

SOON = Retry(2, base="100ms", cap="200ms")
NEVER = Retry(0)


class End(NamedTuple):
    """How a task has ended."""

    state: str
    attempts: list[tuple[int, str]]
    result: Any
    error: tuple[str, str] | None


def story(face: Any) -> dict[str, Any]:
    """Enqueues tasks of all characters; name → handle."""
    face.put_queue(Queue(name="agrees.strict", on_exception="fail"))
    face.put_queue(Queue(name="agrees.again", on_false="redeliver", lease="1s"))
    face.put_queue(Queue(name="agrees.replay", order="replay"))
    face.put_schedules(Schedule("agrees", "errand", Trigger.event("agrees.go"), payload={"mark": "{{ event.mark }}"}))
    face.emit("agrees.go", {"mark": "told"})
    made = {
        "quick": face.enqueue("work", {"mark": "quick"}),
        "twice": face.enqueue("work", {"failures": 1}, retry=SOON),
        "worn out": face.enqueue("work", {"failures": 9}, retry=SOON),
        "strict": face.enqueue("work", {"failures": 1}, queue="agrees.strict", retry=SOON),
        "again": face.enqueue("says", {"says": [False, False, "enough"]}, queue="agrees.again"),
        "base exception": face.enqueue("misbehave", {"how": "raise BaseException"}, retry=NEVER),
        "object": face.enqueue("misbehave", {"how": "return an object"}, retry=NEVER),
        "lane 1": face.enqueue("work", {"failures": 1}, queue="agrees.replay", ordering_id="agrees-lane", retry=SOON),
        "lane 2": face.enqueue("work", {"mark": "second"}, queue="agrees.replay", ordering_id="agrees-lane"),
        "cancelled": face.enqueue("work", delay="1h"),
    }
    assert made["cancelled"].cancel() == "cancelled"
    return made


def end_of(status: TaskStatus) -> End:
    error = (status.error.kind, status.error.message) if status.error is not None else None
    return End(status.state, [(one.number, one.outcome) for one in status.attempt_details], status.result, error)


def test_a_world_and_a_deployment_agree_on_how_tasks_end(scheduler, monkeypatch, tmp_path):
    monkeypatch.setenv(journal_handlers.JOURNAL, str(tmp_path / "journal"))
    with world([journal_handlers]) as w:
        there = story(w)
        w.run_until_idle()
        expected = {name: end_of(task.status()) for name, task in there.items()}
        assert [run.result for run in w.runs if run.handler == "errand"] == [{"mark": "told"}]
    handles = story(scheduler)
    eventually(lambda: not any(one.status().open for one in handles.values()), PATIENCE, "all have ended")
    assert {name: end_of(handle.status()) for name, handle in handles.items()} == expected
    assert {end.state for end in expected.values()} == {"succeeded", "failed", "cancelled"}

    eventually(
        lambda: scheduler.list_tasks("handler:errand state:succeeded queue:default").num_rows,
        PATIENCE,
        "the schedule has run",
    )
    ours = {handle.key: name for name, handle in handles.items()}

    def listed() -> dict[str, str] | None:
        rows = [row for row in scheduler.list_tasks("state:ended").to_pylist() if key_of(row) in ours]
        return {ours[key_of(row)]: row["state"] for row in rows} if len(rows) == len(ours) else None

    states = eventually(listed, PATIENCE, "the tables have all")
    assert states == {name: end.state for name, end in expected.items()}
    attempts: dict[str, list[tuple[int, str]]] = {name: [] for name in ours.values()}
    for row in scheduler.list_attempts().to_pylist():
        if key_of(row) in ours:
            attempts[ours[key_of(row)]].append((row["attempt"], row["outcome"]))
    assert attempts == {name: end.attempts for name, end in expected.items()}


def key_of(row: dict[str, Any]) -> TaskKey:
    return TaskKey.of(row["scheduled_time"], row["ordering_id"], row["uniqueness_key"])
