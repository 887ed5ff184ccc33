"""Leases: what workers are given, what keeps it theirs, and how it ends."""

import gc
import json
import weakref

import pytest

from scylla_spark.core.engine import action
from scylla_spark.core.engine.bounds import Limits
from scylla_spark.core.engine.leases import repeated_calls
from scylla_spark.core.engine.queue import QueueLimits
from scylla_spark.core.leases.messages import (
    CANCELLED,
    ENDED,
    FOREIGN,
    LOST,
    OK,
    OUTPUTS_FULL,
    UNAVAILABLE,
    Call,
    Report,
    Sign,
    Want,
    folded,
)
from scylla_spark.core.records.command import Command
from scylla_spark.core.records.desk_messages import ANSWER, MAX_LINE_BYTES, line
from scylla_spark.core.tables.progress import Basis, Mark
from scylla_spark.core.tasks.attempt_note import WorkNote
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.output import MAX_OUTPUTS, OutputLink, read_links
from scylla_spark.core.tasks.stored_records import ScanRow
from scylla_spark.core.tasks.task import Failure
from tests.support.engine_harness import NOW, SECOND
from tests.support.worker_harness import PullWorld

FILE = OutputLink("a.txt", 3, "0" * 64, "text/plain")


@pytest.fixture
def world():
    return PullWorld()


def uniques(leases):
    return [lease.task.key.uniqueness_key for lease in leases]


# -- who gets what ---------------------------------------------------------------------------------------------------------


def test_the_lease_is_a_fact_before_it_is_an_answer(world):
    world.put()
    number = world.once(1, wait=5)
    assert world.answer(number, deliver=False) is None
    world.partition.outbox.again()
    (lease,) = world.leases(number)
    (fact,) = [fact for fact in world.facts if fact.outcome == "started"]
    assert (fact.attempt, fact.work.worker, lease.task.attempt) == (1, "curl", 1)
    assert lease.token not in str(world.log)


def test_two_most_urgent_of_a_queue_and_none_of_another(world):
    for n, priority in enumerate((100, 10, 50)):
        world.put(f"lane{n}", f"p{priority}", priority=priority)
    world.put("lane9", "other", priority=120, queue="elsewhere", handler=None)
    assert uniques(world.leases(world.once(2))) == ["p100", "p50"]


def test_leases_come_most_urgent_first_whatever_order_their_facts_are_read_in(world):
    for n in range(5):
        world.put(f"lane{n}", f"p{n}", priority=n)
    number = world.once(5, wait=1)
    session = world.engine._leases._calls[number]
    world.pump()
    assert session.given == sorted(session.given, key=lambda lease: -lease.run.invocation.priority)
    assert uniques(world.leases(number)) == ["p4", "p3", "p2", "p1", "p0"]


def test_priority_is_a_number_and_the_oldest_of_equals_goes_first(world):
    world.put("a", "p9", priority=9)
    world.put("b", "p127", priority=127)
    world.put("c", "younger", due=-1, priority=5)
    world.put("d", "older", due=-2, priority=5)
    assert uniques(world.leases(world.once(4))) == ["p127", "p9", "older", "younger"]


@pytest.mark.parametrize("ageing", [False, True])
@pytest.mark.parametrize("end", ["expired", "yielded", "failed"])
def test_what_comes_again_is_not_behind_all_that_is_younger(end, ageing):
    world = PullWorld(ageing=ageing)
    for n, unique in enumerate("ABC"):
        world.put(unique, unique, due=n - 10)
    (first,) = world.leases(world.once(1, lease_ms=1_000))
    if end != "expired":
        world.report(first.token, end)
    world.at(5)
    assert first.task.key.uniqueness_key == "A"
    assert uniques(world.leases(world.once(3))) == ["A", "B", "C"]


def test_a_task_is_not_leased_before_its_time(world):
    world.put(due=2)
    number = world.once(1, wait=5)
    assert world.answer(number) is None
    world.at(2)
    assert uniques(world.leases(number)) == ["u"]


def test_a_lane_is_leased_one_at_a_time_in_order(world):
    for unique in ("c", "a", "b"):
        world.put(unique=unique)
    (first,) = world.leases(world.once(5))
    assert first.task.key.uniqueness_key == "a"
    assert world.leases(world.once(5)) == []
    assert world.report(first.token) == OK
    assert uniques(world.leases(world.once(5))) == ["b"]


@pytest.mark.slow
def test_twenty_workers_lease_a_thousand_tasks_once_each(world):
    for n in range(1_000):
        world.put(f"lane{n}", f"u{n}")
    numbers = [world.once(50, worker=f"w{n}") for n in range(20)]
    leased = [unique for number in numbers for unique in uniques(world.leases(number))]
    assert len(leased) == len(set(leased)) == 1_000


def test_nothing_is_promised_by_an_owner_that_is_not_certain_to_be_one(world):
    world.put()
    call = Call(99, "w", "s", 1, wants=(Want("gpu"),))
    world.engine.call(call, world.now, certain=False)
    assert world.answer(99).refusal == "unavailable"
    assert world.outcomes() == []


def test_an_empty_answer_says_why(world):
    paused = PullWorld(paused=True)
    paused.put()
    answer = paused.answer(paused.once(1))
    assert (answer.leases, answer.queues[0].ready, answer.queues[0].limit) == ((), 1, "paused")
    assert world.answer(world.once(1)).queues[0][1:] == (0, None, "")
    assert world.answer(world.once(1, queue="mode forgotten")).queues[0][1:] == (0, None, "push")


def test_a_rate_limits_only_while_it_holds_something_back():
    world = PullWorld(rate=1.0)
    world.put("a", "1")
    world.put("b", "2")
    assert world.answer(world.once(1, handlers=("x",))).queues[0][1:] == (2, NOW, "")
    world.leases(world.once(1))
    assert world.answer(world.once(1)).queues[0][1:] == (1, NOW, "rate")
    world.at(1)
    assert world.engine.scarcity("gpu", world.now).limit == ""


