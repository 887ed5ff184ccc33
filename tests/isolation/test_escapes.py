"""The escape suite: each attack gets what it wants outside a sandbox, and nothing inside. Needs bubblewrap; without it, it fails."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path

import pytest

from scylla_spark.config.settings import Settings
from scylla_spark.executors.local.local_executors import KIND
from scylla_spark.executors.local.pool import LocalPool
from scylla_spark.executors.local.sandbox import FIRST_USER, Sandboxed
from scylla_spark.executors.spark.worker import WorkerConfig, pool_of
from tests.isolation import attacks
from tests.support.executor_conformance import GRACE_S, Running, invocation
from tests.support.processes import alive
from tests.support.waiting import holds

MODULE = attacks.__file__
LIMITS = {
    "takes_memory": "memory_exceeded",
    "takes_memory_by_mapping": "memory_exceeded",
    "forks_without_end": "processes_exceeded",
    "starts_threads_without_end": "processes_exceeded",
    "fills_the_disk": "disk_exceeded",
    "fills_shared_memory": "disk_exceeded",
    "opens_files_without_end": "open_files_exceeded",
    "takes_cpu_without_end": "cpu_exceeded",
}


def _answering(line: socket.socket, canary: str) -> None:
    """Serves until the socket is closed."""
    with contextlib.suppress(OSError):
        while True:
            if line.type == socket.SOCK_DGRAM:
                _, caller = line.recvfrom(10)
                if caller is None:  # the socket was shut down
                    return
                line.sendto(canary.encode(), caller)
            else:
                connection, _ = line.accept()
                with connection:
                    connection.sendall(canary.encode())


def _written(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A machine that is worth an attack: files, servers, a process with a secret, variables."""
    base, canary = tmp_path_factory.mktemp("place"), f"canary-{os.getpid()}-7c1"
    found = {"canary": canary, "abstract": f"{canary}-abstract", "cpu_s": 2.5}
    found |= {"data_dir": str(base / "data"), "home": str(base / "home"), "socket_file": str(base / "socket")}
    for name, where in {
        "secret_of_the_broker": "data/broker/secret", "table": "data/tables/part-0.parquet", "settings": "scyllaspark.toml",
        "key_at_home": "home/.ssh/id_ed25519", "file_in_tmp": "notes.txt",
    }.items():  # fmt: skip
        found[name] = _written(base / where, canary)
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        patch.chdir(base)
        patch.setenv("HOME", found["home"])
        patch.setenv("CLOUD_SECRET", canary)
        patch.setenv("HTTPS_PROXY", f"http://user:{canary}@proxy.invalid")
        kinds = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}
        lines = {name: stack.enter_context(socket.socket(socket.AF_INET, kind)) for name, kind in kinds.items()}
        for name, line in lines.items():
            line.bind(("127.0.0.1", 0))
            found[name] = line.getsockname()[1]
        for address in (found["socket_file"], "\0" + found["abstract"]):
            line = lines[address] = stack.enter_context(socket.socket(socket.AF_UNIX))
            line.bind(address)
        for line in lines.values():
            if line.type == socket.SOCK_STREAM:
                line.listen()
            threading.Thread(target=_answering, args=(line, canary), daemon=True).start()
        victim = subprocess.Popen(
            [sys.executable, "-ISc", "import sys; sys.stdin.read()", canary],
            stdin=subprocess.PIPE,
            env={"KAFKA_PASSWORD": canary},
            start_new_session=True,
        )
        stack.callback(victim.wait)
        stack.callback(victim.stdin.close)
        yield found | {"victim": victim.pid}
        for line in lines.values():
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)


@pytest.fixture(scope="module")
def settings(place):
    return Settings(
        handlers=(MODULE,),
        data_dir=Path(place["data_dir"]),
        dispatch={"pass_environment": ["CLOUD_SECRET"], "min_children": 1},
        _env_file=None,
    )


@pytest.fixture(scope="module")
def outside(place):
    pool = LocalPool([MODULE], min_children=1, max_children=2, pass_environment=["CLOUD_SECRET"], kill_grace_s=GRACE_S)
    yield Running(pool)
    pool.stop(drain_s=0)


@pytest.fixture(scope="module")
def box(settings):
    executor = KIND.make(settings)
    yield Running(executor)
    executor.stop(drain_s=0)


def test_there_are_many_attacks():
    assert len(attacks.ATTACKS) >= 60


@pytest.mark.parametrize("name", sorted(attacks.ATTACKS))
def test_attack_succeeds_outside(outside, place, name):
    if name in attacks.ROOT_ONLY and os.geteuid() != 0:
        pytest.skip("only root can do it anyway")
    found = outside.one("attack.free", {"attack": name, "place": place})
    assert found.outcome == "succeeded", found.failure
    assert place["canary"] in json.loads(found.result)


@pytest.mark.parametrize("name", sorted(attacks.ATTACKS))
def test_attack_fails_in_a_sandbox(box, place, name):
    (found,) = box.run(invocation("attack.boxed", {"attack": name, "place": place}), within=30)
    assert place["canary"] not in (found.result or "")
    assert found.outcome in ("failed", "succeeded")
    assert found.work.isolation == "sandbox"
    if name in LIMITS:
        assert found.failure.kind == LIMITS[name]
    if found.failure is not None:
        assert found.failure.kind != "isolation_unavailable"


