"""A client that waits for a result while the broker is started again: it goes on waiting, and follows the log from where the tables are."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from kafka import TopicPartition
from kafka.errors import IllegalStateError

from scylla_spark.client.tasks import handle as handles
from scylla_spark.client.tasks.handle import TaskHandle
from scylla_spark.config.settings import Settings
from scylla_spark.core.records.command import Rules
from scylla_spark.core.records.fact import Fact
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.errors import UnreachableError, WaitTimeoutError
from scylla_spark.io.kafka import topics
from scylla_spark.io.kafka.records_reader import LogReader

KEY = TaskKey(1, "lane", "u")


class Log:
    """Answers some questions, then none for a while, then with the end of the task."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def watching(self, key):
        return nullcontext()

    def facts(self, partition, key):
        return [Fact(KEY, 1, "succeeded", result="7")] if not self.answers else []

    def catch_up(self, partition, deadline):
        if self.answers and not self.answers.pop(0):
            raise UnreachableError("Kafka did not answer.")

    def until(self, partition, look, deadline):
        return look()

    def answer(self, partition, request_id):
        return None


def handle_on(log):
    readers = SimpleNamespace(completion=lambda key: None)
    connection = SimpleNamespace(
        log_reader=log,
        readers=readers,
        rules=Rules(1),
        partition_of=lambda key: 0,
        request_cancel=lambda *_: None,
    )
    return TaskHandle(connection, KEY)


def test_a_result_is_waited_for_while_a_broker_that_has_answered_is_away(monkeypatch):
    monkeypatch.setattr(handles, "_AGAIN_US", 1_000)
    assert handle_on(Log(True, False, False, False, True)).result(timeout="30s") == 7


def test_a_broker_that_has_never_answered_is_not_waited_for():
    with pytest.raises(UnreachableError):
        handle_on(Log(False)).result()


def test_the_answer_to_a_cancel_is_waited_for_while_the_broker_is_away(monkeypatch):
    monkeypatch.setattr(handles, "_AGAIN_US", 1_000)
    assert handle_on(Log(False, False, True, False)).cancel(timeout="30s") == "too_late"
    with pytest.raises(WaitTimeoutError, match=r"within 50ms\. Kafka did not answer\.") as told:
        handle_on(Log(*[False] * 10_000)).cancel(timeout="50ms")
    assert "The cancel stands" in told.value.hint


def test_a_broker_that_is_away_when_the_time_is_over_is_the_reason(monkeypatch):
    monkeypatch.setattr(handles, "_AGAIN_US", 1_000)
    with pytest.raises(UnreachableError):
        handle_on(Log(True, *[False] * 10_000)).result(timeout="50ms")
    with pytest.raises(WaitTimeoutError):
        handle_on(Log(*[True] * 100_000)).result(timeout="50ms")


def test_a_partition_is_followed_although_no_broker_was_there_at_the_first_question(tmp_path, monkeypatch):
    class Consumer:
        """Says where it stands in partitions that it was given, as the library does."""

        assigned = ()

        def assign(self, places):
            self.assigned = places

        def seek(self, place, offset):
            assert place in self.assigned

        def end_offsets(self, places):
            return dict.fromkeys(places, 1)

        def poll(self, timeout_ms):
            return {}

        def position(self, place):
            if place not in self.assigned:
                raise IllegalStateError("Partition is not assigned")
            return 1

    def connect(settings):
        if away:
            away.pop()
            raise UnreachableError("Kafka did not answer.")
        return Consumer()

    away = [True]
    monkeypatch.setattr(topics, "client_consumer", connect)
    monkeypatch.setattr(topics, "_SILENT_US", 0)
    reader = LogReader(Settings(_env_file=None, data_dir=tmp_path), Rules(2), dict)
    with pytest.raises(UnreachableError, match="did not answer"):
        reader.catch_up(0, 2**62)
    reader.catch_up(0, 2**62)
    assert reader._outcomes.assigned == [TopicPartition("outcomes", 0)]
