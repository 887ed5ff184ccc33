"""Limits of queues that change while tasks wait and run."""

import random
from collections import Counter

import pytest

from scylla_spark.core.engine.bounds import HandlerPolicy, Limits
from scylla_spark.core.engine.queue import QueueLimits
from tests.support.engine_harness import NOW, RETRY, SECOND, Harness

PAUSED = QueueLimits(paused=True)


def world(limits=None, **queues):
    return Harness(limits, terms=lambda command: HandlerPolicy("local", 5000, RETRY), queues=queues)


def put(harness, limits, queue="default"):
    harness.engine.put_queue(queue, limits, harness.now)
    return harness.pump()


def lanes(invocations):
    return [invocation.key.ordering_id for invocation in invocations]


def fill(harness, names, **fields):
    for lane in names:
        harness.enqueue(lane=lane, **fields)


def test_a_queue_that_is_paused_starts_nothing_more_and_goes_on_where_it_was():
    plan = world(default=QueueLimits(concurrency=1))
    fill(plan, "abc")
    (first,) = plan.pump()
    assert put(plan, PAUSED) == []
    plan.finish(first)
    assert plan.pump() == []
    assert len(put(plan, QueueLimits(concurrency=1))) == 1


def test_a_queue_without_limits_gets_its_own_and_what_runs_counts():
    plan = world()
    fill(plan, "ab")
    assert len(plan.pump()) == 2
    put(plan, QueueLimits(concurrency=3))
    fill(plan, "cde")
    fill(plan, "x", queue="other")
    assert sorted(lanes(plan.pump())) == ["c", "x"]
    assert plan.engine.gate("default").running == 3
    assert plan.engine.gate("other").running == 1


def test_lanes_that_were_ready_before_their_queue_was_listed_wait_at_its_gate():
    plan = world()
    fill(plan, "abc")
    fill(plan, "x", queue="other")
    plan.pump(room=0)
    plan.engine.put_queue("default", QueueLimits(concurrency=1), plan.now)
    first = plan.pump()
    assert sorted(lanes(first))[1:] == ["x"]
    assert len(first) == 2


def test_a_queue_that_has_no_limits_any_more_shares_the_gate_of_all():
    plan = world(default=QueueLimits(concurrency=1))
    fill(plan, "abc")
    (first,) = plan.pump()
    rest = put(plan, None)
    assert sorted([*lanes(rest), first.key.ordering_id]) == ["a", "b", "c"]
    for invocation in [first, *rest]:
        plan.finish(invocation)
    plan.pump()
    assert plan.engine.gate("default") is plan.engine.gate("never heard of")
    assert plan.engine.gate("default").running == 0


def test_less_concurrency_than_what_runs_waits_until_that_has_ended():
    plan = world(default=QueueLimits(concurrency=3))
    fill(plan, "abcde")
    running = plan.pump()
    assert put(plan, QueueLimits(concurrency=1)) == []
    for invocation in running[:2]:
        plan.finish(invocation)
    assert plan.pump() == []
    plan.finish(running[2])
    assert len(plan.pump()) == 1


def test_a_faster_rate_counts_from_the_last_start_and_wakes_the_engine():
    plan = world(default=QueueLimits(rate=0.01))
    fill(plan, "abc")
    assert len(plan.pump()) == 1
    assert put(plan, QueueLimits(rate=1.0)) == []
    assert plan.engine.next_wake() <= NOW + SECOND
    assert len(plan.at(1)) == 1


def test_a_slower_rate_counts_from_the_last_start():
    plan = world(default=QueueLimits(rate=1.0))
    fill(plan, "abc")
    plan.pump()
    put(plan, QueueLimits(rate=0.1))
    assert plan.at(5) == []
    assert len(plan.at(10)) == 1


def test_lanes_that_wait_for_a_slot_of_their_group_start_when_there_are_more():
    plan = world(default=QueueLimits(group_concurrency=1))
    fill(plan, ["t:a", "t:b", "t:c"])
    assert len(plan.pump()) == 1
    assert len(put(plan, QueueLimits(group_concurrency=2))) == 1
    assert len(put(plan, QueueLimits())) == 1


def test_groups_are_formed_anew_with_another_separator_and_what_runs_counts():
    plan = world(default=QueueLimits(group_concurrency=1))
    fill(plan, ["t:a/1", "u:a/2"])
    assert len(plan.pump()) == 2
    put(plan, QueueLimits(group_concurrency=1, group_separator="/"))
    fill(plan, ["t:a/3", "v:a/4"])
    assert lanes(plan.pump()) == ["v:a/4"]


