"""The local pool: the conformance suite, and what only this pool promises."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from scylla_spark.core.tasks.output import OutputTerms
from scylla_spark.errors import ArgumentError, ConfigError, ConflictError
from scylla_spark.executors.local import supervisor
from scylla_spark.executors.local.pool import LocalPool
from scylla_spark.handlers.log_ring import LogMemory
from tests.support.executor_conformance import (
    BATCH_HANDLERS,
    GRACE_S,
    HANDLERS,
    Running,
    WholeExecutorConformance,
    invocation,
    kill_hard,
)
from tests.support.processes import alive
from tests.support.waiting import eventually, holds


def _descendants(pid: int) -> list[int]:
    found = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):  # by thread
        for child in map(int, children.read_text().split()):
            found += [child, *_descendants(child)]
    return found


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    pool = LocalPool([HANDLERS, BATCH_HANDLERS], kill_grace_s=GRACE_S)
    pool.keep_outputs(OutputTerms(str(tmp_path_factory.mktemp("outputs")), 8, 4_000_000))
    running = Running(pool)
    yield running
    pool.stop(drain_s=0)


@pytest.fixture
def make_pool():
    pools = []

    def make(**settings):
        running = Running(LocalPool([HANDLERS], kill_grace_s=GRACE_S, **settings))
        pools.append(running.executor)
        return running

    yield make
    for pool in pools:
        pool.stop(drain_s=0)


@pytest.mark.promise
class TestLocalPoolConforms(WholeExecutorConformance):
    keeps_outputs = True


class TestLocalPool:
    def test_handlers_are_known_without_importing_them_here(self, running):
        handlers = running.executor.handlers()
        assert handlers["batch_arrow"].max_batch == 100
        assert handlers["echo"].timeout_ms == 30_000
        assert handlers["versioned"].name == "versioned@2"
        assert "sample_handlers" not in sys.modules

    def test_what_is_set_up_is_torn_down_when_the_pool_stops(self, make_pool, tmp_path):
        running = make_pool(min_children=1, max_children=1)
        told = [json.loads(running.one("share", {"folder": str(tmp_path)}).result) for _ in range(3)]
        running.executor.stop(drain_s=0)
        assert [count for _, count in told] == [1, 2, 3]
        assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [(str(told[0][0]), "3")]

    def test_what_a_task_says_while_it_runs_is_heard_once(self, running):
        call = invocation("go_on", "hang")
        running.executor.submit([call])
        said = {}
        assert holds(lambda: said.update(running.executor.notes()) or said.get(call.id, (None,) * 8)[6] is not None)
        assert said[call.id].checkpoint == '{"row":7,"text":"ü"}'
        assert running.executor.notes() == {}
        running.executor.kill([call.id])
        assert running.wait([call])[0].work.checkpoint == '{"row":7,"text":"ü"}'

    def test_task_that_is_asked_to_end_may_do_so_by_itself(self, running, tmp_path):
        call = invocation("asked_to_end", str(tmp_path / "begun"))
        running.executor.submit([call])
        assert holds(lambda: (tmp_path / "begun").exists())
        running.executor.kill([call.id], grace_ms=30_000)
        found = running.wait([call], within=10)[0]
        assert (found.outcome, found.failure.message) == ("failed", "asked to end")
        assert found.work.checkpoint == '{"ended":true}'

    def test_task_that_is_asked_to_end_and_goes_on_is_killed_after_the_grace(self, running, tmp_path):
        call, behind = invocation("sleep", 60), invocation("noop")
        running.executor.submit([call])
        assert holds(lambda: call.id in running.executor.running())
        begun = time.monotonic()
        running.executor.kill([call.id], grace_ms=600)
        assert running.one("noop").outcome == running.run(behind)[0].outcome == "succeeded"
        assert running.wait([call], within=10)[0].outcome == "timed_out"
        assert time.monotonic() - begun >= 0.6

    def test_next_task_of_a_child_is_not_asked_to_end(self, make_pool, tmp_path):
        running = make_pool(min_children=1, max_children=1)
        first, second = (invocation("asked_to_end", str(tmp_path / name), timeout_ms=1_500) for name in "ab")
        running.executor.submit([first])
        assert holds(lambda: (tmp_path / "a").exists())
        running.executor.kill([first.id], grace_ms=30_000)
        assert running.wait([first])[0].outcome == "failed"
        assert running.run(second)[0].outcome == "timed_out"

    def test_nothing_waits_for_a_tick_of_the_pools_thread(self, make_pool, monkeypatch):
        for tick in ("_TICK_US", "_LONGEST_TICK_US"):
            monkeypatch.setattr(supervisor, tick, 30_000_000)
        running = make_pool(min_children=1, max_children=1)
        for _ in range(5):
            assert running.one("noop").outcome == "succeeded", "its child does it"
            assert running.one("nobody").outcome == "failed", "the pool's thread does it"

    @pytest.mark.parametrize("mood", ["sleep", "hold_gil"])
    def test_quick_tasks_queued_behind_one_that_hangs_go_to_another_child(self, make_pool, mood):
        running = make_pool(min_children=1, max_children=2)
        running.run(*[invocation("moody") for _ in range(50)])
        hanging, others = invocation("moody", mood), [invocation("moody") for _ in range(200)]
        running.executor.submit([*others[:5], hanging, *others[5:]])
        running.wait(others)
        assert hanging.id not in running.reported_at

    def test_task_that_waits_in_a_child_is_not_running(self, make_pool, tmp_path):
        running = make_pool(min_children=1, max_children=1)
        go = tmp_path / "go"
        go.touch()
        running.run(
            *[invocation("wait_for_file", str(go)) for _ in range(50)]
        )  # fast by now: it may queue in the child
        go.unlink()
        calls = [invocation("wait_for_file", str(go)) for _ in range(20)]
        running.executor.submit(calls)
        assert holds(lambda: calls[0].id in running.executor.running())
        assert set(running.executor.running()) == {calls[0].id}
        go.touch()
        running.wait(calls)
        assert running.executor.running() == {}

    def test_task_that_is_too_late_is_never_seen_running(self, make_pool):
        running = make_pool(min_children=1, max_children=1)
        late = [invocation("noop")._replace(start_by_us=1) for _ in range(500)]
        running.executor.submit(late)
        seen = {one for _ in range(200) for one in running.executor.running()}
        assert {outcome.outcome for outcome in running.wait(late)} == {"not_started"}
        assert seen == set()

    def test_killed_task_that_waits_in_a_child_is_not_started(self, make_pool):
        running = make_pool(min_children=1, max_children=1)
        running.run(*[invocation("moody") for _ in range(50)])
        hanging, unwanted, wanted = (
            invocation("moody", "sleep"),
            [invocation("moody") for _ in range(10)],
            [invocation("moody") for _ in range(10)],
        )
        running.executor.submit([hanging, *unwanted, *wanted])
        running.executor.kill([call.id for call in unwanted])
        assert {outcome.outcome for outcome in running.wait(unwanted)} == {"not_started"}
        running.executor.kill([hanging.id])
        assert {outcome.outcome for outcome in running.wait(wanted)} == {"succeeded"}
        assert running.wait([hanging])[0].outcome in ("timed_out", "not_started")  # the kill may come before its start

    def test_more_children_are_forked_when_all_are_busy_and_go_when_idle(self, make_pool, tmp_path):
        running = make_pool(min_children=1, max_children=5, idle_s=0.1)
        assert running.executor.rooms()["local"] == 5
        pids = self.pids_of_slow_calls(running, 5, tmp_path / "go")
        assert len(pids) == 5
        assert holds(lambda: sum(map(alive, pids)) == 1)
        assert holds(lambda: running.executor.rooms()["local"] == 5)

    def pids_of_slow_calls(self, running, count, go):
        """The children of so many calls that all run at once, until there is a file."""
        calls = [invocation("wait_for_file", str(go)) for _ in range(count)]
        running.executor.submit(calls)
        assert holds(lambda: {call.id for call in calls} <= running.executor.running().keys())
        go.touch()
        return {int(outcome.result) for outcome in running.wait(calls)}

    def test_fast_calls_go_to_few_children_and_slow_ones_still_to_all(self, make_pool, tmp_path):
        running = make_pool(min_children=8, max_children=8)
        assert len(self.pids_of_slow_calls(running, 8, tmp_path / "first")) == 8
        noops = [[invocation("noop") for _ in range(100)] for _ in range(20)]
        quick = next((calls for calls in noops if running.run(*calls) and running.executor.rooms()["local"] > 8), None)
        assert quick, "there is room for more than each child one: the next calls are probably fast ones too"

        def children_of_fast_calls():
            running.run(*[invocation("getpid") for _ in range(50)])
            return {outcome.result for outcome in running.run(*[invocation("getpid") for _ in range(300)])}

        # as many as there are cores; more for as long as other processes take these, since the calls are slow then
        eventually(lambda: len(children_of_fast_calls()) <= max(4, os.cpu_count()), 60)
        assert len(self.pids_of_slow_calls(running, 8, tmp_path / "again")) == 8

    def test_room_is_zero_while_every_child_is_busy(self, make_pool, tmp_path):
        running = make_pool(min_children=1, max_children=2)
        go = tmp_path / "go"
        calls = [invocation("wait_for_file", str(go)) for _ in range(2)]
        running.executor.submit(calls)
        assert running.executor.rooms()["local"] == 0
        go.touch()
        running.wait(calls)
        assert running.executor.rooms()["local"] == 2

    def test_stop_lets_running_tasks_finish_and_hands_back_the_rest(self, make_pool, tmp_path):
        running = make_pool(min_children=1, max_children=1)
        calls = [invocation("mark_and_sleep", str(tmp_path / f"begun{n}")) for n in range(3)]
        running.executor.submit(calls)
        assert holds((tmp_path / "begun0").exists)
        running.executor.stop(drain_s=5)
        assert [outcome.outcome for outcome in running.wait(calls, within=0)] == [
            "succeeded",
            "not_started",
            "not_started",
        ]
        assert not (tmp_path / "begun1").exists()

    def test_stop_kills_what_does_not_finish_in_time(self, make_pool, tmp_path):
        running = make_pool()
        call = invocation("stubborn", str(tmp_path / "begun"))
        running.executor.submit([call])
        assert holds((tmp_path / "begun").exists)
        running.executor.stop(drain_s=0.2)
        outcome = running.wait([call], within=0)[0]
        assert (outcome.outcome, outcome.failure.kind) == ("failed", "executor_stopped")

    def test_stop_leaves_no_process(self, make_pool):
        before = set(_descendants(_me()))
        running = make_pool()
        running.run(invocation("noop"))
        assert holds(lambda: len(set(_descendants(_me())) - before) >= 3)
        mine = set(_descendants(_me())) - before
        running.executor.stop(drain_s=1)
        assert not any(map(alive, mine))

    def test_task_submitted_after_stop_is_not_run(self, make_pool):
        running = make_pool()
        running.executor.stop(drain_s=0)
        running.executor.submit([invocation("noop")])
        assert running.outcomes == []

    def test_pool_survives_the_death_of_its_forkserver(self, make_pool, tmp_path):
        running = make_pool(min_children=1)
        child = int(running.one("pid").result)
        call = invocation("stubborn", str(tmp_path / "begun"))
        running.executor.submit([call])
        assert holds((tmp_path / "begun").exists)
        forkserver = int(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[1])
        kill_hard(forkserver)
        outcome = running.wait([call])[0]
        assert (outcome.outcome, outcome.failure.kind) == ("failed", "child_died")
        assert "the process that starts children" in outcome.failure.message, "nobody wonders about memory"
        assert running.one("noop").outcome == "succeeded"
        assert not alive(child)

    def test_a_forkserver_that_cannot_be_started_again_at_first_is_tried_until_it_can(self, tmp_path, caplog):
        module = tmp_path / "handlers_of_a_deploy.py"
        whole = 'from scylla_spark import handler\n\n@handler("deployed")\ndef deployed(task, ctx):\n    return 1\n'
        module.write_text(whole)
        running = Running(LocalPool([str(module)], min_children=1))
        try:
            assert running.one("deployed").outcome == "succeeded"
            module.write_text("raise RuntimeError('a deploy is under way')\n")
            kill_hard(running.executor._forkserver._process.pid)
            assert holds(lambda: caplog.text.count("cannot be started again") > 1)
            assert running.executor.rooms()["local"] == 0
            module.write_text(whole)
            assert running.one("deployed").outcome == "succeeded"
            assert running.executor.rooms()["local"] > 0
        finally:
            running.executor.stop(drain_s=0)

    def test_nothing_survives_kill_9_of_the_driver(self, tmp_path):
        pids = tmp_path / "pids"
        script = f"""
