"""What a handler does to its child's socket and memory costs its own child, and nobody else anything."""

from __future__ import annotations

import base64
import json
import os
import random
import signal
import socket
import struct
import tempfile
from pathlib import Path
from typing import Any

import pytest

from scylla_spark.errors import ConfigError
from scylla_spark.executors.local import child_handle, forkserver_handle
from scylla_spark.executors.local import pool as pool_module
from scylla_spark.executors.local.pool import LocalPool
from tests.support.executor_conformance import GRACE_S, Running, invocation
from tests.support.processes import alive
from tests.support.waiting import holds

HANDLERS = str(Path(__file__).parents[1] / "support" / "hostile_handlers.py")


def frame(value: object) -> bytes:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return struct.pack(">I", len(body)) + body


def write(data: bytes, *, sleep: float = 0.0, times: int = 1, timeout_ms: int = 20_000):
    payload = {"bytes": base64.b64encode(data).decode(), "sleep": sleep, "times": times}
    return invocation("hostile.write", payload, timeout_ms=timeout_ms)


CANARY = "canary-3f9a"


def look(*patterns: str) -> dict[str, Any]:
    """Returns what a handler sees around it, in a pool that passes variables of these names on."""
    executor = LocalPool([HANDLERS], min_children=1, kill_grace_s=GRACE_S, pass_environment=patterns)
    running = Running(executor)
    try:
        return json.loads(running.one("surroundings").result)
    finally:
        executor.stop(drain_s=0)


@pytest.fixture(scope="module")
def surroundings():
    """What handlers see of a process that holds a secret in every place where one may lie, without and with variables passed on."""
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.NamedTemporaryFile(prefix=CANARY) as file,
        socket.create_server(("127.0.0.1", 0)) as server,
    ):
        for name in ("SCYLLASPARK_KAFKA__SASL_PASSWORD", "SCYLLASPARK_AWS_X", "AWS_SECRET", "ANYTHING"):
            patch.setenv(name, f"{CANARY}-{name}")
        patch.setenv("PYTHONHASHSEED", "7")
        patch.setenv("LC_MONETARY", "de_DE.UTF-8")
        os.set_inheritable(file.fileno(), True)
        os.set_inheritable(server.fileno(), True)
        return look(), look("AWS_*", "SCYLLASPARK_*", "*_X", "PYTHONHASHSEED")


@pytest.mark.promise
def test_handler_sees_no_secret_of_the_dispatcher_and_inherits_no_descriptor_but_its_own(surroundings):
    seen, _ = surroundings
    assert CANARY not in json.dumps(seen)
    assert seen["environment"]["LC_MONETARY"] == "de_DE.UTF-8"
    assert seen["environment"]["PATH"] == os.environ["PATH"]
    assert not [name for name in seen["environment"] if name.startswith("SCYLLASPARK_")]
    kinds = [link.partition(":")[0] for link in seen["descriptors"]]
    assert kinds.count("socket") == 1
    assert set(kinds) <= {"socket", "/dev/null", "/memfd"}


def test_variables_that_are_named_are_passed_and_settings_never(surroundings):
    _, passed = surroundings
    seen = passed["environment"]
    assert seen["AWS_SECRET"] == f"{CANARY}-AWS_SECRET"
    assert not [name for name in seen if name.startswith("SCYLLASPARK_") or name in ("ANYTHING", "PYTHONHASHSEED")]


def test_hashes_of_two_pools_differ_though_their_launcher_fixed_the_seed(surroundings):
    first, second = surroundings
    assert first["hash"] != second["hash"]


@pytest.fixture(scope="module")
def pool():
    executor = LocalPool([HANDLERS], kill_grace_s=GRACE_S)
    running = Running(executor)
    yield running
    executor.stop(drain_s=0)


@pytest.fixture
def small():
    executor = LocalPool([HANDLERS], min_children=1, max_children=1, kill_grace_s=GRACE_S)
    running = Running(executor)
    yield running
    executor.stop(drain_s=0)