def test_tasks_that_wait_for_a_slot_of_their_group_are_why_an_answer_is_empty():
    world = PullWorld(group_concurrency=1)
    world.put("acme:1", "1")
    world.put("acme:2", "2")
    (lease,) = world.leases(world.once(2))
    assert world.answer(world.once(1)).queues[0][1:] == (0, None, "group")
    world.report(lease.token)
    assert world.engine.scarcity("gpu", world.now)[1:] == (1, NOW, "")


def test_tasks_that_wait_for_a_scan_of_the_tables_are_why_an_answer_is_empty(world):
    world.engine.raise_horizon(world.tenure, world.now + 600 * SECOND)
    world.put(due=310)
    assert world.answer(world.once(1)).queues[0][1:] == (0, None, "")
    world.at(310)
    assert world.answer(world.once(1)).queues[0][1:] == (0, None, "tables")
    assert world.engine.scarcity("another", world.now).limit == "push"
    world.engine.scanned(world.tenure, world.now + SECOND, {}, Mark(), world.now)
    assert world.engine.scarcity("gpu", world.now)[1:] == (1, NOW + 310 * SECOND, "")


def test_a_waiting_call_is_answered_empty_when_its_time_is_over(world):
    number = world.once(1, wait=3)
    world.at(2.9)
    assert world.answer(number) is None
    world.at(3)
    assert world.answer(number).leases == ()


def test_the_first_who_waits_is_served_first(world):
    first, second = world.once(1, worker="x", wait=5), world.once(1, worker="y", wait=5)
    world.put()
    assert uniques(world.leases(first)) == ["u"]
    assert world.answer(second) is None


def test_only_tasks_of_the_handlers_that_a_worker_has(world):
    world.put("a", "render", handler="render")
    world.put("b", "score", handler="score")
    world.put("c", "none", handler=None)
    assert uniques(world.leases(world.once(5, handlers=frozenset({"score", "unknown"})))) == ["score"]
    assert set(uniques(world.leases(world.once(5)))) == {"render", "none"}


def test_one_task_by_its_name(world):
    keys = [world.put(f"lane{n}", f"u{n}") for n in range(3)]
    assert uniques(world.leases(world.once(1, key=keys[1]))) == ["u1"]
    assert world.leases(world.once(1, key=keys[1])) == []
    assert sorted(uniques(world.leases(world.once(5)))) == ["u0", "u2"]


def test_a_queue_hands_out_no_more_than_its_concurrency():
    world = PullWorld(concurrency=2)
    for n in range(5):
        world.put(f"lane{n}", f"u{n}")
    leases = world.leases(world.once(5))
    assert len(leases) == 2
    assert world.leases(world.once(5)) == []
    world.report(leases[0].token)
    assert len(world.leases(world.once(5))) == 1


def test_a_group_hands_out_no_more_than_its_concurrency():
    world = PullWorld(group_concurrency=1)
    for n in range(3):
        world.put(f"acme:{n}", f"a{n}")
    world.put("other:1", "o")
    leases = world.leases(world.once(5))
    assert len(leases) == 2
    world.report(next(lease for lease in leases if lease.task.key.ordering_id.startswith("acme")).token)
    assert len(world.leases(world.once(5))) == 1


def test_weighted_groups_take_turns():
    world = PullWorld(weights={"big": 3})
    for group in ("big", "small"):
        for n in range(40):
            world.put(f"{group}:{n}", f"{group}{n}")
    first = [unique.rstrip("0123456789") for unique in uniques(world.leases(world.once(20)))]
    assert (first.count("big"), first.count("small")) == (15, 5)
    assert "small" in first[:4]


@pytest.mark.parametrize(("weights", "first"), [(None, "aaaabbbb"), ({"any": 1}, "abababab")])
def test_groups_take_turns_once_any_has_a_weight(weights, first):
    world = PullWorld(weights=weights)
    for lane in [f"{group}:{n}" for group in "ab" for n in range(4)]:
        world.put(lane)
    assert "".join(lease.task.key.ordering_id[0] for lease in world.leases(world.once(8))) == first


def test_waiting_counts_like_priority_where_a_queue_ages():
    world = PullWorld(ageing=True)
    world.put("a", "old", due=-100, priority=0)
    world.put("b", "urgent", due=-1, priority=50)
    world.put("c", "most urgent", due=-1, priority=200)
    assert uniques(world.leases(world.once(3))) == ["most urgent", "old", "urgent"]


def test_a_task_without_a_visibility_time_is_gone_when_it_is_handed_out():
    world = PullWorld(lease_ms=0)
    world.put()
    (lease,) = world.leases(world.once(1))
    assert (lease.token, world.outcomes()) == ("", ["succeeded"])
    world.at(100)
    assert world.leases(world.once(1)) == []


# -- how it ends -----------------------------------------------------------------------------------------------------------


def test_a_report_is_answered_once_its_fact_counts(world):
    world.put()
    (lease,) = world.leases(world.once(1))
    number = world.once(0, reports=(Report(lease.token, "succeeded", result='{"a":1}', metrics='{"ms":3}'),))
    assert world.answer(number, deliver=False) is None
    world.partition.outbox.again()
    assert world.answer(number).statuses == (OK,)
    end = world.facts[-1]
    assert (end.outcome, end.result, end.work.progress, end.work.metrics) == ("succeeded", '{"a":1}', 1.0, '{"ms":3}')


def test_the_same_report_twice_is_right_and_another_is_not(world):
    world.put()
    (lease,) = world.leases(world.once(1))
    assert [world.report(lease.token), world.report(lease.token)] == [OK, OK]
    assert world.report(lease.token, "failed", failure=Failure("x")) == ENDED
    assert world.outcomes() == ["started", "succeeded"]


def test_aborted_is_for_good_and_failed_is_tried_again(world):
    world.put("a", "aborts")
    world.put("b", "fails")
    leases = {lease.task.key.uniqueness_key: lease for lease in world.leases(world.once(2))}
    world.report(leases["aborts"].token, "aborted", failure=Failure("E1", "broken"))
    world.report(leases["fails"].token, "failed", failure=Failure("E2"), after_ms=90_000)
    assert world.outcomes("aborts")[-1] == "aborted"
    world.at(89)
    assert world.leases(world.once(2)) == []
    world.at(91)
    (again,) = world.leases(world.once(2))
    assert (again.task.key.uniqueness_key, again.task.attempt) == ("fails", 2)
    assert again.task.last_error == ("E2", "")


