"""What the client refuses before anything is sent, and what it sends."""

import json
import math
import pickle
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta, timezone

import pytest
from kafka.errors import KafkaTimeoutError

from scylla_spark import Scheduler
from scylla_spark.client.tasks import enqueue_arguments
from scylla_spark.clock import now_us, to_us
from scylla_spark.config.settings import Settings
from scylla_spark.core.records.command import CANCEL, Command, Rules, WireRetry, validate
from scylla_spark.core.tasks.key import TaskKey, partition_of
from scylla_spark.core.tasks.task import MAX_PAYLOAD_BYTES, Retry
from scylla_spark.core.tasks.uuid7 import Uuid7
from scylla_spark.errors import ArgumentError, ConflictError, SchedulerError, UnreachableError
from tests.support.waiting import eventually

RULES = Rules(partitions=8)
HOUR = timedelta(hours=1)


class TableReader:
    """Knows the rules, and nothing else."""

    def rules(self):
        return RULES


class Place:
    def __init__(self, partition, offset, timestamp):
        self.partition, self.offset, self.timestamp = partition, offset, timestamp


class Future:
    def __init__(self, result):
        self.result = result

    def get(self, timeout):
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


class Producer:
    """Acknowledges everything at once, at the time it is told."""

    def __init__(self, drift_ms=0):
        self.records = []
        self.drift_ms = drift_ms
        self.failure = None
        self.closed = False

    def send(self, topic, value, key, partition):
        self.records.append((topic, partition, key, value))
        stamp = now_us() // 1000 + self.drift_ms
        return Future(self.failure or Place(partition, len(self.records) - 1, stamp))

    def close(self, timeout):
        self.closed = True


@pytest.fixture
def producer():
    return Producer()


@pytest.fixture
def scheduler(tmp_path, producer):
    with Scheduler(Settings(data_dir=tmp_path, kafka={"bootstrap_servers": "nowhere:1"})) as scheduler:
        scheduler.connection.readers = TableReader()
        scheduler.connection.sender._producers = {"single": producer, "bulk": producer}
        yield scheduler


def read_back(record):
    _, partition, key, value = record
    return validate(partition, 0, now_us(), key, value, RULES)


def test_an_enqueued_task_reads_back_as_it_was_meant(scheduler, producer):
    at = datetime.now(UTC) + HOUR
    handle = scheduler.enqueue(
        "charge", {"invoice": 17, "näme": "Ω"}, ordering_id="cust-9", uniqueness_key="inv-17", at=at, queue="mail", priority=7,
        retry=Retry(max_retries=None, base="1s", cap="5s"), timeout="30s",
    )  # fmt: skip
    command = read_back(producer.records[0])
    assert handle.key == command.key == TaskKey(to_us(at), "cust-9", "inv-17")
    assert (command.handler, command.queue, command.priority, command.timeout_ms) == ("charge", "mail", 7, 30_000)
    assert command.retry == WireRetry(None, 1_000, 5_000)
    assert json.loads(command.payload) == {"invoice": 17, "näme": "Ω"}


def test_the_record_goes_to_the_partition_of_its_lane(scheduler, producer):
    for number in range(30):
        scheduler.enqueue("x", ordering_id=f"lane-{number}")
    topics, partitions, keys, _ = zip(*producer.records, strict=True)
    assert set(topics) == {"tasks"}
    assert list(partitions) == [partition_of(key.decode(), 8) for key in keys]


def test_without_ordering_id_a_task_is_its_own_lane(scheduler):
    first, second = scheduler.enqueue("x"), scheduler.enqueue("x")
    assert first.key.ordering_id == first.key.uniqueness_key != second.key.ordering_id


