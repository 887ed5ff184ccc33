"""What handlers of a worker print and log: it goes where it always went, and to the logs of their attempts, without a server here."""

import gc
import io
import logging
import os
import sys
import threading

import pytest

from scylla_spark import Worker
from scylla_spark.errors import ArgumentError, UnreachableError
from scylla_spark.handlers import registry as handler_registry
from scylla_spark.handlers.capture import hearing
from scylla_spark.handlers.log_lines import LineWriter
from scylla_spark.worker.attempt_lines import AttemptLines
from scylla_spark.worker.line_sender import HEAD_BYTES, LINE_BYTES, TAIL_BYTES
from tests.support.http_script import SyncScript
from tests.support.waiting import eventually


class Heard:
    """Lines of one attempt, without those of Kafka clients that other tests of this process have left to end."""

    def __init__(self):
        self.lines = []

    def __call__(self, stream, level, text, fields=None):
        if '"logger": "kafka.' not in (fields or ""):
            self.lines.append((stream, level, text, fields))

    @property
    def texts(self):
        return [text for _, _, text, _ in self.lines]


def screens(monkeypatch):
    """Stdout and stderr as somebody sees them, from now on: pytest changes them between a fixture and its test."""
    out, err = io.TextIOWrapper(io.BytesIO()), io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    return out, err


def shown(stream):
    stream.flush()
    return stream.buffer.getvalue().decode()


def test_what_is_printed_is_seen_and_kept_line_by_line(monkeypatch):
    screen = screens(monkeypatch)
    heard = Heard()
    with hearing(LineWriter(LINE_BYTES)) as printed:
        print("before")
        with printed.by(heard):
            print("one", "two")
            sys.stdout.write("thr")
            sys.stdout.writelines(["ee\nfo", "ur\n"])
            sys.stdout.buffer.write("fünf\n".encode())
            print("six", file=sys.stderr)
            sys.stdout.write("no end")
        assert (sys.stdout.encoding, sys.stdout.isatty()) == (screen[0].encoding, False)
    assert sys.stdout is screen[0]
    assert [(stream, text) for stream, _, text, _ in heard.lines] == [
        ("stdout", "one two"), ("stdout", "three"), ("stdout", "four"), ("stdout", "fünf"), ("stderr", "six"), ("stdout", "no end"),
    ]  # fmt: skip
    assert "one two\nthree\nfour\n" in shown(screen[0])
    assert shown(screen[1]) == "six\n"


def test_records_of_logging_have_their_level_and_fields_and_warnings_are_seen_as_ever(monkeypatch):
    screen = screens(monkeypatch)
    heard, log = Heard(), logging.getLogger("shop")
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(
        logging.root.manager, "disable", logging.NOTSET
    )  # other tests of this process may have chosen otherwise
    monkeypatch.setattr(log, "disabled", False)
    log.setLevel(logging.INFO)
    with hearing(LineWriter(LINE_BYTES)) as printed, printed.by(heard):
        log.warning("half of %s", "it", extra={"order": 7})
    assert heard.lines == [("logging", "warning", "half of it", '{"logger": "shop", "order": 7}')]
    assert shown(screen[1]) == "half of it\n", "once"


def test_attempts_that_run_at_once_are_told_apart_and_others_are_not_heard(monkeypatch):
    screens(monkeypatch)
    heard = Heard(), Heard()
    both = threading.Barrier(2)

    def work(number):
        with printed.by(heard[number]):
            both.wait(10)
            for _ in range(100):
                print(number)
            both.wait(10)

    with hearing(LineWriter(LINE_BYTES, alone=False)) as printed:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        print("of nobody")
        for thread in threads:
            thread.join()
    assert [one.texts for one in heard] == [["0"] * 100, ["1"] * 100]


def test_what_a_handler_forks_is_not_heard_and_does_not_wait(monkeypatch):
    screens(monkeypatch)
    heard = Heard()
    with hearing(LineWriter(LINE_BYTES)) as printed, printed.by(heard):
        pid = os.fork()
        if not pid:
            print("from elsewhere")
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    assert heard.lines == []


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


def test_of_much_the_first_and_the_last_lines_are_told():
    server = Server()
    lines = AttemptLines(server)
    for number in range(1, 5_001):
        lines.add("stdout", None, f"{number}".ljust(1_000, "."))
    lines.end()
    numbers = [one.seq for one in server.told]
    assert all(int(one.text.rstrip(".")) == one.seq for one in server.told)
    assert (numbers[0], numbers[-1]) == (1, 5_000)
    assert HEAD_BYTES + TAIL_BYTES - 5_000 < len(numbers) * 1_064 < HEAD_BYTES + TAIL_BYTES + 5_000


