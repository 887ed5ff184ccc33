"""Triggers on topics: each record belongs to one run, also after the topic was changed. Brokers are played."""

from dataclasses import dataclass, field

import pytest
from kafka.errors import KafkaTimeoutError

from scylla_spark.config.settings import Settings
from scylla_spark.core.plan.topics.growth import MOST_PARTITIONS, TopicOffsets
from scylla_spark.io.kafka.topic_offsets import TopicTrouble
from scylla_spark.io.kafka.topic_sizes import Sized
from scylla_spark.services.plan import topic_watcher
from scylla_spark.services.plan.topic_watcher import TopicWatcher
from scylla_spark.topic_names import WatchableTopics
from tests.support.planner_harness import PlannerHarness

RANGES = {"parts": "{{ topic.partitions }}", "lost": "{{ topic.lost }}", "bytes": "{{ topic.bytes }}"}


@dataclass
class Brokers:
    """Topics as brokers have them: name → its offsets, or the trouble with it. Records of 10 bytes."""

    topics: dict = field(default_factory=dict)
    silent: bool = False
    sized: list = field(default_factory=list)

    def look(self, names):
        if self.silent:
            raise KafkaTimeoutError("no answer")
        return {name: self.topics[name] for name in names if name in self.topics}

    def of(self, _topic, wanted):
        self.sized.append(dict(wanted))
        return {number: Sized(begin, end, 10 * (end - begin)) for number, (begin, end) in wanted.items()}

    def close(self):
        pass


class Site:
    """A planner, its watcher of topics, and the brokers."""

    def __init__(self, tmp_path, **trigger):
        self.plan, self.brokers = PlannerHarness(), Brokers()
        self.plan.put("s", {"kind": "topic", "topic": "orders"} | trigger, overlap="allow_all", payload=RANGES)
        self.watch(tmp_path)

    def watch(self, tmp_path):
        self.watcher = TopicWatcher(Settings(_env_file=None, data_dir=tmp_path))
        self.watcher._topics = self.watcher._sizes = self.brokers

    def has(self, *ends, firsts=None, topic_id="T"):
        firsts = firsts or [0] * len(ends)
        self.brokers.topics["orders"] = TopicOffsets(topic_id, dict(enumerate(firsts)), dict(enumerate(ends)))
        self.look()

    def look(self, times=3):
        for _ in range(times):
            self.watcher.exchange(self.plan.planner, self.plan.now)
            self.watcher.look(self.watcher._wanted)
            self.watcher.exchange(self.plan.planner, self.plan.now)
            self.plan.turn()

    @property
    def parts(self):
        return [record["taskData"]["parts"] for record in self.plan.sent]

    @property
    def troubles(self):
        return [fire["why"].split(":")[0] for fire in self.plan.fires if fire["verdict"] == "trouble"]


def owned(parts):
    """Each record of all runs, as partition and offset."""
    return [
        (number, offset) for one in parts for number, (first, last) in one.items() for offset in range(first, last + 1)
    ]


@pytest.fixture
def site(tmp_path):
    """A schedule on a topic of two partitions, which has begun after 5 and 7 records."""
    found = Site(tmp_path)
    found.has(5, 7)
    assert found.parts == []
    return found


@pytest.mark.promise
def test_each_record_belongs_to_one_run_also_across_a_restart_of_the_planner(site, tmp_path):
    site.has(6, 7)
    site.has(6, 9)
    site.plan.restart()
    site.watch(tmp_path)
    site.look()
    site.has(8, 12)
    assert site.parts == [{"0": [5, 5]}, {"1": [7, 8]}, {"0": [6, 7], "1": [9, 11]}]
    assert owned(site.parts) == [("0", 5), ("1", 7), ("1", 8), ("0", 6), ("0", 7), ("1", 9), ("1", 10), ("1", 11)]


def test_a_topic_with_too_few_records_waits_for_more(tmp_path):
    site = Site(tmp_path, records=10)
    site.has(5, 7)
    site.has(9, 12)
    assert site.parts == []
    site.has(9, 13)
    assert site.parts == [{"0": [5, 8], "1": [7, 12]}]


