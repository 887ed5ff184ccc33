"""The order in which waiting invocations become calls."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict

from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.task import Invocation
from scylla_spark.executors.backlog import Backlog


def _backlog():
    return Backlog(lambda name: 3 if name.startswith("batch") else None)


def _item(number: int, lane: str | None = None, handler: str = "h") -> Invocation:
    return Invocation(number, TaskKey(0, lane or f"lane-{number}", "u"), 1, 1, handler, "default", "null", 0, 0, 1000)


def _ids(call):
    return [item.id for item in call]


def test_calls_come_in_the_order_given():
    backlog = _backlog()
    backlog.add([_item(1), _item(2), _item(3)])
    assert [_ids(backlog.take()) for _ in range(4)] == [[1], [2], [3], []]


def test_second_task_of_a_lane_waits_for_the_first():
    backlog = _backlog()
    backlog.add([_item(1, "a"), _item(2, "a"), _item(3, "b")])
    first = backlog.take()
    assert _ids(backlog.take()) == [3]
    assert backlog.take() == []
    assert len(backlog) == 1
    backlog.finish(first)
    assert _ids(backlog.take()) == [2]


def test_tasks_behind_others_of_their_lane_wait_for_no_child():
    backlog = _backlog()
    backlog.add([_item(1, "a"), _item(2, "a"), _item(3, "b")])
    assert (len(backlog), backlog.startable) == (3, 2)
    backlog.take()
    backlog.take()
    assert (len(backlog), backlog.startable) == (1, 0)
    batches = _backlog()
    batches.add([_item(n, "a", "batch") for n in range(4)])
    call = batches.take()
    batches.add([_item(4, "a", "batch")])
    assert (len(batches), batches.startable) == (2, 0)
    batches.finish(call)
    assert batches.startable == 2


def test_batch_handler_takes_a_lane_in_order_up_to_its_limit():
    backlog = _backlog()
    backlog.add([_item(n, "a", "batch") for n in range(5)])
    first = backlog.take()
    assert _ids(first) == [0, 1, 2]
    assert backlog.take() == []
    backlog.finish(first)
    assert _ids(backlog.take()) == [3, 4]


def test_batch_handler_passes_over_lanes_that_run():
    backlog = _backlog()
    backlog.add([_item(n, "a", "batch") for n in range(4)] + [_item(9, "b", "batch")])
    backlog.take()
    assert _ids(backlog.take()) == [9]


def test_returned_calls_come_first_again():
    backlog = _backlog()
    backlog.add([_item(n) for n in range(4)])
    calls = [backlog.take() for _ in range(3)]
    for call in reversed(calls[1:]):
        backlog.put_back(call)
    assert [_ids(backlog.take()) for _ in range(3)] == [[1], [2], [3]]


def test_tasks_of_a_batch_handler_that_are_returned_one_by_one_keep_the_order_of_their_lane():
    backlog = _backlog()
    items = [_item(1, "a", "batch"), _item(2, "a", "batch"), _item(3, "a", "batch"), _item(4, "b", "batch")]
    for order in itertools.permutations(range(3)):
        backlog.add(items)
        first, second = backlog.take(), backlog.take()
        assert (_ids(first), _ids(second)) == ([1, 2, 3], [4])
        backlog.put_back(second)
        for place in order:
            backlog.put_back([first[place]])
        assert _ids(backlog.take()) == [1, 2, 3]
        assert _ids(backlog.take()) == [4]
        backlog.finish(items)


def test_discarded_tasks_make_way_for_the_next_of_their_lane():
    backlog = _backlog()
    backlog.add([_item(1, "a"), _item(2, "a"), _item(3, "a")])
    assert _ids(backlog.discard({1, 2})) == [1, 2]
    assert _ids(backlog.take()) == [3]
    assert _ids(backlog.discard()) == []


def test_random_histories_never_reorder_or_overlap_a_lane_and_lose_nothing():
    for seed in range(200):
        rng = random.Random(seed)
        backlog, out, ended, gone = _backlog(), [], defaultdict(list), set()
        items = [_item(n, f"lane-{rng.randrange(4)}", rng.choice(["h", "batch-1", "batch-2"])) for n in range(40)]
        todo = list(items)
        while todo or out or len(backlog):
            action = rng.random()
            if action < 0.3 and todo:
                count = rng.randrange(1, 6)
                backlog.add(todo[:count])
                del todo[:count]
            elif action < 0.6 or not out:
                call = backlog.take()
                if call:
                    running = {item.key.ordering_id for other in out for item in other}
                    assert not running & {item.key.ordering_id for item in call}
                    assert len({item.handler for item in call}) == 1
                    assert len(call) <= (1 if call[0].handler == "h" else 3)
                    out.append(call)
            elif action < 0.7:
                backlog.put_back(out.pop(rng.randrange(len(out))))
            elif action < 0.75:
                gone |= {item.id for item in backlog.discard({rng.randrange(40)})}
            else:
                call = out.pop(rng.randrange(len(out)))
                for item in call:
                    ended[item.key.ordering_id].append(item.id)
                backlog.finish(call)
            assert backlog.startable == sum(lane.waiting for lane in backlog._lanes.values() if not lane.out)
        for lane, ids in ended.items():
            assert ids == [item.id for item in items if item.key.ordering_id == lane and item.id not in gone]
        assert sum(map(len, ended.values())) + len(gone) == 40
