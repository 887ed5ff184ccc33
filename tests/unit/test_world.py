"""The world of a test: tasks, retries, queues, cancels and leases on virtual time, by the engine that dispatches."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from scylla_spark import Abort, Queue, RateLimited, Retry, Schedule, Settings, TaskFailed, Trigger, Yield, handler
from scylla_spark.errors import ArgumentError, ConflictError, NotFoundError, WaitTimeoutError
from scylla_spark.testing import call, world
from tests.support import sample_handlers
from tests.support.effort import python_calls

START = datetime(2026, 3, 1, 9, tzinfo=UTC)


def remind(task, ctx):
    """Fails as often as its payload says."""
    if ctx.attempt <= task.payload.get("fails", 0):
        raise ValueError(f"attempt {ctx.attempt} of {task.payload['fails'] + 1}")
    return {"attempt": ctx.attempt}


def give_up(task):
    raise Abort("no address")


def wait(task, ctx):
    if ctx.attempt == 1:
        raise Yield("10m")


def refuse(task):
    return False


def noted(task):
    return task.payload


def spawn(task, ctx):
    """Enqueues another task and emits an event; fails as often as its payload says, after it has asked."""
    ctx.enqueue("noted", {"of": ctx.attempt}, name="child", delay="5m")
    ctx.emit("spawned", {"attempt": ctx.attempt})
    if ctx.attempt <= task.payload.get("fails", 0):
        raise ValueError("after it has asked")


def spawn_wrongly(task, ctx):
    ctx.emit("spawned", {"deep": json.loads("[" * 60 + "]" * 60)})


def leave_behind(task, ctx):
    ctx.checkpoint({"row": ctx.attempt})
    if ctx.attempt == 1:
        raise ValueError("once")
    return ctx.checkpointed


def last_error(task, ctx):
    if ctx.attempt < 3:
        raise ValueError(f"in attempt {ctx.attempt}, after {ctx.last_error}")
    return ctx.last_error


def at(w):
    return w.now - START


@handler("of_spark", runs_on="connect")
def of_spark(task, ctx):
    return ctx.spark


def test_a_task_runs_when_its_time_has_come_and_not_before():
    with world([remind], START) as w:
        task = w.enqueue("remind", {"email": "a@example.org"}, delay="1h")
        w.advance("59m59s")
        assert not w.ran("remind")
        assert w.task(task.key).state == "scheduled"
        w.advance("1s")
        assert w.ran("remind", times=1)
        assert w.task(task.key).state == "succeeded"
        assert task.result() == {"attempt": 1}
        assert [(run.started_at, run.payload, run.attempt) for run in w.runs] == [
            (START + timedelta(hours=1), {"email": "a@example.org"}, 1)
        ]


def test_times_are_exact_to_the_microsecond():
    with world([noted], START) as w:
        times = [START + timedelta(microseconds=us) for us in (1, 3, 400, 1_300)]
        for time in times:
            w.enqueue("noted", at=time)
        w.advance("1s")
        assert [run.started_at for run in w.runs] == times


def test_nothing_runs_before_time_is_let_pass():
    with world([remind], START) as w:
        task = w.enqueue("remind")
        assert not w.ran("remind")
        assert task.status().state == "ready"
        w.advance()
        assert w.ran("remind")
        assert w.now == START


def test_a_failed_task_is_tried_again_after_waits_that_double():
    with world([remind], START) as w:
        task = w.enqueue("remind", {"fails": 3}, retry=Retry(5, base="1m", cap="10m"))
        w.advance()
        assert w.task(task.key).state == "retry_wait"
        assert w.task(task.key).error.message == "attempt 1 of 4"
        w.run_until_idle()
        starts = [run.started_at for run in w.runs]
        waits = [later - earlier for earlier, later in pairwise(starts)]
        assert [run.outcome for run in w.runs] == ["failed"] * 3 + ["succeeded"]
        for wait, longest in zip(waits, (1, 2, 4), strict=True):
            assert timedelta(minutes=longest) / 2 <= wait <= timedelta(minutes=longest)
        assert w.task(task.key).attempts == 4


def test_a_task_whose_retries_are_used_up_has_failed_with_its_last_error():
    with world([remind], START) as w:
        task = w.enqueue("remind", {"fails": 99}, retry=Retry(2, base="1s"))
        w.run_until_idle()
        found = w.task(task.key)
        assert (found.state, found.attempts, found.error.kind) == ("failed", 3, "ValueError")
        assert "raise ValueError" in found.error.stack
        with pytest.raises(TaskFailed, match=r"failed in attempt 3 \(ValueError: attempt 3"):
            task.result()


def test_abort_and_yield_mean_what_they_mean_in_production():
    with world([give_up, wait], START) as w:
        aborted, yielded = w.enqueue("give_up"), w.enqueue("wait")
        w.run_until_idle()
        assert w.task(aborted.key).state == "aborted"
        assert w.task(yielded.key).state == "succeeded"
        assert [run.outcome for run in w.runs] == ["aborted", "yielded", "succeeded"]
        assert at(w) == timedelta(minutes=10)


def test_tasks_of_a_lane_run_one_at_a_time_in_the_order_of_their_keys():
    with world([noted], START) as w:
        w.takes("noted", "5m")
        for number in (2, 0, 1):
            w.enqueue("noted", {"n": number}, ordering_id="a", delay=f"{number}m")
        w.enqueue("noted", {"n": 3}, ordering_id="b")
        w.run_until_idle()
        assert [(run.payload["n"], (run.started_at - START) // timedelta(minutes=1)) for run in w.runs] == [
            (0, 0), (3, 0), (1, 5), (2, 10),
        ]  # fmt: skip


def test_a_key_runs_once_and_the_last_data_before_its_run_count():
    with world([noted], START) as w:
        options = {"ordering_id": "a", "uniqueness_key": "1", "at": START + timedelta(hours=1)}
        w.enqueue("noted", {"n": 1}, **options)
        w.enqueue("noted", {"n": 2}, **options)
        w.advance("2h")
        assert [run.payload for run in w.runs] == [{"n": 2}]


def test_an_ended_key_never_runs_again():
    with world([noted], START) as w:
        options = {"ordering_id": "a", "uniqueness_key": "1", "at": START}
        w.enqueue("noted", **options)
        w.advance("5s")
        w.enqueue("noted", **options)
        w.advance("1h")
        assert w.ran("noted", times=1)


def test_a_cancelled_task_does_not_run_and_an_ended_one_cannot_be_cancelled():
    with world([noted], START) as w:
        task = w.enqueue("noted", delay="1h")
        assert task.cancel() == "cancelled"
        w.advance("2h")
        assert not w.ran("noted")
        assert w.task(task.key).state == "cancelled"
        ended = w.enqueue("noted")
        w.advance()
        assert w.cancel(ended.key) == "too_late"


def test_a_task_that_runs_cannot_be_cancelled_any_more():
    with world([noted], START) as w:
        w.takes("noted", "10m")
        task = w.enqueue("noted", timeout="1h")
        w.advance("5m")
        assert w.task(task.key).state == "running"
        assert task.cancel() == "too_late"
        w.advance("5m")
        assert w.task(task.key).state == "succeeded"


def test_a_call_that_would_take_longer_than_its_timeout_is_not_made_and_has_timed_out():
    with world([noted], START) as w:
        w.takes("noted", "10m")
        task = w.enqueue("noted", timeout="1m", retry=Retry(0))
        w.advance("10m")
        assert w.task(task.key).error.message == "It had not ended after 60 s and was killed."
        assert [(run.outcome, run.finished_at - START) for run in w.runs] == [("timed_out", timedelta(minutes=1))]


def test_a_queue_keeps_its_limits_and_starts_nothing_while_it_is_paused():
    with world([noted], START) as w:
        assert w.put_queue(Queue(name="mail", concurrency=2)) == "added"
        w.takes("noted", "1m")
        for _ in range(6):
            w.enqueue("noted", queue="mail")
        w.advance()
        assert w.put_queue(Queue(name="mail", concurrency=2, paused=True)) == "changed"
        w.advance("1h")
        assert len(w.runs) == 2
        w.queue("mail").resume()
        w.run_until_idle()
        assert at(w) == timedelta(minutes=62)
        assert len(w.runs) == 6


def test_a_rate_spreads_starts():
    with world([noted], START) as w:
        w.put_queue(Queue(name="mail", rate=1))
        for _ in range(10):
            w.enqueue("noted", queue="mail")
        w.run_until_idle()
        assert timedelta(seconds=8) <= at(w) <= timedelta(seconds=11)


def test_what_a_queue_says_of_exceptions_and_of_false_holds():
    with world([remind, refuse], START) as w:
        w.put_queue(Queue(name="strict", on_exception="fail"))
        w.put_queue(Queue(name="again", on_false="redeliver", lease="30s"))
        failed, refused = w.enqueue("remind", {"fails": 1}, queue="strict"), w.enqueue("refuse", queue="again")
        w.advance("1m")
        assert w.task(failed.key).state == "failed"
        assert w.task(refused.key).attempts == 3


def test_what_a_queue_says_of_exceptions_and_of_false_holds_for_workers():
    with world([noted], START) as w:
        w.put_queue(Queue(name="pull", mode="pull", on_exception="fail", on_false="redeliver", lease="30s"))
        failed, refused = w.enqueue("x", queue="pull"), w.enqueue("y", queue="pull")
        for lease in w.lease("pull", 2):
            if lease.task.key == failed.key:
                lease.fail("bad_input")
            else:
                lease.complete(False)
        assert w.task(failed.key).state == "failed"
        assert w.task(refused.key).state == "retry_wait"
        w.advance("31s")
        assert [lease.task.key for lease in w.lease("pull", 2)] == [refused.key]


def test_run_until_idle_ends_where_only_somebody_else_can_go_on():
    with world([noted], START) as w:
        w.put_queue(Queue(name="mail", paused=True))
        w.enqueue("noted", queue="mail")
        w.run_until_idle()
        assert not w.ran("noted")


def test_run_until_idle_says_what_is_left_when_its_time_is_over():
    with world([remind], START) as w:
        w.enqueue("remind", delay="8d")
        with pytest.raises(WaitTimeoutError, match="1 tasks have not ended within 7d, such as 2026-03-09T09:00:00Z,"):
            w.run_until_idle()
        w.run_until_idle("30d")
        assert w.ran("remind")


def test_a_batch_handler_gets_consecutive_tasks_in_one_call():
    from tests.support import sample_batch_handlers  # pandas takes long to import, and no other test here needs it

    with world([sample_batch_handlers], START) as w:
        for number in range(25):
            w.enqueue("batch_arrow", {"n": number}, ordering_id="a")
        w.takes("batch_arrow", "1m")
        w.run_until_idle()
        assert {one.state for one in w.tasks("batch_arrow")} == {"succeeded"}
        assert at(w) < timedelta(minutes=5)


def test_a_task_of_a_pull_queue_is_leased_and_reported():
    with world([], START) as w:
        w.put_queue(Queue(name="gpu", mode="pull", lease="1m"))
        first, second = (w.enqueue("render", {"frame": n}, queue="gpu") for n in (1, 2))
        leases = w.lease("gpu", 5)
        assert [lease.task.payload for lease in leases] == [{"frame": 1}, {"frame": 2}]
        with leases[0] as lease:
            lease.complete({"bytes": 3})
        assert w.task(first.key).result == {"bytes": 3}
        w.advance("50s")
        leases[1].progress(0.5)
        w.advance("50s")
        assert w.task(second.key).state == "running"
        w.advance("11s")
        assert w.task(second.key).state in ("ready", "retry_wait")
        w.run_until_idle()
        (again,) = w.lease("gpu")
        assert again.attempt == 2
        assert not leases[1].lost.is_set()
        leases[1].complete()
        assert leases[1].status == "lease_lost"


def test_asking_for_something_calls_no_handler():
    with world([noted], START) as w:
        w.put_queue(Queue(name="gpu", mode="pull"))
        w.enqueue("noted")
        assert w.lease("gpu") == []
        assert not w.ran("noted")


def test_what_waits_for_a_worker_runs_when_its_queue_gets_a_handler():
    with world([noted], START) as w:
        w.put_queue(Queue(name="gpu", mode="push"))
        task = w.enqueue(None, {"n": 1}, queue="gpu")
        w.run_until_idle()
        assert w.task(task.key).state == "ready"
        w.put_queue(Queue(name="gpu", default_handler="noted"))
        w.advance()
        assert task.result() == {"n": 1}


def test_in_replay_order_nothing_overtakes_a_task_that_has_failed():
    with world([remind], START) as w:
        w.put_queue(Queue(name="fast", order="replay"))
        keys = [w.enqueue("remind", {"fails": n == 1}, queue="fast", ordering_id="a").key for n in range(4)]
        w.run_until_idle()
        assert [(keys.index(run.key), run.attempt) for run in w.runs] == [(0, 1), (1, 1), (1, 2), (2, 1), (3, 1)]


def test_a_handler_may_enqueue_what_follows_it():
    def chain(task):
        if task.payload["left"]:
            w.enqueue("chain", {"left": task.payload["left"] - 1}, delay="1m")

    with world([chain], START) as w:
        w.enqueue("chain", {"left": 3})
        w.run_until_idle()
        assert w.ran("chain", times=4)
        assert at(w) == timedelta(minutes=3)


@pytest.mark.slow
def test_what_starts_itself_without_a_pause_ends_with_an_error_that_names_it():
    def endless(task):
        w.enqueue("endless")

    with world([endless], START) as w:
        w.enqueue("endless")
        with pytest.raises(
            ConflictError, match="does not come to rest at 2026-03-01T09:00:00Z; 'endless' was called last"
        ):
            w.advance("1h")


def test_a_handler_cannot_let_time_pass():
    def travel(task):
        w.advance("1h")

    with world([travel], START) as w:
        task = w.enqueue("travel", retry=Retry(0))
        w.advance()
        assert w.task(task.key).error.kind == "ConflictError"
        assert "Only the test itself" in w.task(task.key).error.message


def test_an_interrupt_ends_the_test_and_not_the_attempt():
    def interrupted(task):
        raise KeyboardInterrupt

    with world([interrupted], START) as w:
        w.enqueue("interrupted")
        with pytest.raises(KeyboardInterrupt):
            w.advance()


def test_an_unknown_handler_is_refused_and_the_nearest_is_named():
    with world([remind], START) as w:
        with pytest.raises(NotFoundError, match=r"no handler 'remnid'\. Did you mean 'remind'"):
            w.enqueue("remnid")
        with pytest.raises(NotFoundError, match="Its handlers: remind"):
            w.ran("something else")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"at": datetime(2026, 3, 1)}, "no time zone"),  # noqa: DTZ001
        ({"at": START, "delay": "1h"}, "Both `at` and `delay`"),
        ({"at": START - timedelta(minutes=1)}, "before the enqueueing"),
        ({"delay": "soon"}, "not a duration"),
        ({"payload": {"x": float("nan")}}, "payload"),
        ({"payload": {"x": "a" * 300_000}}, "262144 bytes"),
        ({"priority": 256}, "priority"),
        ({"queue": "no such queue!"}, "queue"),
        ({"retry": 3}, "Retry"),
        ({"ordering_id": ""}, "ordering_id"),
    ],
)
def test_what_a_deployment_would_refuse_is_refused_here(options, said):
    with world([remind], START) as w, pytest.raises(ArgumentError, match=said):
        w.enqueue("remind", **options)


def test_time_has_a_zone_and_only_goes_forward():
    with pytest.raises(ArgumentError, match="no time zone"):
        world([remind], datetime(2026, 1, 1)).__enter__()  # noqa: DTZ001
    with world([remind], START) as w:
        with pytest.raises(ArgumentError, match="2026-03-01T08:59:00Z is over"):
            w.advance_to(START - timedelta(minutes=1))
        with pytest.raises(ArgumentError, match="out of range"):
            w.advance(-1)
        w.advance_to(START + timedelta(days=1))
        assert at(w) == timedelta(days=1)


def test_handlers_are_modules_their_names_and_functions_and_nothing_else():
    name = sample_handlers.__name__
    with world([name, remind], START) as w, world([sample_handlers], START) as other:
        w.enqueue("echo")
        w.enqueue("remind")
        other.enqueue("echo")
        with pytest.raises(NotFoundError):
            other.enqueue("remind")
    with pytest.raises(ArgumentError, match="datetime has no handlers"):
        world(["datetime"]).__enter__()
    with pytest.raises(ArgumentError, match="Pass a list"):
        world(name).__enter__()
    with pytest.raises(ArgumentError, match="42 is no handler"):
        world([42]).__enter__()


def test_settings_are_the_defaults_unless_they_are_given(monkeypatch):
    monkeypatch.setenv("SCYLLASPARK_DISPATCH__MAX_RETRIES", "0")
    with world([remind], START) as w:
        task = w.enqueue("remind", {"fails": 1})
        w.run_until_idle()
        assert w.task(task.key).state == "succeeded"
    with world([remind], START, settings=Settings.load()) as w:
        task = w.enqueue("remind", {"fails": 1})
        w.run_until_idle()
        assert w.task(task.key).state == "failed"


def test_call_runs_one_handler_as_a_child_would():
    assert call(remind, {"fails": 2}, attempt=3).result == {"attempt": 3}
    failed = call(remind, {"fails": 2}, attempt=2)
    assert (failed.outcome, failed.error.kind, failed.error.message) == ("failed", "ValueError", "attempt 2 of 3")
    assert call(give_up).outcome == "aborted"
    assert call(wait).after == timedelta(minutes=10)
    assert call(noted, {"at": (1, 2)}).result == {"at": [1, 2]}  # what travelled is JSON
    assert call(lambda task: object()).error.kind == "result_not_serialisable"
    with pytest.raises(ArgumentError, match="payload"):
        call(noted, {"at": START})
    with pytest.raises(ArgumentError, match="numbered from 1"):
        call(noted, attempt=0)


def test_many_tasks_over_a_month_cost_about_a_thousand_calls_each():
    def month():
        with world([remind], START) as w:
            for number in range(250):
                w.enqueue(
                    "remind",
                    {"fails": number % 3},
                    ordering_id=f"c{number % 50}",
                    delay=timedelta(minutes=172 * number),
                )
            w.advance("30d")
            assert {one.state for one in w.tasks()} == {"succeeded"}
            assert len(w.runs) == 499

    assert python_calls(month) < 250 * 1_500


@pytest.mark.slow
def test_a_world_imports_neither_spark_nor_kafka_and_the_plug_in_imports_nothing_at_all():
    code = """
