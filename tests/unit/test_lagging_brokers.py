"""Topics that were just made are waited for: in a cluster each broker learns of them by itself, and any of them may answer."""

import itertools
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import TopicAlreadyExistsError, UnknownTopicOrPartitionError

from scylla_spark.config.settings import Settings
from scylla_spark.errors import UnreachableError
from scylla_spark.io.kafka import topic_setup, topics

UNKNOWN = UnknownTopicOrPartitionError.errno


@dataclass
class Cluster:
    """An admin client of three brokers that answer by turns; each learns of a topic some requests after it was made.

    Attributes:
        lag: broker → how many requests it answers before it learns of a topic.
        stored: topic → partitions and settings.
        made_at: topic → number of the request that made it.
    """

    lag: tuple[int, ...]
    stored: dict[str, dict[str, Any]] = field(default_factory=dict)
    made_at: dict[str, int] = field(default_factory=dict)
    requests: Any = field(default_factory=itertools.count)

    def known(self) -> set[str]:
        now = next(self.requests)
        return {name for name, made in self.made_at.items() if now - made > self.lag[now % len(self.lag)]}

    def list_topics(self) -> list[str]:
        return list(self.known())

    def create_topics(self, wanted: dict[str, dict[str, Any]], **_: Any) -> None:
        (name,) = wanted
        if name in self.stored:
            raise TopicAlreadyExistsError(name)
        self.stored[name], self.made_at[name] = wanted[name], next(self.requests)

    def describe_topics(self, names: list[str]) -> list[dict[str, Any]]:
        known = self.known()
        return [
            {"name": name, "error_code": 0, "topic_id": name, "partitions": range(self.stored[name]["num_partitions"])}
            if name in known
            else {"name": name, "error_code": UNKNOWN, "topic_id": "", "partitions": []}
            for name in names
        ]

    def describe_configs(self, resources: list[Any], **_: Any) -> dict[str, Any]:
        known = self.known()
        values = {name: {key: {"value": text} for key, text in self.stored[name]["configs"].items()} for name in known}
        return {"topic": {one.name: values.get(one.name, {}) for one in resources}}

    def list_partition_offsets(self, places: dict[Any, int], *_: Any) -> dict[Any, Any]:
        if {place.topic for place in places} - self.known():
            raise UnknownTopicOrPartitionError
        return {place: SimpleNamespace(offset=0, timestamp=-1) for place in places}

    def close(self) -> None:
        pass


@pytest.fixture
def settings(monkeypatch, tmp_path):
    monkeypatch.setattr(topics, "_KNOWN_POLL_S", 0)
    return Settings(_env_file=None, data_dir=tmp_path, partitions=7)


def connect(monkeypatch, cluster):
    for module in (topics, topic_setup):
        monkeypatch.setattr(module, "admin", lambda _: cluster)


@pytest.mark.parametrize("lag", list(itertools.product((0, 3, 20), repeat=3)))
def test_a_first_start_succeeds_whichever_broker_answers_and_however_late_it_learns(monkeypatch, settings, lag):
    cluster = Cluster(lag)
    connect(monkeypatch, cluster)
    assert topic_setup.ensure_topics(settings) == {"tasks": "tasks", "outcomes": "outcomes"}
    assert topic_setup.partition_count(settings, "outcomes") == 8
    assert topics.end_offsets(settings, "tasks", [0, 6]) == {0: 0, 6: 0}
    assert topics.newest_append_us(settings) == 0


def test_a_second_process_that_starts_at_the_same_time_waits_for_the_topics_of_the_first(monkeypatch, settings):
    cluster = Cluster((0, 9, 20))
    connect(monkeypatch, cluster)
    first = topic_setup.ensure_topics(settings)
    cluster.made_at = dict.fromkeys(cluster.made_at, next(cluster.requests))
    assert topic_setup.ensure_topics(settings) == first


def test_a_topic_that_no_broker_reports_is_named_in_the_error(monkeypatch, settings):
    monkeypatch.setattr(topics, "_KNOWN_WITHIN_S", 0)
    connect(monkeypatch, Cluster((10**9,) * 3))
    with pytest.raises(UnreachableError, match="does not report the topics tasks, outcomes"):
        topic_setup.ensure_topics(settings)
