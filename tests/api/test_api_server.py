"""The server below the API against clients that are slow, many, greedy, or no clients at all: others are not held up."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import select
import socket
import threading
import time
from types import SimpleNamespace

import pytest
from starlette.responses import PlainTextResponse
from uvicorn import Server

from scylla_spark.api import problems
from scylla_spark.api.http import limits, server
from scylla_spark.api.http.limits import Limits
from scylla_spark.api.http.metrics import ApiMetrics
from scylla_spark.api.http.server import MAX_HEADER_BYTES, bounded
from scylla_spark.api.service import listening
from scylla_spark.config.settings import Api
from tests.support.waiting import holds

MOST = 40
OF_ONE = 20
SHORT_S = 0.5
LONG_S = 60.0
"""Longer than a test waits for an answer: it does not come because somebody else was cut off."""
ANSWER_S = 10.0


async def app(scope, receive, send):
    """Reads the whole body; answers with its size, or as many bytes as the path says; `wait` and `stream` never end, `early` refuses."""
    if scope["type"] == "lifespan":
        for step in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{step}.complete"})
        return
    if scope["path"] == "/early":
        await receive()
        await problems.answer(problems.TOO_LARGE, "It is too large.", {"Connection": "close"})(scope, receive, send)
        return
    if scope["path"] == "/client":
        await PlainTextResponse(scope["client"][0])(scope, receive, send)
        return
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    if scope["path"] == "/wait":
        await asyncio.sleep(60)
    much = int(scope["path"][1:]) if scope["path"][1:].isdigit() else 0
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    if scope["path"] == "/stream":
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        await asyncio.sleep(60)
    for _ in range(much):
        await send({"type": "http.response.body", "body": b"x" * 65_536, "more_body": True})
    await send({"type": "http.response.body", "body": str(size).encode()})


@contextlib.contextmanager
def served(monkeypatch, limit_s, **more):
    """A server of which all limits of time are the same."""
    for module, names in ((server, ("HEADERS_S", "SEND_S")), (limits, ("BODY_S", "PIECE_S", "_DRAIN_PIECE_S"))):
        for name in names:
            monkeypatch.setattr(module, name, limit_s)
    monkeypatch.setattr(server, "_DRAIN_S", SHORT_S)
    settings = Api(max_connections=MOST, max_per_address=OF_ONE, max_body=100_000, max_bulk=200_000, **more)
    listener = listening("127.0.0.1", 0)
    running = Server(bounded(Limits(app, settings, ApiMetrics()), settings))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
    thread.start()
    assert holds(lambda: running.started)
    yield SimpleNamespace(
        port=listener.getsockname()[1], connections=running.server_state.connections, server=running, thread=thread
    )
    running.should_exit = True
    thread.join()
    listener.close()


@pytest.fixture
def strict(monkeypatch):
    """A server that cuts off who is slow after half a second."""
    with served(monkeypatch, SHORT_S) as site:
        yield site


@pytest.fixture
def site(monkeypatch):
    """A server that cuts off nobody for being slow while a test runs."""
    with served(monkeypatch, LONG_S) as site:
        yield site


@pytest.fixture
def port(site):
    return site.port


@contextlib.contextmanager
def line(port, of="127.0.0.1"):
    with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S, source_address=(of, 0)) as found:
        yield found


def rest(found: socket.socket) -> bytes:
    """Everything until the end."""
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := found.recv(65_536):
            parts.append(part)
    return b"".join(parts)


def ask(port: int, path: str = "/", **more):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S)
    try:
        connection.request(more.pop("method", "GET"), path, **more)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def problem(raw: bytes) -> str:
    """The type of the problem document in a raw answer."""
    head, _, body = raw.partition(b"\r\n\r\n")
    assert b"application/problem+json" in head, raw
    return json.loads(body)["type"]


def is_answered(port: int) -> bool:
    """Returns True if somebody else is answered meanwhile."""
    return ask(port) == (200, b"0")


def drip(slow: socket.socket) -> bytes:
    """Sends one byte after the other until the server answers; the answer."""
    deadline = time.monotonic() + ANSWER_S
    while not select.select([slow], [], [], 0.02)[0]:
        assert time.monotonic() < deadline, "it is not cut off"
        slow.sendall(b"x")
    return rest(slow)


GET = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"


POST = GET.replace(b"GET", b"POST")


@pytest.mark.parametrize(
    "said", [b"", b"GET / HT", GET + b"A: ", POST + b"Content-Length: 100\r\n\r\nabc", GET.replace(b"/ ", b"/2000 ", 1) + b"\r\n"],
    ids=["nothing", "half a line", "half a header", "half a body", "takes nothing of its answer"],
)  # fmt: skip
def test_who_is_slow_holds_up_nobody(site, said):
    with contextlib.ExitStack() as stack:
        for _ in range(OF_ONE - 5):
            stack.enter_context(line(site.port)).sendall(said)
        assert is_answered(site.port)
        assert len(site.connections) >= OF_ONE - 5, "nobody was cut off"


@pytest.mark.parametrize("said", [b"", POST + b"Content-Length: 100\r\n\r\nabc"], ids=["nothing", "half a body"])
def test_who_says_no_more_is_let_go_of(strict, said):
    with line(strict.port) as silent:
        silent.sendall(said)
        assert problem(rest(silent)) == "/problems/too-slow"


def test_headers_that_come_byte_by_byte_are_cut_off(strict):
    with line(strict.port) as slow:
        slow.sendall(GET + b"A: ")
        assert problem(drip(slow)) == "/problems/too-slow"
    assert is_answered(strict.port)


def test_the_headers_of_a_second_request_must_come_in_time_too(strict):
    with line(strict.port) as found:
        found.sendall(GET + b"\r\n")
        assert found.recv(65_536).startswith(b"HTTP/1.1 200")
        found.sendall(b"GET / HT")
        assert b"/problems/too-slow" in rest(found)


def test_a_body_that_comes_byte_by_byte_has_a_limit_as_a_whole(strict, monkeypatch):
    monkeypatch.setattr(limits, "PIECE_S", LONG_S)
    with line(strict.port) as slow:
        slow.sendall(POST + b"Content-Length: 100000\r\n\r\n")
        assert problem(drip(slow)) == "/problems/too-slow"


@pytest.mark.parametrize("path", ["/", "/v1/tasks:bulk"])
def test_a_body_that_is_too_large_is_a_problem_before_it_is_read_or_while(port, path):
    assert (
        problem(b"application/problem+json\r\n\r\n" + ask(port, path, method="POST", body=b"x" * 300_000)[1])
        == "/problems/too-large"
    )
    pieces = (b"x" * 10_000 for _ in range(40))
    status, body = ask(
        port, path, method="POST", body=pieces, encode_chunked=True, headers={"Transfer-Encoding": "chunked"}
    )
    assert (status, json.loads(body)["type"]) == (413, "/problems/too-large")
    assert is_answered(port)


@pytest.mark.parametrize("path", ["/early", "/"])
def test_a_refusal_that_comes_before_the_end_of_a_body_can_be_read_by_who_sends_all_of_it_first(port, path):
    with line(port) as found:
        found.sendall(POST.replace(b"/ ", path.encode() + b" ", 1) + b"Content-Length: %d\r\n\r\n" % (64 * 2**20))
        for _ in range(64):
            found.sendall(b"x" * 2**20)
        assert problem(rest(found)) == "/problems/too-large"
    assert is_answered(port)


def test_a_refusal_reaches_a_client_that_goes_on_sending_at_once_and_its_connection_ends(strict):
    with line(strict.port) as slow:
        slow.sendall(POST.replace(b"/ ", b"/early ", 1) + b"Content-Length: 100000\r\n\r\nabc")
        told = slow.recv(65_536)
        assert told.startswith(b"HTTP/1.1 413")
        slow.sendall(b"abc")
        assert problem(told + rest(slow)) == "/problems/too-large", "it ends, as no more of the body has come in time"


def test_a_bulk_may_be_larger_than_other_bodies(port):
    assert ask(port, "/v1/tasks:bulk", method="POST", body=b"x" * 150_000) == (200, b"150000")


@pytest.mark.parametrize("length", [b"-1", b"1e3", b"99999999999999999999999", b"abc", b"1, 2"])
def test_a_length_that_is_none_is_refused(port, length):
    with line(port) as found:
        found.sendall(POST + b"Content-Length: " + length + b"\r\n\r\n")
        assert problem(rest(found)) in ("/problems/bad-request", "/problems/too-large")


@pytest.mark.parametrize(
    "raw",
    [b"\x16\x03\x01\x02\x00\x01\xff\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n",
     b"\0" * 99 + b"\r\n\r\n",
     GET + b"A b: c\r\n\r\n", GET + b"Transfer-Encoding: gzip\r\n\r\n", GET + b"Host: b\r\n\r\n"],
)  # fmt: skip
def test_what_is_no_request_is_a_problem(port, raw):
    with line(port) as found:
        found.sendall(raw)
        found.shutdown(socket.SHUT_WR)
        assert problem(rest(found)) in ("/problems/bad-request", "/problems/wrong-host")
    assert is_answered(port)


@pytest.mark.parametrize(
    "bomb",
    [b"A: " + b"b" * 2 * MAX_HEADER_BYTES, b"".join(b"A%d: b\r\n" % n for n in range(20_000))],
    ids=["long", "many"],
)
def test_headers_have_a_limit(port, bomb):
    with line(port) as found:
        with contextlib.suppress(ConnectionError):
            found.sendall(GET + bomb)
        answer = rest(found)
        assert not answer or problem(answer) == "/problems/headers-too-large"
    assert is_answered(port)


def test_a_client_that_has_said_all_is_answered_though_it_sends_no_more(port):
    with line(port) as half:
        half.sendall(GET + b"Connection: close\r\n\r\n")
        half.shutdown(socket.SHUT_WR)
        assert rest(half).startswith(b"HTTP/1.1 200")


def test_a_client_that_takes_nothing_of_its_answer_is_let_go_of(strict):
    with line(strict.port) as greedy:
        greedy.sendall(GET.replace(b"/ ", b"/2000 ", 1) + b"\r\n")
        assert greedy.recv(1)
        assert holds(lambda: not strict.connections)


def test_the_longest_idle_connection_makes_way_for_a_new_one_and_is_told_so(site):
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(line(site.port, f"127.0.0.{1 + n % 4}")) for n in range(MOST + 10)]
        assert [problem(rest(one)) for one in held[:10]] == ["/problems/busy"] * 10
        assert holds(lambda: len(site.connections) == MOST)
        assert select.select(held[10:], [], [], 0)[0] == [], "the others are neither told nor closed"
        assert is_answered(site.port)


@pytest.mark.parametrize("said", [b"", b"POST /v1/leases:ex"], ids=["silent", "half a request"])
def test_no_hoard_of_idle_connections_keeps_a_newcomer_out(site, said):
    with contextlib.ExitStack() as stack:
        for n in range(3 * MOST):
            stack.enter_context(line(site.port, f"127.0.0.{1 + n % 4}")).sendall(said)
        assert is_answered(site.port)
        extended = ask(site.port, "/v1/leases:extend", method="POST", body=b"{}")
        assert extended == (200, b"2")
        assert len(site.connections) <= MOST


def test_a_hoard_of_the_address_of_others_keeps_them_out_no_more(port):
    with contextlib.ExitStack() as stack:
        mine = [stack.enter_context(line(port)) for _ in range(OF_ONE + 1)]
        assert problem(rest(mine[0])) == "/problems/busy"
        assert is_answered(port)
        with line(port, "127.0.0.2") as other:
            other.sendall(GET + b"Connection: close\r\n\r\n")
            assert rest(other).startswith(b"HTTP/1.1 200")


def test_a_connection_between_two_requests_makes_way_and_one_that_waits_for_its_answer_does_not(port):
    with contextlib.ExitStack() as stack:
        waits = [stack.enter_context(line(port)) for _ in range(OF_ONE - 1)]
        for one in waits:
            one.sendall(GET.replace(b"/ ", b"/stream ", 1) + b"\r\n")
            assert one.recv(1)
        between = stack.enter_context(line(port))
        between.sendall(GET + b"\r\n")
        answer = b""
        while not answer.endswith(b"0\r\n\r\n"):
            answer += between.recv(65_536)
        newcomer = stack.enter_context(line(port))
        newcomer.sendall(GET.replace(b"/ ", b"/stream ", 1) + b"\r\n")
        assert newcomer.recv(1)
        assert rest(between) == b"", "it is closed without an answer that nobody has asked for"
        with line(port) as refused:
            assert problem(rest(refused)) == "/problems/busy"
        waits[0].close()
        assert holds(lambda: ask(port)[0] == 200), "its room comes back"


PROXY, OTHER_PROXY = "127.0.0.9", "127.0.1.7"


@pytest.fixture
def behind_proxies(monkeypatch):
    with served(monkeypatch, LONG_S, trusted_proxies=[PROXY, "127.0.1.0/24"]) as site:
        yield site.port


def told_client(port: int, header: str, of: str = PROXY) -> str:
    """For whom the server takes a request with a header."""
    with line(port, of) as found:
        found.sendall(GET.replace(b"/ ", b"/client ", 1) + header.encode() + b"\r\nConnection: close\r\n\r\n")
        return rest(found).rpartition(b"\r\n\r\n")[2].decode()


@pytest.mark.parametrize(
    ("header", "client"),
    [
        ("X-Forwarded-For: 192.0.2.1", "192.0.2.1"),
        ("X-Forwarded-For: 198.51.100.1, 192.0.2.1", "192.0.2.1"),
        (f"X-Forwarded-For: 192.0.2.1\r\nX-Forwarded-For: {OTHER_PROXY}", "192.0.2.1"),
        ("X-Forwarded-For: 192.0.2.1:4711", "192.0.2.1"),
        ("X-Forwarded-For: ::ffff:192.0.2.1", "192.0.2.1"),
        ('Forwarded: for=198.51.100.1, for="[2001:db8::1]:47";proto=https', "2001:db8::1"),
        ("Forwarded: proto=https;For=192.0.2.1", "192.0.2.1"),
        ("Forwarded: for=192.0.2.1\r\nX-Forwarded-For: 192.0.2.1", "192.0.2.1"),
        ("Forwarded: for=198.51.100.1\r\nX-Forwarded-For: 192.0.2.1", PROXY),
        ("X-Forwarded-For: unknown", PROXY),
        ("X-Forwarded-For: 198.51.100.1, nonsense", PROXY),
        ("Forwarded: for=_hidden", PROXY),
        ("Forwarded: by=192.0.2.1", PROXY),
        ("X-Forwarded-For: ", PROXY),
        ("A: b", PROXY),
    ],
)
def test_a_trusted_proxy_names_the_client(behind_proxies, header, client):
    assert told_client(behind_proxies, header) == client


def test_nobody_else_does(behind_proxies, port):
    assert told_client(behind_proxies, "X-Forwarded-For: 192.0.2.1", "127.0.0.8") == "127.0.0.8"
    assert told_client(port, "X-Forwarded-For: 192.0.2.1") == PROXY, "no proxy is trusted"


def test_slow_connections_of_one_client_of_a_proxy_keep_none_of_its_others_out(behind_proxies):
    def asks(stack, path, client):
        found = stack.enter_context(line(behind_proxies, PROXY))
        found.sendall(GET.replace(b"/ ", path, 1) + f"X-Forwarded-For: {client}\r\n\r\n".encode())
        return found

    with contextlib.ExitStack() as stack:
        for _ in range(OF_ONE):
            assert asks(stack, b"/stream ", "192.0.2.1").recv(1)
        assert problem(rest(asks(stack, b"/ ", "192.0.2.1"))) == "/problems/busy"
        assert asks(stack, b"/ ", "192.0.2.2").recv(65_536).startswith(b"HTTP/1.1 200")


def test_a_flood_is_accepted_in_portions_that_leave_files_to_the_process():
    at_once = bounded(app, Api()).backlog
    rounds = (
        4  # of the loop, from the moment that a connection is accepted until the one that makes way for it is closed
    )
    assert at_once * rounds <= server._OTHER_FILES // 2, "else accept fails, and asyncio accepts nobody for a second"


def test_who_still_waits_when_the_server_stops_is_told_so(site, caplog):
    with line(site.port) as waits, line(site.port) as streams:
        waits.sendall(b"GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n")
        streams.sendall(b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        told = b""
        while b"data: 1" not in told:
            told += streams.recv(4096)
        assert holds(lambda: len(site.server.server_state.tasks) == 2), "both are served"
        site.server.should_exit = True
        assert problem(rest(waits)) == "/problems/unreachable"
        assert rest(streams).endswith(b"0\r\n\r\n"), "a whole answer"
    site.thread.join(10)
    assert not site.thread.is_alive()
    assert "Traceback" not in caplog.text