def test_a_line_is_cut_and_has_no_half_characters():
    server = Server()
    lines = AttemptLines(server)
    lines.add("stdout", None, "x" * 100_000)
    lines.add("stdout", None, "\ud800")
    lines.end()
    assert [len(one.text) for one in server.told] == [LINE_BYTES + 1, 1]
    assert [one.text for one in server.told][1] == "?"


@pytest.mark.slow
def test_who_prints_nothing_asks_for_nothing_and_refused_lines_are_not_sent_again():
    silent, refusing, away = Server(), Server(ArgumentError("no logs here")), Server(UnreachableError("away"))
    AttemptLines(silent).end()
    assert silent.calls == 0
    for server in (refusing, away):
        lines = AttemptLines(server)
        lines.add("stdout", None, "lost")
        eventually(lambda server=server: server.calls, 10)
        lines.add("stdout", None, "later")
        lines.end()
    assert (refusing.calls, refusing.told) == (1, [])
    assert [(one.seq, one.text) for one in away.told] == [(2, "later")], "the number tells that one is missing"


HANDLERS = """
import os, sys
from scylla_spark import handler

@handler(name="h", timeout="3s")
def tell(task, ctx):
    print("begun")
    ctx.log.info("half", extra={"order": 7})
    print("failed", file=sys.stderr)
    if "HOW" == "die":
        os._exit(3)
    while "HOW" == "flood":
        print("again")
"""


class LineScript(SyncScript):
    """Takes lines, too, and says what of them had come when an end was reported."""

    def __init__(self):
        super().__init__(1)
        self.lines, self.before = [], None

    def answer(self, request):
        """Plays the server."""
        if request.path.endswith("/logs"):
            self.lines += request.body["lines"]
            return 200, {"taken": len(request.body["lines"])}
        if request.method == "POST" and request.body["results"] and self.before is None:
            self.before = list(self.lines)
        return super().answer(request)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["well", "die", "flood"])
@pytest.mark.parametrize("processes", [False, True])
def test_lines_stand_before_the_end_also_when_the_child_dies_or_never_stops(tmp_path, monkeypatch, how, processes):
    monkeypatch.setattr(handler_registry, "_registered", {})
    if not processes and how != "well":
        pytest.skip("a thread can be ended by nobody")
    (tmp_path / "tellers.py").write_text(HANDLERS.replace("HOW", how))
    with LineScript() as script:
        worker = Worker(script.url, "gpu", slots=1)
        arguments = {"processes": processes, "grace": "1s"}
        thread = threading.Thread(target=worker.run, args=([str(tmp_path / "tellers.py")],), kwargs=arguments)
        thread.start()
        eventually(lambda: script.results, 60)
        worker.stop()
        thread.join(30)
    outcome = script.results[0]["outcome"]
    code = (script.results[0].get("error") or {}).get("code")
    assert (outcome, code) == {
        "well": ("succeeded", None),
        "die": ("failed", "child_died"),
        "flood": ("failed", "timed_out"),
    }[how]
    first = [one["text"] for one in script.before[:4] if one["stream"] != "logging" or processes]
    assert first[:3] == (["begun", "half", "failed"] if processes else ["begun", "failed"])
    if processes:
        assert (script.before[1]["level"], script.before[1]["fields"]["order"]) == ("info", 7)
    if how == "flood":
        assert len({one["seq"] for one in script.before}) > 1_000


def test_a_wrapper_that_a_handler_puts_around_the_bytes_of_stdout_does_not_close_them_for_later_calls(monkeypatch):
    screen, _ = screens(monkeypatch)
    with hearing(LineWriter(LINE_BYTES)) as printed:
        ours = sys.stdout
        with printed.by(first := Heard()):
            sys.stdout = io.TextIOWrapper(sys.stdout.buffer, line_buffering=True)
            print("one")
        sys.stdout = ours  # the wrapper is collected here
        gc.collect()
        with printed.by(second := Heard()):
            print("two", flush=True)
    assert (first.texts, second.texts) == (["one"], ["two"])
    assert shown(screen) == "one\ntwo\n"


def test_stdout_in_a_with_statement_stays_open_for_later_calls(monkeypatch):
    screens(monkeypatch)
    with hearing(LineWriter(LINE_BYTES)) as printed, printed.by(heard := Heard()):
        with sys.stdout as file:
            file.write("one\n")
        sys.stdout.close()
        print("two", flush=True)
    assert heard.texts == ["one", "two"]