def test_an_aware_time_of_another_zone_is_the_same_instant(scheduler):
    noon = datetime(2099, 6, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    assert scheduler.enqueue("x", at=noon).key.scheduled_time == datetime(2099, 6, 1, 10, tzinfo=UTC)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"at": datetime(2099, 1, 1)}, "no time zone"),  # noqa: DTZ001
        ({"at": "2099-01-01"}, "is not a time"),
        ({"at": datetime(2099, 1, 1, tzinfo=UTC), "delay": "1s"}, "Both"),
        ({"at": datetime(2020, 1, 1, tzinfo=UTC)}, "before the enqueueing"),
        ({"at": datetime(2263, 1, 1, tzinfo=UTC)}, "after 2261"),
        ({"delay": "soon"}, "not a duration"),
        ({"delay": -5}, "out of range"),
        ({"ordering_id": 17}, "ordering_id is 17"),
        ({"ordering_id": ""}, "at least 1"),
        ({"ordering_id": "x" * 1025}, "1024"),
        ({"ordering_id": "\ud800"}, "surrogates"),
        ({"uniqueness_key": b"k"}, "uniqueness_key is b'k'"),
        ({"payload": [1]}, "list"),
        ({"payload": {"a": float("nan")}}, "not JSON compliant"),
        ({"payload": {"a": object()}}, "not JSON serializable"),
        ({"payload": {"a": "x" * MAX_PAYLOAD_BYTES}}, "bytes"),
        ({"payload": {"a": "\ud800"}}, "surrogates"),
        ({"queue": "a b"}, "queue"),
        ({"queue": None}, "queue"),
        ({"priority": 256}, "priority"),
        ({"priority": "high"}, "priority"),
        ({"timeout": "never"}, "not a duration"),
        ({"timeout": 0}, "timeout is 0"),
        ({"timeout": "0s"}, "timeout is '0s'"),
        ({"uniqueness_key": ""}, "uniqueness_key is empty"),
    ],
)
def test_what_would_be_refused_raises_and_is_not_sent(scheduler, producer, wrong, said):
    with pytest.raises(ArgumentError, match=said):
        scheduler.enqueue("x", **wrong)
    assert producer.records == []


def test_an_argument_of_other_schedulers_is_refused_with_what_it_is_called_here(scheduler, producer):
    with pytest.raises(ArgumentError, match="no start_by") as refused:
        scheduler.enqueue("h", start_by="10m")
    assert "expires" in refused.value.hint
    with pytest.raises(TypeError, match="'colour'"):
        scheduler.enqueue("h", colour="blue")
    assert producer.records == []


def test_a_payload_nested_too_deep_is_refused(scheduler, producer):
    payload: dict = {}
    for _ in range(5_000):
        payload = {"a": payload}
    with pytest.raises(ArgumentError):
        scheduler.enqueue("x", payload)
    assert producer.records == []


def test_a_handler_name_with_a_blank_is_refused(scheduler):
    with pytest.raises(ArgumentError, match="handler"):
        scheduler.enqueue("send mail")


def test_a_task_due_just_within_grace_is_taken(scheduler):
    assert scheduler.enqueue("x", at=datetime.now(UTC) - timedelta(seconds=9))


def test_many_are_sent_and_the_wrong_ones_named(scheduler, producer):
    result = scheduler.enqueue_many(
        [
            {"handler": "x"},
            {"handler": "x", "priority": 999},
            {"payload": {}},
            {"handler": "x", "prio": 1},
            {"handler": "x"},
        ]
    )
    assert result.sent == len(producer.records) == 2
    assert list(result.keys) == [read_back(record).key for record in producer.records], "keys that were made up, too"
    assert [refused.index for refused in result.refused] == [1, 2, 3]
    assert "prio" in result.refused[2].detail


@pytest.mark.parametrize(
    "field",
    [
        "handler",
        "queue",
        "priority",
        "traceparent",
        "payload",
        "at",
        "delay",
        "timeout",
        "expires",
        "tags",
        "ordering_id",
    ],
)
@pytest.mark.parametrize("bulk", ["enqueue_many", "enqueue_unique_many"])
def test_a_cell_that_is_not_a_number_refuses_its_task_and_no_other(scheduler, producer, monkeypatch, bulk, field):
    monkeypatch.setattr(scheduler._unique_keys, "_known", lambda names: {})
    good = [{"handler": "x", "uniqueness_key": f"u{number}"} for number in range(2)]
    result = getattr(scheduler, bulk)([good[0], good[0] | {"uniqueness_key": "bad", field: math.nan}, good[1]])
    assert (result.sent, len(producer.records)) == (2, 2)
    assert [key.uniqueness_key for key in result.keys] == ["u0", "u1"]
    assert [(refused.index, bool(refused.detail)) for refused in result.refused] == [(1, True)]