def test_a_yield_uses_up_no_attempt_and_leaves_its_checkpoint(world):
    world.put()
    (lease,) = world.leases(world.once(1))
    assert world.sign(lease.token, progress=0.1) == OK
    assert world.report(lease.token, "yielded", checkpoint='{"row":7}') == OK
    (again,) = world.leases(world.once(1))
    assert (again.task.attempt, again.task.checkpoint) == (2, '{"row":7}')
    assert world.facts[1].work.progress == 0.1
    assert [fact.used for fact in world.facts if fact.key.uniqueness_key == "u"] == [1, 0, 1]


def test_files_of_a_lease_stand_in_its_facts_and_not_in_those_of_the_next_attempt(world):
    world.put()
    (lease,) = world.leases(world.once(1))
    told = world.engine.lease_output(lease.token, None, world.now)
    assert told == {"key": list(lease.task.key), "attempt": 1, "epoch": lease.task.epoch, "sizes": {}}
    for link in (FILE, FILE._replace(name="b"), FILE._replace(bytes=9)):
        told = world.engine.lease_output(lease.token, link, world.now)
    assert told["sizes"] == {"a.txt": 9, "b": 3}
    world.at(2)
    early = [fact for fact in world.facts if fact.outcome == "started"][-1]
    assert read_links(early.work.outputs) == (FILE._replace(bytes=9), FILE._replace(name="b")), "told a second later"
    assert world.report(lease.token, "yielded") == OK
    assert read_links(world.facts[-1].work.outputs) == (FILE._replace(bytes=9), FILE._replace(name="b"))
    (again,) = world.leases(world.once(1))
    assert world.engine.lease_output(again.token, None, world.now)["sizes"] == {}
    assert world.engine.lease_output(lease.token, FILE, world.now) == LOST
    assert world.engine.lease_output("7.nonsense", FILE, world.now) == LOST


def test_the_owner_refuses_a_file_by_which_an_attempt_would_leave_too_much_behind():
    world = PullWorld(limits=Limits(least_wait_us=0, max_output_bytes=1_000))
    world.put()
    (lease,) = world.leases(world.once(1))

    def told(name, size):
        return world.engine.lease_output(lease.token, FILE._replace(name=name, bytes=size), world.now)

    assert told("a", 900)["sizes"] == {"a": 900}
    assert told("b", 101) == OUTPUTS_FULL
    assert told("a", 1_000)["sizes"] == {"a": 1_000}, "what is replaced does not count"
    for number in range(MAX_OUTPUTS - 1):
        assert isinstance(told(str(number), 0), dict)
    assert told("one more", 0) == OUTPUTS_FULL
    assert len(world.engine.lease_output(lease.token, None, world.now)["sizes"]) == MAX_OUTPUTS


def recorded(world):
    """What the last start fact tells."""
    return [fact for fact in world.facts if fact.outcome == "started"][-1].work


def test_what_a_lease_tells_is_recorded_within_a_second_however_often_it_tells(world):
    world.put()
    (lease,) = world.leases(world.once(1))
    for tenth in range(20, 51):
        world.at(tenth / 10)
        assert world.sign(lease.token, checkpoint=f'{{"row":{tenth}}}') == OK
        world.engine.lease_output(lease.token, FILE._replace(bytes=tenth), world.now)
    assert len([fact for fact in world.facts if fact.outcome == "started"]) == 4, "the lease, and once a second"
    assert world.engine.next_wake() <= world.now + SECOND
    world.at(6)
    assert recorded(world).checkpoint == '{"row":50}'
    assert [link.bytes for link in read_links(recorded(world).outputs)] == [50]
    world.at(20)
    assert len([fact for fact in world.facts if fact.outcome == "started"]) == 5, "nothing is told twice"


@pytest.mark.parametrize("leaves", [False, True])
def test_what_was_told_while_an_earlier_fact_was_on_its_way_is_recorded_after_it(world, leaves):
    world.put()
    (lease,) = world.leases(world.once(1))
    for second, name in ((2, "a"), (3.1, "b")):
        world.engine.lease_output(lease.token, FILE._replace(name=name), NOW + int(second * SECOND))
        world.now = NOW + int((second + 1) * SECOND)
        world.engine.tick(world.now, {}, start_by_us=0)  # nothing is written or read back meanwhile
    assert read_links(recorded(world).outputs) == ()
    if leaves:
        world.engine.revoke(0, world.now)
        world.pump()
        assert [item.clean for item in world.other if isinstance(item, action.Left)] == [True]
    else:
        world.at(6)
        world.at(7)
    assert [link.name for link in read_links(recorded(world).outputs)] == ["a", "b"]


@pytest.mark.parametrize("told", ["link", "checkpoint"])
def test_a_partition_is_left_when_all_that_its_leases_told_is_recorded(world, told):
    world.put()
    (lease,) = world.leases(world.once(1))
    for second in (2, 2.4):
        world.at(second)
        world.sign(lease.token, checkpoint=f'{{"row":{second}}}')
        world.engine.lease_output(lease.token, FILE._replace(bytes=int(second * 10)), world.now)
    world.engine.revoke(0, world.now)
    if told == "link":
        assert world.engine.lease_output(lease.token, FILE._replace(bytes=9), world.now) == UNAVAILABLE
    else:
        assert world.sign(lease.token, checkpoint='{"row":9}') == UNAVAILABLE
    world.pump()
    assert [item.clean for item in world.other if isinstance(item, action.Left)] == [True]
    assert recorded(world).checkpoint == '{"row":2.4}'
    assert [link.bytes for link in read_links(recorded(world).outputs)] == [24]