import sys
import scylla_spark.testing.pytest_plugin
early = [name for name in sys.modules if name.startswith("scylla_spark.")]
from scylla_spark.testing import world
def work(task): pass
with world([work]) as w:
    w.enqueue("work")
    w.advance("1h")
    assert w.ran("work")
heavy = [name for name in ("pyspark", "py4j", "kafka", "polars", "pyarrow", "deltalake") if name in sys.modules]
print(early, heavy)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['scylla_spark.testing', 'scylla_spark.testing.pytest_plugin'] []"


def test_a_handler_enqueues_another_task_however_often_it_is_tried_once():
    with world([spawn, noted], START) as w:
        task = w.enqueue("spawn", {"fails": 2}, retry=Retry(max_retries=3, base="10s", cap="10s"))
        w.run_until_idle()
        assert w.task(task.key).state == "succeeded"
        (child,) = w.tasks("noted")
        assert (child.state, child.payload) == ("succeeded", {"of": 3})
        spawned = w.runs[-2].finished_at
        assert child.key.scheduled_time - spawned == timedelta(minutes=5), "counted from its parent's success"


def test_a_handler_tells_the_planner_of_an_event_when_it_has_succeeded():
    with world([spawn, noted], START) as w:
        payload = {"attempt": "{{ event.attempt }}"}
        w.put_schedules(Schedule("after", "noted", Trigger.event("spawned"), payload=payload))
        w.enqueue("spawn", {"fails": 1}, retry=Retry(max_retries=3, base="10s", cap="10s"))
        w.advance("1m")
        assert w.ran("noted", times=1)


