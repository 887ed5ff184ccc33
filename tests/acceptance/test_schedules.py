"""Schedules on a real broker, real tables and real processes: what fires, what does not, and what is written down about it."""

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from kafka.admin import NewTopic

from scylla_spark import Constraint, Retry, Schedule, Trigger
from scylla_spark.clock import iso, to_us
from scylla_spark.errors import ArgumentError, ConflictError, NotFoundError
from scylla_spark.io.kafka.topics import admin, producer
from scylla_spark.testing import measures
from scylla_spark.testing.history import NEVER
from tests.acceptance.place import PATIENCE, SECOND, now
from tests.support.waiting import eventually, holds

MINUTE = 60 * SECOND
STOPPED = 90 * SECOND


def runs_of(place, name):
    """Runs of a schedule that the handlers wrote down, by start."""
    return [run for run in place.history() if run.key.uniqueness_key.startswith(f"{name}/") and run.end != NEVER]


def begun(place, name):
    """Runs of a schedule that have begun, whether they have ended or not."""
    return [run for run in place.history() if run.key.uniqueness_key.startswith(f"{name}/")]


def marks(place, name):
    return [run.mark for run in runs_of(place, name)]


def fires_of(place, name):
    return place.rows("fires").filter(pl.col("schedule") == name).sort("plan_offset", "decided_at").to_dicts()


def five(scheduler, dataset, count=5):
    for _ in range(count):
        scheduler.notify_partitions(dataset, [{"rows": 10}])


@pytest.mark.promise
def test_a_schedule_of_every_second_runs_once_for_each_second_and_each_run_knows_its_time(deployment, scheduler):
    scheduler.put_schedules(
        Schedule("tick", "work", Trigger.every("1s"), payload={"mark": "{{ planned }}"}, overlap="buffer_all")
    )
    eventually(lambda: len(runs_of(deployment, "tick")) >= 8, PATIENCE)
    scheduler.schedule("tick").pause("enough")
    paused = now()
    assert not holds(lambda: any(run.key.time_us > paused for run in runs_of(deployment, "tick")), 3)
    found = runs_of(deployment, "tick")
    planned = [run.key.time_us for run in found]
    assert planned == list(range(planned[0], planned[-1] + 1, SECOND)), "each second once, and none left out"
    assert [run.mark for run in found] == [iso(at) for at in planned]


def test_a_repeating_item_runs_so_many_times_and_ends_where_it_should(deployment, scheduler):
    for lead in (2, 20, 60):  # a busy machine may take longer than the first of them to put the schedules
        begin = datetime.now(UTC) + timedelta(seconds=lead)
        end = begin + timedelta(seconds=2.5)
        scheduler.put_schedules(
            Schedule("ten", "work", Trigger.every("1s", start_at=begin, count=6), overlap="buffer_all"),
            Schedule("half", "work", Trigger.every("1s", start_at=begin, end_at=end), overlap="buffer_all"),
        )
        if datetime.now(UTC) < begin:
            break
        for name in ("ten", "half"):
            scheduler.schedule(name).delete()
    planned = [to_us(begin) + n * SECOND for n in range(6)]

    def times(name):  # without those of an attempt that began too late
        return [run.key.time_us for run in runs_of(deployment, name) if run.key.time_us >= planned[0]]

    eventually(lambda: times("ten") == planned, PATIENCE)
    eventually(lambda: times("half") == planned[:3], PATIENCE)
    assert not holds(lambda: (times("ten"), times("half")) != (planned, planned[:3]), 2)


def test_five_partitions_are_counted_and_counting_begins_anew_with_a_change(deployment, scheduler):
    trigger = Trigger.partitions("sales", 5)
    scheduler.put_schedules(Schedule("sum", "work", trigger, payload={"mark": "old"}))
    five(scheduler, "sales", 4)
    scheduler.put_schedules(Schedule("sum", "work", trigger, payload={"mark": "new {{ partitions.count }}"}))
    five(scheduler, "sales", 4)
    assert not holds(lambda: runs_of(deployment, "sum"), 3)
    five(scheduler, "sales", 1)
    eventually(lambda: marks(deployment, "sum") == ["new 5"], PATIENCE)


