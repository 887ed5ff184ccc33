"""The workers of `examples/` against a server of a few lines: how many tasks they take, and what they do about refused results."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.http_script import Half, Script, SyncScript, lease_view
from tests.support.missing_package import absent
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow
FOLDER = Path(__file__).parents[2] / "examples"


def needs(program):
    """Where a program is that CI installs."""
    found = shutil.which(program)
    if found is None:
        absent(f"{program} is not installed here")
    return found


@pytest.fixture(scope="module")
def in_go(tmp_path_factory):
    folder = tmp_path_factory.mktemp("worker")
    command = [needs("go"), "build", "-o", str(folder / "worker"), str(FOLDER / "worker.go")]
    subprocess.run(command, check=True, cwd=folder, env=os.environ | {"GOTOOLCHAIN": "local"}, timeout=120)
    return [str(folder / "worker")]


# Building the worker in Go with an empty build cache costs 30 core-seconds. The worker in JavaScript passes the same tests.
@pytest.fixture(params=["node", pytest.param("go", marks=pytest.mark.deep)])
def start(request):
    """Starts an example with two slots; whatever becomes of the test, it ends."""
    command = request.getfixturevalue("in_go") if request.param == "go" else [needs("node"), str(FOLDER / "worker.mjs")]
    started = []

    def begin(server):
        started.append(subprocess.Popen([*command, server.url, "q", "2"], stdin=subprocess.DEVNULL))
        return started[0]

    yield begin
    for process in started:
        process.kill()
        process.wait(10)


class Picky(SyncScript):
    """Gives out tasks that take so many milliseconds; refuses calls that say a task has succeeded that it does not like."""

    def __init__(self, *ms, dislikes=None, once=False, says=422):
        super().__init__(len(ms), once=once)
        self._ms, self._dislikes, self._says = ms, dislikes, says

    def view(self, number):
        view = super().view(number)
        return view | {"task": view["task"] | {"payload": {"n": number, "ms": self._ms[number]}}}

    def _sync(self, body):
        if {"doubled": self._dislikes} in [one.get("result") for one in body["results"]]:
            return self._says, {"type": "/problems/invalid", "title": "t", "detail": "the result is too large"}
        return super()._sync(body)


def test_a_worker_takes_no_more_of_what_is_handed_over_once_than_it_has_slots(start):
    with Picky(0, 60_000, 60_000, 60_000, once=True) as server:
        process = start(server)
        eventually(lambda: server.given == 3, 20, "one has ended, and two run")
        calls = server.calls
        eventually(lambda: server.calls > calls or server.waits, 20, "there is another call")
        assert server.given == 3
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0, "what runs has its grace"
    assert server.left


@pytest.mark.parametrize("says", [400, 422])
def test_a_result_that_the_server_refuses_fails_alone(start, says):
    with Picky(0, 0, 0, dislikes=2, says=says) as server:
        process = start(server)
        eventually(lambda: len(server.results) == 3, 20, "all are reported")
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    ends = {one["lease"]: (one["outcome"], one.get("error", {}).get("code")) for one in server.results}
    assert [ends[lease_view(number)["lease"]] for number in range(3)] == [
        ("succeeded", None), ("failed", "report_refused"), ("succeeded", None),
    ]  # fmt: skip


class Crossing(Picky):
    """Gives out the second task to the call that waits, in the moment in which another one overtakes it."""

    def __init__(self, *ms):
        super().__init__(*ms)
        self._tasks = 1

    def _sync(self, body):
        status, told = super()._sync(body)
        if status == 409 and self._given == 1:
            self._given = 2
            return 200, {"accepted": [], "lost": [], "commands": [], "leases": [self.view(1)]}
        return status, told


def test_what_comes_with_a_call_that_was_overtaken_is_not_lost(start):
    with Crossing(300, 0) as server:
        process = start(server)
        eventually(lambda: len(server.results) == 2, 10, "both are reported")
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert {one["lease"] for one in server.results} == {lease_view(number)["lease"] for number in range(2)}


class Breaking(Picky):
    """Breaks off in the middle of its answer to every other call."""

    def __init__(self, *ms):
        super().__init__(*ms)
        self._told = {}

    def _sync(self, body):
        number = body["seq"]
        if number in self._told:
            return self._told[number]
        answer = self._told[number] = super()._sync(body)
        return Half(*answer) if number % 2 else answer


def test_an_answer_that_is_cut_off_in_its_middle_ends_no_worker(start):
    with Breaking(0, 300, 0) as server:
        process = start(server)
        eventually(lambda: len(server.results) == 3, 20, "all are reported")
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert server.left


class SingleCalls(Script):
    """Gives out tasks to calls without a session; refuses a result that it dislikes, and the second call of all is answered by halves."""

    def __init__(self, tokens, dislikes=None):
        super().__init__()
        self.reports = []
        self._tokens, self._dislikes, self._given = tokens, dislikes, 0

    def answer(self, request):
        self.requests.append(request)
        answer = self._judged(request)
        return Half(*answer) if len(self.requests) == 2 else answer

    def _judged(self, request):
        if request.path.endswith("/leases"):
            number = self._given = max(self._given, int(request.body["request_id"]))
            view = lease_view(number, payload={"n": number}, beat_ms=60_000)
            return 200, {"leases": [view if self._tokens else view | {"lease": ""}], "queues": []}
        (one,) = request.body["leases"]
        if not one["lease"] or one.get("result") == {"doubled": self._dislikes}:
            return 422, {"type": "/problems/invalid", "title": "t", "status": 422, "detail": "it is refused"}
        self.reports.append((request.path.rpartition(":")[2], one.get("result") or one["error"]["code"]))
        return 200, {"leases": [{"lease": one["lease"], "status": "ok"}]}


def in_shell(server, tasks):
    """Runs the worker in shell to its end; its exit code."""
    for program in ("curl", "jq"):
        needs(program)
    command = ["bash", str(FOLDER / "curl.sh"), server.url, "q", str(tasks)]
    return subprocess.run(command, stdin=subprocess.DEVNULL, timeout=60, check=False).returncode


def test_the_worker_in_shell_goes_on_after_a_result_that_is_refused():
    with SingleCalls(True, dislikes=4) as server:
        assert in_shell(server, 3) == 0
    assert list(dict.fromkeys(map(str, server.reports))) == [
        str(one) for one in (("complete", {"doubled": 2}), ("fail", "report_refused"), ("complete", {"doubled": 6}))
    ]


def test_the_worker_in_shell_keeps_and_reports_nothing_that_was_handed_over_once():
    with SingleCalls(False) as server:
        assert in_shell(server, 3) == 0
    assert {request.path for request in server.requests} == {"/v1/queues/q/leases"}
    assert server._given == 3


def test_the_examples_are_short():
    lines = {path.name: path.read_text().count("\n") for path in FOLDER.iterdir() if path.is_file()}
    assert {"worker.mjs", "worker.go", "curl.sh"} <= lines.keys()
    assert max(lines.values()) <= 80
