"""The judge of the benchmarks sees every kind of wrong history."""

from __future__ import annotations

from scylla_spark.core.records.fact import Fact, Fence, encode_facts, encode_fence
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark_tools.bench.judge import SLACK_US, Seen, judge

MINE = Fence(1, "mine")


def _fact(time_us: int, started: int, finished: int, *, lane: str = "a", **changes: object) -> Fact:
    return Fact(TaskKey(time_us, lane, "u"), 1, "succeeded", started, finished, time_us, 1, result="1")._replace(
        **changes
    )


def _log(*facts: Fact, fence: Fence = MINE) -> list[Seen]:
    values = [encode_fence(MINE, "", 0), *encode_facts(fence, facts)]
    return [Seen(0, value, 1_000 + index) for index, value in enumerate(values)]


def test_ordered_lane_is_without_fault():
    verdict = judge(_log(_fact(1, 10, 20), _fact(2, 20, 30), _fact(1, 12, 13, lane="b")))
    assert (verdict.completed, verdict.disorder, verdict.overlaps, verdict.doubled, verdict.failed) == (3, 0, 0, 0, 0)
    assert (verdict.first_start_us, verdict.last_seen_us) == (10, 1_001)
    assert verdict.results[0] == (1, 10, "1")


def test_completion_before_that_of_a_smaller_key_is_disorder():
    assert judge(_log(_fact(2, 10, 20), _fact(1, 30, 40))).disorder == 1


def test_start_before_the_end_of_the_one_before_is_an_overlap():
    assert judge(_log(_fact(1, 1_000, 2_000), _fact(2, 1_999 - SLACK_US, 3_000))).overlaps == 1


def test_tasks_of_one_batch_call_do_not_overlap_but_two_calls_do():
    assert judge(_log(_fact(1, 1_000, 2_000), _fact(2, 1_000, 2_000), _fact(3, 1_000, 2_000))).overlaps == 0
    assert judge(_log(_fact(1, 1_000, 2_000), _fact(2, 1_000, 2_001))).overlaps == 1


def test_second_completion_of_a_key_is_doubled_and_not_counted():
    verdict = judge(_log(_fact(1, 10, 20), _fact(1, 30, 40)))
    assert (verdict.completed, verdict.doubled) == (1, 1)


def test_tasks_of_an_earlier_run_are_passed_over():
    verdict = judge(_log(_fact(1, 10, 20), _fact(2, 5, 30, lane="b"), _fact(2, 25, 30)), since_us=2)
    assert (verdict.completed, verdict.first_start_us) == (2, 5)


def test_facts_of_another_fence_do_not_count():
    assert judge(_log(_fact(1, 10, 20), fence=Fence(1, "other"))).completed == 0


def test_failure_is_no_completion_and_a_retry_is_no_end():
    verdict = judge(_log(_fact(1, 10, 20, outcome="failed", next_us=99), _fact(1, 100, 110, outcome="failed")))
    assert (verdict.completed, verdict.failed, verdict.retried) == (0, 1, 1)


def test_records_that_are_none_of_ours_are_passed_over():
    assert judge([Seen(0, None, 1), Seen(0, b"{}", 1), *_log(_fact(1, 10, 20))]).completed == 1