def test_a_deleted_schedule_runs_nothing_that_it_has_collected_or_waits_for(deployment, scheduler, tmp_path):
    go = tmp_path / "go"
    alone = [Constraint.max_running(1, otherwise="wait")]
    scheduler.put_schedules(
        Schedule("collects", "work", Trigger.partitions("gone", 10)),
        Schedule("waits", "work", Trigger.partitions("gone", 4), payload={"until": str(go)}, constraints=alone),
    )
    five(scheduler, "gone", 8)
    eventually(lambda: len(begun(deployment, "waits")) == 1, PATIENCE, "its first run holds up the second")
    eventually(lambda: scheduler.schedule("waits").status().waiting, PATIENCE)
    for name in ("collects", "waits"):
        scheduler.schedule(name).delete()
    five(scheduler, "gone", 2)
    go.touch()
    eventually(lambda: runs_of(deployment, "waits"), PATIENCE, "what runs goes on")
    assert not holds(lambda: runs_of(deployment, "collects") or len(begun(deployment, "waits")) > 1, 3)
    with pytest.raises(NotFoundError, match="no schedule 'waits'"):
        scheduler.schedule("waits").delete()


def test_a_definition_that_changes_while_it_waits_drops_what_waited_and_runs_as_it_is_now(deployment, scheduler):
    slow, quick = [Constraint.delay("10m")], [Constraint.delay("100ms")]
    scheduler.put_schedules(
        Schedule("revised", "work", Trigger.partitions("late", 5), payload={"mark": "old"}, constraints=slow)
    )
    five(scheduler, "late")
    eventually(lambda: scheduler.schedule("revised").status().waiting, PATIENCE, "it waits for its delay")
    scheduler.put_schedules(
        Schedule("revised", "work", Trigger.partitions("late", 3), payload={"mark": "new"}, constraints=quick)
    )
    assert not holds(lambda: runs_of(deployment, "revised"), 2), "what was collected for the old one is gone"
    five(scheduler, "late", 3)
    eventually(lambda: marks(deployment, "revised") == ["new"], PATIENCE)


def test_a_trigger_fires_once_all_its_branches_have_and_runs_once_all_constraints_hold(deployment, scheduler):
    both = Trigger.partitions("left", 2) & Trigger.event("right")
    held = [Constraint.delay("5s"), Constraint.max_running(1, otherwise="wait")]
    scheduler.put_schedules(Schedule("both", "work", both, payload={"ms": 2_000}, constraints=held))
    first_event = now()
    five(scheduler, "left", 2)
    assert not holds(lambda: fires_of(deployment, "both") or runs_of(deployment, "both"), 2), "one branch is not both"
    scheduler.emit("right")
    five(scheduler, "left", 2)
    scheduler.emit("right")
    eventually(lambda: len(runs_of(deployment, "both")) == 2, PATIENCE)
    first, second = runs_of(deployment, "both")
    assert first.start >= first_event + 5_000_000, "the delay, which begins with the first event"
    assert second.start >= first.end, "one at a time"


def test_while_it_is_paused_nothing_runs_and_nothing_is_made_up_for_afterwards(deployment, scheduler):
    scheduler.put_schedules(
        Schedule("rests", "work", Trigger.cron("* * * * * *"), overlap="buffer_all", catch_up="none")
    )
    eventually(lambda: len(runs_of(deployment, "rests")) >= 2, PATIENCE)
    schedule = scheduler.schedule("rests")
    schedule.pause("holidays")
    paused = now()
    assert not holds(lambda: any(run.key.time_us > paused for run in runs_of(deployment, "rests")), 3)
    resumed = now()
    schedule.resume()
    eventually(lambda: any(run.key.time_us > resumed for run in runs_of(deployment, "rests")), PATIENCE)
    schedule.delete()
    times = [run.key.time_us for run in runs_of(deployment, "rests")]
    assert not [at for at in times if paused < at < resumed - SECOND], "what fell into the pause is left out"
    eventually(lambda: fires_of(deployment, "rests"), PATIENCE, "its history stays")