RECORD = [1, "succeeded", 1, 1, None, None, 0]


def records() -> list[object]:
    """A record with each field wrong in several ways."""
    wrong = ["x", None, -1, 1.5, float("nan"), True, 1 << 70, [], {}]
    fields = {
        0: wrong,
        1: wrong,
        2: wrong,
        3: wrong,
        4: [1, [], {}],
        5: [1, "x", [1], ["a", "b"]],
        6: wrong,
    }
    return [[*RECORD[:at], value, *RECORD[at + 1 :]] for at, values in fields.items() for value in values]


@pytest.mark.parametrize(
    "data",
    [
        b"garbage on the wire",
        struct.pack(">I", 0xFFFF_FFFF),
        struct.pack(">I", 64 * 1024 * 1024) + b"x" * 1000,
        frame(b"no JSON"),
        frame(b"[" * 100_000),
        frame([]),
        frame({}),
        frame([1, 2]),
        frame([[]]),
        frame([["x"] * 8]),
        frame([[1 << 40, "returned"]]),
        frame([[0, "succeeded", 1, 1, None, None, 0]]),
        frame([[10**6, "succeeded", 1, 1, None, None, 0]]),
        frame([[1, "batch", 1, 1, [], None, 0]]),
    ],
)
def test_bytes_that_no_child_of_ours_sends_end_the_child_at_once(pool, data):
    outcome = pool.run(write(data, sleep=15), within=12)[0]
    assert (outcome.outcome, outcome.failure.kind) == ("failed", "child_died")
    assert "only user code" in outcome.failure.message
    assert 0 < outcome.started_us <= outcome.finished_us
    assert pool.one("noop").outcome == "succeeded"


@pytest.mark.promise
def test_every_record_with_a_wrong_field_ends_only_its_own_child(pool):
    calls = [write(frame([record]), sleep=15) for record in records()]
    others = [invocation("noop") for _ in range(50)]
    pool.executor.submit([*calls, *others])
    assert {outcome.failure.kind for outcome in pool.wait(calls, within=30)} == {"child_died"}
    assert {outcome.outcome for outcome in pool.wait(others)} == {"succeeded"}


def test_forged_success_of_the_call_that_writes_it_is_no_success(small):
    outcome = small.run(write(frame([[1, "succeeded", 1, 1, '"forged"', None, 0]]), sleep=15), within=12)[0]
    assert (outcome.outcome, outcome.failure.kind) == ("failed", "child_died")
    assert "still runs" in outcome.failure.message


def test_forged_hand_back_does_not_run_the_call_again(small):
    outcome = small.run(write(frame([[1, "returned"]]), sleep=15), within=12)[0]
    assert outcome.failure.kind == "child_died"


def test_half_a_frame_that_swallows_the_record_is_found_without_the_timeout(pool, monkeypatch):
    monkeypatch.setattr(child_handle, "SILENT_US", 300_000)
    outcome = pool.run(write(struct.pack(">I", 5_000_000) + b"[", timeout_ms=60_000), within=20)[0]
    assert outcome.failure.kind == "child_died"
    assert "without a record" in outcome.failure.message


def test_half_a_frame_of_a_call_that_hangs_ends_with_its_timeout(pool):
    outcome = pool.run(write(b"\0", sleep=60, timeout_ms=300), within=20)[0]
    assert outcome.outcome == "timed_out"


def test_flood_of_garbage_is_not_kept(pool):
    outcome = pool.run(write(struct.pack(">I", 0xFFFFFF) + b"x" * 65532, times=4096, timeout_ms=60_000), within=30)[0]
    assert outcome.failure.kind == "child_died"


def test_calls_queued_behind_one_that_breaks_the_protocol_go_elsewhere(small):
    small.run(*[invocation("moody") for _ in range(50)])
    bad = invocation("moody", {"bytes": base64.b64encode(b"garbage on the wire").decode(), "sleep": 15})
    others = [invocation("moody") for _ in range(30)]
    small.executor.submit([*others[:5], bad, *others[5:]])
    assert {outcome.outcome for outcome in small.wait(others, within=12)} == {"succeeded"}
    assert small.wait([bad])[0].failure.kind == "child_died"


