"""No time is decided by a clock that was set, before a fence has shown that it is right; then what was missed is caught up."""

import json
from collections import defaultdict
from functools import partial
from types import SimpleNamespace

import pytest
from kafka import TopicPartition
from structlog.testing import capture_logs

from scylla_spark.config.settings import Settings
from scylla_spark.core.plan.commands.plan_command import encode_command
from scylla_spark.core.plan.state import plan_log
from scylla_spark.core.plan.suspect_inputs import Doubts
from scylla_spark.services.metrics_server import MetricsServer
from scylla_spark.services.plan import planning_loop, service
from scylla_spark.services.plan.metrics import PlanMetrics
from scylla_spark.services.plan.planner_clock import ClockIsWrong, ClockWasSet, PlannerClock
from scylla_spark.services.plan.planning_loop import PlanTenure
from scylla_spark.services.plan.service import PlanService
from tests.support.planner_harness import START
from tests.support.waiting import eventually

SECOND = 1_000_000
LOG = TopicPartition("outcomes", 1)
HOLDER = SimpleNamespace(held=lambda patience_s: True, check=lambda: None)


class Broker:
    """Logs in memory, and a machine whose clock may be wrong."""

    def __init__(self):
        self.true_us = START
        self.off_us = 0
        self.logs = defaultdict(list)

    def both_us(self):
        return self.true_us + self.off_us, self.true_us

    def append(self, topic, value, key=None, partition=0):
        log = self.logs[TopicPartition(topic, partition)]
        log.append(SimpleNamespace(offset=len(log), timestamp=self.true_us // 1000, value=value))
        return SimpleNamespace(get=lambda timeout: None, is_done=True, add_errback=lambda call: self.acknowledged)

    acknowledged = SimpleNamespace(is_done=True)

    def groups(self):
        values = [record.value for record in self.logs[LOG] if plan_log.is_plan(record.value)]
        return [plan_log.decode(value) for value in values]

    def fires(self):
        return [change[2] for group in self.groups() for change in group.changes if change[0] == "fire"]


class Consumer:
    def __init__(self, broker):
        self.broker = broker
        self.places = {}

    def assign(self, places):
        self.places = dict.fromkeys(places, 0)

    def seek(self, place, offset):
        self.places[place] = offset

    def position(self, place):
        return self.places[place]

    def beginning_offsets(self, places):
        return dict.fromkeys(places, 0)

    def end_offsets(self, places):
        return {place: len(self.broker.logs[place]) for place in places}

    def poll(self, timeout_ms):
        found = {place: self.broker.logs[place][at:] for place, at in self.places.items()}
        self.places = {place: len(self.broker.logs[place]) for place in self.places}
        return {place: records for place, records in found.items() if records}

    def close(self, autocommit):
        pass


@pytest.fixture
def broker(monkeypatch):
    broker = Broker()
    out = SimpleNamespace(send=broker.append, flush=lambda timeout: None, close=lambda timeout: None)
    monkeypatch.setattr(planning_loop, "consumer", lambda settings, **_: Consumer(broker))
    monkeypatch.setattr(planning_loop, "producer", lambda settings: out)
    tables = SimpleNamespace(of=lambda _settings: SimpleNamespace(marks=dict))
    monkeypatch.setattr(planning_loop, "TableReader", tables)
    monkeypatch.setattr(planning_loop, "PlannerClock", partial(PlannerClock, broker.both_us))
    return broker


@pytest.fixture
def begin(broker, tmp_path):
    """Begins a tenure."""
    tenures = []

    def begin():
        settings = Settings(_env_file=None, data_dir=tmp_path, partitions=1, plan={"ahead": "0s"})
        tenures.append(PlanTenure(settings, HOLDER, PlanMetrics(), Doubts()))
        tenures[-1]._begin()
        return tenures[-1]

    yield begin
    for tenure in tenures:
        tenure.close()


def plan(broker, tenure, seconds):
    """Lets some time pass in which a tenure plans."""
    for _ in range(4 * seconds):
        broker.true_us += SECOND // 4
        tenure.turn()


def put(broker, **more):
    definition = {"name": "s", "handler": "h", "trigger": {"kind": "every", "period": "1s"}, "overlap": "allow_all"}
    broker.append("schedules", encode_command("put", schedules=[definition | more]))


def is_planned_once(broker):
    """All times up to now were decided, none twice, and none before it had come."""
    planned = [(fire["planned_us"] - START) // SECOND for fire in broker.fires()]
    assert planned == sorted(set(planned))
    for record in broker.logs[LOG]:
        if plan_log.is_plan(record.value):
            assert plan_log.decode(record.value).at_us <= record.timestamp * 1000 + 1000
    return planned


def test_a_clock_that_was_wrong_and_is_right_again_fires_again_by_itself(broker, begin):
    put(broker, catchUp="all")
    tenure = begin()
    plan(broker, tenure, 3)
    broker.off_us = 5 * SECOND
    with pytest.raises(ClockWasSet, match=r"\+5\.0 s"):
        plan(broker, tenure, 1)
    before = len(broker.groups())
    for _ in range(10):
        broker.true_us += 4 * SECOND
        with pytest.raises(ClockIsWrong, match=r"\+5\.0 s off"):
            begin()
    assert len(broker.groups()) == before, "nothing is decided by a wrong clock"
    broker.off_us = 0
    plan(broker, begin(), 3)
    planned = is_planned_once(broker)
    assert planned == list(range(1, planned[-1] + 1)), "what came meanwhile is caught up"
    assert planned[-1] * SECOND > broker.true_us - START - 2 * SECOND
    assert {fire["verdict"] for fire in broker.fires()} == {"launched"}


@pytest.mark.promise
@pytest.mark.parametrize("hours", [1, -1])
def test_a_clock_that_is_an_hour_off_for_three_seconds_decides_nothing_of_that_hour(broker, begin, hours):
    put(broker, overlap="skip")
    tenure = begin()
    plan(broker, tenure, 2)
    decided = broker.fires()
    broker.off_us = hours * 3600 * SECOND
    with pytest.raises(ClockWasSet):
        plan(broker, tenure, 1)
    with pytest.raises(ClockIsWrong):
        begin()
    assert broker.fires() == decided
    broker.true_us += 3 * SECOND
    broker.off_us = 0
    tenure = begin()
    plan(broker, tenure, 2)
    planned = is_planned_once(broker)
    assert planned[-1] <= (broker.true_us - START) // SECOND
    assert tenure._now == broker.true_us, "the wrong hour is not kept"


def test_a_clock_that_is_wrong_from_the_beginning_decides_nothing(broker, begin):
    put(broker)
    broker.off_us = -2 * SECOND
    with pytest.raises(ClockIsWrong, match=r"-2\.0 s off"):
        begin()
    assert not broker.groups()


@pytest.mark.parametrize(
    ("append_s", "received_s", "shows"), [(0.1, 0.2, True), (3.5, 3.6, True), (0.1, 1.2, False), (4, 9, False)]
)
def test_an_answer_that_comes_late_shows_nothing_of_the_clock(append_s, received_s, shows):
    clock, sent_us = PlannerClock(lambda: (START, 0)), START
    append_ms, received_us = (START + int(append_s * SECOND)) // 1000, START + int(received_s * SECOND)
    clock.check(append_ms, sent_us, received_us)
    try:
        clock.check(append_ms, sent_us, received_us, proves=True)
    except ClockWasSet:
        assert not shows
    else:
        assert shows


def test_a_clock_that_goes_wrong_slowly_is_seen_by_what_is_written(broker, begin, monkeypatch):
    put(broker)
    tenure = begin()
    plan(broker, tenure, 2)
    monkeypatch.setattr(tenure._clock, "_read", lambda: (broker.true_us + 2 * SECOND, broker.true_us + 2 * SECOND))
    with pytest.raises(ClockIsWrong):
        plan(broker, tenure, 3)


def test_that_the_clock_is_wrong_is_said_once_until_it_was_right(monkeypatch, tmp_path):
    story = iter(["wrong", "wrong", "wrong", "right", "wrong", "wrong", "right", "end"])
    ended = []

    class Tenure:
        active = False

        def __init__(self, *_):
            pass

        def run(self, stop):
            match next(story):
                case "wrong":
                    raise ClockIsWrong("It is off.")
                case "right":
                    self.active = True
                    raise ClockWasSet("It was set.")
            ended.append(True)
            stop.set()

        def close(self):
            pass

    monkeypatch.setattr(service, "PlanTenure", Tenure)
    monkeypatch.setattr(service, "SoleHolder", lambda *_: SimpleNamespace(held=lambda _: True, release=lambda: None))
    tables = SimpleNamespace(agreed_rules=lambda _partitions: None)
    monkeypatch.setattr(service, "TableReader", SimpleNamespace(of=lambda _settings: tables))
    monkeypatch.setattr(service, "_AGAIN_S", 0.0)
    monkeypatch.setattr(service, "_CLOCK_AGAIN_S", 0.0)
    settings = Settings(_env_file=None, data_dir=tmp_path)
    planner = PlanService(settings, MetricsServer(settings.metrics.model_copy(update={"port": 0})))
    with capture_logs() as logs:
        planner.start()
        eventually(lambda: ended, 10)
        planner.stop()
    assert planner.alive() is False
    said = [one["event"] for one in logs if one["log_level"] == "error"]
    assert said == ["the clock is wrong: nothing is planned until it is right"] * 2, json.dumps(logs, default=str)
