"""The client against a real broker and tables that nobody moves: what it finds in the logs, and which facts it believes."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import threading
import weakref
from datetime import timedelta

import pytest
from kafka import KafkaProducer

from scylla_spark.client.scheduler import Scheduler
from scylla_spark.clock import boot_us, now_us
from scylla_spark.core.records.fact import TOO_LATE, Fact, Fence, encode_facts, encode_fence, encode_resign
from scylla_spark.core.tasks.key import TaskKey, partition_of
from scylla_spark.core.tasks.task import Failure
from scylla_spark.errors import ConflictError, NotFoundError, TaskFailed, UnreachableError, WaitTimeoutError
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.io.kafka import records_reader as following
from scylla_spark.io.kafka.topic_setup import ensure_topics
from scylla_spark.io.kafka.topics import end_offsets, with_broker
from scylla_spark.schemas import COMPLETIONS, PROGRESS
from tests.support.delta_tables import PARTITIONS, append, fact, make
from tests.support.shared_broker import settings_on
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def settings(broker, tmp_path_factory):
    """A deployment without services: topics and tables."""
    folder = tmp_path_factory.mktemp("client")
    make(f"{folder}/tables")
    settings = settings_on(broker, folder, partitions=PARTITIONS)
    ensure_topics(settings)
    return settings


@pytest.fixture
def scheduler(settings):
    with Scheduler(settings) as scheduler:
        yield scheduler


class Owner:
    """Writes what a dispatcher would write."""

    epoch = 0

    def __init__(self, settings):
        self.topic = settings.topics.outcomes
        self.producer = KafkaProducer(bootstrap_servers=settings.kafka.bootstrap_servers)

    def take(self, partition, address="http://127.0.0.1:1"):
        Owner.epoch += 1
        fence = Fence(Owner.epoch, f"nonce-{Owner.epoch}")
        self.write(partition, encode_fence(fence, address, 0))
        return fence

    def write(self, partition, *values):
        for value in values:
            self.producer.send(self.topic, value, partition=partition).get(10)

    def say(self, fence, *facts):
        for one in facts:
            self.write(partition_of(one.key.ordering_id, PARTITIONS), *encode_facts(fence, [one]))


@pytest.fixture
def owner(settings):
    owner = Owner(settings)
    yield owner
    owner.producer.close()


def test_a_task_is_known_as_soon_as_it_is_acknowledged(scheduler, settings):
    handle = scheduler.enqueue("h", {"a": 1}, delay="1h", priority=3)
    with Scheduler(settings) as stranger:
        status = stranger.task(str(handle.key)).status()
    assert (status.state, status.payload, status.priority, status.attempts, status.fresh) == (
        "scheduled",
        {"a": 1},
        3,
        0,
        True,
    )


def test_an_unknown_task_is_not_found(scheduler):
    with pytest.raises(NotFoundError):
        scheduler.task(TaskKey(now_us(), "nobody", "nothing")).status()


def test_a_later_enqueue_of_the_key_is_the_one_shown(scheduler):
    at = scheduler.enqueue("h", {"v": 1}, ordering_id="o", uniqueness_key="same", delay="1h").key.scheduled_time
    handle = scheduler.enqueue("h", {"v": 2}, ordering_id="o", uniqueness_key="same", at=at)
    assert handle.status().payload == {"v": 2}


def test_the_result_is_what_a_counting_fact_says(scheduler, owner):
    handle = scheduler.enqueue("h")
    fence = owner.take(partition_of(handle.key.ordering_id, PARTITIONS))
    owner.say(fence, Fact(handle.key, 1, "started", 5), Fact(handle.key, 1, "succeeded", 5, 6, result='{"receipt":17}'))
    assert handle.result("20s") == {"receipt": 17}
    assert [(attempt.number, attempt.outcome) for attempt in handle.attempts()] == [(1, "succeeded")]
    assert handle.status().state == "succeeded"


def test_a_fact_behind_a_newer_fence_does_not_count(scheduler, owner):
    handle = scheduler.enqueue("h")
    partition = partition_of(handle.key.ordering_id, PARTITIONS)
    old, new = owner.take(partition), owner.take(partition)
    owner.say(old, Fact(handle.key, 1, "succeeded", result='"void"'))
    with pytest.raises(WaitTimeoutError):
        handle.result("300ms")
    owner.say(new, Fact(handle.key, 2, "succeeded", result='"counts"'))
    assert handle.result("20s") == "counts"


def test_a_waiting_client_hears_of_an_end_that_comes_later(scheduler, owner):
    handle = scheduler.enqueue("h")
    fence = owner.take(partition_of(handle.key.ordering_id, PARTITIONS))
    with pytest.raises(WaitTimeoutError):
        handle.result("200ms")
    later = threading.Timer(0.3, owner.say, [fence, Fact(handle.key, 1, "succeeded", result="1")])
    later.start()
    assert handle.result("20s") == 1
    later.join()


def test_many_waiting_threads_share_what_is_read(scheduler, owner):
    handles = [scheduler.enqueue("h") for _ in range(12)]
    fences = [owner.take(partition) for partition in range(PARTITIONS)]
    results = {}
    threads = [
        threading.Thread(target=lambda one=one: results.__setitem__(one.key, one.result("30s"))) for one in handles
    ]
    for thread in threads:
        thread.start()
    for handle in handles:
        owner.say(
            fences[partition_of(handle.key.ordering_id, PARTITIONS)],
            Fact(handle.key, 1, "succeeded", result=f'"{handle.key[2]}"'),
        )
    for thread in threads:
        thread.join(30)
    assert results == {handle.key: handle.key.uniqueness_key for handle in handles}


def test_a_failed_task_raises_with_its_fields(scheduler, owner):
    handle = scheduler.enqueue("h")
    fence = owner.take(partition_of(handle.key.ordering_id, PARTITIONS))
    owner.say(
        fence,
        Fact(handle.key, 1, "failed", 1, 2, next_us=now_us() + 10_000_000, failure=Failure("ValueError", "first")),
    )
    status = handle.status()
    assert (status.state, status.attempts, status.error) == ("retry_wait", 1, Failure("ValueError", "first"))
    owner.say(fence, Fact(handle.key, 2, "failed", 3, 4, failure=Failure("ValueError", "broke", "stack")))
    with pytest.raises(TaskFailed, match="ValueError: broke") as caught:
        handle.result("20s")
    assert (caught.value.fields["outcome"], caught.value.fields["attempt"], caught.value.fields["error_stack"]) == (
        "failed",
        2,
        "stack",
    )


def test_a_cancel_without_dispatcher_stands(scheduler):
    handle = scheduler.enqueue("h", delay="1h")
    with pytest.raises(WaitTimeoutError, match="stands"):
        handle.cancel("300ms")
    status = handle.status()
    assert (status.state, status.cancel_requested) == ("scheduled", True)


def answering(scheduler, owner, key, make_facts):
    """Answers the next cancel of a key, as soon as it stands on `tasks`."""
    fence = owner.take(partition_of(key.ordering_id, PARTITIONS))

    def answer():
        with Scheduler(scheduler.settings) as watcher:
            deadline = boot_us() + 20_000_000
            while boot_us() < deadline:
                cancels = [
                    one
                    for one in watcher.connection.log_reader.commands(partition_of(key.ordering_id, PARTITIONS), key)
                    if one.kind == "cancel"
                ]
                if cancels:
                    owner.say(fence, *make_facts(cancels[-1].request_id))
                    return

    thread = threading.Thread(target=answer)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("facts", "answer"),
    [
        (lambda key, request: [Fact(key, 0, "cancelled", request_id=request)], "cancelled"),
        (lambda key, request: [Fact(key, 0, TOO_LATE, request_id=request)], "too_late"),
        (
            lambda key, request: [Fact(key, 0, TOO_LATE, request_id="of somebody else"), Fact(key, 1, "succeeded")],
            "too_late",
        ),
    ],
)
def test_a_cancel_is_answered_by_the_owner(scheduler, owner, facts, answer):
    handle = scheduler.enqueue("h", delay="1h")
    thread = answering(scheduler, owner, handle.key, lambda request: facts(handle.key, request))
    assert handle.cancel("20s") == answer
    thread.join()


def test_a_cancel_of_what_was_cancelled_long_ago_says_cancelled(scheduler, owner, settings):
    key = TaskKey(now_us(), "long-ago", "u")
    append(settings.tables_path, COMPLETIONS, [fact(key, 0, "cancelled")])
    thread = answering(scheduler, owner, key, lambda request: [Fact(key, 0, TOO_LATE, request_id=request)])
    assert scheduler.task(key).cancel("20s") == "cancelled"
    thread.join()


def test_a_moved_task_is_cancelled_and_enqueued_at_its_new_time(scheduler, owner):
    handle = scheduler.enqueue("h", {"a": 1}, ordering_id="mover", delay="1h", priority=4, timeout="9s")
    thread = answering(
        scheduler, owner, handle.key, lambda request: [Fact(handle.key, 0, "cancelled", request_id=request)]
    )
    moved = handle.reschedule(delay="2h", timeout="20s")
    thread.join()
    assert moved.key[1:] == handle.key[1:]
    assert moved.key.scheduled_time - handle.key.scheduled_time > timedelta(minutes=59)
    command = moved.command()
    assert (command.payload, command.priority, command.timeout_ms) == ('{"a":1}', 4, 9_000)
    with pytest.raises(ConflictError):
        handle.reschedule(delay="3h")


def test_a_move_whose_cancel_was_not_answered_in_time_is_finished_by_the_next_call(scheduler, owner):
    handle = scheduler.enqueue("h", {"a": 1}, ordering_id="slow-mover", delay="1h")
    with pytest.raises(WaitTimeoutError, match="reschedule of this handle again"):
        handle.reschedule(delay="2h", timeout="10ms")
    owner.say(owner.take(partition_of("slow-mover", PARTITIONS)), Fact(handle.key, 0, "cancelled"))
    moved = handle.reschedule(delay="2h", timeout="20s")
    assert moved.command().payload == '{"a":1}'
    with pytest.raises(ConflictError):
        handle.reschedule(delay="3h")


def test_only_an_ended_task_is_enqueued_again(scheduler, owner):
    handle = scheduler.enqueue("h", {"a": 1})
    with pytest.raises(ConflictError):
        handle.retry()
    owner.say(owner.take(partition_of(handle.key.ordering_id, PARTITIONS)), Fact(handle.key, 1, "aborted"))
    copy = handle.retry().command()
    assert copy.payload == '{"a":1}'
    assert str(handle.key) in copy.extra


def test_the_owner_is_found_in_its_fence_also_behind_the_mark(scheduler, owner, settings):
    key = TaskKey(now_us(), "owned", "u")
    partition = partition_of("owned", PARTITIONS)
    fence = owner.take(partition, "http://127.0.0.1:9")
    owner.say(fence, Fact(key, 1, "started"), Fact(key, 1, "succeeded"))
    end = end_offsets(settings, settings.topics.outcomes, [partition])[partition]
    append(settings.tables_path, PROGRESS, [
        {"topic": "outcomes", "partition_id": partition, "next_offset": end, "epoch": fence.epoch, "nonce": fence.nonce, "resigned": False}
    ])  # fmt: skip
    assert scheduler.connection.owner_address(partition) == "http://127.0.0.1:9"
    assert "does not answer" in scheduler.enqueue("h", ordering_id="owned", delay="1h").explain()["why"]
    owner.write(partition, encode_resign(fence))
    assert scheduler.connection.owner_address(partition) == ""


def test_a_result_waits_for_the_tables(scheduler, settings):
    result = scheduler.enqueue_many({"handler": "h", "ordering_id": f"o{number}"} for number in range(20))
    with pytest.raises(WaitTimeoutError, match="records sent are not in the tables"):
        result.wait("300ms")
    ends = end_offsets(settings, settings.topics.tasks, list(range(PARTITIONS)))
    append(
        settings.tables_path,
        PROGRESS,
        [{"topic": "tasks", "partition_id": number, "next_offset": end} for number, end in ends.items()],
    )
    assert result.wait("5s") is result


def test_facts_beyond_memory_are_read_again_from_the_mark(scheduler, owner, monkeypatch):
    monkeypatch.setattr(following, "MOST_BYTES", 40_000)
    handles = [scheduler.enqueue("h", ordering_id="crowd") for _ in range(8)]
    fence, text = owner.take(partition_of("crowd", PARTITIONS)), '"' + "x" * 10_000 + '"'
    owner.say(fence, *(Fact(handle.key, 1, "succeeded", result=text) for handle in handles))
    assert handles[-1].result("20s") == "x" * 10_000
    followed = scheduler.connection.log_reader._followed[partition_of("crowd", PARTITIONS)]
    assert followed.has_holes
    assert len(followed.facts) <= 4
    assert [len(handle.result("20s")) for handle in handles] == [10_000] * 8


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_client_that_was_used_says_at_once_that_it_does_not_work_in_a_forked_child(scheduler, settings, monkeypatch):
    handle, unused = scheduler.enqueue("h", delay="1h"), Scheduler(settings)
    calls = (
        lambda: scheduler.enqueue("h"),
        handle.status,
        lambda: scheduler.queue("q").get(),
        lambda: unused.enqueue("h"),
    )
    read, write = multiprocessing.Pipe(duplex=False)

    def ask():
        for call in calls:
            begun = boot_us()
            try:
                call()
            except Exception as error:
                write.send((type(error).__name__, "spawn" in str(error), boot_us() - begun < 10_000_000))
        scheduler.close()
        monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: write.send(repr(unraisable.exc_value)))
        if os.fork() == 0:  # errors of what Python calls after a fork go to that hook
            os._exit(0)
        os.wait()
        write.send("forked again")

    child = multiprocessing.get_context("fork").Process(target=ask)
    child.start()
    try:
        told = [read.recv() for _ in (*calls, ask) if read.poll(20)]
    finally:
        child.kill()
        child.join()
    assert told == [("ConflictError", True, True)] * 4 + ["forked again"]
    assert handle.status().fresh, "the parent's client goes on"


def test_a_dropped_client_leaves_no_thread_and_no_open_file(scheduler, settings):
    scheduler.enqueue("h").status()  # what a process opens once
    files, threads = open_files(), threading.active_count()
    clients = [Scheduler(settings)]
    clients[0].enqueue("h").status()
    with pytest.raises(NotFoundError):
        clients[0].queue("q").get()
    assert open_files() > files
    connection = weakref.ref(clients[0].connection)

    def collected():
        clients.clear()
        gc.collect()
        return connection() is None

    with pytest.warns(ResourceWarning, match="dropped without close"):
        eventually(collected, 20, "no thread asks for handlers any more")
    left = lambda: (open_files() - files, threading.active_count() - threads)  # noqa: E731
    eventually(lambda: max(left()) <= 0, 20, "closed", left)


def open_files():
    return len(os.listdir("/proc/self/fd"))


def test_without_a_broker_the_tables_still_answer(settings):
    key = TaskKey(now_us(), "table-only", "u")
    append(settings.tables_path, COMPLETIONS, [fact(key, 1, "succeeded", result="5")])
    readers = TableReader(settings.tables_path)
    with Scheduler(with_broker(settings, "127.0.0.1:1")) as cut_off:
        cut_off.connection.readers = readers
        status = cut_off.task(key).status()
        assert (status.state, status.fresh, status.result) == ("succeeded", False, 5)
        with pytest.raises(UnreachableError):
            cut_off.enqueue("h")


def test_tasks_that_the_tables_do_not_have_are_counted(scheduler, settings):
    known = scheduler.connection.keys_beyond_tables()
    keys = {scheduler.enqueue("h", ordering_id=f"beyond-{number}", delay="1h").key for number in range(3)}
    scheduler.connection.request_cancel(next(iter(keys)))
    assert scheduler.connection.keys_beyond_tables() - known == keys
    assert scheduler.connection.keys_beyond_tables(3) is None