def test_the_last_run_keeps_others_away_and_each_that_was_dropped_is_a_row(deployment, scheduler):
    scheduler.put_schedules(
        Schedule("rare", "errand", Trigger.partitions("often"), constraints=[Constraint.last_run("5m")])
    )
    five(scheduler, "often", 1)
    eventually(lambda: len(runs_of(deployment, "rare")) == 1, PATIENCE)
    eventually(lambda: scheduler.schedule("rare").status().last_success_at, PATIENCE)
    five(scheduler, "often", 4)
    eventually(lambda: len(fires_of(deployment, "rare")) == 5, PATIENCE)
    assert [row["verdict"] for row in fires_of(deployment, "rare")] == ["launched", *["skipped"] * 4]
    assert "last success" in fires_of(deployment, "rare")[-1]["why"]
    assert len(runs_of(deployment, "rare")) == 1


def test_a_long_run_is_never_two_where_one_may_run_and_exactly_two_where_two_may(deployment, scheduler, tmp_path):
    go = tmp_path / "go"
    long = {"until": str(go)}
    scheduler.put_schedules(
        Schedule("alone", "work", Trigger.every("1s"), payload=long),
        Schedule("pair", "work", Trigger.every("1s"), payload=long, max_running=2),
    )
    eventually(lambda: (len(begun(deployment, "alone")), len(begun(deployment, "pair"))) == (1, 2), PATIENCE)
    for name in ("alone", "pair"):
        eventually(lambda: "skipped" in [row["verdict"] for row in fires_of(deployment, name)], PATIENCE)  # noqa: B023
    assert (len(begun(deployment, "alone")), len(begun(deployment, "pair"))) == (1, 2)
    go.touch()
    eventually(lambda: len(runs_of(deployment, "pair")) >= 4, PATIENCE)
    scheduler.schedule("alone").delete()
    scheduler.schedule("pair").delete()
    assert measures.peak(runs_of(deployment, "alone")) == 1
    assert measures.peak(runs_of(deployment, "pair")) == 2


def test_a_limit_of_a_tag_holds_for_schedules_of_different_handlers(deployment, scheduler, tmp_path):
    go = tmp_path / "go"
    one = {"tags": ["etl"], "constraints": [Constraint.max_running(1, "wait", tag="etl")]}
    scheduler.put_schedules(
        Schedule("tagged-work", "work", Trigger.event("load"), payload={"until": str(go)}, **one),
        Schedule("tagged-says", "says", Trigger.event("next"), **one),
    )
    scheduler.emit("load")
    eventually(lambda: begun(deployment, "tagged-work"), PATIENCE)
    scheduler.emit("next")
    eventually(lambda: [row["verdict"] for row in fires_of(deployment, "tagged-says")] == ["waiting"], PATIENCE)
    assert "1 of at most 1 runs of the tag 'etl' are active" in " ".join(scheduler.schedule("tagged-says").explain())
    go.touch()
    eventually(
        lambda: [row["verdict"] for row in fires_of(deployment, "tagged-says")] == ["waiting", "launched"], PATIENCE
    )


def test_a_schedule_waits_until_a_queue_has_little_to_do(deployment, scheduler, tmp_path):
    go = tmp_path / "go"
    key = scheduler.enqueue("work", {"until": str(go)}, queue="bulk").key
    eventually(lambda: [run for run in deployment.history() if run.key == key], PATIENCE)
    scheduler.put_schedules(
        Schedule("busy", "work", Trigger.event("look"), constraints=[Constraint.load(running=1, queue="bulk")]),
        Schedule("calm", "work", Trigger.event("calm"), constraints=[Constraint.load(running=0, queue="bulk")]),
    )
    scheduler.emit("look")
    eventually(lambda: runs_of(deployment, "busy"), PATIENCE, "the planner has the figures of the dispatcher")
    scheduler.emit("calm")
    eventually(lambda: [row["verdict"] for row in fires_of(deployment, "calm")] == ["waiting"], PATIENCE)
    assert not begun(deployment, "calm")
    go.touch()
    eventually(lambda: runs_of(deployment, "calm"), PATIENCE)


def test_a_check_that_hangs_and_raises_keeps_its_job_waiting_until_it_is_satisfied(deployment, scheduler):
    check = Constraint.check("is_quiet", timeout="1s")
    scheduler.put_schedules(Schedule("checked", "work", Trigger.event("check"), constraints=[check]))
    scheduler.emit("check")
    eventually(lambda: runs_of(deployment, "checked"), PATIENCE)
    eventually(lambda: [row["verdict"] for row in fires_of(deployment, "checked")] == ["waiting", "launched"], PATIENCE)

    def outcomes() -> list[str]:
        found = deployment.rows("completions").filter(pl.col("ordering_id") == "check/checked/1")
        return found.sort("scheduled_time")["outcome"].to_list()

    eventually(lambda: outcomes() == ["failed", "failed", "succeeded", "succeeded"], PATIENCE, tell=outcomes)


