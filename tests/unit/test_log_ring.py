"""A child's lines on their way to the dispatcher: both ends of any flood arrive, memory is bounded, and hostile memory harms nobody."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import threading

import pytest

from scylla_spark.core.access.redaction import Redaction
from scylla_spark.handlers.capture import Output, _Records
from scylla_spark.handlers.log_ring import LogMemory
from scylla_spark.handlers.log_writer import LogWriter
from scylla_spark.services.dispatch.attempt_lines import AttemptLines
from tests.support.invocations import invocation

ROW = invocation()
HEAD, REST, LINE = 8 * 1024, 128 * 1024, 1024


class Site:
    """Both ends of a memory, and what was read so far."""

    def __init__(self):
        self.fd = LogMemory.create_fd(head=HEAD, rest=REST, line=LINE)
        self.theirs, self.ours = LogMemory(self.fd), LogMemory(self.fd)
        self.writer = LogWriter(self.theirs)
        self.reader = AttemptLines(Redaction(), most_line=LINE, most_attempt=HEAD + REST + LINE)
        self.lines = []

    def read(self, *, dead=False):
        frames = self.ours.take(1 << 30)
        for frame in [*frames, *(self.ours.take_rest() if dead else [])]:
            found = self.reader.read(frame)
            self.lines += found[1] if found else []
        return self.lines

    def close(self):
        os.close(self.fd)


@pytest.fixture
def site():
    site = Site()
    yield site
    site.close()


def texts(lines):
    return [line.text for line in lines]


def test_lines_arrive_as_they_are_written_and_what_has_no_end_with_the_end_of_the_call(site):
    site.writer.begin(ROW)
    site.writer.text("stdout", "one\ntwo\r\nthr")
    site.writer.text("stderr", "aside\n")
    assert texts(site.read()) == ["one", "two", "aside"]
    site.writer.text("stdout", "ee")
    assert texts(site.read()) == ["one", "two", "aside"]
    site.writer.end()
    assert texts(site.read()) == ["one", "two", "aside", "three"]
    assert [line.seq for line in site.lines] == [1, 2, 3, 4]


def test_a_call_that_says_nothing_costs_nothing(site):
    site.writer.begin(ROW)
    site.writer.end()
    assert not site.ours.waiting


@pytest.mark.slow
@pytest.mark.parametrize("dead", [False, True], ids=["ended", "died"])
@pytest.mark.parametrize("read_meanwhile", [False, True])
def test_of_a_flood_the_first_and_the_last_lines_arrive_and_a_marker_counts_the_others(site, dead, read_meanwhile):
    site.writer.begin(ROW)
    for number in range(8_000):
        site.writer.text("stdout", f"{number:05}\n")
        if read_meanwhile and number % 1000 == 0:
            site.read()
    if not dead:
        site.writer.end()
    lines = site.read(dead=dead)
    (gap,) = [line for line in lines if line.stream == "scheduler"]
    assert lines[0].text == "00000"
    assert lines[-1].text == "07999"
    assert len(lines) - 1 + json.loads(gap.fields)["missing"] == 8_000
    assert site.reader.missing == json.loads(gap.fields)["missing"]
    assert HEAD // 100 < lines.index(gap) < HEAD // 40


def test_lines_of_the_next_call_come_after_those_of_a_flood(site):
    site.writer.begin(ROW)
    site.writer.text("stdout", "x\n" * 5_000)
    site.writer.end()
    site.writer.begin(ROW._replace(attempt=2))
    site.writer.text("stdout", "next\n")
    site.writer.end()
    lines = site.read()
    assert (lines[-1].text, lines[-1].seq) == ("next", 1)


@pytest.mark.slow
def test_while_nobody_reads_new_lines_push_out_old_ones(site):
    for attempt in range(1, 2001):
        site.writer.begin(ROW._replace(attempt=attempt))
        site.writer.text("stdout", f"{attempt}" + "." * 900 + "\n")
        site.writer.end()
    lines = site.read(dead=True)
    assert lines[0].text.startswith("1.")
    assert lines[-1].text.startswith("2000.")
    assert len(lines) < 1000


@pytest.mark.slow
def test_whose_the_last_lines_are_is_known_however_many_were_pushed_out_while_nobody_read(site):
    for attempt in (1, 2, 4, 5):
        site.writer.begin(ROW._replace(attempt=attempt))
        for number in range(8_000):
            site.writer.text("stdout", f"{attempt}/{number}\n")
        site.writer.end()
    site.writer.begin(ROW._replace(attempt=3))
    for number in range(8_000):
        site.writer.text("stdout", f"3/{number}\n")
    lines = site.read(dead=True)
    assert lines[0].text == "1/0"
    last = [line for line in lines if line.text.startswith("3/")]
    assert (last[-1].text, last[-1].seq) == ("3/7999", 8_000)
    assert sum(len(line.text) for line in last) > REST // 16


def test_a_line_without_an_end_takes_no_more_memory_than_a_line(site):
    site.writer.begin(ROW)
    for _ in range(1000):
        site.writer.text("stdout", "y" * 10_000)
    site.writer.text("stdout", "\nnext\n")
    first, second = site.read()
    assert first.text == "y" * (LINE - 6) + " […]"
    assert second.text == "next"


def test_what_many_threads_write_is_whole_lines(site):
    site.writer.begin(ROW)

    def write(name):
        for number in range(200):
            site.writer.record(
                logging.makeLogRecord({"name": "n", "levelno": 20, "levelname": "INFO"}), f"{name}-{number}"
            )

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    site.writer.end()
    lines = site.read()
    seen = {name: [line.text for line in lines if line.text.startswith(name)] for name in "abcd"}
    kept = len(lines) - sum(line.stream == "scheduler" for line in lines)
    assert kept + site.reader.missing == 800
    assert all(found == sorted(found, key=lambda text: int(text[2:])) for found in seen.values())


def test_what_a_thread_writes_after_the_end_of_its_call_stands_behind_its_last_line(site):
    site.writer.begin(ROW)
    site.writer.text("stdout", "one\n")
    site.writer.end()
    thread = threading.Thread(target=site.writer.text, args=("stdout", "late\n"))
    thread.start()
    thread.join()
    assert [(line.seq, line.text) for line in site.read()] == [(1, "one"), (2, "late")]


def test_calls_that_run_at_once_on_one_loop_are_told_apart(site):
    async def call(name):
        site.writer.begin(invocation(uniqueness_key=name))
        for number in range(3):
            site.writer.text("stdout", f"{name}-{number} ")
            await asyncio.sleep(0)
            site.writer.text("stdout", "\n")
        site.writer.end()

    async def both():
        await asyncio.gather(call("a"), call("b"))

    asyncio.run(both())
    found = {}
    for frame in site.ours.take(100):
        name, lines = site.reader.read(frame) or (None, [])
        for line in lines:
            found.setdefault(name.key.uniqueness_key, []).append((line.seq, line.text))
    assert found == {name: [(n + 1, f"{name}-{n} ") for n in range(3)] for name in "ab"}


def test_a_copy_of_the_process_is_not_heard(site):
    site.writer.begin(ROW)
    pid = os.fork()
    if pid == 0:
        site.writer.text("stdout", "from the copy\n")
        os._exit(0)
    os.waitpid(pid, 0)
    site.writer.text("stdout", "from us\n")
    assert texts(site.read()) == ["from us"]


def test_logging_records_keep_level_logger_and_extra_fields_and_bad_ones_harm_nobody(site):
    class Nasty:
        def __str__(self):
            raise RuntimeError("no")

    logger = logging.Logger("shop")
    logger.addHandler(_Records(site.writer, Output().err))
    site.writer.begin(ROW)
    logger.error("%d left", 3, extra={"sku": "a-1", "odd": float("nan"), "nasty": Nasty(), "\ud800": "\ud800"})
    logger.log(35, "between")
    try:
        raise ValueError("why")
    except ValueError:
        logger.exception("failed")
    first, second, third = site.read()
    assert (first.level, first.text) == ("error", "3 left")
    assert json.loads(first.fields) == {
        "logger": "shop",
        "sku": "a-1",
        "odd": "nan",
        "nasty": "<no text: RuntimeError>",
        "?": "?",
    }
    assert second.level == "warning"
    assert third.text.startswith("failed\nTraceback")
    assert third.text.endswith("ValueError: why")


def test_output_of_bytes_and_of_wrong_types_is_treated_as_python_treats_it(site):
    output = Output()
    output._writer = site.writer
    site.writer.begin(ROW)
    output.out.buffer.write(b"\xff\xfe\n")
    output.err.write("\ud800\n")
    with pytest.raises(TypeError):
        output.out.write(b"bytes")
    assert texts(site.read()) == ["\ufffd\ufffd", "?"]


@pytest.mark.slow
def test_whatever_stands_in_the_memory_the_dispatcher_goes_on(site):
    seeded = random.Random(1)
    for _ in range(300):
        site.writer.begin(ROW)
        site.writer.text("stdout", "z\n" * 50)
        for _ in range(seeded.randrange(1, 30)):
            at = seeded.randrange(0, 56) if seeded.random() < 0.5 else seeded.randrange(64, 4_000)
            os.pwrite(site.fd, seeded.randbytes(seeded.randrange(1, 9)), at)
        site.read(dead=seeded.random() < 0.3)
    assert len(site.lines) < 300 * 51


def test_frames_that_no_child_of_ours_writes_are_passed():
    reader = AttemptLines(Redaction(), most_line=100, most_attempt=10_000)
    begin = ["begin", 1, 5, "lane", "key", 1, 7, 0]
    bad = [
        b"", b"{", b"[]", b'"x"', b"[1,2,3]", b"\xff", json.dumps(["line", 1, 1, 5, "stdout", None, "before", None]).encode(),
    ]  # fmt: skip
    for wrong in (
        ["begin", 1, -5, "lane", "key", 1, 7, 0],
        ["begin", 1, 5, "", "key", 1, 7, 0],
        ["begin", 1, 5, "\ud800", "k", 1, 7, 0],
    ):
        bad += [json.dumps(wrong).encode(), json.dumps(["line", 1, 1, 5, "stdout", None, "x", None]).encode()]
    assert [reader.read(frame) for frame in bad] == [None] * len(bad)
    assert reader.read(json.dumps(begin).encode()) is None
    for wrong in (
        [0, 5, "stdout", None, "x", None], [1, "5", "stdout", None, "x", None], [1, 5, "scheduler", None, "x", None],
        [1, 5, "stdout", "loud", "x", None], [1, 5, "stdout", None, 7, None], [True, 5, "stdout", None, "x", None],
    ):  # fmt: skip
        assert reader.read(json.dumps(["line", 1, *wrong]).encode()) is None
    name, (line,) = reader.read(json.dumps(["line", 1, 1, 5, "stdout", None, "y" * 200, "[1]"]).encode())
    assert (name.key.ordering_id, line.fields, len(line.text.encode())) == ("lane", None, 100)
    assert reader.read(json.dumps(["line", 1, 1, 5, "stdout", None, "again", None]).encode())[1] == []
    for number in range(2, 1000):
        reader.read(json.dumps(["line", 1, number, 5, "stdout", None, "z" * 90, None]).encode())
    name, (gap,) = reader.read(json.dumps(["end", 1, 999]).encode())
    assert gap.text == f"[{reader.missing} lines are left out here]"
    assert reader.missing > 900