def test_an_attempt_that_asks_for_what_is_refused_has_failed():
    with world([spawn_wrongly], START) as w:
        task = w.enqueue("spawn_wrongly", {}, retry=Retry(max_retries=0))
        w.run_until_idle()
        assert w.task(task.key).state == "failed"
        assert w.task(task.key).error.kind == "follow_up_refused"


def test_the_next_attempt_finds_what_was_left_behind_here_too():
    with world([leave_behind], START) as w:
        task = w.enqueue("leave_behind", {})
        w.run_until_idle()
        assert task.result() == {"row": 1}


def test_a_handler_with_a_session_of_spark_finds_the_one_that_the_test_hands_over():
    assert call(of_spark, {}, spark="a session").result == "a session"
    assert call(of_spark).error.kind == "ArgumentError"
    with world([of_spark]) as w:
        w.use_spark("another")
        task = w.enqueue("of_spark")
        w.advance()
        assert task.result() == "another"


def test_an_attempt_is_told_why_the_one_before_failed():
    with world([last_error]) as w:
        task = w.enqueue("last_error")
        w.run_until_idle()
        kind, message = task.result()
        assert (kind, message[:13]) == ("ValueError", "in attempt 2,")
        assert "in attempt 1, after None" in message


def leave_files(task, ctx):
    ctx.output("a.txt", f"of attempt {ctx.attempt}")
    ctx.output("b", bytes(task.payload["size"]))
    if ctx.attempt == 1:
        raise ValueError("after it has left them")