def test_an_end_fires_what_comes_after_it_with_its_result(deployment, scheduler):
    scheduler.put_schedules(
        Schedule("first", "work", Trigger.event("go"), payload={"mark": "{{ event.day }}"}),
        Schedule("second", "work", Trigger.after("first"), payload={"mark": "after {{ upstream.outcome }}"}),
        Schedule("other", "work", Trigger.after("first", on=["failed"])),
    )
    scheduler.emit("go", {"day": "monday"})
    eventually(lambda: marks(deployment, "second") == ["after succeeded"], PATIENCE)
    assert marks(deployment, "first") == ["monday"]
    assert not runs_of(deployment, "other")


def test_the_end_of_a_task_that_somebody_enqueued_fires_what_comes_after_its_handler(deployment, scheduler):
    scheduler.put_schedules(
        Schedule("report", "work", Trigger.after("add"), payload={"mark": "{{ upstream.schedule }}{{ upstream.key }}"})
    )
    handle = scheduler.enqueue("add", {"numbers": [1, 2]}, ordering_id="by-hand")
    eventually(lambda: marks(deployment, "report") == [str(handle.key)], PATIENCE)
    scheduler.schedule("report").delete()


def test_when_all_tasks_of_a_batch_have_ended_a_schedule_runs_once_and_knows_how_they_did(deployment, scheduler):
    said = {"mark": "{{ batch.ended }} of {{ batch.tag }}: {{ batch.failed }} failed, {{ batch.cancelled }} cancelled"}
    scheduler.put_schedules(Schedule("summary", "work", Trigger.batch("load-7", 4), payload=said))
    never = Retry(max_retries=0)
    for lane in ("a", "b"):
        scheduler.enqueue("add", {"numbers": [1]}, ordering_id=f"batch-{lane}", tags=["load-7"])
    scheduler.enqueue("work", {"failures": 1}, ordering_id="batch-c", tags=["load-7", "eu"], retry=never)
    waits = scheduler.enqueue("add", {"numbers": [1]}, ordering_id="batch-d", delay="2m", tags=["load-7"])
    scheduler.enqueue("add", {"numbers": [1]}, ordering_id="batch-e")
    assert not holds(lambda: marks(deployment, "summary"), 2), "one of them has not ended"
    waits.cancel()
    eventually(lambda: marks(deployment, "summary") == ["4 of load-7: 1 failed, 1 cancelled"], PATIENCE)


def test_a_bad_definition_is_told_to_the_caller_and_nonsense_on_the_topic_stands_in_rejected(
    deployment, scheduler, foreign
):
    with pytest.raises(ArgumentError, match="minute"):
        Schedule("bad", "work", Trigger.cron("61 * * * *"))
    with pytest.raises(ArgumentError, match="30"):
        Trigger.cron("0 0 30 2 *")
    producer = foreign._producer
    reasons = {
        b"\xff": "not_json",
        b'{"type":"put","schedules":[{"name":"x"}]}': "wrong_value",
        b'{"type":"delete"}': "missing_field",
    }
    sent = {producer.send("schedules", value=value, partition=0).get(30).offset: reasons[value] for value in reasons}

    def told():
        rows = deployment.rows("rejected").filter(pl.col("topic") == "schedules", pl.col("offset").is_in(list(sent)))
        return dict(zip(rows["offset"], rows["reason"], strict=True))

    eventually(lambda: told() == sent, PATIENCE, sent, told)
    assert scheduler.put_schedules(Schedule("fine", "work", Trigger.event("never"))) == {"fine": "added"}
    with pytest.raises(ConflictError, match="not paused"):
        scheduler.schedule("fine").resume()