def test_what_is_inside_is_what_the_page_says(box):
    seen = json.loads(box.one("attack.look").result)
    assert set(seen["capabilities"]) == {"0000000000000000"}
    assert (seen["no_new_privileges"], seen["filter"]) == ("1", "2")
    assert seen["interfaces"] == ["lo"]
    assert len(seen["processes"]) == 3
    assert set(seen["root"]) <= {"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc", "proc", "dev", "tmp",
                                 "root", "home", "work", "opt", "srv", "mnt", *Path(MODULE).parts}  # fmt: skip
    assert seen["user"] >= FIRST_USER or os.geteuid() != 0
    assert not {"CLOUD_SECRET", "HTTPS_PROXY"} & set(seen["variables"])


def test_sandbox_that_was_filled_and_overrun_is_usable_again(box, place):
    for name in ("fills_the_disk", "takes_memory", "forks_without_end"):
        assert box.one("attack.boxed", {"attack": name, "place": place}).outcome == "failed"
    small = box.one("attack.boxed", {"attack": "reads_by_a_link", "place": place})
    assert small.failure.kind == "FileNotFoundError"  # it could write its link, and the link leads nowhere


def test_what_tasks_leave_behind_is_gone_once_no_child_is_left(outside):
    isolation = outside.executor.handlers()["attack.leaves"].isolation
    pool = LocalPool([MODULE], min_children=0, max_children=1, apart=Sandboxed("attack.leaves", isolation, [MODULE]))
    running = Running(pool)
    found = [
        one.failure.kind if one.failure else one.result for one in (running.one("attack.leaves") for _ in range(8))
    ]
    pool.stop(drain_s=0)
    assert found[0] in ("0", "1")  # what can be imported from there is shown: other tests may have put it on the path
    assert "disk_exceeded" in found, "what was left fills the space, and the child that met that is let go of"
    assert {after for before, after in pairwise(found) if before == "disk_exceeded"} == {found[0]}, found


def test_handlers_of_a_sandbox_never_run_where_all_others_do(outside, place):
    found = outside.one("attack.boxed", {"attack": "lists_home", "place": place})
    assert (found.outcome, found.failure.kind) == ("failed", "isolation_unavailable")


def test_a_sandbox_whose_forkserver_a_task_has_stopped_goes_on(box):
    assert box.run(invocation("attack.stops", "stop", timeout_ms=500))[0].outcome == "timed_out"
    assert box.one("attack.stops").outcome == "succeeded"


def test_nothing_is_left_when_a_sandbox_ends(outside):
    before = _children(os.getpid())
    isolation = outside.executor.handlers()["attack.look"].isolation
    executor = LocalPool([MODULE], min_children=0, max_children=1, apart=Sandboxed("attack.look", isolation, [MODULE]))
    running = Running(executor)
    running.one("attack.look")
    began = _children(os.getpid()) - before
    (pid,) = [one for one in began if b"bwrap" in Path(f"/proc/{one}/cmdline").read_bytes()]
    inside = _descendants(pid)
    assert len(inside) >= 3
    executor.stop(drain_s=0)
    assert holds(lambda: not any(map(alive, [pid, *inside])))


def _children(pid: int) -> set[int]:
    found = set()
    for children in Path(f"/proc/{pid}/task").glob("*/children"):  # by thread; threads end at any time
        with contextlib.suppress(OSError):
            found.update(map(int, children.read_text().split()))
    return found


def _descendants(pid: int) -> list[int]:
    return [one for child in _children(pid) for one in (child, *_descendants(child))]


@pytest.mark.parametrize("why", ["missing", "refused"])
def test_without_a_sandbox_nothing_runs_and_tasks_say_why(monkeypatch, tmp_path, settings, place, why):
    if why == "refused":
        fake = tmp_path / "bwrap"
        fake.write_text("#!/bin/sh\necho 'bwrap: No permissions to create a new namespace' >&2\nexit 1\n")
        fake.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    else:
        monkeypatch.setenv("PATH", str(tmp_path))
    running = Running(KIND.make(settings))
    found = running.one("attack.boxed", {"attack": "lists_home", "place": place})
    running.executor.stop(drain_s=0)
    assert (found.outcome, found.failure.kind) == ("failed", "isolation_unavailable")
    assert ("No permissions" if why == "refused" else "apt-get install bubblewrap") in found.failure.message


def test_a_spark_worker_keeps_a_handler_in_a_sandbox_of_its_node(place):
    config = WorkerConfig((MODULE,), 1, GRACE_S, auto="spark", hidden=(place["data_dir"],))
    running = Running(pool_of(config, None, "1"), slack_s=60)
    executor = running.executor
    try:
        assert holds(lambda: "own/attack.look" in executor.rooms(), within=60)
        found = running.one("attack.look")
        assert (found.outcome, found.work.isolation) == ("succeeded", "sandbox"), found.failure
        assert json.loads(found.result)["interfaces"] == ["lo"]
    finally:
        executor.stop(drain_s=0)
