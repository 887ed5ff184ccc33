"""Records that nobody should send: each is refused with its reason, its neighbours run, and both streams go on."""

import json

import pytest

from scylla_spark import TaskKey
from scylla_spark.clock import iso
from scylla_spark.core.records.command import VERSION
from scylla_spark.core.tasks.key import partition_of
from scylla_spark.io.host.http_get import fetch
from tests.acceptance.place import PATIENCE, SECOND, Foreign, now
from tests.support.waiting import eventually

LANE = "bad"
PARTITIONS = 8


def bad_records(due: int) -> dict[str, tuple[str, bytes]]:
    """Returns what is wrong → reason code, value."""

    def record(**changes: object) -> bytes:
        good = {
            "orderingId": LANE,
            "scheduledTime": iso(due),
            "uniquenessKey": "bad",
            "taskData": {},
            "handler": "work",
        }
        return json.dumps({name: value for name, value in (good | changes).items() if value is not ...}).encode()

    deep = '{"a":' * 1000 + "1" + "}" * 1000
    return {
        "not JSON": ("not_json", b"{{{"),
        "half a record": ("not_json", record()[:-9]),
        "no value": ("empty", b""),
        "wrong type of a field": ("wrong_value", record(orderingId=5)),
        "wrong type of the data": ("wrong_value", record(taskData="text")),
        "text where a number belongs": ("wrong_value", record(priority="5")),
        "not an object": ("wrong_value", b"[]"),
        "a missing field": ("missing_field", record(uniquenessKey=...)),
        "missing data": ("missing_field", record(taskData=...)),
        "NaN": ("not_finite", record(taskData={"x": float("nan")})),
        "bad UTF-8": ("not_json", record(uniquenessKey="XX").replace(b"XX", b"\xc3\x28")),
        "1,000-deep JSON": ("not_json", record(taskData=...)[:-1] + f',"taskData":{deep}}}'.encode()),
        "year 10000": ("wrong_value", record(scheduledTime="10000-01-01T00:00:00Z")),
        "past year 9999 in UTC": ("time_out_of_range", record(scheduledTime="9999-12-31T23:59:59-05:00")),
        "before year 1 in UTC, as a cancel": (
            "time_out_of_range",
            record(scheduledTime="0001-01-01T00:00:00+05:00", type="cancel"),
        ),
        "more retries than a table counts": ("wrong_value", record(retry={"maxRetries": 2**31})),
        "a newer version": ("unknown_version", record(version=VERSION + 1)),
        "no time zone": ("no_time_zone", record(scheduledTime="2099-01-01T00:00:00")),
        "long ago": ("too_late", record(scheduledTime=iso(due - 3600 * SECOND))),
        "10 MB": ("too_large", record(taskData={"x": "x" * 10_000_000})),
    }


@pytest.mark.promise
def test_every_bad_record_is_refused_with_its_reason_while_its_neighbours_run(deployment, foreign):
    due = now() + 2 * SECOND
    home = partition_of(LANE, PARTITIONS)
    compressed = Foreign(deployment.kafka, compression_type="gzip", max_request_size=20_000_000, batch_size=0)
    expected, good, sent = {}, [], []
    for number, (what, (reason, value)) in enumerate(bad_records(due).items()):
        good.append(TaskKey(due + number, LANE, what))
        expected[_place(compressed.raw(LANE.encode(), value, home))] = reason
        sent.append(foreign.put(good[-1]))
    expected[_place(foreign.raw(LANE.encode(), bad_record_elsewhere(due), (home + 1) % PARTITIONS))] = "wrong_partition"
    expected[_place(foreign.raw(b"another", bad_record_elsewhere(due), home))] = "wrong_key"
    compressed.close()
    deployment.ingested(sent)
    ended = deployment.recorded(good)

    assert {end.outcome for end in ended.values()} == {"succeeded"}
    assert [run.key for run in deployment.history(LANE)] == good, "neighbours, and only they, ran, in order"
    rows = [row for row in deployment.rows("rejected").to_dicts() if (row["partition_id"], row["offset"]) in expected]
    assert {(row["partition_id"], row["offset"]): row["reason"] for row in rows} == expected
    assert len(rows) == len(expected), "each once"
    assert all(row["detail"] for row in rows)
    # counted once the whole batch is written; rows are seen before
    eventually(lambda: _counted(deployment, "rejected") >= len(rows), PATIENCE, "ingest counts beside dispatch")
    assert _counted(deployment, "set_aside") == 0
    large = next(row for row in rows if row["reason"] == "too_large")
    assert large["value_bytes"] > 10_000_000
    assert len(large["value"]) == 1024 * 1024, "the first MiB is kept"
    deep = next(row for row in rows if row["reason"] == "not_finite")
    assert b"NaN" in deep["value"], "raw bytes are kept"


def test_unknown_fields_are_kept(deployment, foreign):
    key = TaskKey(now() + SECOND, "bad-unknown-field", "u")
    deployment.ingested([foreign.put(key, color="blue", nested={"a": [1]})])
    row = next(row for row in deployment.rows("tasks").to_dicts() if row["ordering_id"] == key.ordering_id)
    assert json.loads(row["extra"]) == {"color": "blue", "nested": {"a": [1]}}
    assert deployment.recorded([key])[key].outcome == "succeeded"


def test_a_task_whose_handler_is_unknown_waits_in_its_lane_until_it_is_cancelled(deployment, foreign, scheduler):
    key = TaskKey(now(), "bad-unknown-handler", "u")
    neighbour = key._replace(time_us=key.time_us + 1, uniqueness_key="neighbour")
    foreign.put(key, handler="no.such.handler", retry={"maxRetries": 1, "base": "100ms", "cap": "100ms"})
    foreign.put(neighbour)
    told = waits_for_its_handler(scheduler, key)
    assert (told["attempts"], "'no.such.handler'" in told["why"]) == (0, True)
    scheduler.task(key).cancel()
    ended = deployment.recorded([key, neighbour])
    assert (ended[key].outcome, ended[neighbour].outcome) == ("cancelled", "succeeded")


def test_a_task_whose_executor_is_off_waits_and_the_answer_to_why_says_what_to_set(deployment, foreign, scheduler):
    key = TaskKey(now(), "bad-executor-off", "u")
    foreign.put(key, handler="work-on-spark")
    assert "'spark', which is off here: set spark_workers.max" in waits_for_its_handler(scheduler, key)["why"]
    scheduler.task(key).cancel()
    assert deployment.recorded([key])[key].outcome == "cancelled"


def waits_for_its_handler(scheduler, key):
    """The answer to why a task does not run, once it is that its handler is not there."""
    return eventually(lambda: (told := scheduler.task(key).explain())["reason"] == "no_handler" and told, PATIENCE, key)


def _counted(deployment, what: str) -> float:
    """Returns what ingest has counted of the records of `tasks`; -1 before its first batch."""
    text = fetch(f"{deployment.metrics}/metrics", timeout_s=10.0, largest=1 << 22).decode()
    told = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("scyllaspark_"))
    return float(told.get(f'scyllaspark_{what}_total{{topic="tasks"}}', -1))


def bad_record_elsewhere(due: int) -> bytes:
    record = {"orderingId": LANE, "scheduledTime": iso(due), "uniquenessKey": "elsewhere", "taskData": {}}
    return json.dumps(record).encode()


def _place(future) -> tuple[int, int]:
    placed = future.get(timeout=PATIENCE)
    return placed.partition, placed.offset