def test_a_record_without_acknowledgement_is_an_error_that_counts(scheduler, producer):
    producer.failure = TimeoutError("no answer")
    with pytest.raises(UnreachableError) as caught:
        scheduler.enqueue_many([{"handler": "x"}, {"handler": "x"}])
    assert caught.value.fields == {"sent": 0, "unknown": 2}
    with pytest.raises(UnreachableError):
        scheduler.enqueue("x")


def test_an_iterable_that_raises_is_reported_with_what_was_sent_before(scheduler, producer):
    def tasks():
        yield {"handler": "x", "uniqueness_key": "first"}
        yield {"handler": "x", "priority": 999}
        yield {"handler": "x", "uniqueness_key": "last"}
        raise LookupError("row 4")

    with pytest.raises(SchedulerError, match=r"LookupError: row 4\. 2 tasks were sent before") as caught:
        scheduler.enqueue_many(tasks())
    told = caught.value.fields
    assert (told["sent"], len(producer.records)) == (2, 2)
    assert [key.uniqueness_key for key in told["keys"]] == ["first", "last"]
    assert [refused.index for refused in told["refused"]] == [1]
    assert isinstance(caught.value.__cause__, LookupError)


def test_what_was_acknowledged_before_a_producer_takes_no_more_is_counted(scheduler, producer, monkeypatch):
    send = producer.send

    def full(*args, **more):
        if len(producer.records) == 2:
            raise KafkaTimeoutError("the buffer is full")
        return send(*args, **more)

    monkeypatch.setattr(producer, "send", full)
    with pytest.raises(UnreachableError) as caught:
        scheduler.enqueue_many([{"handler": "x"}] * 4)
    assert (caught.value.fields["sent"], caught.value.fields["unknown"], len(caught.value.fields["keys"])) == (2, 1, 2)


def test_a_handle_is_pickled_as_its_key_and_a_client_says_why_it_is_not(scheduler):
    handle = scheduler.enqueue("x")
    assert pickle.loads(pickle.dumps(handle)) == handle.key
    assert pickle.loads(pickle.dumps([scheduler.schedule("s"), scheduler.queue("q")])) == ["s", "q"]
    result = scheduler.enqueue_many([{"handler": "x"}])
    for holder in (scheduler, scheduler.connection, result):
        with pytest.raises(ArgumentError, match=r"cannot be pickled .* Scheduler\.connect"):
            pickle.dumps(holder)


def test_a_client_that_is_dropped_is_closed_with_a_warning(tmp_path, producer):
    clients = [Scheduler(Settings(data_dir=tmp_path, kafka={"bootstrap_servers": "nowhere:1"}))]
    clients[0].connection.sender._producers = {"single": producer}
    with pytest.warns(ResourceWarning, match="dropped without close"):
        clients.clear()
    eventually(lambda: producer.closed, 10, "the producer is closed")


class LocalDeployment(nullcontext):
    """Starts nothing."""

    spark = None

    def __init__(self, settings):
        super().__init__(self)
        self.settings = settings

    def await_ready(self):
        return True


def test_a_second_local_deployment_in_a_process_is_refused_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr("scylla_spark.processes.deployment.Deployment", LocalDeployment)
    with Scheduler.local(tmp_path), pytest.raises(ConflictError, match="already runs in this process"):
        Scheduler.local().__enter__()
    with Scheduler.local(tmp_path) as again:
        assert again.settings.data_dir == tmp_path


def test_a_clock_more_than_an_hour_off_the_brokers_is_an_error(scheduler, producer):
    producer.drift_ms = 3_700_000
    with pytest.raises(Exception, match="clock"):
        scheduler.enqueue("x")


def test_a_cancel_carries_a_request_id(scheduler, producer):
    key = TaskKey(to_us(datetime(2020, 1, 1, tzinfo=UTC)), "o", "u")  # also of a past task
    request_id = scheduler.connection.request_cancel(key)
    command = read_back(producer.records[0])
    assert (command.kind, command.key, command.request_id) == (CANCEL, key, request_id)


