"""The address of an owner stands in a record, and anybody who may write one may write any address and answer anything."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from scylla_spark.client.tasks import explain
from scylla_spark.clock import iso
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.io.host import http_get
from tests.support.delta_tables import at


@contextmanager
def answering(answer):
    """A server of somebody else's; `answer` is given the handler."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            answer(self)

        def log_message(self, format, *args):
            pass

    asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def saying(value, code=200, **headers):
    def answer(handler):
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        handler.send_response(code)
        for name, text in headers.items():
            handler.send_header(name, text)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


@pytest.mark.parametrize(
    "address",
    [
        "", "x", "127.0.0.1:80", "ftp://127.0.0.1", "gopher://127.0.0.1", "https://127.0.0.1", "http://", "http://a b", "http://a/b",
        "http://user:word@127.0.0.1", "http://127.0.0.1?", "http://127.0.0.1#", "http://127.0.0.1:99999999", "http://a\r\nHost: b", "http://ä",
        "//127.0.0.1", "http:127.0.0.1", "data:application/json,{}", "javascript:1", "http://[::1", "HTTP\u212a://a",
    ],
)  # fmt: skip
def test_only_a_plain_http_address_is_asked(address, monkeypatch):
    monkeypatch.setattr(explain, "fetch", lambda *_, **__: pytest.fail("it was asked"))
    assert explain.ask(address, "status") is None


def test_a_file_is_never_opened(tmp_path):
    path = tmp_path / "status"
    path.write_text('{"secret": 1}')
    for address in (f"file://{tmp_path}", f"file:{tmp_path}", f"local_file://{tmp_path}"):
        assert explain.ask(address, "status") is None
        with pytest.raises(http_get.AnswerError, match="not an http address"):
            http_get.fetch(f"{address}/status", timeout_s=1)


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(code):
    with answering(saying({"other": 1})) as (other, asked):
        with answering(saying(b"", code, Location=f"{other}/elsewhere")) as (address, _):
            assert explain.ask(address, "status") is None
        assert asked == []


def test_the_proxies_of_the_environment_are_not_asked(monkeypatch):
    with answering(saying({"proxy": 1})) as (proxy, asked), answering(saying({"right": 1})) as (address, _):
        monkeypatch.setenv("http_proxy", proxy)
        monkeypatch.delenv("no_proxy", raising=False)
        assert explain.ask(address, "status") == {"right": 1}
        assert asked == []


def test_a_huge_answer_is_not_read_to_its_end():
    sent = []

    def answer(handler):
        handler.send_response(200)
        handler.end_headers()
        for _ in range(1_000):
            handler.wfile.write(b" " * 1_000_000)
            sent.append(1)

    with answering(answer) as (address, _):
        assert explain.ask(address, "status") is None
    assert len(sent) < 100


@pytest.mark.slow
def test_an_answer_of_a_byte_now_and_then_ends_at_the_limit():
    over, sent = threading.Event(), []

    def answer(handler):
        handler.send_response(200)
        handler.end_headers()
        while len(sent) < 1_000 and not over.wait(0.05):
            handler.wfile.write(b" ")
            sent.append(1)

    with answering(answer) as (address, _):
        assert explain.ask(address, "status", timeout_s=0.5) is None
        over.set()
    assert len(sent) < 1_000, "it was not read to its end"


@pytest.mark.slow
def test_a_port_that_never_answers_ends_at_the_limit(monkeypatch):
    monkeypatch.setattr(explain, "_TIMEOUT_S", 0.3)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        assert explain.ask(f"http://127.0.0.1:{silent.getsockname()[1]}", "status") is None


@pytest.mark.parametrize(
    "body", [b"", b"no json", b"[1]", b"\xff", b"[" * 100_000, b'"text"', b"1e999999", b"NaN", b"null", b"1" * 10_000]
)
def test_an_answer_that_is_no_object_is_no_answer(body):
    with answering(saying(body)) as (address, _):
        assert explain.ask(address, "status") is None
        assert explain.ask_partitions(address) == {}
        assert explain.ask_lane(address, "a") is None


HOSTILE = [
    {}, {"partitions": None}, {"partitions": {"a": 1}},
    {"partitions": [None, 1, [], {"partition": []}, {"partition": "0"}, {"partition": True}]},
    {"tasks": 1}, {"tasks": [None, {"key": None}, {"scheduled_time": "9999-12-31T23:59:59-05:00", "uniqueness_key": "b"}, {}]},
    {"tasks": [{"scheduled_time": "2026-01-01T00:00:00Z", "uniqueness_key": one} for one in (None, 1, "\ud800")]},
    {"tasks": [{"scheduled_time": one, "uniqueness_key": "b"} for one in (None, 1, "x", "2026-01-01T00:00:00")]},
    {"loaded": "yes", "state": {"a": 1}, "why": [1]},
]  # fmt: skip


@pytest.mark.parametrize("answer", HOSTILE)
def test_an_answer_of_other_types_is_read_as_far_as_it_makes_sense(answer):
    with answering(saying(answer)) as (address, _):
        assert explain.ask_partitions(address) == {}
        lane = explain.ask_lane(address, "a")
        assert lane is not None
        assert not lane.loaded
        assert lane.tasks == []


def test_a_right_answer_is_understood():
    held = {"partition": 3, "state": "active", "epoch": 7, "lanes": [1], "more": 1}
    task = {"scheduled_time": iso(at(9)), "uniqueness_key": "b,c", "attempts": 1, "next_start": "x", "cancelled": False}
    with answering(saying({"partitions": [held], "loaded": True, "state": "s", "why": "w", "tasks": [task]})) as (
        address,
        asked,
    ):
        assert explain.ask_partitions(address) == {3: {"state": "active", "epoch": 7}}
        assert explain.ask_lane(address, "a b") == explain.LaneAnswer(
            True, "s", "w", [explain.LaneTask(TaskKey(at(9), "a b", "b,c"), 1, "x", cancelled=False)]
        )
    assert asked == ["/status?", "/lane?ordering_id=a+b"]
