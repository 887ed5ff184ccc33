"""What `validate` accepts and refuses."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scylla_spark.api.tasks.views import RetryBody
from scylla_spark.clock import iso
from scylla_spark.core.records.command import (
    CANCEL,
    MAX_RECORD_BYTES,
    Command,
    Rejection,
    Rules,
    WireRetry,
    encode,
    validate,
)
from scylla_spark.core.tasks.key import TaskKey, partition_of
from scylla_spark.core.tasks.task import Retry

RULES = Rules(partitions=8)
NOW = 1_790_000_000_000_000
LANE = "cust-9"
FROZEN = Path(__file__).parents[1] / "formats" / "tasks_v1"


def record(**fields):
    plain = {
        "orderingId": LANE,
        "scheduledTime": iso(NOW + 5_000_000),
        "uniquenessKey": "u",
        "taskData": {"a": "b"},
        "version": 1,
    }
    return json.dumps({name: value for name, value in (plain | fields).items() if value is not ...}).encode()


def judge(value, *, key=b"cust-9", partition=None, rules=RULES):
    return validate(partition_of(LANE, 8) if partition is None else partition, 7, NOW, key, value, rules)


def test_a_plain_foreign_record_is_a_command():
    command = judge(record())
    assert command == Command("enqueue", TaskKey(NOW + 5_000_000, LANE, "u"), 7, payload='{"a":"b"}', enqueued_us=NOW)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "empty"),
        (b"", "empty"),
        (b"nonsense", "not_json"),
        (b'"text"', "wrong_value"),
        (record()[:-1], "not_json"),
        (record().replace(b"cust-9", b"cust-\xff"), "not_json"),
        (b'{"a":' * 1000 + b"1" + b"}" * 1000, "not_json"),
        (record(orderingId=...), "missing_field"),
        (record(scheduledTime=...), "missing_field"),
        (record(uniquenessKey=...), "missing_field"),
        (record(taskData=...), "missing_field"),
        (record(orderingId=5), "wrong_value"),
        (record(orderingId=""), "wrong_value"),
        (record(taskData=[1]), "wrong_value"),
        (record(taskData="text"), "wrong_value"),
        (record(priority="9"), "wrong_value"),
        (record(priority=256), "wrong_value"),
        (record(version=5), "unknown_version"),
        (record(type="explode"), "wrong_value"),
        (record(handler="../../etc/passwd; rm"), "wrong_value"),
        (record(timeout="soon"), "wrong_value"),
        (record(timeout=-1), "wrong_value"),
        (record(retry={"maxRetries": -1}), "wrong_value"),
        (record(scheduledTime=12345), "wrong_value"),
        (record(scheduledTime="+10000-01-01T00:00:00Z"), "wrong_value"),
        (record(scheduledTime="10000-01-01T00:00:00Z"), "wrong_value"),
        (record(scheduledTime="9999-12-31T23:59:59Z"), "time_out_of_range"),
        (record(scheduledTime="2026-12-01T00:00:00"), "no_time_zone"),
        (record(scheduledTime=iso(NOW - 11_000_000)), "too_late"),
        (record(taskData={"x": math.nan}), "not_finite"),
        (record(taskData={"x": 1}).replace(b'"x": 1', b'"x": 1e999'), "not_finite"),
        (record(taskData={"x": "y" * 262_144}), "payload_too_large"),
        (record(taskData={"x": "y" * MAX_RECORD_BYTES}), "too_large"),
        (record(orderingId="cust-1"), "wrong_key"),
    ],
)
def test_a_bad_record_is_refused_with_its_reason(value, reason):
    verdict = judge(value)
    assert isinstance(verdict, Rejection)
    assert verdict.reason == reason
    assert verdict.detail


@pytest.mark.parametrize(
    "said", [{}, {"maxRetries": None}, {"maxRetries": 3, "base": "1s"}, {"base": "5s"}, {"cap": "1m"}]
)
def test_what_a_retry_policy_leaves_out_is_left_out_by_every_way_in_and_stays_so(said):
    told = {{"maxRetries": "max_retries"}.get(name, name): value for name, value in said.items()}
    for policy in (Retry(**told), RetryBody(**told).policy()):
        command = judge(record(retry=said))
        assert command.retry == WireRetry(*policy.terms)
        written = json.loads(encode(command))
        assert (written["retry"].keys(), written["version"]) == (said.keys(), 4)
        assert Retry.from_ms(*command.retry) == Retry.from_ms(*policy.terms)


def test_a_record_on_a_partition_that_is_not_its_lanes_is_refused():
    right = partition_of(LANE, 8)
    verdict = judge(record(), partition=(right + 1) % 8)
    assert isinstance(verdict, Rejection)
    assert verdict.reason == "wrong_partition"


def test_a_record_without_a_kafka_key_is_judged_by_its_partition():
    assert isinstance(judge(record(), key=None), Command)


def test_unknown_fields_are_kept():
    assert json.loads(judge(record(traceId="t-1", nested={"a": [1]})).extra) == {"traceId": "t-1", "nested": {"a": [1]}}


def test_grace_is_measured_from_the_clients_stamp():
    late = iso(NOW - 60_000_000)
    assert isinstance(judge(record(scheduledTime=late)), Rejection)
    assert isinstance(judge(record(scheduledTime=late, enqueuedAt=iso(NOW - 55_000_000))), Command)


def test_a_stamp_that_is_hours_off_is_not_believed():
    stamp = iso(NOW - 2 * 3_600_000_000)
    verdict = judge(record(scheduledTime=stamp, enqueuedAt=stamp))
    assert isinstance(verdict, Rejection)
    assert verdict.reason == "too_late"


def test_a_cancel_needs_no_data_and_may_concern_the_past():
    command = judge(record(type="cancel", taskData=..., scheduledTime=iso(NOW - 10**12)))
    assert command.kind == CANCEL


def test_grace_of_a_cancel_is_read_and_belongs_to_cancels_only():
    wanted = Command(CANCEL, TaskKey(1, "cust-9", "u"), 0, grace_ms=1500)
    partition = partition_of("cust-9", RULES.partitions)
    assert validate(partition, 0, 5, b"cust-9", encode(wanted), RULES).grace_ms == 1500
    assert judge(record(grace="1500ms")).grace_ms is None
    assert judge(record(type="cancel", grace="2s")).grace_ms == 2000
    assert judge(record(type="cancel")).grace_ms is None
    assert judge(record(type="cancel", grace="soon")).reason == "wrong_value"


def test_records_without_a_handler_get_the_default_one_if_there_is_one():
    assert judge(record()).handler is None
    assert judge(record(), rules=Rules(8, default_handler="catch_all")).handler == "catch_all"


names = st.from_regex(r"[A-Za-z0-9_.-]{1,20}", fullmatch=True)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    lane=st.text(min_size=1, max_size=30),
    unique=st.text(min_size=1, max_size=30),
    wait_us=st.integers(-9_000_000, 10**15),
    payload=st.dictionaries(st.text(max_size=10), json_values, max_size=4),
    handler=st.none() | names,
    queue=names,
    priority=st.integers(0, 255),
    timeout_ms=st.none() | st.integers(0, 10**9),
    retry=st.none()
    | st.builds(WireRetry, st.none() | st.integers(-1, 10**6), st.integers(-1, 10**9), st.integers(-1, 10**9)),
)
@pytest.mark.slow
def test_what_encode_writes_validate_reads_back(
    lane, unique, wait_us, payload, handler, queue, priority, timeout_ms, retry
):
    text = json.dumps(payload, separators=(",", ":"), ensure_ascii=False)
    command = Command(
        "enqueue", TaskKey(NOW + wait_us, lane, unique), 3, handler, queue, text, priority, timeout_ms, retry, NOW
    )  # fmt: skip
    assert validate(partition_of(lane, 8), 3, NOW, lane.encode(), encode(command), RULES) == command


def test_what_version_1_wrote_is_read():
    key = TaskKey(NOW + 5_000_000, LANE, "inv-17")
    terms = WireRetry(5, 20_000, 120_000)
    assert {path.stem: judge(path.read_bytes()) for path in FROZEN.iterdir()} == {
        "enqueue": Command(
            "enqueue", key, 7, "remind", "mail", '{"invoice":17,"to":"ä"}', 7, 30_000, terms, NOW, None, "req-1"
        ),
        "cancel": Command("cancel", key, 7, enqueued_us=NOW, request_id="req-2"),
    }


def test_what_version_3_wrote_is_read():
    """Version 3 is that of names that are unique."""
    value = (FROZEN.parent / "tasks_v3" / "enqueue.json").read_bytes()
    assert json.loads(value)["version"] == 3
    command = newest_command()._replace(unique=True)
    assert judge(value) == judge(encode(command)) == command


def test_what_version_4_wrote_is_read():
    """Version 4 is that of retry policies that leave fields out."""
    value = (FROZEN.parent / "tasks_v4" / "enqueue.json").read_bytes()
    assert json.loads(value)["version"] == 4
    command = newest_command()._replace(retry=WireRetry(1, -1, 600_000))
    assert judge(value) == judge(encode(command)) == command


def newest_command():
    """What `tasks_v2/enqueue.json` was made from: version 2 is that of tasks that expire."""
    key = TaskKey(NOW + 5_000_000, LANE, "u-2")
    return Command(
        "enqueue", key, 7, "remind", "mail", '{"invoice":17}', 7, 30_000, None, NOW, None, "req-1", None, 600_000,
        ("eu", "a b"), "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    )  # fmt: skip


def test_what_version_2_wrote_is_read():
    value = (FROZEN.parent / "tasks_v2" / "enqueue.json").read_bytes()
    assert json.loads(value)["version"] == 2
    assert judge(value) == newest_command()
    assert judge(encode(newest_command())) == newest_command()


@given(st.binary(max_size=300))
def test_no_bytes_make_validate_raise(value):
    assert isinstance(judge(value), Rejection)
