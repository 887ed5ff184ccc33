"""What every Executor must do. A test module subclasses one of the classes and provides the fixture `running`.

The local pool runs `WholeExecutorConformance`. The pools of Spark and of Spark Connect run a local pool where the handlers are, so
they run `ExecutorConformance`, the tests that can differ by pool. Leased workers run `ChildConformance`.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from scylla_spark.clock import boot_us, now_us
from scylla_spark.core.tasks.enqueue_options import command_of
from scylla_spark.core.tasks.follow_up import unique_key
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.output import read_links
from scylla_spark.core.tasks.task import MAX_ERROR_CHARS, Failure, Invocation, LastError, Outcome
from scylla_spark.executors.interface import Executor
from tests.support.processes import alive
from tests.support.waiting import holds

HANDLERS = str(Path(__file__).with_name("sample_handlers.py"))
BATCH_HANDLERS = str(Path(__file__).with_name("sample_batch_handlers.py"))
GRACE_S = 0.3
_ids = iter(range(1, 10**9))


def invocation(
    handler: str, payload: object = None, *, lane: str | None = None, key: str = "u", timeout_ms: int = 30_000
) -> Invocation:
    number = next(_ids)
    task_key = TaskKey(1_800_000_000_000_000, lane or f"lane-{number}", key)
    return Invocation(number, task_key, 3, 7, handler, "default", json.dumps(payload), 5, 0, timeout_ms)


class Running:
    """A started executor and everything that it has reported."""

    def __init__(self, executor: Executor, slack_s: float = 0.0) -> None:
        self.executor = executor
        self.slack_s = slack_s
        self.outcomes: list[Outcome] = []
        self.reported_at: dict[int, float] = {}
        self._news = threading.Condition()
        executor.start(self._sink)

    def _sink(self, outcomes: Sequence[Outcome]) -> None:
        with self._news:
            self.outcomes += outcomes
            self.reported_at.update((outcome.id, time.monotonic()) for outcome in outcomes)
            self._news.notify_all()

    def wait(self, calls: Iterable[Invocation], within: float = 20.0) -> list[Outcome]:
        """The outcomes of these invocations, in their order, checked to be one each."""
        calls = list(calls)
        ids = {call.id for call in calls}
        with self._news:
            done = self._news.wait_for(lambda: ids <= self.reported_at.keys(), within + self.slack_s)
            missing = ids - self.reported_at.keys()
            assert done, f"{len(missing)} of {len(ids)} invocations were not reported"
            counts = Counter(outcome.id for outcome in self.outcomes if outcome.id in ids)
            assert set(counts.values()) == {1}
            found = {outcome.id: outcome for outcome in self.outcomes if outcome.id in ids}
        return [found[call.id] for call in calls]

    def run(self, *calls: Invocation, within: float = 20.0) -> list[Outcome]:
        self.executor.submit(calls)
        return self.wait(calls, within)

    def one(self, handler: str, payload: object = None, **more) -> Outcome:
        return self.run(invocation(handler, payload, **more))[0]


class HandlerConformance:
    """What goes to a handler and comes back from it by another way in each pool, leased workers included.

    `running` is a Running of module scope.
    """

    def test_payload_that_does_not_fit_ends_a_task_for_good_and_names_the_field(self, running):
        outcome = running.one("typed", {"item": "tea", "count": "many"})
        assert (outcome.outcome, outcome.failure.kind) == ("aborted", "payload_invalid")
        assert "'count'" in outcome.failure.message

    @pytest.mark.parametrize(("how", "outcome"), [("raise", "failed"), ("exit", "failed"), ("", "succeeded")])
    def test_what_a_task_leaves_behind_is_in_its_outcome_however_it_ends(self, running, how, outcome):
        found = running.one("go_on", how)
        assert found.outcome == outcome
        assert json.loads(found.work.checkpoint) == {"row": 7, "text": "ü"}
        as_said = "half\n of\u202e it "  # a dispatcher fits it to a line when it has taken secrets out
        assert (found.work.progress, found.work.progress_note) == (0.5, as_said) or how == "exit"

    def test_task_finds_what_an_earlier_attempt_left_behind(self, running):
        fresh, again = invocation("go_on"), invocation("go_on")._replace(checkpoint='{"row": 3}')
        assert [one.result for one in running.run(fresh, again)] == [None, '{"row":3}']

    def test_task_is_told_why_the_attempt_before_failed(self, running):
        fresh, again = invocation("last_error"), invocation("last_error")._replace(last_error=LastError("Busy", "ü"))
        assert [one.result for one in running.run(fresh, again)] == [None, '["Busy","ü"]']

    def test_handler_sees_task_and_context_and_its_result_comes_back(self, running):
        outcome = running.one("echo", {"a": ["ä", 1, None]}, lane="lane,)x")
        result = json.loads(outcome.result)
        assert result.pop("left") < 0
        assert result == {
            "payload": {"a": ["ä", 1, None]},
            "lane": "lane,)x",
            "queue": "default",
            "priority": 5,
            "token": [7, 3],
        }

    def test_exception_is_a_failure_with_its_stack(self, running):
        self.check_exception(running, "ValueError")

    def check_exception(self, running, kind):
        outcome = running.one("raise", kind)
        assert (outcome.outcome, outcome.failure.kind) == ("failed", kind)
        assert "as asked" in outcome.failure.message
        assert "raise_named" in outcome.failure.stack
        assert "call.py" not in outcome.failure.stack

    def test_abort_is_terminal_with_its_reason(self, running):
        outcome = running.one("abort")
        assert (outcome.outcome, outcome.failure.kind, outcome.failure.message) == ("aborted", "Abort", "card_declined")

    def test_a_limit_that_others_share_is_told_by_its_key(self, running):
        calls = (["api.acme", "90s"], ["", "90s"], [7, "90s"], ["x" * 65, "90s"])
        limited, *wrong = running.run(*(invocation("rate_limited", payload) for payload in calls))
        assert (limited.outcome, limited.after_ms, limited.failure) == (
            "yielded",
            90_000,
            Failure("rate_limited", "api.acme"),
        )
        assert {(one.outcome, one.failure.kind) for one in wrong} == {("failed", "ArgumentError")}

    def test_unknown_handler_is_a_failure(self, running):
        outcome = running.one("nobody")
        assert (outcome.outcome, outcome.failure.kind) == ("failed", "handler_unknown")
        assert "'nobody'" in outcome.failure.message

    def test_exit_of_the_process_fails_only_the_task_that_ran(self, running):
        calls = [invocation("noop") for _ in range(20)]
        calls.insert(10, invocation("exit", 7))
        outcomes = running.run(*calls)
        died = outcomes.pop(10)
        assert (died.outcome, died.failure.kind) == ("failed", "child_died")
        assert "code 7" in died.failure.message
        assert {outcome.outcome for outcome in outcomes} == {"succeeded"}


class ChildConformance(HandlerConformance):
    """And what the process of a handler sees to: leased workers have one of their own kind, all pools share another."""

    def test_threads_of_a_task_may_leave_something_behind_too(self, running):
        found = running.one("go_on", "threads")
        assert found.outcome == "succeeded"
        assert json.loads(found.work.checkpoint)["row"] in range(20)

    def test_notes_that_cannot_be_are_refused_where_they_are_said(self, running):
        found = running.one("bad_notes")
        assert len(json.loads(found.result)) == 7
        assert found.work is None

    @pytest.mark.parametrize("kind", ["KeyboardInterrupt", "BaseException", "SystemExit"])
    def test_exception_of_any_kind_is_a_failure_with_its_stack(self, running, kind):
        self.check_exception(running, kind)

    @pytest.mark.parametrize(
        ("what", "kind"),
        [
            ("object", "result_not_serialisable"),
            ("nan", "result_not_serialisable"),
            ("surrogate", "result_not_serialisable"),
            ("deep", "result_not_serialisable"),
            ("large", "result_too_large"),
        ],
    )
    def test_result_that_cannot_be_kept_is_a_failure(self, running, what, kind):
        outcome = running.one("return", what)
        assert (outcome.outcome, outcome.result, outcome.failure.kind) == ("failed", None, kind)

    def test_variables_folder_and_mask_that_a_task_changes_are_not_those_of_the_next(self, running):
        found = [tuple(json.loads(running.one("rearrange").result)) for _ in range(12)]
        processes = Counter(pid for pid, *_ in found)
        assert max(processes.values()) > 1, "some ran in the same process"
        assert {tenant for _, tenant, *_ in found} == {None}
        assert len(set(found)) == len(processes), "executors of a cluster have folders of their own"

    @pytest.mark.parametrize("what", ["alarm", "limit", "zone", "module", "thread"])
    def test_what_a_task_leaves_in_its_process_does_not_meet_the_next(self, running, what):
        found = running.one("find_after", 0).result
        calls = [
            invocation("leave_behind", what) for _ in range(16)
        ]  # as many as there are children, so that each has it
        running.run(*calls)
        after = running.run(*[invocation("find_after", 0.4 if what == "alarm" else 0) for _ in calls])
        assert [(one.outcome, one.failure, one.result) for one in after] == [("succeeded", None, found)] * len(calls)

    def test_copy_of_a_child_that_a_handler_forks_reports_nothing(self, running):
        assert running.one("fork").result == '"original"'

    @pytest.mark.parametrize("handler", ["raise_slow", "close_and_hang"])
    def test_task_that_is_killed_for_its_time_is_timed_out_whatever_its_child_still_does(self, running, handler):
        call = invocation(handler, timeout_ms=700)
        assert running.run(call)[0].failure.kind == "timed_out"
        assert running.one("noop").outcome == "succeeded"

    def test_child_that_closed_its_descriptors_is_replaced_and_its_outcome_kept(self, running):
        assert running.one("close_all").outcome == "succeeded"
        assert running.one("noop").outcome == "succeeded"


class ExecutorConformance(HandlerConformance):
    """What can differ by pool: how tasks are spread, timed, killed and handed back, and what belongs to an outcome.

    The grace of `running` is GRACE_S, and it can run two tasks at once.
    """

    keeps_outputs = False

    def test_what_a_task_leaves_behind_is_in_its_outcome_when_it_is_timed_out(self, running):
        found = running.one("go_on", "hang", timeout_ms=700)
        assert found.outcome == "timed_out"
        assert json.loads(found.work.checkpoint) == {"row": 7, "text": "ü"}

    def test_files_that_a_task_leaves_behind_are_in_its_outcome_however_it_ends(self, running):
        steps = [["a.txt", "first"], ["ü.bin", {"zeros": 2_000_000}], ["a.txt", "again"]]
        if not self.keeps_outputs:
            assert running.one("leave_files", steps[:1]).result == '"ArgumentError"'
            return
        ends = {"raise": "failed", "exit": "failed", "hang": "timed_out"}
        found = running.run(*(invocation("leave_files", [*steps, end], timeout_ms=3_000) for end in ends))
        assert [one.outcome for one in found] == list(ends.values())
        for one in found:
            links = read_links(one.work.outputs)
            assert [(link.name, link.bytes, link.media_type) for link in links] == [
                ("a.txt", 5, "text/plain"), ("ü.bin", 2_000_000, "application/octet-stream"),
            ]  # fmt: skip

    def test_what_a_task_asks_for_is_in_its_outcome(self, running):
        call = invocation("asks")
        (found,) = running.run(call)
        assert found.outcome == "succeeded"
        task, typed, event = found.follow_ups
        assert (task.name, typed.name, event.name) == ("next", "#1", "#2")
        assert command_of(task, call.key, 60_000_000).key == (120_000_000, "lane ü", unique_key(call.key, "next"))
        assert command_of(typed, call.key, 0).payload == '{"item":"tea","count":1}'
        assert json.loads(event.record) == {"name": "stock", "fields": {"site": 3}}

    def test_task_that_asks_for_longer_gets_it(self, running):
        outcome = running.one("extends", 1.5, timeout_ms=700)
        assert (outcome.outcome, outcome.result) == ("succeeded", "[true,true]")

    def test_task_that_ignores_its_end_is_timed_out_within_timeout_and_grace(self, running):
        self.check_time_out(running, "stubborn")

    def check_time_out(self, running, handler):
        outcome = running.run(invocation(handler, timeout_ms=300))[0]
        assert (outcome.outcome, outcome.failure.kind) == ("timed_out", "timed_out")
        assert 300_000 <= outcome.finished_us - outcome.started_us < (0.3 + GRACE_S + 0.5) * 1e6

    def test_tasks_of_a_lane_run_in_the_order_given(self, running, tmp_path):
        calls = [
            invocation("append", {"file": str(tmp_path / f"lane{n % 4}"), "line": n}, lane=f"order-{n % 4}")
            for n in range(40)
        ]
        assert {outcome.outcome for outcome in running.run(*calls)} == {"succeeded"}
        for lane in range(4):
            assert (tmp_path / f"lane{lane}").read_text().split() == [str(n) for n in range(lane, 40, 4)]

    def test_batch_handler_gets_arrow_and_gives_one_outcome_per_row(self, running):
        calls = [invocation("batch_arrow", what) for what in ("ok", "fail", "abort", "ok")]
        outcomes = running.run(*calls)
        assert [outcome.outcome for outcome in outcomes] == ["succeeded", "failed", "aborted", "succeeded"]
        assert outcomes[1].failure.message == outcomes[2].failure.message == "because"
        assert json.loads(outcomes[3].result)["size"] >= 1

    def test_what_waits_in_a_lane_behind_a_failure_is_handed_back(self, running):
        self.check_what_waits_behind(running, "exit", "failed")

    def check_what_waits_behind(self, running, bad, outcome):
        running.run(*[invocation("noop") for _ in range(20)])  # fast by now: several of a lane go to one child together
        lanes = {
            f"{bad}-{n}": [invocation("noop" if k != 2 else bad, 3, lane=f"{bad}-{n}") for k in range(6)]
            for n in range(3)
        }
        running.executor.submit([call for calls in lanes.values() for call in calls])
        for calls in lanes.values():
            found = [one.outcome for one in running.wait(calls)]
            assert found == ["succeeded", "succeeded", outcome, "not_started", "not_started", "not_started"]
        again = [invocation("noop", lane=f"{bad}-0") for _ in range(6)]
        running.executor.submit(again)
        assert {one.outcome for one in running.wait(again)} == {"succeeded"}

    def test_hanging_task_does_not_delay_the_others(self, running):
        running.run(*[invocation("noop") for _ in range(50)])
        hanging = invocation("sleep", 300, timeout_ms=120_000)
        others = [invocation("noop") for _ in range(100)]
        running.executor.submit([*others[:50], hanging, *others[50:]])
        running.wait(others)
        assert hanging.id not in running.reported_at
        assert holds(lambda: hanging.id in running.executor.running(), 10 + running.slack_s)
        running.executor.kill([hanging.id])
        assert running.wait([hanging])[0].outcome == "timed_out"

    def test_killed_invocations_are_reported_once(self, running):
        calls = [invocation("sleep", 30) for _ in range(40)]
        running.executor.submit(calls)
        running.executor.kill([call.id for call in calls])
        outcomes = running.wait(calls)
        assert {outcome.outcome for outcome in outcomes} <= {"timed_out", "not_started"}
        assert "not_started" in {outcome.outcome for outcome in outcomes}

    def test_task_that_runs_is_named_with_its_start_and_the_one_behind_it_is_not(self, running, tmp_path):
        go, lane = tmp_path / "go", f"running-{tmp_path}"
        first, behind = invocation("wait_for_file", str(go), lane=lane), invocation("noop", lane=lane)
        before = now_us()
        running.executor.submit([first, behind])
        assert holds(lambda: first.id in running.executor.running(), 10 + running.slack_s)
        named = running.executor.running()
        assert behind.id not in named
        assert before <= named[first.id] <= now_us()
        go.touch()
        outcome = running.wait([first, behind])[0]
        assert abs(outcome.started_us - named[first.id]) < 100_000
        assert not {first.id, behind.id} & running.executor.running().keys()

    def test_task_whose_time_to_start_is_past_is_handed_back_unrun(self, running):
        calls = [invocation("noop")._replace(start_by_us=1), invocation("noop")]
        running.executor.submit(calls)
        assert [outcome.outcome for outcome in running.wait(calls)] == ["not_started", "succeeded"]

    def test_nothing_of_a_lane_overtakes_a_task_that_was_too_late(self, running):
        late = invocation("noop", lane="overtaken")._replace(start_by_us=1)
        behind = [invocation("noop", lane="overtaken") for _ in range(3)]
        running.executor.submit([late, *behind])
        assert {outcome.outcome for outcome in running.wait([late, *behind])} == {"not_started"}

    def test_time_to_start_that_passes_while_a_task_waits_hands_it_back_unrun(self, running, tmp_path):
        go, lane = tmp_path / "go", f"late-{tmp_path}"
        first = invocation("wait_for_file", str(go), lane=lane)
        behind = invocation("append", {"file": str(tmp_path / "ran"), "line": 1}, lane=lane)
        running.executor.submit([first])
        assert holds(lambda: first.id in running.executor.running(), 10 + running.slack_s)
        behind = behind._replace(start_by_us=boot_us() + 1000)
        running.executor.submit([behind])
        assert holds(lambda: boot_us() > behind.start_by_us)
        go.touch()
        assert [outcome.outcome for outcome in running.wait([first, behind])] == ["succeeded", "not_started"]
        assert not (tmp_path / "ran").exists()

    def test_many_tasks_are_each_reported_once(self, running):
        calls = [invocation("noop") for _ in range(1000)]
        for at in range(0, 1000, 50):
            running.executor.submit(calls[at : at + 50])
        assert {outcome.outcome for outcome in running.wait(calls)} == {"succeeded"}
        assert sum(running.executor.rooms().values()) > 0


class WholeExecutorConformance(ExecutorConformance, ChildConformance):
    """The whole suite, for the local pool. Those of Spark and Spark Connect run handlers in its children and by its rules."""

    def test_typed_handler_gets_a_value_of_its_type_and_returns_one(self, running):
        outcome = running.one("typed", {"item": "tea"})
        assert json.loads(outcome.result) == {"text": "1 x tea", "attempt": 3}

    def test_task_without_result_succeeds(self, running):
        before = now_us()
        outcome = running.one("noop")
        assert (outcome.outcome, outcome.result, outcome.failure) == ("succeeded", None, None)
        assert before <= outcome.started_us <= outcome.finished_us <= now_us()

    def test_unversioned_name_runs_highest_version(self, running):
        outcomes = running.run(invocation("versioned"), invocation("versioned@1"))
        assert [outcome.result for outcome in outcomes] == ["2", "1"]

    def test_sys_exit_is_named_in_the_message(self, running):
        assert running.one("raise", "SystemExit").failure.message == "The handler called sys.exit('as asked')."

    def test_exception_that_cannot_be_printed_is_still_a_failure(self, running):
        outcome = running.one("raise_hostile")
        assert (outcome.outcome, outcome.failure.kind) == ("failed", "Hostile")
        assert "RuntimeError" in outcome.failure.message

    @pytest.mark.parametrize("handler", ["raise_huge", "recurse"])
    def test_long_error_texts_are_cut(self, running, handler):
        failure = running.one(handler).failure
        assert failure.kind in ("ValueError", "RecursionError")
        assert 0 < len(failure.message) <= MAX_ERROR_CHARS
        assert 0 < len(failure.stack) <= MAX_ERROR_CHARS

    def test_yield_tells_how_long_to_wait(self, running):
        outcome = running.one("yield")
        assert (outcome.outcome, outcome.after_ms, outcome.failure) == ("yielded", 90_000, None)

    def test_a_limit_of_others_is_waited_for_up_to_a_day(self, running):
        soon, longest, longer, wrong = running.run(
            *(invocation("rate_limited", after) for after in ("90s", "1d", "25h", "soon"))
        )
        assert [(one.outcome, one.after_ms) for one in (soon, longest)] == [
            ("yielded", 90_000),
            ("yielded", 86_400_000),
        ]
        assert {(one.outcome, one.failure.kind) for one in (longer, wrong)} == {("failed", "ArgumentError")}
        assert "a day" in longer.failure.message

    def test_calls_of_a_child_share_what_is_set_up_and_it_is_torn_down_when_the_child_is_killed(
        self, running, tmp_path
    ):
        payload = {"folder": str(tmp_path)}
        calls = [json.loads(running.one("share", payload).result) for _ in range(6)]
        used: dict[int, int] = {}
        for pid, count in calls:
            used[pid] = used.get(pid, 0) + 1
            assert count >= used[pid]
        assert max(count for _, count in calls) > 1
        killed = running.one("share", payload | {"hangs": True}, timeout_ms=500)
        assert killed.outcome == "timed_out"
        assert holds(lambda: list(tmp_path.iterdir()))

    def test_much_that_is_asked_for_arrives_before_the_end_of_who_asks(self, running):
        calls = [invocation("asks", "large"), *(invocation("noop") for _ in range(20))]
        assert len(running.run(*calls)[0].follow_ups) == 7

    def test_segfault_names_signal_and_line(self, running):
        outcome = running.one("segfault")
        assert (outcome.outcome, outcome.failure.kind) == ("failed", "child_died")
        assert "SIGSEGV" in outcome.failure.message
        assert "in segfault" in outcome.failure.stack

    def test_task_that_keeps_the_interpreter_lock_is_timed_out_within_timeout_and_grace(self, running):
        self.check_time_out(running, "hold_gil")

    def test_printing_100_mb_does_no_harm(self, running):
        assert running.one("print_much", 100).result == '"printed"'

    def test_grandchildren_die_with_a_timed_out_task(self, running, tmp_path):
        outcome = running.one("family", str(tmp_path / "pids"), timeout_ms=600)
        assert outcome.outcome == "timed_out"
        pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
        assert len(pids) == 2
        assert holds(lambda: not any(map(alive, pids)))

    def test_grandchildren_die_with_a_child_that_died(self, running, tmp_path):
        assert running.one("orphan", str(tmp_path / "pid")).failure.kind == "child_died"
        pid = int((tmp_path / "pid").read_text())
        assert holds(lambda: not alive(pid))

    def test_batch_handler_annotated_with_pandas_gets_a_frame(self, running):
        outcomes = running.run(*[invocation("batch_pandas", lane=f"b{n}", key=f"k{n}") for n in range(5)])
        assert [outcome.result for outcome in outcomes] == [f'"b{n}/k{n}"' for n in range(5)]

    def test_batch_handler_that_returns_none_has_succeeded(self, running):
        outcomes = running.run(*[invocation("batch_none") for _ in range(25)])
        assert {(outcome.outcome, outcome.result) for outcome in outcomes} == {("succeeded", None)}

    @pytest.mark.parametrize(("handler", "text"), [("batch_short", "1 row"), ("batch_list", "not list")])
    def test_batch_handler_with_a_wrong_answer_fails_every_task(self, running, handler, text):
        outcomes = running.run(*[invocation(handler, lane="one lane", key=str(n)) for n in range(5)])
        assert {(outcome.outcome, outcome.failure.kind) for outcome in outcomes} == {("failed", "batch_result_invalid")}
        assert text in outcomes[0].failure.message

    def test_batch_handler_that_dies_fails_every_task_of_the_call(self, running):
        outcomes = running.run(*[invocation("batch_exit", lane="one lane", key=str(n)) for n in range(5)])
        assert {(outcome.outcome, outcome.failure.kind) for outcome in outcomes} == {("failed", "child_died")}

    def test_what_waits_in_a_lane_behind_an_abort_is_handed_back(self, running):
        self.check_what_waits_behind(running, "abort", "aborted")

    def test_lane_stays_in_order_through_batches_that_cut_it(self, running, tmp_path):
        file = tmp_path / "lines"
        calls = [invocation("batch_append", str(file), lane=f"cut-{n % 3}", key=f"{n:03}") for n in range(60)]
        assert {outcome.outcome for outcome in running.run(*calls)} == {"succeeded"}
        lines = [line.split() for line in file.read_text().splitlines()]
        for lane in range(3):
            assert [key for name, key in lines if name == f"cut-{lane}"] == [f"{n:03}" for n in range(lane, 60, 3)]

    def test_all_tasks_of_a_batch_run_together(self, running, tmp_path):
        go, lane = tmp_path / "go", f"batch-{tmp_path}"
        calls = [invocation("batch_wait", str(go), lane=lane, key=str(n)) for n in range(5)]
        running.executor.submit(calls)
        ids = {call.id for call in calls}
        assert holds(lambda: ids & running.executor.running().keys(), 10 + running.slack_s)
        named = running.executor.running()
        assert ids <= named.keys()
        assert len({named[one] for one in ids}) == 1
        go.touch()
        running.wait(calls)
        assert not ids & running.executor.running().keys()

    def test_killed_task_is_not_running_any_more(self, running, tmp_path):
        call = invocation("wait_for_file", str(tmp_path / "never"))
        running.executor.submit([call])
        assert holds(lambda: call.id in running.executor.running(), 10 + running.slack_s)
        running.executor.kill([call.id])
        assert running.wait([call])[0].outcome == "timed_out"
        assert call.id not in running.executor.running()


def kill_hard(pid: int) -> None:
    """kill -9."""
    os.kill(pid, signal.SIGKILL)
