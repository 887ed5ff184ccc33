"""The HTTP face of a dispatcher against clients that are slow, many, wrong or not meant for it."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from scylla_spark.config.settings import Metrics
from scylla_spark.errors import ArgumentError, ConfigError
from scylla_spark.services.dispatch.describe import Description
from scylla_spark.services.metrics_server import MetricsServer
from scylla_spark.services.read_only_http_server import JSON, ReadOnlyServer, Reply, Route
from tests.support.waiting import holds


def echo(query):
    return Reply(JSON, json.dumps(dict(query)).encode())


def refuse(_query):
    raise ArgumentError("not like this.")


def too_slow(_query):
    raise TimeoutError


def broken(_query):
    raise KeyError("secret detail")


ROUTES = {
    "/echo": Route(echo, ("a", "b")),
    "/plain": Route(echo),
    "/refuse": Route(refuse),
    "/slow": Route(too_slow),
    "/broken": Route(broken),
}


@contextmanager
def serving(**options):
    server = ReadOnlyServer(("127.0.0.1", 0), ROUTES, **options)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_stop_waits_for_no_look():
    server = ReadOnlyServer(("127.0.0.1", 0), ROUTES)
    thread = threading.Thread(target=server.serve_forever, args=(60.0,), daemon=True)
    thread.start()
    assert ask(server.server_address[1], "/plain")[0] == 200
    threading.Thread(target=server.shutdown, daemon=True).start()
    thread.join(timeout=10)
    assert not thread.is_alive()
    server.server_close()


@pytest.fixture(scope="module")
def port():
    with serving(hosts=["dispatcher.example"]) as port:
        yield port


def ask(port, path, method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, headers=headers)
        reply = connection.getresponse()
        return reply.status, reply.headers, reply.read()
    finally:
        connection.close()


def said(port, raw: bytes) -> bytes:
    """Everything that the server sends back to some bytes until it closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as line:
        line.sendall(raw)
        parts = []
        while part := line.recv(65536):
            parts.append(part)
        return b"".join(parts)


# -- what is asked -------------------------------------------------------------------------------------------------------


def test_a_right_question_is_answered_with_its_values_and_cannot_be_sniffed(port):
    status, headers, body = ask(port, "/echo?a=1&b=%C3%A4")
    assert (status, json.loads(body)) == (200, {"a": "1", "b": "ä"})
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Server"].strip() == "scylla-spark"


@pytest.mark.parametrize(
    ("path", "code", "told"),
    [
        ("/echo?a=1", 400, "missing parameter b"),
        ("/echo?a=1&b=2&c=3", 400, "no parameter 'c'"),
        ("/echo?a=1&b=2&b=3", 400, "more than once"),
        ("/echo?a=1&b=%FF", 400, "cannot be read"),
        ("/plain?" + "&".join(f"p{n}=1" for n in range(100)), 400, "cannot be read"),
        ("/refuse", 400, "not like this"),
        ("/nowhere", 404, "not found"),
        ("/", 404, "not found"),
        ("/slow", 503, "in time"),
        ("/broken", 500, "KeyError"),
    ],
)
def test_a_wrong_question_gets_its_code_and_a_json_error(port, path, code, told):
    status, headers, body = ask(port, path)
    assert (status, headers["Content-Type"]) == (code, "application/json")
    assert told in json.loads(body)["error"]
    assert b"secret detail" not in body
    assert headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE", "BREW"])
def test_only_get_is_taken(port, method):
    status, headers, _ = ask(port, "/plain", method)
    assert (status, headers["Allow"]) == (405, "GET")


@pytest.mark.parametrize(
    "raw",
    [b"\r\n\r\n", b"GET\r\n\r\n", b"GET /plain HTTP/9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\xff\r\n\r\n",
     b"GET /plain HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n", b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n",
     b"GET http://[ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"],
)  # fmt: skip
def test_what_is_no_request_does_no_harm(port, raw):
    answer = said(port, raw)
    assert b" 200 " not in answer
    assert ask(port, "/plain")[0] == 200


LINES = st.sampled_from(
    [
        b"GET /plain HTTP/1.1",
        b"GET /echo?a=1&b=2 HTTP/1.0",
        b"Host: 127.0.0.1",
        b"Host: evil",
        b"Content-Length: -1",
        b"",
    ]
)


@pytest.mark.slow
@given(st.binary(max_size=300) | st.lists(LINES | st.binary(max_size=40), max_size=6).map(b"\r\n".join))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_get_an_answer_or_an_end_and_the_server_goes_on(port, raw):
    with socket.create_connection(("127.0.0.1", port), timeout=30) as line:
        with contextlib.suppress(ConnectionError):  # it may have closed already; a time-out is a failure
            line.sendall(raw)
        with contextlib.suppress(OSError):
            line.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            while line.recv(65536):
                pass
    assert ask(port, "/plain")[0] == 200


# -- by which name -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "code"),
    [
        ("127.0.0.1", 200), ("127.0.0.1:9", 200), ("[::1]:80", 200), ("localhost", 200), ("LOCALHOST:1234", 200), ("10.1.2.3:80", 200),
        ("dispatcher.example", 200), ("dispatcher.example:99", 200),
        ("evil.example", 403), ("evil.example:80", 403), ("127.0.0.1.evil.example", 403), ("localhost.evil.example", 403),
        ("", 403), ("[", 403),
    ],
)  # fmt: skip
def test_only_names_that_are_ours_are_answered_so_that_no_site_can_rebind_its_own(port, host, code):
    assert ask(port, "/plain", Host=host)[0] == code


