"""What a container prints, on its way to the logs of its attempt: numbered, bounded, and never in the way of anything."""

from __future__ import annotations

from itertools import pairwise

import pytest

from scylla_spark.errors import ArgumentError, UnreachableError
from scylla_spark.worker.containers.container_lines import ContainerLines
from scylla_spark.worker.line_sender import HEAD_BYTES, LINE_BYTES, TAIL_BYTES


class Server:
    """Takes lines; raises what it is told to."""

    def __init__(self, *errors):
        self.told, self.errors, self.calls = [], list(errors), 0

    def __call__(self, lines):
        self.calls += 1
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        self.told += lines


def told(server, *fed, tell=True):
    """The lines that a server is told of what comes on streams."""
    lines = ContainerLines(server)
    lines.start()
    for stream, data in fed:
        lines.feed(stream, data)
    lines.end(tell=tell)
    return server.told


def test_lines_are_whole_wherever_pieces_end_and_streams_are_told_apart():
    fed = ("stdout", b"a\nb"), ("stderr", b"x"), ("stdout", b"c\n\xffd\r\n"), ("stderr", b"y\n"), ("stdout", b"end")
    found = told(Server(), *fed)
    assert [(one.seq, one.stream, one.text) for one in found] == [
        (1, "stdout", "a"), (2, "stdout", "bc"), (3, "stdout", "\ufffdd"), (4, "stderr", "xy"), (5, "stdout", "end"),
    ]  # fmt: skip


def test_of_much_the_first_and_the_last_lines_are_told_and_the_numbers_say_what_is_missing():
    found = told(Server(), *(("stdout", b"%06d" % number + b"." * 994 + b"\n") for number in range(3_000)))
    assert all(int(one.text[:6]) == one.seq - 1 for one in found)
    numbers = [one.seq for one in found]
    gaps = [(before, after) for before, after in pairwise(numbers) if after != before + 1]
    assert len(gaps) == 1
    assert (numbers[0], numbers[-1]) == (1, 3_000)
    head, tail = gaps[0][0] * 1_064, (3_001 - gaps[0][1]) * 1_064
    assert HEAD_BYTES <= head < HEAD_BYTES + 2_000
    assert TAIL_BYTES - 2_000 < tail <= TAIL_BYTES


def test_a_flood_of_short_lines_in_one_piece_keeps_its_beginning_and_its_end():
    flood = b"".join(b"%d\n" % number for number in range(1, 30_001))
    found = told(Server(), ("stdout", flood), ("stdout", flood), ("stdout", flood))
    assert all(int(one.text) == (one.seq - 1) % 30_000 + 1 for one in found)
    numbers = [one.seq for one in found]
    assert (numbers[:2], numbers[-1], len(numbers)) == ([1, 2], 90_000, len(set(numbers)))
    assert len(numbers) <= 16_000


def test_a_line_without_an_end_takes_no_memory_and_stays_one():
    found = told(Server(), *[("stdout", b"x" * 65_536)] * 100, ("stdout", b"\nnext\n"))
    assert [len(one.text) for one in found] == [LINE_BYTES + 1, 4]


def test_a_server_that_is_not_reached_misses_lines_and_one_that_refuses_is_asked_no_more():
    server = Server(UnreachableError("away"))
    assert told(server, ("stdout", b"x" * 8_000 + b"\n"), *[("stdout", b"y" * 8_000 + b"\n")] * 30)[-1].seq == 31
    assert server.told[0].seq > 1
    refusing = Server(ArgumentError("The lease is over."), ArgumentError("It still is."))
    assert told(refusing, *[("stdout", b"y" * 8_000 + b"\n")] * 100) == []
    assert refusing.calls == 1


@pytest.mark.parametrize("tell", [True, False])
def test_what_does_not_matter_any_more_is_not_sent(tell):
    server = Server()
    told(server, ("stdout", b"last\n"), tell=tell)
    assert len(server.told) == tell