def test_a_limit_of_groups_that_comes_later_counts_what_runs():
    plan = world(default=QueueLimits())
    fill(plan, ["t:a", "t:b"])
    running = plan.pump()
    put(plan, QueueLimits(group_concurrency=1))
    fill(plan, ["t:c"])
    assert plan.pump() == []
    plan.finish(running[0])
    assert plan.pump() == []
    plan.finish(running[1])
    assert lanes(plan.pump()) == ["t:c"]


def test_a_lane_goes_on_at_once_from_when_its_queue_is_in_replay_order():
    plan = world()
    for number in range(3):
        plan.enqueue(unique=f"{number}")
    (first,) = plan.pump()
    put(plan, QueueLimits(replay=True))
    plan.finish(first)
    assert [one.key.uniqueness_key for one in plan.pump(deliver=False)] == ["1", "2"]


def test_a_new_gate_has_the_share_of_the_partitions_that_are_held():
    limits = Limits(least_wait_us=0, partitions=8)
    plan = Harness(limits, terms=lambda command: HandlerPolicy("local", 5000, RETRY))
    plan.engine.put_queue("default", QueueLimits(concurrency=16), plan.now)
    assert plan.engine.gate("default")._slots == 2


def allowed(seeded):
    """Some limits; now and then none."""
    if seeded.random() < 0.15:
        return None
    return QueueLimits(
        concurrency=seeded.choice([None, 1, 2, 5]), rate=seeded.choice([None, None, 0.5, 3.0]), paused=seeded.random() < 0.2,
        replay=seeded.random() < 0.3, group_concurrency=seeded.choice([None, None, 1, 2]),
        group_separator=seeded.choice([":", "/"]),
    )  # fmt: skip


class Watched:
    """Tasks of two queues under limits that change; every release is compared with the limits in force."""

    def __init__(self, seed):
        self.seeded = random.Random(seed)
        self.plan = world()
        self.plan.engine.raise_horizon(self.plan.tenure, self.plan.now + 10_000 * SECOND)
        self.limits = {"default": None, "mail": None}
        self.running = {}
        self.starts = []
        self.sent = 0

    def act(self):
        what = self.seeded.choice(["enqueue", "enqueue", "finish", "finish", "put", "wait"])
        if what == "enqueue":
            lane = f"{self.seeded.choice('tuv')}:{self.seeded.choice('ab')}/{self.seeded.randrange(3)}"
            self.plan.enqueue(lane=lane, unique=f"{self.sent:05}", queue=self.seeded.choice(list(self.limits)))
            self.sent += 1
        elif what == "finish" and self.running:
            self.plan.finish(self.running.pop(self.seeded.choice(list(self.running))))
        elif what == "put":
            queue = self.seeded.choice(list(self.limits))
            self.limits[queue] = allowed(self.seeded)
            self.plan.engine.put_queue(queue, self.limits[queue], self.plan.now)
            self.starts = [start for start in self.starts if start[0] != queue]
        elif what == "wait":
            self.plan.now += self.seeded.randrange(1, 3 * SECOND)
        self.look(self.plan.pump(room=self.seeded.choice([0, 1, 100]), patient=False))

    def look(self, released):
        for one in released:
            limits = self.limits[one.queue] or QueueLimits()
            self.running[one.id] = one
            mine = [run for run in self.running.values() if run.queue == one.queue]
            groups = Counter(run.key.ordering_id.partition(limits.group_separator)[0] for run in mine)
            group = one.key.ordering_id.partition(limits.group_separator)[0]
            assert not limits.paused
            assert limits.concurrency is None or len(mine) <= limits.concurrency
            assert limits.group_concurrency is None or groups[group] <= limits.group_concurrency
            self.starts.append((one.queue, self.plan.now))
            if limits.rate is not None:
                recent = [at for queue, at in self.starts if queue == one.queue and at > self.plan.now - 10 * SECOND]
                assert len(recent) <= limits.rate * 10.05 + 1

    def finish_all(self):
        for queue in self.limits:
            self.limits[queue] = None
            self.plan.engine.put_queue(queue, None, self.plan.now)
        for _ in range(20 * self.sent + 20):
            self.look(self.plan.pump())
            while self.running:
                self.plan.finish(self.running.popitem()[1])
        assert self.plan.engine.gate("mail").running == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_limits_hold_while_they_change_and_no_task_is_forgotten(seed):
    watched = Watched(seed)
    for _ in range(300):
        watched.act()
    watched.finish_all()
    ended = [fact.key for fact in watched.plan.facts if fact.terminal]
    assert len(ended) == len(set(ended)) == watched.sent