@pytest.mark.slow
@pytest.mark.parametrize("heavy", ["checkpoint", "error", "payload"])
def test_an_answer_is_never_longer_than_its_reader_takes_whatever_makes_its_leases_long(world, heavy):
    text = json.dumps({"rows": '"' * 32_000})
    for lane in range(300):
        world.put(f"lane{lane}", payload=text if heavy == "payload" else "{}")
    if heavy != "payload":
        told = {"checkpoint": text} if heavy == "checkpoint" else {"failure": Failure("E", "\x01" * 64_000)}
        first = world.leases(world.once(300))
        outcome = "yielded" if heavy == "checkpoint" else "failed"
        reports = [Report(lease.token, outcome, after_ms=0, **told) for lease in first]
        for index in range(0, 300, 100):
            assert set(world.answer(world.once(0, reports=tuple(reports[index : index + 100]))).statuses) == {OK}
        world.at(60)
    answers = [world.answer(world.once(300)) for _ in range(6)]
    assert sum(len(answer.leases) for answer in answers) == 300, "the rest come with the next calls"
    assert max(len(line(ANSWER, answer)) for answer in answers) < MAX_LINE_BYTES / 2


def test_a_lease_without_a_sign_of_life_is_over(world):
    world.put()
    (lease,) = world.leases(world.once(1, lease_ms=1_000))
    world.sign(lease.token, progress=0.25)
    world.at(0.9)
    assert world.leases(world.once(1)) == []
    world.at(1.1)
    (again,) = world.leases(world.once(1))
    assert again.task.attempt == 2
    timeout = next(fact for fact in world.facts if fact.outcome == "timed_out")
    assert timeout.failure.kind == "lease_expired"
    assert (timeout.work.worker, timeout.work.progress) == ("curl", 0.25)
    assert [world.report(lease.token), world.sign(lease.token)] == [LOST, LOST]


def test_signs_keep_a_lease_up_to_its_longest_run():
    world = PullWorld(lease_ms=2_000, max_run_ms=5_000)
    world.put()
    (lease,) = world.leases(world.once(1))
    for second in (1, 2, 3, 4):
        world.at(second)
        assert world.sign(lease.token) == OK
    world.at(5.1)
    assert world.sign(lease.token) == LOST
    assert world.facts[-1].failure.kind == "lease_too_long"