import threading
from tests.support.executor_conformance import HANDLERS, Running, invocation
from scylla_spark.executors.local.pool import LocalPool
running = Running(LocalPool([HANDLERS]))
running.executor.submit([invocation("family", {str(pids)!r}), invocation("stubborn")])
threading.Event().wait()
"""
        with subprocess.Popen([sys.executable, "-c", script], cwd=Path(HANDLERS).parents[2]) as driver:
            begun = holds(lambda: pids.exists() and pids.read_text().count(" ") == 1)
            family = _descendants(driver.pid)
            kill_hard(driver.pid)
        assert begun
        assert {int(pid) for pid in pids.read_text().split()} <= set(family)
        assert holds(lambda: not any(map(alive, family)))

    def test_handler_module_that_cannot_be_imported_is_a_clear_error(self, tmp_path):
        module = tmp_path / "broken_handlers.py"
        module.write_text("import no_such_module_at_all\n")
        with pytest.raises(ConfigError, match=r"(?s)no_such_module_at_all.*broken_handlers\.py"):
            LocalPool([str(module)]).start(lambda _: None)

    def test_missing_handler_file_is_a_clear_error(self):
        with pytest.raises(ArgumentError, match="There is no handler file"):
            LocalPool(["/nowhere/handlers.py"]).start(lambda _: None)

    def test_handler_module_that_ends_the_process_is_a_clear_error(self, tmp_path):
        module = tmp_path / "exiting_handlers.py"
        module.write_text("import os; os._exit(4)\n")
        with pytest.raises(ConfigError, match="ended with code 4"):
            LocalPool([str(module)]).start(lambda _: None)

    @pytest.mark.parametrize("step", ["os.eventfd", "selectors.DefaultSelector"])
    def test_a_start_without_descriptors_is_an_error_and_no_wait(self, monkeypatch, step):
        raised = []

        def start():
            try:
                LocalPool([HANDLERS]).start(lambda _: None)
            except OSError as error:
                raised.append(error.errno)

        monkeypatch.setattr(step, _too_many_files)
        starting = threading.Thread(target=start, daemon=True)
        starting.start()
        starting.join(20)
        assert raised == [errno.EMFILE]

    def test_descriptors_beyond_the_first_thousand_are_waited_for_like_others(self, tmp_path, request):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4_096, hard), hard))
        request.addfinalizer(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard)))
        module = tmp_path / "handlers_with_files.py"
        module.write_text(
            "import os\nfrom scylla_spark import handler\nfiles = [os.dup(1) for _ in range(1_100)]\n"
            '@handler("count")\ndef count(task):\n    return len(files)\n'
        )
        open_files = [os.dup(1) for _ in range(1_100)]
        try:
            running = Running(LocalPool([str(module)], min_children=0))
            try:
                assert running.one("count").result == "1100"
            finally:
                running.executor.stop(drain_s=0)
        finally:
            for number in open_files:
                os.close(number)

    def test_a_child_without_memory_for_its_lines_is_replaced_and_others_work_on(self, tmp_path):
        go, keeper = tmp_path / "go", _KeepsLinesOfSome()
        pool = LocalPool([HANDLERS], kill_grace_s=GRACE_S, min_children=0)
        pool.keep_logs(keeper)
        running = Running(pool)
        try:
            first = invocation("wait_for_file", str(go))
            pool.submit([first])
            assert holds(lambda: first.id in pool.running())
            keeper.refusals = 2
            assert running.one("noop").outcome == "succeeded"
            assert keeper.refusals == 0
            assert len(pool._supervisor.children) == 2, "a child that never was would be waited for, and end all others"
            go.touch()
            assert running.wait([first])[0].outcome == "succeeded"
        finally:
            pool.stop(drain_s=0)

    def test_second_start_is_refused(self, make_pool):
        with pytest.raises(ConflictError):
            make_pool().executor.start(lambda _: None)


class _KeepsLinesOfSome:
    """A LogKeeper that has no descriptors at first."""

    refusals = 0

    def open(self, _child) -> int:
        if self.refusals:
            self.refusals -= 1
            _too_many_files()
        return LogMemory.create_fd(head=4_096, rest=4_096, line=1_024)

    def close(self, _child) -> None:
        """Nothing is read."""


def _too_many_files(*_: object) -> None:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def _me() -> int:
    return os.getpid()