def test_a_copy_keeps_everything_but_its_time(scheduler, producer):
    command = Command(
        "enqueue",
        TaskKey(now_us(), "o", "u"),
        5,
        "h",
        "q",
        '{"a":1}',
        3,
        7_000,
        WireRetry(1, 2, 3),
        0,
        '{"tenant":"t"}',
    )
    copy = enqueue_arguments.moved(command, command.key.time_us + 1, now_us())
    scheduler.connection.send(copy)
    back = read_back(producer.records[0])
    assert back[3:9] == command[3:9]
    assert json.loads(back.extra) == {"tenant": "t", "moveOf": str(command.key)}
    with pytest.raises(ArgumentError, match="already has"):
        enqueue_arguments.moved(command, command.key.time_us, now_us())


def test_a_copy_of_an_ended_task_has_a_key_of_its_own_every_time():
    command = Command("enqueue", TaskKey(now_us(), "o", "u" * 1000), 5)
    first = enqueue_arguments.again(command, now_us(), "{}")
    second = enqueue_arguments.again(first, now_us(), "{}")
    assert len({command.key, first.key, second.key}) == 3
    assert all(len(copy.key.uniqueness_key) <= 1024 for copy in (first, second))


def test_closing_twice_is_harmless_and_ends_sending(scheduler, producer):
    scheduler.close()
    scheduler.close()
    assert producer.closed
    with pytest.raises(Exception, match="closed"):
        scheduler.enqueue("x")


def test_default_keys_grow_even_when_the_clock_stands_or_steps_back():
    ids = Uuid7()
    made = [ids.next(now) for now in [1_000_000] * 500 + [999_000] * 500 + [1_000_001] * 10]
    assert made == sorted(set(made))
    assert all(text[14] == "7" and text[19] in "89ab" for text in made)


def test_default_keys_of_later_microseconds_are_greater():
    made = [Uuid7().next(now) for now in range(1_700_000_000_000_000, 1_700_000_000_003_000, 7)]
    assert made == sorted(made)


def test_the_public_names_of_a_scheduler_are_those_that_users_need():
    calls = {
        "connect",
        "local",
        "named_task",
        "close",
        "enqueue",
        "enqueue_many",
        "enqueue_unique",
        "enqueue_unique_many",
        "enqueue_df",
        "enqueue_stream",
        "cancel_df",
        "task",
    }
    plan = {"put_schedules", "schedule", "emit", "notify_partitions", "put_calendar"}
    plan |= {"list_schedules", "pause_schedules", "resume_schedules"}
    frames = {"status", "attempts", "completions", "rejected", "schedules", "jobs", "fires"}
    queues = {"put_queue", "put_queues", "queue", "queues", "create_token"}
    lists = {"list_tasks", "stream_tasks", "list_attempts", "list_logs", "handlers"}
    told = {
        "put_notification_rule", "notification_rules", "delete_notification_rule", "test_notification_rule",
    }  # fmt: skip
    all_names = calls | plan | queues | told | frames | lists | {"settings", "spark", "handlers"}
    assert {name for name in dir(Scheduler) if name[0] != "_"} == all_names


def test_a_restored_task_keeps_its_time_unless_that_has_passed_and_its_data():
    from scylla_spark.client.tasks.enqueue_arguments import restored
    from scylla_spark.core.records.command import ENQUEUE, Command
    from scylla_spark.core.tasks.key import TaskKey

    old = Command(
        ENQUEUE, TaskKey(1_000, "lane", "k"), 5, handler="h", queue="q", payload='{"a":1}', priority=3, extra='{"x":1}'
    )
    for now, time_us in ((500, 1_000), (2_000, 2_000)):
        copy = restored(old, now)
        assert (copy.key.time_us, copy.key.ordering_id, copy.handler, copy.queue, copy.payload) == (
            time_us,
            "lane",
            "h",
            "q",
            '{"a":1}',
        )
        assert copy.key.uniqueness_key != "k", "a cancel holds for its key for ever"
        assert json.loads(copy.extra) == {"x": 1, "restoreOf": str(old.key)}
