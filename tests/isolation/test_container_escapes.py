"""The escape suite of containers: each attack gets what it wants outside, and nothing inside a container of a task."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from scylla_spark.worker.containers.request import Offer
from scylla_spark.worker.containers.runner_setup import opened_yard
from tests.isolation.container_attacks import ATTACKS, OF_ROOT, WON, script, told
from tests.support.container_site import BOUNDS, BUSYBOX, Attempt, container_site_or_skip

CANARY = f"canary-{os.getpid()}-9d4"


def _answering(line: socket.socket) -> None:
    """Serves until the socket is closed."""
    try:
        while True:
            connection, _ = line.accept()
            with connection:
                connection.sendall(CANARY.encode() + b"\n")
    except OSError:
        return


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Variables of a machine that is worth an attack: files, a server, a process with a secret."""
    base = tmp_path_factory.mktemp("machine")
    for name in (
        "data/broker/secret",
        "data/tables/part-0.parquet",
        "scyllaspark.toml",
        "home/.ssh/id_ed25519",
        "notes.txt",
    ):
        file = base / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{CANARY}\n")
    with socket.create_server(("0.0.0.0", 0)) as line, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(f"\0abstract-{os.getpid()}-9d4")
        threading.Thread(target=_answering, args=(line,), daemon=True).start()
        with (base / "notes.txt").open() as notes:
            victim = subprocess.Popen(
                [sys.executable, "-ISc", "import signal; signal.pause()", CANARY],
                stdin=notes, env={"KAFKA_PASSWORD": CANARY}, cwd=base, start_new_session=True,
            )  # fmt: skip
        yield {
            "BASE": str(base), "PORT": str(line.getsockname()[1]), "VICTIM": str(victim.pid), "HOST": _address(),
            "ABSTRACT": f"abstract-{os.getpid()}-9d4", "NAME": f"made-by-{os.getpid()}",
        }  # fmt: skip
        victim.kill()
        victim.wait()
        line.shutdown(socket.SHUT_RDWR)


def _address() -> str:
    """An address of this machine beside its loopback's, if it has one; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        try:
            line.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(line.getsockname()[0])


@pytest.fixture(scope="module")
def outside(place, tmp_path_factory):
    """What each attack printed that was tried beside the container, in a folder of links to busybox alone."""
    folder = tmp_path_factory.mktemp("programs")
    for name in ("busybox", "sh"):
        (folder / name).symlink_to(BUSYBOX)
    secrets = {"CLOUD_SECRET": CANARY, "HTTPS_PROXY": f"http://user:{CANARY}@proxy.invalid"}
    variables = place | secrets | {"PATH": str(folder), "OWN": str(folder)}
    names = [name for name in ATTACKS if os.geteuid() == 0 or name not in OF_ROOT]
    done = subprocess.run(
        [BUSYBOX, "sh", "-c", script(names)], env=variables, capture_output=True, timeout=60, check=True
    )  # fmt: skip
    return told(done.stdout.decode(errors="replace").splitlines())


@pytest.fixture(scope="module")
def inside(place):
    """What each attack printed that was tried in a container."""
    with pytest.MonkeyPatch.context() as patch, container_site_or_skip() as site:
        patch.setenv("CLOUD_SECRET", CANARY)
        patch.setenv("HTTPS_PROXY", f"http://user:{CANARY}@proxy.invalid")
        with opened_yard(site.podman, Offer((site.image,)), BOUNDS) as yard:
            payload = {"command": ["/bin/sh", "-c", script(list(ATTACKS))], "env": place | {"OWN": "/tmp"}}
            attempt = Attempt(yard, payload, 0)
            attempt.thread.start()
            report = attempt.ended()
    assert report["outcome"] == "succeeded", report
    return told([line.text for line in attempt.noted.lines_told])


def won(printed):
    return any(CANARY in line or line == WON for line in printed)


def test_there_are_as_many_attacks_as_the_page_promises():
    assert len(ATTACKS) >= 40


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_attack_succeeds_outside_a_container(outside, name):
    if name not in outside:
        pytest.skip("only root can do it anyway")
    assert won(outside[name]), outside[name]


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_attack_fails_in_a_container(inside, name):
    assert "end" in inside, "all were tried"
    assert not won(inside[name]), inside[name]
    assert not [line for line in inside[name] if "not found" in line], "what it needs is there"


def test_no_attack_has_changed_anything_outside(inside, place):
    assert Path(place["BASE"], "notes.txt").read_text() == f"{CANARY}\n"