def test_bytes_are_asked_for_once_per_record_and_only_where_a_trigger_wants_them(tmp_path, site):
    site.has(6, 8)
    assert site.brokers.sized == []
    large = Site(tmp_path, bytes=100)
    large.has(5, 7)
    large.has(9, 7)
    assert large.parts == []
    large.has(9, 13)
    assert [record["taskData"] for record in large.plan.sent] == [
        {"parts": {"0": [5, 8], "1": [7, 12]}, "lost": 0, "bytes": 100}
    ]
    assert large.brokers.sized == [{0: (5, 9)}, {1: (7, 13)}]


def test_earliest_counts_what_is_there_and_at_most_every_waits(tmp_path, monkeypatch):
    site = Site(tmp_path, start="earliest", atMostEvery="1h")
    monkeypatch.setattr(topic_watcher, "now_us", lambda: site.plan.now)
    site.has(5, 7, firsts=[2, 0])
    assert site.parts == [{"0": [2, 4], "1": [0, 6]}]
    assert site.plan.sent[0]["taskData"]["lost"] == 0
    site.plan.pass_s(3_599)
    site.has(6, 7, firsts=[2, 0])
    assert len(site.parts) == 1
    site.plan.pass_s(1)
    site.has(7, 7, firsts=[2, 0])
    assert site.parts[1:] == [{"0": [5, 6]}]


def test_so_long_after_the_last_run_one_record_is_enough(tmp_path, monkeypatch):
    site = Site(tmp_path, bytes=1_000, atLeastEvery="4h")
    monkeypatch.setattr(topic_watcher, "now_us", lambda: site.plan.now)
    site.has(5, 7)
    site.has(6, 7)
    site.plan.pass_s(4 * 3600 - 1)
    site.look()
    assert site.parts == [], "four hours from when it was put"
    site.plan.pass_s(1)
    site.look()
    assert site.parts == [{"0": [5, 5]}]
    site.plan.pass_s(4 * 3600)
    site.look()
    site.plan.pass_s(60)
    site.has(7, 7)
    assert site.parts[1:] == [{"0": [6, 6]}]
    site.has(107, 7)
    assert site.parts[2:] == [{"0": [7, 106]}], "enough bytes need not wait"


def test_a_topic_that_is_still_to_come_counts_from_its_first_record(tmp_path):
    site = Site(tmp_path)
    site.look()
    assert site.troubles == ["missing"]
    site.has(3, 0)
    assert site.parts == [{"0": [0, 2]}]


def test_partitions_that_are_added_count_from_their_first_record(site):
    site.has(5, 7, 4)
    assert site.parts == [{"2": [0, 3]}]


def test_a_topic_that_is_deleted_and_made_again_counts_anew_and_a_row_says_so(site):
    kept = site.brokers.topics.pop("orders")
    site.look()
    assert site.troubles == ["missing"]
    site.brokers.topics["orders"] = kept
    site.look()
    assert site.parts == [], "the same topic is there again, and nothing has come"
    site.has(1, 0, topic_id="U")
    assert site.troubles == ["missing", "replaced"]
    assert site.parts == [{"0": [0, 0]}]


def test_a_topic_without_an_id_whose_offsets_begin_anew_goes_on_at_its_end(site):
    site.has(2, 7, topic_id="")
    assert site.troubles == ["rewound"]
    site.has(4, 7, topic_id="")
    assert site.parts == [{"0": [2, 3]}]


@pytest.mark.promise
def test_records_that_retention_deletes_before_they_are_run_are_reported_by_the_run(site):
    site.has(20, 7, firsts=[15, 0])
    assert site.troubles == ["truncated"]
    assert "in partition 0 those from 5 to 14" in site.plan.fires[0]["why"]
    assert [record["taskData"] for record in site.plan.sent] == [{"parts": {"0": [15, 19]}, "lost": 10, "bytes": 0}]
    site.has(20, 7, firsts=[20, 0])
    assert len(site.parts) == 1, "what a run has may go"


def test_records_that_are_all_deleted_make_a_run_that_reports_them(site):
    site.has(20, 7, firsts=[20, 0])
    assert [record["taskData"] for record in site.plan.sent] == [{"parts": {"0": [20, 19]}, "lost": 15, "bytes": 0}]
    site.has(21, 7, firsts=[20, 0])
    assert site.parts[1:] == [{"0": [20, 20]}]