def test_definitions_and_decisions_can_be_asked_for_in_sql_terms(deployment, scheduler):
    scheduler.put_schedules(Schedule("told", "work", Trigger.event("tell"), note="why not"), author="me")
    scheduler.emit("tell", {"n": 1})
    row = eventually(lambda: (fires_of(deployment, "told") or [None])[0], PATIENCE)
    assert json.loads(row["values"]) == {"event": {"name": "tell", "n": 1}}
    (put,) = deployment.rows("schedules").filter(pl.col("name") == "told").to_dicts()
    assert (put["change"], put["author"], put["note"]) == ("put", "me", "why not")
    eventually(
        lambda: {"launched", "ended"} <= set(deployment.rows("jobs").filter(pl.col("schedule") == "told")["state"]),
        PATIENCE,
    )


def test_a_backfill_runs_the_days_that_are_missing_and_none_twice(deployment, scheduler):
    scheduler.put_schedules(Schedule("daily", "work", Trigger.cron("0 3 * * *"), payload={"mark": "{{ planned }}"}))
    begin, end = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 6, tzinfo=UTC)
    daily = scheduler.schedule("daily")
    assert len(daily.backfill(begin, end, dry_run=True).planned) == 5
    assert len(daily.backfill(begin, datetime(2026, 1, 3, tzinfo=UTC)).planned) == 2
    assert [at.day for at in daily.backfill(begin, end, order="newest").planned] == [5, 4, 3]
    eventually(lambda: len(marks(deployment, "daily")) == 5, PATIENCE)
    assert sorted(marks(deployment, "daily")) == [f"2026-01-0{day}T03:00:00Z" for day in range(1, 6)]
    second = [mark for mark in marks(deployment, "daily") if mark >= "2026-01-03"]
    assert second == [f"2026-01-0{day}T03:00:00Z" for day in (5, 4, 3)]


@pytest.mark.promise
def test_a_backfill_that_is_paused_begins_nothing_until_it_goes_on_and_then_runs_the_rest_in_order(
    deployment, scheduler, tmp_path
):
    go = tmp_path / "go"
    payload = {"mark": "{{ planned }}", "until": str(go)}
    scheduler.put_schedules(Schedule("past", "work", Trigger.cron("0 3 * * *"), payload=payload))
    past = scheduler.schedule("past")
    tag = past.backfill(datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 9, tzinfo=UTC), max_running=2).tag
    eventually(lambda: len(begun(deployment, "past")) == 2, PATIENCE, "two run, until the file is there")
    past.pause_backfill(tag)
    go.touch()
    eventually(lambda: past.backfills()[0].running == 0, PATIENCE)
    assert not holds(lambda: len(begun(deployment, "past")) > 2, 3), "nothing begins once the pause is told"
    (stands,) = past.backfills()
    assert (stands.state, stands.total, stands.succeeded) == ("paused", 8, 2)
    past.resume_backfill(tag)
    eventually(lambda: past.backfills()[0].state == "ended", PATIENCE)
    assert sorted(marks(deployment, "past")) == [f"2026-01-0{day}T03:00:00Z" for day in range(1, 9)]
    assert past.backfills()[0].over_at is not None
    go.unlink()
    other = past.backfill(datetime(2025, 1, 1, tzinfo=UTC), datetime(2025, 2, 1, tzinfo=UTC)).tag
    eventually(lambda: len(begun(deployment, "past")) == 9, PATIENCE, "one of the other backfill runs")
    past.cancel_backfill(other)
    go.touch()
    eventually(lambda: len(marks(deployment, "past")) == 9, PATIENCE, "what had begun goes on")
    assert not holds(lambda: len(begun(deployment, "past")) > 9, 2), "and no other begins"


