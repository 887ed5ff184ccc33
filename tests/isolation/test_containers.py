"""Containers of leased tasks, with a real podman: what they do, what they cannot, and that none of them is left behind."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from scylla_spark.errors import ArgumentError, SetupError
from scylla_spark.worker.containers.options import RUNNER_LABEL
from scylla_spark.worker.containers.podman import podman_of
from scylla_spark.worker.containers.request import Offer
from scylla_spark.worker.containers.runner_setup import opened_yard
from tests.support.container_site import BOUNDS, Attempt, container_site_or_skip, shell, with_bounds
from tests.support.http_script import SyncScript
from tests.support.waiting import eventually

NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def site():
    with container_site_or_skip() as found:
        yield found


@pytest.fixture(scope="module")
def yard(site):
    with opened_yard(site.podman, Offer((site.image,)), BOUNDS) as opened:
        yield opened
    assert site.containers() == []


@pytest.fixture
def begun(yard):
    def begin(payload, **bounds):
        attempt = Attempt(with_bounds(yard, replace(BOUNDS, **bounds)), payload, next(NUMBERS))
        attempt.thread.start()
        return attempt

    return begin


@pytest.fixture
def ended(begun):
    return lambda payload, **bounds: begun(payload, **bounds).ended()


# -- what it does ----------------------------------------------------------------------------------------------------------


def test_a_program_is_given_its_task_and_its_last_line_of_json_is_the_result(ended, site):
    script = "read line; echo hello; echo \"$line\"; cat /task.json; echo '' ; echo bye"
    report = ended(shell(script) | {"input": {"n": 21, "text": "ä"}})
    assert report["outcome"] == "succeeded"
    told = report["result"]
    assert told["input"] == {"n": 21, "text": "ä"}
    assert (told["uniqueness_key"], told["attempt"], told["epoch"]) == ("u", 1, 5)
    assert "lease" not in json.dumps(told)
    metrics = report["metrics"]
    assert (metrics["isolation"], metrics["image"]) == ("container", site.image)
    assert site.containers() == []


def test_its_standard_input_is_the_task_and_its_environment_that_of_the_payload(ended):
    payload = {"command": ["/bin/sh", "-c", 'read line; echo "$line" > /tmp/a; echo "$QUOTED"'], "input": 1}
    assert ended(payload | {"env": {"QUOTED": '["a b", "\\u00e4"]'}})["result"] == ["a b", "ä"]
    assert ended(shell("cat") | {"input": [1]})["result"]["input"] == [1]


def test_an_exit_code_is_a_failure_with_the_end_of_its_standard_error(ended):
    report = ended(shell("echo first >&2; echo it is broken >&2; exit 3"))
    assert report["outcome"] == "failed"
    assert report["error"]["code"] == "container_exit"
    assert "code 3" in report["error"]["description"]
    assert "it is broken" in report["error"]["description"]
    assert "first" in report["error"]["stack"]


@pytest.mark.parametrize(("code", "outcome"), [(64, "aborted"), (75, "yielded")])
def test_exit_codes_say_never_and_later(ended, code, outcome):
    assert ended(shell(f"exit {code}"))["outcome"] == outcome


def test_exit_codes_of_programs_are_not_taken_for_those_of_podman(ended):
    assert ended(shell("exit 125"))["error"]["code"] == "container_exit"
    report = ended({"command": ["/bin/nothing"]})
    assert report["error"]["code"] == "container_not_started"
    assert "/bin/nothing" in report["error"]["description"]


def test_a_payload_that_does_not_fit_and_an_image_that_is_not_allowed_start_nothing(ended):
    for payload in ({"image": "localhost/other@sha256:" + 64 * "0"}, {"command": "ls"}, [1]):
        report = ended(payload)
        assert (report["outcome"], report["error"]["code"]) == ("aborted", "payload_invalid")


def test_it_tells_how_far_it_is_and_from_where_another_attempt_could_go_on(begun):
    script = "echo 0.25 page 3 > /out/.progress; echo '{\"row\": 7}' > /out/.checkpoint; sleep 60"
    attempt = begun(shell(script), timeout_ms=5_000)
    first = {"value": 0.25, "note": "page 3"}, {"checkpoint": {"row": 7}}
    eventually(lambda: all(sign in attempt.noted.signs for sign in first), 20, "both, while it runs")
    assert attempt.ended()["error"]["code"] == "timed_out"
    last = begun(shell("echo 0.75 > /out/.progress; echo '{\"row\": 8}' > /out/.checkpoint; exit 75"))
    assert last.ended()["outcome"] == "yielded"
    assert {"checkpoint": {"row": 8}} in last.noted.signs, "also what it says last"


def test_what_it_prints_stands_in_the_logs_of_its_attempt_while_it_runs_and_to_its_last_line(begun):
    attempt = begun(shell("echo ü; echo no >&2; sleep 60; echo never"), timeout_ms=5_000)
    eventually(lambda: len(attempt.noted.lines_told) == 2, 20, "both lines", lambda: attempt.noted.lines_told)
    assert {(one.stream, one.text) for one in attempt.noted.lines_told} == {("stdout", "ü"), ("stderr", "no")}
    assert attempt.ended()["error"]["code"] == "timed_out"
    last = begun(shell("for i in 1 2 3; do echo line $i; done; printf 'no end'"))
    assert last.ended()["outcome"] == "succeeded"
    told = [(one.seq, one.text) for one in last.noted.lines_told]
    assert told == [(1, "line 1"), (2, "line 2"), (3, "line 3"), (4, "no end")]


def test_what_says_nothing_is_passed_over_and_named(begun):
    script = "echo much > /out/.progress; ln -s /etc /out/link; ls > /out/..x; echo '[1]' > /out/.checkpoint"
    attempt = begun(shell(f"{script}; echo .5 > /out/.hidden"))
    report = attempt.ended()
    assert (report["outcome"], attempt.noted.signs, attempt.noted.files) == ("succeeded", [], {})
    assert report["metrics"]["left_out"] == ["..x", ".checkpoint", ".hidden", ".progress", "link"]


@pytest.mark.parametrize(("ends", "outcome"), [("exit 0", "succeeded"), ("exit 3", "failed"), ("sleep 60", "failed")])
def test_files_that_it_leaves_behind_are_sent_however_it_ends(begun, ends, outcome):
    script = f"echo 1 > /out/a.csv; dd if=/dev/zero of=/out/b.bin bs=1M count=3 2>/dev/null; {ends}"
    attempt = begun(shell(script), timeout_ms=5_000)
    assert attempt.ended()["outcome"] == outcome
    assert attempt.noted.files == {"a.csv": ("text/csv", b"1\n"), "b.bin": ("application/octet-stream", bytes(3 << 20))}


def test_what_it_leaves_behind_is_bounded_whatever_it_says_of_its_size(begun):
    full = output(begun(shell("dd if=/dev/zero of=/out/large bs=1M count=100 && echo unbounded >&2; exit 1")).ended())
    assert "unbounded" not in full, "it is the container's memory"
    large = begun(shell("dd if=/dev/zero of=/out/large bs=1M count=5")).ended()
    assert (large["outcome"], large["error"]["code"]) == ("failed", "outputs_not_kept")
    sparse = begun(shell("dd if=/dev/zero of=/out/sparse bs=1 count=1 seek=10000000000")).ended()
    assert (sparse["outcome"], sparse["error"]["code"]) == ("failed", "outputs_not_kept")
    many = begun(shell("for i in $(seq 51); do echo > /out/$i; done")).ended()
    assert "50 files" in many["error"]["description"]


def test_nothing_is_executed_that_it_leaves_behind(ended):
    said = output(ended(shell("cat /bin/busybox > /out/sh; chmod 755 /out/sh; /out/sh echo ran >&2; exit 1")))
    assert "ran" not in said.split()
    assert "ermission denied" in said


def test_folders_within_folders_are_removed_however_deep(ended, yard):
    report = ended(shell("mkdir -p /out/$(yes d | head -n 1500 | tr '\\n' /)"))
    assert (report["outcome"], report["metrics"]["left_out"]) == ("succeeded", ["d"])
    assert [one.name for one in yard.folder.iterdir() if one.name not in ("task.json", "environment", "out")] == []


def test_a_link_out_of_the_folder_leads_nowhere(begun, tmp_path):
    (tmp_path / "secret").write_text("canary")
    attempt = begun(shell(f"ln -s {tmp_path}/secret /out/a; ln -s {tmp_path}/secret /out/.checkpoint; mkdir /out/b"))
    assert attempt.ended()["outcome"] == "succeeded"
    assert (attempt.noted.files, attempt.noted.signs) == ({}, [])


def test_a_program_of_which_nothing_could_be_kept_has_not_succeeded_and_what_failed_stays(begun):
    for ends, kind in (("exit 0", "outputs_not_kept"), ("exit 3", "container_exit")):
        attempt = begun(shell(f"echo 1 > /out/a; sleep 0.3; {ends}"))
        attempt.noted.refuses = ArgumentError("The disk is full.")
        assert attempt.ended()["error"]["code"] == kind


def test_without_a_folder_there_is_none(ended):
    assert "out" not in ended(shell("echo \\\"$(ls /)\\\" | tr '\\n' ' '"), out=0)["result"].split()


# -- what it cannot --------------------------------------------------------------------------------------------------------


def output(report):
    """What a script wrote, which ends with status 1 so that it is told."""
    assert report["error"]["code"] == "container_exit", report
    return report["error"]["stack"]


def test_it_has_no_network_and_does_not_reach_this_machine(ended):
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        script = f"ip link >&2; nc -w 2 127.0.0.1 {port} </dev/null >&2 && echo reached >&2; exit 1"
        said = output(ended(shell(script)))
        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert "reached" not in said
    assert [line.split(":")[1].strip() for line in said.splitlines() if line[:1].isdigit()] == ["lo"]


def test_it_writes_nowhere_but_in_its_own_small_tmp(ended):
    script = """
        for place in / /open /bin /etc /run /proc/sys/kernel /sys /dev; do touch $place/x 2>/dev/null && echo wrote $place >&2; done
        echo spoiled > /task.json && echo wrote task >&2
        echo free > /tmp/x && echo wrote tmp >&2
        dd if=/dev/zero of=/tmp/large bs=1M count=100; ls -l /tmp/large >&2; exit 1"""
    said = output(ended(shell(script)))
    assert [line for line in said.splitlines() if line.startswith("wrote")] == ["wrote tmp"]
    assert "No space left" in said


def test_it_has_no_rights_and_is_not_root(ended):
    said = output(ended(shell("cat /proc/self/status >&2; mount -t tmpfs none /tmp >&2; exit 1")))
    status = dict(line.split(":\t", 1) for line in said.splitlines() if ":\t" in line)
    assert status["Uid"].split() == status["Gid"].split() == ["65534"] * 4
    assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert "mount" in said


def test_it_sees_no_other_process(ended):
    seen = ended(shell("cd /proc; echo [$(ls -d [0-9]* | sed 's/$/,/') 0]"))["result"]
    assert seen[0] == 1
    assert len(seen) < 6, "the shell and what it starts for this line"


def test_it_sees_no_variable_of_this_machine(ended, monkeypatch):
    canary = f"canary-{os.getpid()}"
    monkeypatch.setenv("KAFKA_PASSWORD", canary)
    monkeypatch.setenv("HTTPS_PROXY", f"http://user:{canary}@proxy.invalid")
    said = output(ended(shell("env >&2; cat /proc/*/environ >&2; exit 1")))
    assert canary not in said
    assert {line.partition("=")[0] for line in said.split("\0")[0].splitlines() if "=" in line} <= {
        "HOME", "HOSTNAME", "PATH", "PWD", "SHLVL", "TERM", "container"
    }  # fmt: skip


def test_it_sees_no_file_of_this_machine_but_its_task(ended, tmp_path):
    (tmp_path / "secret").write_text("canary")
    assert "canary" not in output(ended(shell(f"cat {tmp_path}/secret /proc/1/root{tmp_path}/secret >&2; exit 1")))
    seen = ended(shell("echo \\\"$(ls /)\\\" | tr '\\n' ' '"))["result"].split()
    assert seen == ["bin", "dev", "etc", "open", "out", "proc", "run", "sys", "task.json", "tmp"]


def test_a_fork_bomb_is_bounded_and_ends_with_its_container(ended, site):
    report = ended(shell("bomb() { bomb | bomb & }; bomb; sleep 2; echo done; exit 1"))
    assert report["outcome"] == "failed"
    assert site.containers() == []


def test_processes_are_bounded(ended):
    said = output(ended(shell("for i in $(seq 100); do sleep 5 & done; echo all >&2; exit 1")))  # fmt: skip
    assert "can't fork" in said


def test_memory_is_bounded(ended):
    report = ended(shell("x=aaaaaaaa; while true; do x=$x$x; done"), memory=32_000_000)
    assert report["outcome"] == "failed"
    assert report["error"]["code"] in ("memory_exceeded", "container_killed")


def test_a_flood_of_output_takes_no_memory_and_the_result_and_the_last_lines_are_still_found(begun):
    flood = begun(shell("yes | head -c 20000000; yes | head -c 20000000 >&2; echo '{\"ok\": true}'"))
    assert flood.ended()["result"] == {"ok": True}
    told = flood.noted.lines_told
    assert sum(len(one.text) + 64 for one in told) < 2_000_000
    last = [one.text for one in told if one.stream == "stdout"][-1]  # which of two streams is read last is chance
    assert (told[0].seq, last, told[-1].seq) == (1, '{"ok": true}', 20_000_001)


def test_where_podman_has_broken_no_task_is_blamed(yard):
    broken = replace(yard, podman=podman_of(f"{' '.join(yard.podman.command)} --runtime=gone"))
    attempt = Attempt(broken, shell("exit 0"), next(NUMBERS))
    with pytest.raises(SetupError, match="gone"):
        attempt.place.work(attempt.lease)
    assert attempt.noted.reports == []


# -- how it ends -----------------------------------------------------------------------------------------------------------


def test_a_container_is_killed_when_its_time_is_over(ended, site):
    report = ended(shell("echo working >&2; trap '' TERM; sleep 100"), timeout_ms=1_500)
    assert (report["outcome"], report["error"]["code"]) == ("failed", "timed_out")
    assert "working" in report["error"]["stack"]
    assert site.containers() == []


@pytest.mark.parametrize("cancelled", [True, False])
def test_a_container_is_killed_when_its_lease_is_lost_and_nothing_is_reported(begun, site, cancelled):
    attempt = begun(shell("sleep 100"))
    eventually(site.containers, 20, "the container")
    attempt.lease.end(cancelled=cancelled)
    assert attempt.ended() is None
    assert site.containers() == []


def test_a_slot_that_is_closed_leaves_no_container_and_reports_nothing(begun, site):
    attempt = begun(shell("sleep 100"))
    eventually(site.containers, 20, "the container")
    attempt.place.close()
    assert site.containers() == []
    assert attempt.ended() is None


def _runner(site, url, *options):
    command = [
        sys.executable,
        "-m",
        "scylla_spark.cli",
        "worker",
        "containers",
        "--url",
        url,
        "--queue",
        "q",
        "--slots",
        "2",
    ]
    command += ["--podman", site.words, "--image", site.image, *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


class Tasks(SyncScript):
    """Gives out so many tasks of one payload."""

    def __init__(self, tasks, payload):
        super().__init__(tasks)
        self._payload = payload

    def _sync(self, body):
        status, document = super()._sync(body)
        for lease in document.get("leases", ()):
            lease["task"]["payload"] = self._payload
        return status, document


def test_the_command_leases_and_reports_and_ends_gracefully(site):
    with Tasks(3, {}) as server:
        runner = _runner(site, server.url, "--command", "/bin/sh -c 'echo [1]; echo end'")
        try:
            eventually(lambda: len(server.results) == 3, 60, "three reports", lambda: server.results)
            runner.send_signal(signal.SIGTERM)
            said, _ = runner.communicate(timeout=30)
        finally:
            runner.kill()
            runner.wait()
    assert [(one["outcome"], one["result"]) for one in server.results] == [("succeeded", [1])] * 3
    assert runner.returncode == 0, said
    assert server.left
    assert site.containers() == []


def _folders():
    """Folders of runners, in memory."""
    return set(Path("/dev/shm").glob("scylla-spark-containers-*"))


def test_no_container_outlives_a_runner_that_is_killed(site):
    before = _folders()
    with Tasks(2, shell("trap '' TERM; sleep 1000")) as server:
        runner = _runner(site, server.url)
        try:
            eventually(lambda: len(site.containers()) == 2, 60, "two containers", site.containers)
            assert len(_folders() - before) == 1
        finally:
            runner.kill()
            runner.communicate()
    eventually(lambda: not site.containers(), 60, "none is left", site.containers)
    eventually(lambda: not _folders() - before, 60, "nothing of what they were given, either")


def test_what_is_left_of_a_runner_that_is_gone_is_removed_at_the_next_start_and_others_are_not(site, yard):
    def left(name, runner):
        label = f"--label={RUNNER_LABEL}={runner}"
        done = site.podman.ask("create", f"--name={name}", label, "--network=none", site.image, "/bin/sh")
        assert done.code == 0, done

    left("gone", "999999999-1-00000000")
    left("other", yard.runner)
    with opened_yard(site.podman, Offer((site.image,)), BOUNDS):
        assert site.containers() == ["other"]
    eventually(lambda: site.containers() == [], 20, "the runner's own are removed when it ends")


def test_what_is_left_where_a_runner_and_its_watchdog_are_killed_is_removed_at_the_next_start(site):
    before = _folders()
    with Tasks(1, shell("echo > /out/a; sleep 1000")) as server:
        runner = _runner(site, server.url)
        try:
            eventually(site.containers, 60, "a container")
            (left,) = _folders() - before
            (watchdog,) = _children(runner.pid, "watchdog.py")
            os.kill(watchdog, signal.SIGKILL)
        finally:
            runner.kill()
            runner.communicate()
    assert left.exists()
    with opened_yard(site.podman, Offer((site.image,)), BOUNDS):
        assert site.containers() == []
        assert not left.exists()


def _children(parent, script):
    """Processes of a script that another has started."""
    numbers = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(one) for one in numbers if script.encode() in Path(f"/proc/{one}/cmdline").read_bytes()]


@pytest.mark.parametrize(
    ("words", "what"), [("no-such-podman", "There is no"), ("false", "podman info"), ("{} --runtime=x", "x")]
)
def test_where_no_container_can_run_there_is_no_place_for_any(site, words, what):
    podman = words.format(site.words)
    with pytest.raises(SetupError, match=what), opened_yard(podman_of(podman), Offer((site.image,)), BOUNDS):
        pass


def test_an_image_that_is_not_there_ends_the_runner(site):
    image = f"localhost/nothing@sha256:{'0' * 64}"
    with pytest.raises(SetupError, match="cannot be fetched"), opened_yard(site.podman, Offer((image,)), BOUNDS):
        pass


def test_a_runner_that_cannot_run_containers_ends_before_it_leases(site):
    with SyncScript(tasks=1) as server:
        runner = _runner(site, server.url, "--podman", "no-such-podman")
        said, _ = runner.communicate(timeout=60)
        assert runner.returncode != 0
        assert "apt-get install podman" in said
        assert server.calls == 0