def test_a_job_that_waits_takes_what_comes_later(tmp_path, monkeypatch):
    monkeypatch.setattr(topic_watcher, "AGAIN_US", 0)
    site = Site(tmp_path)
    site.plan.put(
        "s",
        {"kind": "all", "of": [{"kind": "topic", "topic": "orders"}, {"kind": "event", "name": "go"}]},
        payload=RANGES,
    )
    site.has(0, 0)
    site.has(3, 0)
    site.has(4, 2)
    site.plan.event("go")
    site.look()
    assert site.parts == [{"0": [0, 3], "1": [0, 1]}]


def test_a_claim_of_records_is_dropped_with_their_topic(tmp_path):
    site = Site(tmp_path)
    both = [{"kind": "topic", "topic": "orders"}, {"kind": "event", "name": "go"}]
    site.plan.put("s", {"kind": "all", "of": both}, payload=RANGES)
    site.has(0, 0)
    site.has(3, 0)
    site.has(1, 1, topic_id="U")
    site.plan.event("go")
    site.look()
    assert site.parts == [{"0": [0, 0], "1": [0, 0]}]


def test_a_changed_definition_goes_on_where_its_topic_stands(site):
    site.plan.put("s", {"kind": "topic", "topic": "orders", "records": 2}, overlap="allow_all", payload=RANGES)
    site.has(6, 8)
    assert site.parts == [{"0": [5, 5], "1": [7, 7]}]
    site.plan.put("s", {"kind": "topic", "topic": "others"}, overlap="allow_all", payload=RANGES)
    site.has(9, 9)
    assert len(site.parts) == 1


def test_a_pause_keeps_where_a_topic_stands(site):
    site.plan.ask("pause", names=["s"])
    site.has(6, 8)
    site.plan.ask("resume", names=["s"])
    site.look()
    assert site.parts == [{"0": [5, 5], "1": [7, 7]}]


def test_silent_brokers_are_reported_after_a_while_and_once(site, monkeypatch):
    site.brokers.silent = True
    site.look()
    assert site.troubles == []
    monkeypatch.setattr(topic_watcher, "SILENT_US", 0)
    site.look()
    assert site.troubles == ["unreachable"]
    site.brokers.silent = False
    site.has(6, 7)
    assert site.parts == [{"0": [5, 5]}]


def test_a_topic_that_may_not_be_read_says_so_and_keeps_no_other_from_firing(site):
    site.plan.put("other", {"kind": "topic", "topic": "secret"})
    site.brokers.topics["secret"] = TopicTrouble("denied", "It may not be read.")
    site.has(6, 7)
    assert site.troubles == ["denied"]
    assert site.parts == [{"0": [5, 5]}]


def test_as_many_partitions_as_are_allowed_fit_into_one_run_and_its_row(tmp_path):
    site = Site(tmp_path)
    site.has(*[10**12] * MOST_PARTITIONS)
    site.has(*[2 * 10**12] * MOST_PARTITIONS)
    assert len(site.parts[0]) == MOST_PARTITIONS
    assert "topic" in site.plan.fires[-1]["values"]


@pytest.mark.parametrize("topic", ["tasks", "outcomes", "__consumer_offsets", "others", "ordersx"])
def test_a_topic_that_triggers_may_not_watch_is_refused_when_the_schedule_is_put(topic):
    allowed = WatchableTopics(("tasks", "outcomes"), ("orders", "shop.*", "tasks"))
    plan = PlannerHarness(topics=allowed)
    plan.put("a", {"kind": "topic", "topic": topic})
    assert "a" not in plan.planner.state.entries
    plan.put("b", {"kind": "topic", "topic": "shop.returns"})
    plan.put("c", {"kind": "topic", "topic": "orders"})
    assert set(plan.planner.state.entries) == {"b", "c"}


def test_a_topic_that_is_no_longer_allowed_is_not_looked_at(site, tmp_path):
    settings = Settings(_env_file=None, data_dir=tmp_path, plan={"allowed_topics": ["shop.*"]})
    site.watcher._allowed = TopicWatcher(settings)._allowed
    site.has(6, 7)
    assert (site.troubles, site.parts) == (["unsuitable"], [])