@pytest.mark.parametrize("words", [{0: 0}, {0: 1 << 62}, {0: -5}, {4: 1 << 60}, {4: -1}, {2: 0, 3: 1 << 60}])
def test_memory_that_lies_does_not_keep_a_call_past_its_timeout(pool, words, monkeypatch):
    monkeypatch.setattr(child_handle, "SILENT_US", 300_000)
    call = invocation("hostile.remember", {"words": words, "sleep": 60}, timeout_ms=500)
    outcome = pool.run(call, within=20)[0]
    assert outcome.failure.kind in ("timed_out", "child_died")
    assert outcome.finished_us - outcome.started_us < 15_000_000
    assert pool.one("noop").outcome == "succeeded"


@pytest.mark.parametrize("claimed", [1 << 62, -1, -(1 << 62), 10**6])
def test_memory_that_names_calls_which_never_were_ends_the_child(pool, claimed):
    outcome = pool.run(invocation("hostile.remember", {"words": {1: claimed}, "sleep": 60}), within=20)[0]
    assert outcome.failure.kind == "child_died"
    assert "cannot have begun" in outcome.failure.message


def test_child_whose_memory_lies_while_it_has_nothing_to_do_is_replaced(small):
    pid = int(small.one("hostile.leave_thread", 0.05).result)
    assert holds(lambda: not alive(pid), within=15)
    assert small.one("noop").outcome == "succeeded"


def test_start_that_a_child_moves_along_ends_with_the_timeout_all_the_same(small):
    now = 10**15  # far ahead of the boot clock, so that it is "now" whenever one looks
    outcome = small.run(invocation("hostile.remember", {"words": {0: now}, "sleep": 60}, timeout_ms=700), within=20)[0]
    assert outcome.outcome == "timed_out"


def test_outbox_full_of_nonsense_harms_nobody(pool):
    outbox = '[1,"succeeded",1,1,null],{"a":[[' + "[" * 5000
    call = invocation("hostile.remember", {"words": {4: len(outbox)}, "outbox": outbox, "sleep": 60}, timeout_ms=500)
    assert pool.run(call, within=20)[0].outcome == "timed_out"


def test_shared_memory_cannot_be_taken_away(pool):
    assert pool.one("hostile.truncate", 1).result == '"refused"'


def test_calls_whose_bytes_a_handler_has_read_go_elsewhere(small, monkeypatch):
    monkeypatch.setattr(child_handle, "UNBEGUN_US", 500_000)
    small.run(*[invocation("hostile.steal") for _ in range(50)])
    calls = [invocation("hostile.steal") for _ in range(60)]
    small.executor.submit(calls)
    assert {outcome.outcome for outcome in small.wait(calls, within=40)} <= {"succeeded", "failed"}


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_forkserver_that_a_handler_has_stopped_is_continued(small):
    forkserver = small.executor._forkserver._process.pid
    outcome = small.run(invocation("hostile.stop_parent", timeout_ms=500), within=20)[0]
    assert outcome.outcome == "timed_out", "it is the forkserver that kills its child"
    assert small.one("noop").outcome == "succeeded"
    assert small.executor._forkserver._process.pid == forkserver


def test_forkserver_that_is_stopped_again_and_again_is_replaced(small, monkeypatch):
    monkeypatch.setattr(forkserver_handle.signal, "SIGCONT", 0)  # as if another SIGSTOP followed each
    forkserver = small.executor._forkserver._process.pid
    os.kill(forkserver, signal.SIGSTOP)
    assert holds(lambda: small.executor._forkserver._process.pid != forkserver)
    assert small.one("noop").outcome == "succeeded"