def test_files_that_handlers_leave_behind_are_those_of_their_attempts_and_bounded_as_in_a_deployment():
    with world([leave_files], START, Settings(outputs={"max_bytes": 1_000}, _env_file=None)) as w:
        good, large = w.enqueue("leave_files", {"size": 900}), w.enqueue("leave_files", {"size": 1_000})
        w.advance("10m")
        assert [(one.attempt, one.name, len(one.read())) for one in good.outputs()] == [
            (1, "a.txt", 12), (1, "b", 900), (2, "a.txt", 12), (2, "b", 900),
        ]  # fmt: skip
        assert good.outputs()[2].read() == b"of attempt 2"
        assert {one.name for one in large.outputs()} == {"a.txt"}
        assert "more bytes than it may leave behind" in large.status().error.message


def test_files_that_a_leased_worker_leaves_behind_are_those_of_its_attempt():
    with world([], START) as w:
        w.put_queue(Queue(name="gpu", mode="pull"))
        task = w.enqueue(None, {}, queue="gpu")
        w.advance()
        (lease,) = w.lease("gpu")
        lease.output("a.csv", "1;2")
        lease.complete()
        assert [(one.attempt, one.name, one.link.media_type, one.read()) for one in task.outputs()] == [
            (1, "a.csv", "text/csv", b"1;2")
        ]
        with pytest.raises(ArgumentError, match="over"):
            lease.output("b", "too late")


def run_into_a_limit(task, ctx):
    if ctx.attempt == 1:
        raise RateLimited("api.acme", retry_after="90s")
    return ctx.last_error.message


@handler("shares_a_limit", rate_key="api.acme")
def share_a_limit(task):
    pass


def test_a_rate_limit_is_waited_for_by_all_that_share_it():
    with world([run_into_a_limit, share_a_limit, noted], START) as w:
        first = w.enqueue("run_into_a_limit", tags=["api.acme"])
        w.advance("1s")
        waiting = [w.enqueue("shares_a_limit"), w.enqueue("noted", tags=["api.acme"])]
        w.advance("80s")
        assert [w.task(task.key).state for task in waiting] == ["ready"] * 2
        w.advance("10s")
        assert first.result() == "api.acme", "the next attempt is told which limit it was"
        assert [w.task(task.key).state for task in waiting] == ["succeeded"] * 2
