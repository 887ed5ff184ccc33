"""What container runners make of payloads, options and endings: all that needs no podman."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys

import pytest

from scylla_spark.core.tasks.task import MAX_RESULT_BYTES
from scylla_spark.errors import ArgumentError, SetupError
from scylla_spark.worker.containers import container_slot as place
from scylla_spark.worker.containers import watchdog
from scylla_spark.worker.containers.container_slot import ContainerPlace, Yard
from scylla_spark.worker.containers.ending import Ended, ended_of, timed_out, verdict_of_container
from scylla_spark.worker.containers.last_lines import LONGEST_LINE, MOST_BYTES, LastLines
from scylla_spark.worker.containers.maker_identity import identity, lives
from scylla_spark.worker.containers.options import Files, Mark, bounds_of, probe_options, run_options
from scylla_spark.worker.containers.out_folder import out_folder
from scylla_spark.worker.containers.podman import Done, Podman, podman_of
from scylla_spark.worker.containers.readiness import lacking_of
from scylla_spark.worker.containers.request import Box, Offer, arguments_of, box_of, offer_of
from scylla_spark.worker.lease import Lease
from tests.support.http_script import lease_view

DIGEST = "sha256:" + "a" * 64
IMAGE = f"registry.example/render@{DIGEST}"
OFFER = Offer((IMAGE, "localhost/other:1"), ("run", "--fast"))
BOUNDS = {"memory": "64MB", "cpus": 0.5, "processes": 8, "tmp": "1MB", "timeout": "90s"}


def lines(text):
    kept = LastLines()
    kept.feed(text if isinstance(text, bytes) else text.encode())
    return kept


# -- trouble ---------------------------------------------------------------------------------------------------------------


class Sleeper:
    """A podman whose containers run until they are removed."""

    command, environment = (), {}

    def __init__(self):
        self.clients = []

    def started(self, options, given):
        pipe = subprocess.PIPE
        self.clients.append(subprocess.Popen(["sleep", "60"], stdin=given, stdout=pipe, stderr=pipe))
        return self.clients[-1]

    def remove(self, name):
        for client in self.clients:
            client.kill()
        return True


class Leaver(Podman):
    """A podman whose containers run a script of Python in their folder, and end well."""

    def started(self, arguments, given):
        (out,) = [one.split("source=")[1].split(",")[0] for one in arguments if "destination=/out" in one]
        pipe = subprocess.PIPE
        return subprocess.Popen([sys.executable, "-c", self.command[0]], cwd=out, stdin=given, stdout=pipe, stderr=pipe)

    def ask(self, *arguments, within_s=0.0):
        return Done(0, "", "")


class Watched:
    """A guard that stands."""

    def check(self):
        pass


class Told:
    """A `Reporter` that keeps how leases end, and what they leave."""

    def __init__(self):
        self.reports, self.outputs = [], []

    def report(self, lease, text):
        self.reports.append(json.loads(text))

    def sign(self, lease, **fields):
        pass

    def lines(self, lease, lines):
        pass

    def output(self, lease, output):
        self.outputs.append(output.name)


def test_a_container_that_cannot_be_watched_is_killed_and_its_task_has_failed(tmp_path, monkeypatch):
    def nothing(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(place, "_readers", nothing)
    podman, told = Sleeper(), Told()
    yard = Yard(podman, OFFER, bounds_of(**BOUNDS), "r", tmp_path, Watched())
    ContainerPlace(yard).work(Lease(lease_view(1), told))
    assert podman.clients[0].returncode == -9, "nobody has waited until it ended by itself"
    (report,) = told.reports
    assert (report["outcome"], report["error"]["code"]) == ("failed", "container_not_started")


def left_by(folder, script):
    """What is reported of a task whose program runs a script, and names of the outputs that it leaves."""
    told = Told()
    yard = Yard(Leaver((script,), {}), OFFER, bounds_of(**BOUNDS, out="1MB"), "r", folder, Watched())
    ContainerPlace(yard).work(Lease(lease_view(1), told))
    (report,) = told.reports
    return report, told.outputs


@pytest.mark.slow
def test_folders_within_folders_are_removed_however_deep_and_end_nothing(tmp_path):
    deep = "import os\nfor _ in range(3_000): os.mkdir('d'); os.chdir('d')"
    report, _ = left_by(tmp_path, deep)
    assert (report["outcome"], report["metrics"]["left_out"]) == ("succeeded", ["d"])
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_removed_is_logged_and_the_task_ends_as_it_has(tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(watchdog, "_call", lambda *_: None)
    report, outputs = left_by(tmp_path, "open('a', 'w')")
    assert (report["outcome"], outputs) == ("succeeded", ["a"])
    assert "cannot be removed" in caplog.text


@pytest.mark.slow
def test_no_output_is_lost_without_a_word_among_very_many_files(tmp_path):
    script = "open('report.pdf', 'w')\nfor number in range({}): open(f'.cache{{number}}', 'w')"
    report, outputs = left_by(tmp_path, script.format(999))
    assert (report["outcome"], outputs) == ("succeeded", ["report.pdf"])
    report, outputs = left_by(tmp_path, script.format(1_000))
    assert (report["outcome"], report["error"]["code"], outputs) == ("failed", "outputs_not_kept", [])
    assert "1000 files" in report["error"]["description"]


# -- payloads --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("payload", [None, {}])
def test_without_wishes_it_is_the_first_image_and_the_command_of_the_runner(payload):
    assert box_of(payload, OFFER) == Box(IMAGE, ("run", "--fast"))


def test_a_payload_says_what_runs():
    payload = {"image": "localhost/other:1", "command": [], "env": {"A": "b=c d"}, "input": [None]}
    assert box_of(payload, OFFER) == Box("localhost/other:1", (), {"A": "b=c d"}, [None])


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        ([], "payload"), ("x", "payload"), ({"extra": 1}, "extra"), ({"command": "ls"}, "command"), ({"command": [1]}, "command.0"),
        ({"command": ["a\0"]}, "command.0"), ({"command": ["x" * 40_000]}, "command.0"), ({"command": ["x"] * 1_001}, "command"),
        ({"command": ["\ud800"]}, "command.0"), ({"image": ""}, "image"), ({"image": 7}, "image"), ({"env": {"A": 1}}, "env.A"),
        ({"env": {"A": "x\nB=y"}}, "env.A"), ({"env": {"A": "x\r"}}, "env.A"), ({"env": {"A=B": "x"}}, "env.A=B"),
        ({"env": {"": "x"}}, "env"), ({"env": {"A\n": "x"}}, "env"), ({"env": {f"A{n}": "" for n in range(65)}}, "env"),
    ],
)  # fmt: skip
def test_a_payload_that_does_not_fit_is_refused_by_the_name_of_its_field(payload, field):
    with pytest.raises(ArgumentError, match=f"{field}") as refused:
        box_of(payload, OFFER)
    assert len(str(refused.value)) < 1_000


def test_what_is_wrong_with_a_payload_is_told_in_few_words():
    with pytest.raises(ArgumentError) as refused:
        box_of({f"x{n}" * 100: n for n in range(1_000)}, OFFER)
    assert "995 more" in str(refused.value)
    assert len(str(refused.value)) < 1_000


@pytest.mark.parametrize("image", [f"evil/render@{DIGEST}", IMAGE + "0", IMAGE[:-1], "--privileged", "localhost/other"])
def test_only_images_that_are_allowed_run(image):
    with pytest.raises(ArgumentError, match="not allowed here"):
        box_of({"image": image}, OFFER)


def test_images_need_a_digest_unless_tags_are_allowed():
    assert offer_of([IMAGE], None, allow_tags=False) == Offer((IMAGE,))
    with pytest.raises(ArgumentError, match="no digest"):
        offer_of(["render:1"], None, allow_tags=False)
    with pytest.raises(ArgumentError, match="no digest"):
        offer_of([IMAGE[:-1]], None, allow_tags=False)
    assert offer_of(["render:1"], ("a",), allow_tags=True) == Offer(("render:1",), ("a",))


@pytest.mark.parametrize("images", [[], ["-v"], ["a b"], [""]])
def test_what_is_no_reference_is_refused(images):
    with pytest.raises(ArgumentError):
        offer_of(images, None, allow_tags=True)


def test_a_command_is_read_as_a_shell_does():
    assert arguments_of("a 'b c'") == ("a", "b c")
    assert arguments_of(None) is None
    with pytest.raises(ArgumentError):
        arguments_of("'")


# -- options ---------------------------------------------------------------------------------------------------------------


def options(box=None, **bounds):
    files = Files("/x/task.json", "/x/environment", "/x/out")
    return run_options(box or Box(IMAGE), bounds_of(**(BOUNDS | bounds)), Mark("7-8-abcdef01", "d1"), files, 100)


def test_a_container_is_closed_and_bounded():
    assert set(options()) >= {
        "--network=none", "--read-only", "--read-only-tmpfs=false", "--image-volume=ignore", "--cap-drop=all",
        "--security-opt=no-new-privileges", "--pid=private", "--ipc=private", "--uts=private", "--privileged=false",
        "--http-proxy=false", "--env-host=false", "--user=65534:65534", "--memory=64000000", "--memory-swap=64000000", "--cpus=0.5",
        "--pids-limit=8", "--tmpfs=/tmp:rw,nosuid,nodev,size=1000000,mode=1777", "--ulimit=nofile=1024:1024",
        "--ulimit=nproc=100:100", "--timeout=100", "--pull=never", "--log-driver=none", "--name=scylla-spark-d1",
        "--label=scylla-spark.runner=7-8-abcdef01", "--label=scylla-spark.lease=d1",
    }  # fmt: skip


def test_there_is_a_folder_for_what_is_left_behind_where_something_is_kept_and_it_runs_nothing():
    (mount,) = set(options(out="2MB")) - set(options())
    assert mount == "--mount=type=bind,source=/x/out,destination=/out,noexec,nosuid,nodev,relabel=private"


def test_what_a_payload_says_stands_behind_the_image_where_podman_reads_no_options():
    said = options(Box(IMAGE, ("--privileged", "--volume=/:/host"), {"SECRET": "s3"}))
    assert said[said.index(IMAGE) :] == [IMAGE, "--privileged", "--volume=/:/host"]
    assert not any("s3" in word for word in said), "others of the machine see command lines"


def test_a_probe_has_the_options_of_tasks():
    files = Files("/x/task.json", "/x/environment", "/x/out")
    probe = probe_options(IMAGE, bounds_of(**BOUNDS), Mark("7-8-abcdef01", "d1"), files, 100)
    assert set(options()) < set(probe)


@pytest.mark.parametrize(
    "wrong",
    [
        {"user": "0"}, {"user": "root"}, {"user": "1000:0"}, {"user": "00"}, {"user": "1000:"}, {"network": "host"}, {"network": ""},
        {"network": "container:x"}, {"network": "ns:/proc/1/ns/net"}, {"network": "none --privileged"}, {"memory": "1MB"},
        {"memory": "much"}, {"cpus": 0.0}, {"cpus": float("nan")}, {"processes": 0}, {"timeout": "10ms"}, {"tmp": "0kB"},
        {"out": "-1"}, {"out": ""},
    ],
)  # fmt: skip
def test_bounds_that_would_open_it_or_cannot_be_are_refused(wrong):
    with pytest.raises(ArgumentError):
        bounds_of(**(BOUNDS | wrong))


def test_a_group_is_the_users_where_none_is_said():
    assert bounds_of(**BOUNDS, user="1000").user == "1000:1000"
    assert bounds_of(**BOUNDS, user="1000:7").user == "1000:7"


# -- output ----------------------------------------------------------------------------------------------------------------


def test_the_last_lines_are_kept_wherever_pieces_end():
    kept = LastLines()
    for piece in (b"a\nb", b"c\n", b"", b"\nd"):
        kept.feed(piece)
    assert kept.lines() == [b"a", b"bc", b"", b"d"]
    assert kept.text(3) == "d"
    for piece in (b"e\n" * 100 + b"f", b"g\n" * 101 + b"h"):
        kept.feed(piece)
    assert kept.lines() == [b"g"] * 100 + [b"h"]


def test_memory_is_bounded_whatever_is_written():
    kept = LastLines()
    for piece in (b"x" * 65_536, b"\n" * 65_536, b"y" * 60_000 + b"\n"):
        for _ in range(20):
            kept.feed(piece)
    assert len(kept.lines()) <= 101
    assert sum(map(len, kept.lines())) <= MOST_BYTES
    assert max(map(len, kept.lines())) <= LONGEST_LINE + 1


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("", None), ("hello\n", None), ('{"a": 1}\nbye\n\n', '{"a":1}'), ("[1]\n[2]", "[2]"), ("[1]\nNaN\n", "[1]"),
        ("[1]\n{broken", "[1]"),
        (b"[1]\n\xff\xfe", "[1]"), ("[1]\n" + "[" * 60_000, "[1]"), ("7\n" + "9" * 6_000, "7"), ("null\n", None), ('  "ä"  \r\n', '"ä"'),
        ("x" * 100_000 + "\n[1]\n" + "x" * 100_000, "[1]"),
    ],
)  # fmt: skip
def test_the_result_is_the_last_line_that_is_json(text, result):
    verdict = verdict_of_container(Ended(0), lines(text), lines(""))
    assert (verdict.outcome, verdict.result) == ("succeeded", result)


def test_a_result_that_is_too_large_is_no_success():
    for text in ('{"a": "' + "x" * 100_000 + '"}\n', '"' + "x" * (MAX_RESULT_BYTES - 1) + '"'):
        verdict = verdict_of_container(Ended(0), lines("[1]\n" + text), lines(""))
        assert (verdict.outcome, verdict.failure[0]) == ("failed", "result_too_large")


def test_a_number_beyond_all_numbers_is_no_result():
    assert verdict_of_container(Ended(0), lines("1e999"), lines("")).failure[0] == "result_not_serialisable"


class Signs(list):
    """A `Reporter` who keeps signs."""

    def sign(self, lease, **fields):
        self.append(fields)


@pytest.mark.parametrize(
    "note",
    [
        '{"a":' + "[" * 260 + "]" * 260 + "}",
        "[" * 60_000,
        '{"a": 1e999}',
        '{"a": NaN}',
        r'{"a": "\ud800"}',
        "[]",
        "\xff",
        "{",
    ],
)
def test_a_note_that_could_not_be_kept_goes_nowhere(tmp_path, note):
    signs = Signs()
    (tmp_path / ".checkpoint").write_text(note, "latin-1")
    with out_folder(str(tmp_path), Lease(lease_view(1), signs), 1 << 20) as folder:
        folder.look()
    assert (signs, folder.left_out) == ([], {".checkpoint"})


# -- endings ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "state", "ended"),
    [
        (0, None, Ended(0)), (125, None, Ended(None)), (127, {"Status": "created", "ExitCode": 0}, Ended(None)),
        (125, {"Status": "exited", "ExitCode": 125}, Ended(125)),
        (137, {"Status": "exited", "ExitCode": 137, "OOMKilled": True}, Ended(137, True)),
        (-9, {"Status": "running", "ExitCode": 0}, Ended(None, running=True)), (1, {"Status": "exited"}, Ended(None)),
        (1, "x", Ended(None)),
    ],
)  # fmt: skip
def test_podman_says_how_a_container_ended(code, state, ended):
    assert ended_of(code, state) == ended


@pytest.mark.parametrize(
    ("ended", "outcome", "kind"),
    [
        (Ended(1), "failed", "container_exit"), (Ended(64), "aborted", "container_exit"), (Ended(137), "failed", "container_killed"),
        (Ended(137, True), "failed", "memory_exceeded"), (Ended(None), "failed", "container_not_started"),
        (Ended(None, running=True), "failed", "container_lost"),
    ],
)  # fmt: skip
def test_each_ending_has_a_kind_of_its_own(ended, outcome, kind):
    verdict = verdict_of_container(ended, lines("[1]"), lines("one\ntwo\n"))
    assert (verdict.outcome, verdict.failure[0], verdict.failure[2]) == (outcome, kind, "one\ntwo")
    assert verdict.result is None


def test_a_program_may_ask_for_later():
    verdict = verdict_of_container(Ended(75), lines(""), lines(""))
    assert (verdict.outcome, verdict.after_ms) == ("yielded", 10_000)


def test_what_is_kept_of_standard_error_is_bounded():
    flood = lines("x" * 60_000 + "\n" + "y" * 60_000)
    for verdict in (verdict_of_container(Ended(3), lines(""), flood), timed_out(1.5, flood)):
        assert sum(map(len, verdict.failure)) < 10_000


# -- machine ---------------------------------------------------------------------------------------------------------------

HOST = {
    "cgroupControllers": ["cpu", "memory", "pids"], "cgroupVersion": "v2", "security": {"rootless": True, "seccompEnabled": True}
}  # fmt: skip


def test_a_machine_that_cannot_bound_containers_is_refused():
    assert lacking_of({"host": HOST}) == []
    assert lacking_of({"host": HOST | {"cgroupControllers": ["memory"]}}) == ["limits of cpu", "limits of pids"]
    assert len(lacking_of({"host": HOST | {"cgroupVersion": "v1"}})) == 3
    assert lacking_of({"host": HOST | {"security": {}}}) == ["filter of system calls (seccomp)"]
    assert lacking_of(None) == lacking_of({"host": 1}) == ["description of its host"]


def test_podman_that_is_missing_is_named_with_what_to_do():
    with pytest.raises(SetupError, match="apt-get install podman"):
        podman_of("no-such-podman --root /x")
    with pytest.raises(ArgumentError):
        podman_of("'")
    with pytest.raises(ArgumentError):
        podman_of("")


def test_podman_is_told_no_secret_of_the_runner(monkeypatch):
    monkeypatch.setenv("KAFKA_PASSWORD", "s3")
    assert "s3" not in podman_of("sh").environment.values()


@pytest.mark.slow
def test_podman_that_does_not_answer_raises_nothing():
    assert Podman(("/bin/sleep",), {}).ask("100", within_s=0.1).code == -1
    assert Podman(("/no/such/program",), {}).ask("info").code == -1
    assert Podman(("/bin/echo",), {}).document("{") is None


def test_a_process_is_told_from_a_later_one_with_its_number():
    mine = identity()
    pid, began, boot = mine.split("-")
    assert lives(mine)
    assert not lives(f"{pid}-{int(began) + 1}-{boot}")
    assert not lives(f"{pid}-{began}-{'0' * 8}")
    assert not lives(f"999999999-{began}-{boot}")
    assert lives("what a newer version writes")


# -- watchdog --------------------------------------------------------------------------------------------------------------


def fake_podman(tmp_path, containers):
    """A program that lists files of a folder as containers, and removes them."""
    folder = tmp_path / "containers"
    folder.mkdir()
    for name in containers:
        (folder / name).touch()
    program = tmp_path / "podman"
    program.write_text(f'#!/bin/sh\ncd {folder}\ncase $1 in ps) ls ;; rm) shift 3; rm -f "$@" ;; esac\n')
    program.chmod(0o755)
    return program, folder


@pytest.mark.slow
@pytest.mark.parametrize("said", [b"", watchdog.DONE])
def test_the_watchdog_removes_all_when_the_runners_end_of_the_pipe_is_closed(tmp_path, said):
    program, containers = fake_podman(tmp_path, ["one", "two"])
    given = tmp_path / "given"
    given.mkdir()
    script = [sys.executable, "-I", "-S", os.path.abspath(watchdog.__file__), str(given), "a=b", str(program)]
    with subprocess.Popen(script, stdin=subprocess.PIPE) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        assert len(list(containers.iterdir())) == 2, "the runner lives"
        process.communicate(said, timeout=30)
    assert process.returncode == 0
    assert list(containers.iterdir()) == []
    assert not given.exists()


def test_the_watchdog_does_not_believe_what_podman_does_not_say():
    assert watchdog.labelled(["/no/such/program"], "a=b") is None
    assert watchdog.labelled(["/bin/false"], "a=b") is None
    assert watchdog.labelled(["/bin/true"], "a=b") == []


def test_a_program_gets_the_documented_fields_of_its_task_and_no_other_one():
    view = lease_view(1)
    view["task"] |= {"payload": {"env": {"KEY": "secret"}}, "more": "of a newer server"}
    assert place.told_of(Lease(view, None), {"n": 1}).keys() == {
        "input", "scheduled_time", "ordering_id", "uniqueness_key", "handler", "queue", "attempt", "epoch", "checkpoint",
        "last_error", "tags", "traceparent", "missing",
    }  # fmt: skip