def test_children_that_live_get_the_work_while_the_forkserver_is_stopped(monkeypatch):
    monkeypatch.setattr(pool_module, "_LOOK_US", 1 << 60)
    executor = LocalPool([HANDLERS], min_children=1, max_children=8, kill_grace_s=GRACE_S)
    running = Running(executor)
    forkserver = executor._forkserver._process.pid
    try:
        assert running.one("noop").outcome == "succeeded"
        os.kill(forkserver, signal.SIGSTOP)
        calls = [invocation("hostile.slow") for _ in range(8)]
        assert {outcome.outcome for outcome in running.run(*calls, within=10)} == {"succeeded"}
        assert state_of(forkserver) == "T"
        os.kill(forkserver, signal.SIGCONT)
        assert {outcome.outcome for outcome in running.run(*[invocation("hostile.slow") for _ in range(8)])} == {
            "succeeded"
        }
    finally:
        os.kill(forkserver, signal.SIGCONT)
        executor.stop(drain_s=0)


def test_random_bytes_from_many_children_leave_one_outcome_each(pool):
    dice = random.Random(7)
    good = frame([RECORD])
    calls = []
    for _ in range(150):
        data = bytearray(good if dice.random() < 0.7 else dice.randbytes(dice.randrange(1, 200)))
        for _ in range(dice.randrange(4)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        calls.append(write(bytes(data[: dice.randrange(1, len(data) + 1)]), sleep=0.05, timeout_ms=1000))
    others = [invocation("noop") for _ in range(100)]
    pool.executor.submit([*calls, *others])
    for outcome in pool.wait(calls, within=90):  # one that ended may have left its own record where it was found
        assert outcome.outcome in ("failed", "timed_out") or outcome.result == '"done"'
    found = [outcome.failure for outcome in pool.wait(others) if outcome.outcome != "succeeded"]
    assert {failure.kind for failure in found} <= {"child_died"}, "it ran in a child whose stream was broken before"
    assert holds(lambda: pool.executor.rooms()["local"] > 0)


SPEAKS_AT_IMPORT = """
import os, threading
from scylla_spark.handlers.registry import handler

@handler("noop")
def noop(task):
    return None

for name in os.listdir("/proc/self/fd"):
    try:
        if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
            os.write(int(name), b"%s")
    except FileNotFoundError:
        pass
"""


@pytest.mark.parametrize("text", ["junk", "[]", "7", '[\\"handler\\"]'])
def test_module_that_writes_on_the_pools_socket_while_it_is_imported_is_a_clear_error(tmp_path, text):
    module = tmp_path / "speaking_handlers.py"
    module.write_text(SPEAKS_AT_IMPORT.replace("%s", text))
    with pytest.raises(ConfigError, match="leave them alone"):
        LocalPool([str(module)]).start(lambda _: None)


SPEAKS_LATER = """
import os, threading, time
from pathlib import Path
from typing import Any
from scylla_spark.handlers.registry import handler

@handler("noop")
def noop(task):
    return None

def speak(mark=Path(%r)):
    while not mark.exists():
        time.sleep(0.01)
    mark.unlink()
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                os.write(int(name), b"junk")
        except FileNotFoundError:
            pass

threading.Thread(target=speak, daemon=True).start()
"""


def test_forkserver_that_talks_nonsense_is_replaced(tmp_path):
    module, mark = tmp_path / "later_handlers.py", tmp_path / "speak"
    module.write_text(SPEAKS_LATER % str(mark))
    executor = LocalPool([str(module)], min_children=1, kill_grace_s=GRACE_S)
    running = Running(executor)
    try:
        assert running.one("noop").outcome == "succeeded"
        mark.touch()
        assert holds(lambda: not mark.exists())
        outcomes = running.run(*[invocation("noop") for _ in range(300)], within=40)
        assert {outcome.outcome for outcome in outcomes} <= {"succeeded", "failed"}
        assert running.one("noop").outcome == "succeeded"
    finally:
        executor.stop(drain_s=0)
