"""The desk that takes files out of sandboxes: what children send costs it nothing that lasts, and touches no foreign file."""

from __future__ import annotations

import json
import os
import socket
import threading
from pathlib import Path

import pytest

from scylla_spark.core.tasks.output import OutputTerms, outputs_place
from scylla_spark.core.tasks.task import Invocation
from scylla_spark.errors import ArgumentError
from scylla_spark.executors.local.output_desk import HandedOutputs, OutputDesk
from scylla_spark.handlers.outputs import AttemptOutputs
from scylla_spark.io.host.output_files import OutputFiles
from tests.support.executor_conformance import invocation
from tests.support.waiting import eventually

PARTITIONS = 8


class Child:
    """One child with one call, as the desk sees it."""

    def __init__(self, desk: OutputDesk, number: int) -> None:
        self.call: Invocation = invocation("h")._replace(id=number)
        desk.begin([self.call])
        self.way = desk.open(number, number.__eq__)
        self.outputs = HandedOutputs(self.way.fileno(), self.call)

    def said(self, message: bytes, descriptor: int) -> str:
        """Returns what the desk answers to a message."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            with theirs:
                socket.send_fds(self.way, [message], [descriptor, theirs.fileno()])
            return str(json.loads(ours.recv(4096))[0])

    def wrote(self, folder: Path, name: str, size: int) -> bytes:
        place = outputs_place(self.call.key, self.call.attempt, PARTITIONS)
        with OutputFiles(folder).open(place, name, size) as file:
            return file.read()


@pytest.fixture
def desk(tmp_path):
    desk = OutputDesk(OutputTerms(str(tmp_path), PARTITIONS, 1_000))
    yield desk
    desk.stop()


@pytest.fixture
def children(desk):
    found = Child(desk, 1), Child(desk, 2)
    yield found
    for child in found:
        child.way.close()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_child_is_believed_about_its_own_calls_alone(children, tmp_path):
    attacker, victim = children
    victim.outputs.write("report.csv", "good", None)
    attacker.outputs._id = victim.call.id
    with pytest.raises(ArgumentError, match="The attempt is over"):
        attacker.outputs.write("report.csv", "evil", None)
    assert victim.wrote(tmp_path, "report.csv", 4) == b"good"


class EndsMeanwhile(AttemptOutputs):
    """Its call ends while a file is copied."""

    desk: OutputDesk

    def write(self, name, source, media_type, over=lambda: False):
        self.desk.end([1])
        return super().write(name, source, media_type, over)


def test_a_file_that_is_copied_while_its_call_ends_replaces_nothing(desk, children, tmp_path):
    child = children[0]
    child.outputs.write("report.csv", "good", None)
    outputs = EndsMeanwhile(desk._terms, child.call)
    outputs.desk = desk
    desk._running[child.call.id] = outputs
    with pytest.raises(ArgumentError, match="The attempt is over"):
        child.outputs.write("report.csv", "longer", None)
    assert child.wrote(tmp_path, "report.csv", 4) == b"good"


def test_no_descriptor_that_a_child_sends_stays_open(children, tmp_path):
    attacker, _ = children
    attacker.outputs.write("first", "1", None)
    before = descriptors()
    own = json.dumps([1, "x", None]).encode()
    with open(tmp_path / "plain", "w+b") as plain:
        folder = os.open(tmp_path, os.O_RDONLY)
        for _ in range(50):
            socket.send_fds(attacker.way, [own], [plain.fileno(), plain.fileno()])  # the answer is to go to a file
            socket.send_fds(attacker.way, [own], [plain.fileno()] * 100)
            socket.send_fds(attacker.way, [b""], [plain.fileno()] * 2)
            assert attacker.said(own, folder) == "refused"
            assert attacker.said(b"[" * 4000, plain.fileno()) == "refused"
        os.close(folder)
    attacker.outputs.write("last", "1", None)
    eventually(lambda: descriptors() <= before, 20)


@pytest.mark.parametrize("message", [b"", b"[", b"null", b"\xff" * 100])
def test_no_message_keeps_the_desk_from_taking_what_comes_next(children, message):
    for child in children:
        child.way.send(message)
    for child in children:
        assert child.outputs.write("next", "x", None).bytes == 1


@pytest.mark.parametrize("end", [socket.SHUT_RDWR, socket.SHUT_WR])
def test_a_child_that_cuts_itself_off_cuts_off_nobody_else_and_does_not_wait(children, end):
    attacker, victim = children
    attacker.way.shutdown(end)
    with pytest.raises(OSError):  # noqa: PT011
        attacker.outputs.write("a", "x", None)
    assert victim.outputs.write("next", "x", None).bytes == 1


def test_a_desk_that_stops_leaves_no_thread_no_descriptor_and_nobody_waiting(tmp_path):
    before, threads = descriptors(), threading.active_count()
    desk = OutputDesk(OutputTerms(str(tmp_path), PARTITIONS, 1_000))
    first, second = Child(desk, 1), Child(desk, 2)
    desk.close(1)
    with pytest.raises(OSError):  # noqa: PT011
        first.outputs.write("a", "x", None)
    desk.stop()
    with pytest.raises(OSError):  # noqa: PT011
        second.outputs.write("a", "x", None)
    first.way.close()
    second.way.close()
    eventually(lambda: (descriptors(), threading.active_count()) == (before, threads), 20)