@pytest.mark.parametrize("timeout_ms", [3_000, 9_000])
def test_the_timeout_of_a_task_is_the_longest_run_of_its_lease(timeout_ms):
    world = PullWorld(lease_ms=2_000, max_run_ms=5_000)
    world.put(timeout_ms=timeout_ms)
    (lease,) = world.leases(world.once(1))
    assert lease.until_us == world.now + timeout_ms * 1000
    for second in range(1, timeout_ms // 1000):
        world.at(second)
        assert world.sign(lease.token) == OK
    world.at(timeout_ms / 1000 + 0.1)
    assert world.sign(lease.token) == LOST
    assert world.facts[-1].failure.kind == "lease_too_long"


@pytest.mark.parametrize(
    ("code", "ends"),
    [("bad_input", True), ("child_died", False), ("worker_fault", False), ("container_not_started", False)],
)
def test_a_queue_that_fails_at_once_tries_again_only_what_no_consumer_failed(code, ends):
    world = PullWorld(fails_at_once=True)
    world.put()
    (lease,) = world.leases(world.once(1))
    assert world.report(lease.token, "failed", failure=Failure(code)) == OK
    assert world.facts[-1].terminal == ends
    assert world.report(lease.token, "failed", failure=Failure(code)) == OK, "said twice"


def test_a_queue_that_redelivers_gives_a_task_out_again_whose_result_is_false():
    world = PullWorld(lease_ms=2_000, redelivers=True)
    world.put()
    for result, ends in (("false", False), ("0", True)):
        (lease,) = world.leases(world.once(1))
        assert world.report(lease.token, result=result) == OK
        assert world.facts[-1].terminal == ends
        assert world.report(lease.token, result=result) == OK, "said twice"
        assert world.leases(world.once(1)) == []
        world.at(2.1)
    assert (lease.task.attempt, world.facts[-1].used) == (2, 1)


def test_expired_leases_use_up_attempts(world):
    world.put()
    for _ in range(3):
        assert len(world.leases(world.once(1, lease_ms=1_000))) == 1
        for seconds in (1.5, 8):  # from the second time on it waits by its policy
            world.at((world.now - NOW) / SECOND + seconds)
    assert world.outcomes()[-1] == "failed"
    assert world.leases(world.once(1)) == []


def test_a_task_whose_workers_die_one_after_the_other_waits_longer_and_longer(world):
    world.put(unique="poison", priority=9, retry=(None, 20_000, 60_000))
    world.put("b", "sound")
    (first,) = world.leases(world.once(1, lease_ms=1_000))
    world.at(1.1)
    (second,) = world.leases(world.once(1, lease_ms=1_000))
    assert uniques([first, second]) == ["poison", "poison"], "after the first time it does not wait"
    world.at(2.2)
    assert uniques(world.leases(world.once(1))) == ["sound"], "after the second it is not the head of its queue"
    waits = [fact.next_us - fact.finished_us for fact in world.facts if fact.outcome == "timed_out"]
    assert waits[0] == 0
    assert 20 * SECOND <= waits[1] <= 40 * SECOND
    world.at(45)
    (third,) = world.leases(world.once(1, lease_ms=1_000))
    assert world.report(third.token, "failed", failure=Failure("E"), after_ms=0) == OK
    (fourth,) = world.leases(world.once(1, lease_ms=1_000))
    world.at(48)
    (fifth,) = world.leases(world.once(1, lease_ms=1_000))
    assert (fourth.task.attempt, fifth.task.attempt) == (4, 5), "one that did not die in between begins anew"


def test_a_task_that_kills_workers_before_they_can_say_that_they_got_it_is_not_the_head_for_ever(world):
    world.put(unique="poison", priority=9)
    world.put("b", "sound")
    for second in (0, 2.1):
        world.at(second)
        assert uniques(world.leases(world.ask(session=f"s{second}"))) == ["poison"]
    world.at(4.2)
    assert uniques(world.leases(world.ask(session="s3"))) == ["sound"]


def test_another_worker_cannot_speak_for_a_lease(world):
    world.put()
    (lease,) = world.leases(world.once(1, worker="mine"))
    assert world.report(lease.token, worker="other") == FOREIGN
    assert world.report("0." + "0" * 32, worker="mine") == LOST
    assert world.report(lease.token, worker="mine") == OK


def test_a_stale_worker_cannot_act_on_a_task_that_was_leased_again(world):
    world.put()
    (old,) = world.leases(world.once(1, lease_ms=1_000))
    world.at(2)
    (new,) = world.leases(world.once(1))
    assert world.report(old.token) == LOST
    assert world.report(new.token) == OK
    assert world.outcomes() == ["started", "timed_out", "started", "succeeded"]


def test_cancel_ends_a_leased_task_and_its_worker_hears_of_it(world):
    key = world.put()
    (lease,) = world.leases(world.ask())
    number = world.ask(wait=20)
    assert world.answer(number) is None
    world.command("cancel", key, request_id="r")
    answer = world.answer(number)
    assert (answer.cancelled, answer.lost) == ((lease.token,), (lease.token,))
    assert world.outcomes() == ["started", "cancelled"]
    assert world.report(lease.token) == CANCELLED


@pytest.mark.parametrize("first", ["cancel", "complete"])
def test_cancel_and_complete_race_and_one_wins(world, first):
    key = world.put()
    (lease,) = world.leases(world.once(1))
    if first == "cancel":
        world.command("cancel", key, request_id="r")
    number = world.once(0, reports=(Report(lease.token, "succeeded"),))
    if first == "complete":
        world.command("cancel", key, request_id="r")
    status = world.answer(number).statuses[0]
    ends = [fact for fact in world.facts if fact.terminal]
    answers = [fact.outcome for fact in world.facts if fact.request_id == "r"]
    assert (status, [fact.outcome for fact in ends], answers) == (
        (CANCELLED, ["cancelled"], ["cancelled"]) if first == "cancel" else (OK, ["succeeded"], ["too_late"])
    )


# -- sessions --------------------------------------------------------------------------------------------------------------


def test_each_call_keeps_all_that_a_session_holds(world):
    for n in range(3):
        world.put(f"lane{n}", f"u{n}")
    leases = world.leases(world.ask(most=3))
    for second in range(1, 30):
        world.at(second)
        answer = world.answer(world.ask(most=0))
        assert (answer.held, answer.digest) == (3, folded(lease.token for lease in leases))
    world.at(39.5)
    assert world.answer(world.ask(most=0)).lost == tuple(lease.token for lease in leases)


def test_what_a_session_does_not_confirm_is_ready_again_after_two_seconds(world):
    world.put()
    world.leases(world.ask())
    world.at(1.9)
    assert world.leases(world.ask("other")) == []
    world.at(2.1)
    (again,) = world.leases(world.ask("other"))
    assert again.task.attempt == 2
    assert [fact.used for fact in world.facts][:3] == [1, 0, 1]


def test_the_same_call_again_gets_the_same_answer(world):
    world.put("a", "1")
    world.put("b", "2")
    first = world.answer(world.ask(most=1))
    repeated = world.answer(world.ask(most=1, sequence=1))
    assert (repeated.leases, repeated.held, repeated.digest) == (first.leases, 1, first.digest)
    assert len(world.leases(world.ask(most=1))) == 1


def test_a_newer_call_takes_the_place_of_one_that_waits(world):
    waiting = world.ask(wait=20)
    later = world.ask(wait=20)
    assert world.answer(waiting).refusal == "superseded"
    world.put()
    assert uniques(world.leases(later)) == ["u"]
    assert world.answer(world.ask(sequence=1)).refusal == "sequence_out_of_order"


def test_a_second_session_takes_a_workers_name_and_the_first_is_told(world):
    world.put()
    (lease,) = world.leases(world.ask(session="old"))
    world.answer(world.ask(session="old", most=0))
    world.answer(world.ask(session="new"))
    assert world.answer(world.ask(session="old", most=0)).refusal == "worker_replaced"
    world.at(5)
    assert world.report(lease.token, worker="w") == OK  # what it has it may still end


def test_a_worker_that_leaves_gives_back_what_it_holds(world):
    for n in range(3):
        world.put(f"lane{n}", f"u{n}")
    world.leases(world.ask(most=3))
    world.answer(world.ask(most=0))
    assert world.engine.leave("w", "s", world.now) == 3
    world.pump()
    assert len(world.leases(world.ask("other", most=3))) == 3


def test_a_list_of_what_is_held_mends_both_sides(world):
    for n in range(3):
        world.put(f"lane{n}", f"u{n}")
    leases = world.leases(world.ask(most=3))
    world.answer(world.ask(most=0))
    strange = "0." + "1" * 32
    answer = world.answer(world.ask(most=0, held=(leases[0].token, strange)))
    assert (answer.lost, answer.held) == ((strange, leases[1].token, leases[2].token), 1)
    assert len(world.leases(world.ask("other", most=3))) == 2


def test_a_caller_that_hung_up_costs_a_task_two_seconds(world):
    number = world.ask(wait=20)
    world.answer(number)
    world.engine.hang_up([number])
    world.put()
    world.pump()
    assert world.answer(number) is None
    assert uniques(world.leases(world.ask("other"))) == ["u"]


def test_a_request_that_comes_again_gets_the_same_leases_and_no_others(world):
    world.put("a", "1")
    world.put("b", "2")
    (first,) = world.leases(world.once(1, request="r1"))
    world.at(5)
    (again,) = world.leases(world.once(1, request="r1"))
    assert again == first
    world.at(14)
    assert world.sign(first.token) == OK, "that was a sign of life"
    assert world.leases(world.once(0, request="r1")) == [first], "whoever asks what it was given"
    assert uniques(world.leases(world.once(1, request="r2"))) == ["2"]
    assert world.report(first.token) == OK
    assert world.leases(world.once(1, request="r1")) == [], "what it was given is done"


def test_requests_of_two_workers_have_nothing_in_common(world):
    world.put("a", "1")
    world.put("b", "2")
    assert uniques(world.leases(world.once(1, worker="w1", request="r"))) == ["1"]
    assert uniques(world.leases(world.once(1, worker="w2", request="r"))) == ["2"]


def test_a_request_that_was_given_nothing_or_gave_all_back_is_done_anew(world):
    assert world.leases(world.once(1, request="r")) == []
    world.put()
    (lease,) = world.leases(world.once(1, request="r"))
    assert world.report(lease.token, "yielded") == OK
    (again,) = world.leases(world.once(1, request="r"))
    assert again.task.attempt == 2


def test_a_request_that_was_hung_up_on_and_comes_again_is_answered(world):
    world.put(due=1)
    first = world.once(1, wait=5, request="r")
    world.pump()
    world.engine.hang_up([first])
    second = world.once(1, wait=5, request="r")
    third = world.once(1, wait=5, request="r")
    assert world.answer(second).refusal == "superseded"
    world.at(1)
    assert uniques(world.leases(third)) == ["u"]


def test_what_is_handed_over_to_a_request_for_good_is_told_again(world):
    world.put("a", "1")
    world.put("b", "2")
    (first,) = world.leases(world.once(1, lease_ms=0, request="r"))
    (again,) = world.leases(world.once(1, lease_ms=0, request="r"))
    assert (first.token, again) == ("", first)


def test_requests_are_remembered_within_bounds(world, monkeypatch):
    monkeypatch.setattr(repeated_calls, "_MOST", 3)
    requests_of = world.engine._leases._requests
    for n in range(9):
        world.put(f"lane{n}", f"u{n}", payload='"' + 1_000 * "x" + '"')
        assert len(world.leases(world.once(1, request=f"r{n}"))) == 1
    assert len(requests_of._told) == 3
    assert 3_000 < requests_of._bytes < 9_000
    monkeypatch.setattr(repeated_calls, "_MOST_BYTES", 4_000)
    world.put()
    world.leases(world.once(1, request="last"))
    assert ("curl", "last") in requests_of._told
    assert requests_of._bytes < 4_000
    world.engine.hang_up([world.once(1, wait=20, request="gone")])
    world.at(700)
    assert (len(requests_of._told), requests_of._bytes, len(requests_of._sessions)) == (0, 0, 0)


@pytest.mark.slow
def test_a_request_keeps_nothing_of_a_partition_that_is_left(world):
    world.put()
    for number in range(50):
        world.put(f"lane{number}", payload='"' + 1_000 * "x" + '"')
    (lease,) = world.leases(world.once(1, request="r"))
    kept = weakref.ref(world.partition)
    world.engine.drop(0)
    world.other.clear()
    world.at(3)
    assert world.leases(world.once(1)) == [], "void places are swept out"
    gc.collect()
    assert kept() is None
    told = world.answer(world.once(0, request="r"))
    assert (told.known, told.leases) == (True, ()), "who has it now is not known here"
    assert lease.token


@pytest.mark.parametrize("orders", [["drain"], ["stop"], ["drain", "stop"], ["stop", "drain"]])
def test_a_worker_that_is_to_drain_or_stop_hears_of_it_at_once_and_is_leased_nothing_more(world, orders):
    world.put("a", "1")
    (lease,) = world.leases(world.ask())
    waiting = world.ask(wait=20)
    assert world.answer(waiting) is None
    assert [world.engine.order("w", order) for order in orders] == [True] * len(orders)
    strictest = "stop" if "stop" in orders else "drain"
    assert world.answer(waiting).order == strictest
    world.put("b", "2")
    again = world.answer(world.ask(wait=20, sequence=2))
    assert (again.order, again.leases) == (strictest, ()), "the answer may have been lost"
    deaf = world.ask(wait=20)
    assert world.answer(deaf) is None, "who does not obey waits, and does not ask in a circle"
    assert world.report(lease.token, worker="w") == OK
    world.at(20)
    assert world.answer(deaf).order == strictest
    assert uniques(world.leases(world.ask(session="after its restart"))) == ["2"]
    assert not world.engine.order("nobody", "drain")


def test_a_call_that_is_hurried_is_answered_with_what_there_is(world):
    number = world.ask(wait=20)
    world.pump()
    assert world.answer(number) is None
    world.engine.hurry([number], world.now)
    assert world.answer(number).leases == ()
    world.put()
    world.pump()
    assert uniques(world.leases(world.ask("other"))) == ["u"], "nothing is leased for it afterwards"


def test_ended_leases_leave_nothing_behind(world, monkeypatch):
    monkeypatch.setattr("scylla_spark.core.engine.leases.book._SLACK", 8)
    for number in range(60):
        world.put(f"lane{number}", f"u{number}")
        (lease,) = world.leases(world.ask("", session="", lease_ms=86_400_000))
        world.answer(world.ask("", session="", most=0, reports=(Report(lease.token, "succeeded"),)))
    assert len(world.engine._leases._book._deadlines) <= 16


def test_sessions_are_bounded_and_those_that_are_in_use_stay(world, monkeypatch):
    monkeypatch.setattr("scylla_spark.core.engine.leases.worker_calls._MOST_SESSIONS", 5)
    world.put()
    assert world.leases(world.ask("busy"))
    for number in range(50):
        world.answer(world.ask(f"stranger-{number}"))
    assert [session.worker for session in world.engine.sessions if session.held] == ["busy"]
    assert len(list(world.engine.sessions)) == 5


# -- other owners ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["tail", "scan"])
def test_a_recorded_lease_outlives_its_owner(world, by):
    key = world.put()
    (lease,) = world.leases(world.once(1))
    start = next(fact for fact in world.facts if fact.outcome == "started")
    successor = PullWorld()
    successor.at(3)
    if by == "tail":
        successor.engine._outcomes._apply(successor.partition, start, 50, successor.now)
        successor.put()
    else:
        data = world.partition.lanes["a"].entries[key].data
        row = ScanRow(data, attempt=1, used=1, work=start.work)
        successor.engine.rows(successor.tenure, [row], Basis(), successor.now, whole=False)
    assert successor.leases(successor.once(1)) == []
    successor.at(9)
    assert successor.sign(lease.token, progress=0.5) == OK
    successor.at(18)
    assert successor.report(lease.token) == OK
    assert [fact.outcome for fact in successor.facts] == ["succeeded"]
    assert successor.facts[0].attempt == 1


def test_a_recorded_lease_of_a_dead_worker_ends_a_whole_term_after_the_take(world):
    key = world.put()
    world.leases(world.once(1))
    start = next(fact for fact in world.facts if fact.outcome == "started")
    successor = PullWorld()
    row = ScanRow(world.partition.lanes["a"].entries[key].data, attempt=1, used=1, work=start.work)
    successor.engine.rows(successor.tenure, [row], Basis(), successor.now, whole=False)
    successor.at(9.9)
    assert successor.leases(successor.once(1)) == []
    successor.at(10.1)
    assert successor.leases(successor.once(1))[0].task.attempt == 2


def test_an_owner_that_is_still_reading_calls_no_lease_lost(world):
    world.put()
    (lease,) = world.leases(world.once(1))
    world.engine.doubt(world.now)
    world.engine.drop(0)
    assert world.report(lease.token) == "unavailable"
    successor = PullWorld()
    successor.tenure = successor.engine.assign(0, Mark(), successor.now)
    assert successor.report(lease.token) == "unavailable"
    assert successor.answer(successor.ask(most=0, held=(lease.token,))).lost == ()
    assert successor.report("99." + "0" * 32) == LOST


def test_leases_go_on_elsewhere_when_a_partition_is_left_and_nobody_is_told_they_are_lost(world):
    world.put()
    (lease,) = world.leases(world.ask())
    world.answer(world.ask(most=0))
    world.engine.drop(0)
    answer = world.answer(world.ask(most=0, signs=(Sign(lease.token, WorkNote()),)))
    assert answer.lost == ()
    assert list(world.engine.leases) == []


def test_a_session_takes_up_leases_of_an_earlier_owner_by_naming_them(world):
    key = world.put()
    (lease,) = world.leases(world.ask())
    start = next(fact for fact in world.facts if fact.outcome == "started")
    successor = PullWorld()
    row = ScanRow(world.partition.lanes["a"].entries[key].data, attempt=1, used=1, work=start.work)
    successor.engine.rows(successor.tenure, [row], Basis(), successor.now, whole=False)
    assert successor.answer(successor.ask(most=0)).held == 0
    answer = successor.answer(successor.ask(most=0, held=(lease.token,)))
    assert (answer.held, answer.digest, answer.lost) == (1, folded([lease.token]), ())
    for second in range(5, 60, 5):
        successor.at(second)
        assert successor.answer(successor.ask(most=0)).lost == ()


# -- the way to workers breaks ---------------------------------------------------------------------------------------------


def test_a_call_that_was_hung_up_on_and_comes_again_is_answered(world):
    number = world.ask(wait=20)
    world.pump()
    world.engine.hang_up([number])
    again = world.ask(wait=20, sequence=1)
    world.put()
    assert uniques(world.leases(again)) == ["u"]


def test_a_report_whose_call_was_hung_up_on_is_answered_when_it_comes_again(world):
    world.put()
    (lease,) = world.leases(world.ask())
    report = Report(lease.token, "succeeded")
    number = world.ask(most=0, reports=(report,))
    world.engine.hang_up([number])
    again = world.ask(most=0, sequence=2, reports=(report,))
    assert world.answer(again).statuses == (OK,)
    assert world.outcomes() == ["started", "succeeded"]


def test_workers_that_were_cut_off_have_a_whole_term_to_say_that_they_got_their_leases(world):
    world.put()
    (lease,) = world.leases(world.ask())
    world.at(1)
    world.engine.cut_off(world.now)
    world.at(9)
    assert world.leases(world.ask("other")) == []
    answer = world.answer(world.ask(most=0))
    assert (answer.held, answer.digest) == (1, folded([lease.token]))


def test_what_nobody_confirms_after_a_cut_is_ready_again_after_a_term(world):
    world.put()
    world.leases(world.ask())
    world.engine.cut_off(world.now)
    world.at(10.1)
    assert len(world.leases(world.ask("other"))) == 1


def test_what_was_given_for_an_earlier_call_counts_against_what_the_next_one_wants(world):
    for n in range(9):
        world.put(f"lane{n}", f"u{n}")
    first = world.ask(most=3, wait=20)
    world.answer(first, deliver=False)
    second = world.ask(most=3, wait=20)
    assert world.answer(first).refusal == "superseded"
    world.partition.outbox.again()
    assert len(world.leases(second)) == 3


def test_a_worker_that_holds_nothing_and_does_not_call_is_forgotten_and_may_come_back(world):
    world.put()
    (kept,) = world.leases(world.ask("holds", sequence=1))
    world.answer(world.ask("idle", 0, sequence=7))
    assert {session.worker for session in world.engine.sessions} == {"holds", "idle"}
    for sequence in range(2, 200):
        world.now += 5 * SECOND
        world.answer(world.ask("holds", 0, sequence=sequence))
    assert [session.worker for session in world.engine.sessions] == ["holds"]
    assert world.answer(world.ask("idle", 0, sequence=8)).refusal == ""
    assert world.report(kept.token, worker="holds") == OK


def test_who_shows_the_token_of_a_lease_has_got_it_whatever_call_that_came_with(world):
    world.put()
    (lease,) = world.leases(world.ask())
    assert world.sign(lease.token, worker="w") == OK
    world.at(10.1)
    assert world.facts[-1].failure.kind == "lease_expired"


def test_a_call_that_comes_again_names_nothing_that_it_was_given_and_takes_nothing_of_that_away(world):
    world.put()
    (lease,) = world.leases(world.ask(held=()))
    assert world.sign(lease.token, worker="w") == OK
    assert [one.token for one in world.leases(world.ask(sequence=1, held=()))] == [lease.token]
    world.at(9)
    assert world.report(lease.token, worker="w") == OK


# -- silence is known when all that was sent has been taken ------------------------------------------------------------------


def asked(world):
    """The questions whether all that workers have sent was taken."""
    return [item.number for item in world.other if isinstance(item, action.Listen)]


def test_a_call_that_waited_in_a_busy_process_keeps_its_lease(world):
    world.put()
    (lease,) = world.leases(world.ask())
    world.deaf = True
    world.at(5)
    (number,) = asked(world)
    assert world.engine.next_wake() > world.now + SECOND, "it waits for the answer, not in a circle"
    assert world.answer(world.ask(most=0, reports=(Report(lease.token, "succeeded"),))).statuses == (OK,)
    world.engine.listened(number)
    world.at(6)
    assert world.outcomes() == ["started", "succeeded"]


def test_a_lease_is_over_when_all_was_taken_and_its_worker_had_said_nothing(world):
    world.put()
    world.leases(world.ask())
    world.deaf = True
    world.at(2.1)
    world.at(3)
    assert world.leases(world.once(1)) == []
    (number,) = asked(world)
    world.engine.listened(number + 1)
    world.at(4)
    assert world.leases(world.once(1)) == [], "an answer to another question says nothing"
    world.engine.listened(number)
    assert [lease.task.attempt for lease in world.leases(world.once(1, wait=1))] == [2]


def test_a_process_that_never_hands_anything_on_holds_no_lease_for_ever(world):
    world.put()
    world.leases(world.ask())
    world.deaf = True
    world.at(2.1)
    world.at(32)
    assert world.leases(world.once(1)) == []
    world.at(32.2)
    assert len(world.leases(world.once(1, wait=1))) == 1
    assert len(asked(world)) == 1


def test_a_dispatcher_that_stood_still_for_long_asks_before_a_lease_is_over(world):
    world.put()
    (lease,) = world.leases(world.once(1))
    world.deaf = True
    world.at(300)
    (number,) = asked(world)
    assert world.sign(lease.token) == OK
    world.engine.listened(number)
    world.at(305)
    assert world.outcomes() == ["started"]


def test_after_the_clock_was_set_it_is_asked_again(world):
    world.put()
    (lease,) = world.leases(world.once(1))
    world.deaf = True
    world.at(10.1)
    (number,) = asked(world)
    world.now -= 3600 * SECOND
    world.engine.doubt(world.now)
    world.engine.listened(number)
    world.now += 11 * SECOND
    world.pump()
    assert len(asked(world)) == 2
    assert world.sign(lease.token) == OK


def test_a_request_whose_lease_ran_out_before_it_came_again_is_done_anew(world):
    world.put()
    assert len(world.leases(world.once(1, lease_ms=1_000, request="r"))) == 1
    world.at(1.5)
    (again,) = world.leases(world.once(1, lease_ms=1_000, request="r"))
    assert again.task.attempt == 2


def test_an_answer_says_whether_its_request_has_got_what_it_gets(world):
    assert not world.answer(world.once(0, request="r")).known
    assert not world.answer(world.once(1, request="r")).known, "it was given nothing"
    world.put("a", "1")
    world.put("b", "2")
    told = world.answer(world.once(1, request="r"))
    assert told.known
    assert world.report(told.leases[0].token) == OK
    for most in (0, 1):
        told = world.answer(world.once(most, request="r"))
        assert (told.known, told.leases) == (True, ()), "it is done"
    assert not world.answer(world.once(1)).known, "it was no request"


def test_a_task_whose_confirmations_were_lost_waits_no_longer_than_ten_seconds(world):
    world.put(retry=(None, 3_600_000, 7_200_000))
    for _ in range(4):
        assert len(world.leases(world.ask())) == 1
        world.at((world.now - NOW) / SECOND + 2.1)
        world.sequences.clear()
        world.engine.leave("w", "s", world.now)
        world.pump()
        world.at((world.now - NOW) / SECOND + 10)
    waits = [fact.next_us - fact.finished_us for fact in world.facts if fact.outcome == "yielded"]
    assert waits[0] == 0
    assert set(waits[1:]) == {10 * SECOND}


def test_leases_that_are_taken_over_are_no_starts():
    world = PullWorld(rate=1.0, lease_ms=600_000)
    rows = [
        ScanRow(
            Command("enqueue", TaskKey(NOW - 100 * SECOND, f"l{n}", "u"), n, "h", "gpu"), attempt=1, used=1,
            work=WorkNote("w", f"{n:032x}", 600_000, NOW - 60 * SECOND, NOW + 3_600 * SECOND),
        )
        for n in range(60)
    ]  # fmt: skip
    world.engine.rows(world.tenure, rows, Basis(), world.now, whole=False)
    world.pump()
    assert world.engine.counts["leases_adopted"] == 60
    world.put(lane="new", unique="new")
    world.now += SECOND
    assert [lease.task.key.uniqueness_key for lease in world.leases(world.once(1))] == ["new"]


def test_what_autoscalers_are_told_counts_lanes_that_wait():
    world = PullWorld()
    keys = [world.put(lane="a", unique=f"{number:04}") for number in range(200)]
    others = [world.put(lane=f"l{number}", unique="u") for number in range(100)]
    world.pump()
    for key in (*keys[1:], *others[1:]):
        world.command("cancel", key, request_id=None)
    world.pump()
    assert world.engine.scarcity("gpu", world.now).ready == 2


def test_a_task_that_is_cancelled_before_the_answer_leaves_room_for_the_next(world):
    world.put("a", "1", priority=9)
    number = world.once(1, wait=30)
    assert world.answer(number, deliver=False) is None
    assert [lease.run.entry.key.uniqueness_key for lease in world.engine.leases] == ["1"]
    world.command("cancel", TaskKey(NOW, "a", "1"), request_id=None)
    world.put("b", "2")
    world.partition.outbox.again()
    assert [lease.task.key.uniqueness_key for lease in world.leases(number)] == ["2"]
    assert world.now < NOW + 5 * SECOND


def test_what_was_given_for_one_want_and_ended_is_made_up_for_by_that_want(world):
    world.engine.put_queue("cpu", QueueLimits(pull=True), world.now)
    for n in range(2):
        world.put(f"gpu{n}")
        world.put(f"cpu{n}", queue="cpu")
    number = world.call("w", "s", 1, 30, wants=(Want("gpu", 2), Want("cpu", 3)))
    assert world.answer(number, deliver=False) is None
    world.command("cancel", TaskKey(NOW, "gpu0", "u"), request_id=None)
    for n in range(2, 9):
        world.put(f"cpu{n}", queue="cpu")
    world.put("gpu7")
    world.pump(deliver=False)
    world.partition.outbox.again()
    leased = [lease.task.key.ordering_id for lease in world.leases(number)]
    assert sorted(leased) == ["cpu0", "cpu1", "cpu2", "gpu1", "gpu7"]