def test_a_request_without_a_host_is_refused(port):
    assert b" 403 " in said(port, b"GET /plain HTTP/1.0\r\n\r\n")


# -- slow and many -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_four_hundred_half_requests_keep_few_threads_and_only_for_a_while():
    with serving(limit_s=0.5, most=8) as port:
        before = threading.active_count()
        lines = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(400)]
        try:
            for line in lines:
                line.send(b"GET /plain HTTP/1.1\r\nHo")
            assert threading.active_count() - before <= 8
            assert holds(lambda: threading.active_count() <= before), "half requests must end by themselves"
            assert ask(port, "/plain")[0] == 200
        finally:
            for line in lines:
                line.close()


@pytest.mark.slow
def test_a_request_that_comes_byte_by_byte_is_ended_at_its_limit():
    with serving(limit_s=0.5) as port, socket.create_connection(("127.0.0.1", port), timeout=30) as line:

        def ended() -> bool:
            try:
                line.send(b"x")
            except OSError:
                return True
            return False

        assert holds(ended, 30), "each byte came in time, the request did not"


@pytest.mark.slow
def test_a_reader_that_does_not_read_is_ended_at_its_limit(monkeypatch):
    monkeypatch.setitem(ROUTES, "/plain", Route(lambda _query: Reply(JSON, b" " * 50_000_000)))
    with serving(limit_s=0.5) as port:
        before = threading.active_count()
        with socket.create_connection(("127.0.0.1", port), timeout=30) as line:
            line.sendall(b"GET /plain HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert holds(lambda: threading.active_count() > before)
            assert holds(lambda: threading.active_count() <= before)


def test_one_connection_too_many_is_told_so():
    with serving(most=1) as port, socket.create_connection(("127.0.0.1", port), timeout=30) as first:
        first.send(b"GET /plain HTTP/1.1\r\n")
        before = threading.active_count()
        assert b" 503 " in said(port, b"")
        assert threading.active_count() <= before + 1
        first.sendall(b"Host: 127.0.0.1\r\n\r\n")
        assert b" 200 " in first.recv(1000)


# -- the dispatcher's own routes -----------------------------------------------------------------------------------------


def state_server(mailbox, **metrics):
    measures = SimpleNamespace(registry=CollectorRegistry(), stale=0)
    engine = SimpleNamespace(
        partitions={}, counts={}, runs={}, due=list, limits=SimpleNamespace(partitions=4), full_shares=(),
        waiting_for=lambda executor: iter(()),
    )  # fmt: skip
    server = MetricsServer(Metrics(**metrics))
    desk = SimpleNamespace(address="")
    parts = {"measures": measures, "mailbox": mailbox, "engine": engine, "desk": desk}
    Description(SimpleNamespace(**parts, shortages=dict, on_workers=list), server)
    return server


@pytest.fixture(scope="module")
def state():
    """The state of an engine without partitions; `answers` False stands for one that is busy."""
    mailbox = SimpleNamespace(answers=True)

    def question(asked, timeout_s):
        if not mailbox.answers:
            raise TimeoutError
        return asked(1_000_000)

    mailbox.ask = question
    server = state_server(mailbox)
    server.start()
    yield SimpleNamespace(port=int(server.address.rpartition(":")[2]), mailbox=mailbox)
    server.stop()


def test_an_address_or_port_that_cannot_be_had_is_told_with_the_settings_to_change(state):
    for metrics in ({"port": state.port}, {"host": "203.0.113.1"}, {"host": "nowhere.invalid"}):
        with pytest.raises(ConfigError, match=r"metrics\.host"):
            state_server(None, **metrics)


KEY = "ordering_id=a%2Cb&uniqueness_key=u"


def test_a_key_is_explained_whatever_its_letters(state):
    status, _, body = ask(state.port, f"/explain?scheduled_time=2026-01-01T00:00:00Z&{KEY}")
    assert (status, json.loads(body)["key"]) == (200, "2026-01-01T00:00:00Z,a%2Cb,u")


@pytest.mark.parametrize(
    "moment", ["", "now", "2026-01-01T00:00:00", "2026-13-01T00:00:00Z", "9999-12-31T23:59:59-05:00", "0001-01-01T00:00:00%2B05:00"]
)  # fmt: skip
@pytest.mark.slow
def test_a_time_that_no_task_can_have_is_a_wrong_question(state, moment):
    status, _, body = ask(state.port, f"/explain?scheduled_time={moment}&{KEY}")
    assert status == 400
    assert "scheduled_time" in json.loads(body)["error"]


@pytest.mark.parametrize("path", ["/metrics", "/status", "/lane?ordering_id=a"])
@pytest.mark.slow
def test_an_engine_that_is_busy_is_503(state, path, monkeypatch):
    monkeypatch.setattr("scylla_spark.services.dispatch.looks._SHARED_US", 0)  # what was seen before is not shown again
    assert ask(state.port, path)[0] == 200
    state.mailbox.answers = False
    try:
        assert ask(state.port, path)[0] == 503
    finally:
        state.mailbox.answers = True