@pytest.mark.promise
def test_a_table_that_grows_hands_each_of_its_versions_to_one_run(deployment, scheduler, tmp_path):
    table = str(tmp_path / "orders")
    write_deltalake(table, pa.table({"n": [0], "day": ["mon"]}), partition_by=["day"])
    versions = "{{ table.from_version }}-{{ table.to_version }}"
    scheduler.put_schedules(
        Schedule("each", "work", Trigger.table(table), payload={"mark": versions}),
        Schedule("many", "work", Trigger.table(table, min_rows=10, settle="1s"), payload={"mark": versions}),
        Schedule("large", "work", Trigger.table(table, min_bytes=1_000), payload={"mark": "{{ table.bytes }}"}),
        Schedule("parts", "work", Trigger.table(table, per="day"), payload={"mark": "{{ table.partition }}"}),
        Schedule(
            "either", "work", Trigger.table(table, min_rows=1_000) | Trigger.event("now"), payload={"mark": "now"}
        ),
        Schedule("missing", "work", Trigger.table(f"{tmp_path}/none")),
    )
    eventually(lambda: scheduler.connection.plan.state().entries["parts"].tables, PATIENCE)
    for day in ("mon", "tue", "mon"):
        write_deltalake(table, pa.table({"n": list(range(4)), "day": [day] * 4}), mode="append")
    found = DeltaTable(table)
    found.optimize.compact()
    found.vacuum(0, dry_run=False, enforce_retention_duration=False)
    eventually(lambda: marks(deployment, "many") and set(marks(deployment, "parts")) == {"mon", "tue"}, PATIENCE)
    assert int(eventually(lambda: marks(deployment, "large"), PATIENCE)[0]) >= 1_000
    write_deltalake(table, pa.table({"n": [9], "day": ["wed"]}), mode="append")
    newest = DeltaTable(table).version()
    eventually(lambda: marks(deployment, "each") and marks(deployment, "each")[-1].endswith(f"-{newest}"), PATIENCE)
    edges = [tuple(map(int, mark.split("-"))) for mark in marks(deployment, "each")]
    assert edges[0][0] == 0
    assert all(before[1] == after[0] for before, after in pairwise(edges)), "ranges touch"
    assert scheduler.schedule("each").backfill(0, newest).versions == [], "all of them ran"
    again = scheduler.schedule("each").backfill(0, newest, reprocess="all", max_running=2)
    past = [f"{one.from_version}-{one.to_version}" for one in again.versions]
    assert (past[0], past[-1]) == ("0-1", f"3-{newest}")
    eventually(
        lambda: Counter(marks(deployment, "each")) >= Counter(past) + Counter(f"{a}-{b}" for a, b in edges), PATIENCE
    )
    scheduler.emit("now")
    eventually(lambda: marks(deployment, "either") == ["now"], PATIENCE)
    assert "missing" in eventually(lambda: fires_of(deployment, "missing"), PATIENCE)[0]["why"]
    for name in ("each", "many", "large", "parts", "either", "missing"):
        scheduler.schedule(name).delete()


@pytest.mark.promise
def test_a_topic_that_grows_hands_each_of_its_records_to_one_run(deployment, scheduler):
    settings = scheduler.connection.located
    with admin(settings) as client:
        client.create_topics([NewTopic("orders", 2, 1)])
        client.wait_for_topics(["orders"])
    scheduler.put_schedules(
        Schedule("records", "work", Trigger.topic("orders"), payload={"mark": "{{ topic.partitions }}"}),
        Schedule("heavy", "work", Trigger.topic("orders", bytes=20_000), payload={"mark": "{{ topic.bytes }}"}),
    )
    with pytest.raises(ArgumentError, match="one of the deployment's own"):
        scheduler.put_schedules(Schedule("loop", "work", Trigger.topic(settings.topics.tasks)))
    eventually(lambda: scheduler.connection.plan.state().entries["heavy"].tables, PATIENCE)
    eventually(lambda: scheduler.connection.plan.state().entries["records"].tables, PATIENCE)
    waits, owned = [], []
    with producer(settings) as sender:
        for number in range(10):
            sent = sender.send("orders", b"x" * 3_000, partition=number % 2).get(timeout=15)
            found = eventually(lambda: runs_of(deployment, "records")[len(owned) :], PATIENCE)
            waits.append(found[0].start - sent.timestamp * 1_000)
            owned.extend(run.mark for run in found)
    print(f"record → start: p50 {sorted(waits)[5] / 1_000:.0f} ms, all {[wait // 1_000 for wait in sorted(waits)]}")
    assert owned == [{str(number % 2): [number // 2, number // 2]} for number in range(10)]
    assert int(eventually(lambda: marks(deployment, "heavy"), PATIENCE)[0]) >= 20_000
    fires = eventually(lambda: fires_of(deployment, "records")[9:], PATIENCE)
    assert json.loads(fires[0]["values"])["topic"]["partitions"] == {"1": [4, 4]}
    for name in ("records", "heavy"):
        scheduler.schedule(name).delete()
