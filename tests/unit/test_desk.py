"""The desk of a dispatcher: who is let in, what it takes, and what becomes of a call whose caller is gone."""

import asyncio
import contextlib
import secrets
import socket
import sys
import time

import pytest
import structlog

from scylla_spark.api.leases.lease_servers import LeaseServerConnection
from scylla_spark.api.leases.pending_calls import PendingCall, PendingCalls
from scylla_spark.config.settings import Settings
from scylla_spark.core.leases.messages import Answer, Call, Scarcity, Want
from scylla_spark.core.records.desk_messages import CALLER, HELLO, MAX_LINE_BYTES, Handshake, line, read_line
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.errors import ConfigError, UnreachableError
from scylla_spark.services.dispatch.lease_desk import Desk
from tests.support.invocations import invocation, lease_on

NOW = 1_700_000_000_000_000


class Engine:
    """Notes what it is asked; a call is answered by hand."""

    def __init__(self):
        self.asked = []  # beside calls
        self.calls, self.gone, self.hurried, self.cut = [], [], [], 0
        self.heard = []  # (number of a question, how many calls there were)

    def call(self, call, now, *, certain):
        self.calls.append((call, certain))

    def hang_up(self, numbers):
        self.gone += numbers

    def hurry(self, numbers, now):
        self.asked.append(numbers)
        self.hurried += numbers

    def listened(self, number):
        self.heard.append((number, len(self.calls)))

    def cut_off(self, now):
        self.cut += 1

    def lease_output(self, token, link, now):
        self.asked.append(token)
        return {"key": [NOW, "a", "u"], "attempt": 2, "epoch": 7, "sizes": {}} if token == "held" else "lease_lost"

    def scarcity(self, queue, now):
        self.asked.append(queue)
        return Scarcity(queue, 3, NOW - 5_000_000, "is paused")

    def leave(self, worker, session, now):
        self.asked.append((worker, session))
        return 0

    def order(self, worker, order):
        self.asked.append(worker)
        return (worker, order) == ("w", "stop")

    sessions = ()


class Mailbox:
    def post(self, message):
        message(NOW)


@pytest.fixture
def desk(tmp_path):
    engine = Engine()
    engine.told = []
    take = lambda *told: engine.told.append(told)  # noqa: E731
    desk = Desk(Settings(_env_file=None, data_dir=tmp_path), Mailbox(), engine, lambda: 1 << 62, take)
    desk.start()
    yield desk
    desk.stop()


@pytest.mark.parametrize("host", ["a..b", "x" * 70, "192.0.2.1"])
def test_a_desk_that_cannot_listen_says_so(tmp_path, host):
    settings = Settings(_env_file=None, data_dir=tmp_path, desk={"host": host})
    desk = Desk(settings, Mailbox(), Engine(), lambda: 1 << 62)
    with pytest.raises(ConfigError, match="cannot listen"):
        desk.start()


def secret_of(tmp_path):
    return (tmp_path / "desk.secret").read_text().strip()


def hello(address, nonce, secret):
    """What somebody who knows the secret says to the desk at an address."""
    mine = secrets.token_hex(8)
    return line(HELLO, Handshake(address, nonce, mine).proof(secret, CALLER), mine)


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


def test_a_call_goes_there_and_its_answer_comes_back(desk, tmp_path):
    lease = lease_on(
        "0." + "a" * 32, invocation(NOW, "a\n", "ü", '{"n":"\\n"}', queue="q", handler=""), NOW + 7_000_000
    )

    async def play():
        connection = await LeaseServerConnection.open(desk.address, secret_of(tmp_path))
        asked = connection.call(Call(0, "w", "s", 1, 2_000_000, (Want("q", 2, frozenset({"h"})),)))
        await until(lambda: desk._engine.calls)
        call, certain = desk._engine.calls[0]
        assert (certain, call.until_us, call.wants[0].handlers) == (True, NOW + 2_000_000, frozenset({"h"}))
        desk.answer(Answer(call.number, ("ok",), (lease,), queues=(Scarcity("q", 1, NOW - 1_000, ""),)), NOW)
        answer = await asyncio.wait_for(asked, 10)
        assert answer.leases == (lease._replace(until_us=7_000_000),)
        assert answer.queues[0].oldest_us == 1_000
        assert (await asyncio.wait_for(connection.ask("queue", "q"), 10)) == ["q", 3, 5_000_000, "is paused"]
        connection.close()
        await until(lambda: not desk._peers)

    asyncio.run(play())


def test_lines_of_an_attempt_are_taken_while_its_lease_is_held(desk, tmp_path):
    rows = [[1, NOW, "stdout", None, "ü\n", None]]

    async def play():
        connection = await LeaseServerConnection.open(desk.address, secret_of(tmp_path))
        said = [await asyncio.wait_for(connection.ask("lines", token, rows), 10) for token in ("held", "gone")]
        connection.close()
        return said

    assert asyncio.run(play()) == ["ok", "lease_lost"]
    ((name, told),) = desk._engine.told
    assert (name, told.rows) == ((TaskKey(NOW, "a", "u"), 2, 7), rows)


def test_nobody_is_let_in_without_the_secret_and_nobody_tells_it_to_a_stranger(desk, tmp_path):
    async def play():
        with pytest.raises(UnreachableError):
            await LeaseServerConnection.open(desk.address, "guessed")
        assert secret_of(tmp_path) not in str(desk._peers)

    asyncio.run(play())
    assert (tmp_path / "desk.secret").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "said", [b"\n", b"[]\n", b"nonsense\n", b'["hello"]\n', b"\xff\xfe\n", b'["hello",1,2]\n', b"[" * 5000 + b"\n"]
)
def test_whatever_a_stranger_says_ends_its_own_connection_only(desk, tmp_path, said):
    host, port = desk.address.split(":")
    with socket.create_connection((host, int(port)), 10) as stranger:
        stranger.recv(1000)
        stranger.sendall(said)
        stranger.settimeout(10)
        assert stranger.recv(1000) == b""

    async def play():
        connection = await LeaseServerConnection.open(desk.address, secret_of(tmp_path))
        connection.close()

    asyncio.run(play())


@pytest.mark.parametrize(
    "said",
    [
        b"nonsense\n",
        b'["call"]\n',
        b'["call",[1]]\n',
        b'["call",{"number":1}]\n',
        b'["leave",1]\n',
        b'["lines",1,"t",5]\n',
        b'["leave",1,["w"],"s"]\n',
        b'["leave",1,"w",{"s":1}]\n',
        b'["order",1,["w"],"stop"]\n',
        b'["queue",1,{"q":1}]\n',
        b'["queue",[1],"q"]\n',
        b'["hurry",[[1]]]\n',
        b'["hurry",1]\n',
        b'["pong",[1]]\n',
        b'["workers"]\n',
        b'["output",1,["t"],null]\n',
        b'["unheard of"]\n',
    ],
)
def test_nonsense_of_one_that_knows_the_secret_ends_its_connection_and_hangs_up_its_calls(desk, tmp_path, said):
    host, port = desk.address.split(":")
    with socket.create_connection((host, int(port)), 10) as peer:
        reader = peer.makefile("rb")
        nonce = read_line(reader.readline())[2]
        peer.sendall(hello(desk.address, nonce, secret_of(tmp_path)))
        assert read_line(reader.readline())[0] == "welcome"
        peer.sendall(line("call", Call(7, "w")) + said)
        peer.settimeout(10)
        assert reader.readline() == b""
    asyncio.run(until(lambda: desk._engine.gone))
    assert len(desk._engine.gone) == 1
    assert desk._engine.asked == [], "the engine never sees it"
    assert len(said) < MAX_LINE_BYTES


def test_what_was_proved_to_another_address_opens_no_desk(desk, tmp_path):
    host, port = desk.address.split(":")
    with socket.create_connection((host, int(port)), 10) as relay:
        reader = relay.makefile("rb")
        nonce = read_line(reader.readline())[2]
        relay.sendall(hello("127.0.0.1:1", nonce, secret_of(tmp_path)))
        relay.settimeout(10)
        assert reader.readline() == b""


@pytest.mark.slow
def test_a_stranger_may_say_little_and_few_may_listen(desk, monkeypatch):
    host, port = desk.address.split(":")
    with socket.create_connection((host, int(port)), 10) as stranger:
        stranger.recv(1000)
        stranger.sendall(b"x" * 100_000)  # a line that does not end
        stranger.settimeout(10)
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1000) == b""
    monkeypatch.setattr("scylla_spark.services.dispatch.lease_desk._MOST_STRANGERS", 2)
    with silent(desk, 3) as (first, *others):
        assert is_over(first)
        assert not any(map(is_over, others))


@contextlib.contextmanager
def silent(desk, many, source="127.0.0.1"):
    """Connections that were greeted, one after the other, and say nothing."""
    host, port = desk.address.split(":")
    with contextlib.ExitStack() as open_ones:
        made = []
        for _ in range(many):
            one = socket.create_connection((host, int(port)), 10, source_address=(source, 0))
            made.append(open_ones.enter_context(one))
            assert b"hello" in one.recv(1000)
        yield made


def is_over(connection):
    """Whether the other end has hung up."""
    connection.settimeout(0.3)
    try:
        return connection.recv(1000) == b""
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


@pytest.mark.slow
def test_however_many_strangers_are_silent_who_knows_the_secret_comes_in(desk, tmp_path, monkeypatch):
    monkeypatch.setattr("scylla_spark.services.dispatch.lease_desk._MOST_STRANGERS", 8)

    async def comes_in():
        connection = await LeaseServerConnection.open(desk.address, secret_of(tmp_path))
        assert await asyncio.wait_for(connection.ask("order", "w", "stop"), 10)
        connection.close()

    with silent(desk, 20) as strangers:
        for _ in range(4):
            asyncio.run(comes_in())
        assert len(desk._strangers) == 8 - 1, "each takes a place for a moment"
        assert sum(map(is_over, strangers)) == 13


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only there is all of 127/8 this machine")
def test_a_crowd_of_one_address_makes_way_for_itself_only(desk, monkeypatch):
    monkeypatch.setattr("scylla_spark.services.dispatch.lease_desk._MOST_STRANGERS", 4)
    with silent(desk, 2, "127.0.0.2") as few, silent(desk, 12, "127.0.0.3") as crowd:
        assert not any(map(is_over, few))
        assert list(map(is_over, crowd)) == [True] * 10 + [False] * 2


def test_of_strangers_the_log_tells_once_in_a_while(desk, monkeypatch):
    monkeypatch.setattr("scylla_spark.services.dispatch.lease_desk._MOST_STRANGERS", 1)
    with structlog.testing.capture_logs() as logged, silent(desk, 10):
        asyncio.run(until(lambda: len(desk._strangers) == 1 and logged))
    assert len(logged) == 1


def test_who_is_not_let_in_hears_why_that_may_be(desk, tmp_path, monkeypatch):
    async def comes_in(secret):
        with pytest.raises(UnreachableError) as raised:
            await LeaseServerConnection.open(desk.address, secret)
        return str(raised.value)

    assert "the secrets differ" in asyncio.run(comes_in("guessed"))
    with monkeypatch.context() as older:
        older.setattr("scylla_spark.api.leases.lease_servers.VERSION", 8)
        assert "run one version of scylla-spark on both" in asyncio.run(comes_in(secret_of(tmp_path)))
    monkeypatch.setattr("scylla_spark.services.dispatch.lease_desk._MOST_CONNECTIONS", 0)
    assert "too many clients are connected" in asyncio.run(comes_in(secret_of(tmp_path)))


def test_a_call_that_is_given_up_is_forgotten_at_both_ends_and_what_was_leased_for_it_goes_back(desk, tmp_path):
    lease = lease_on("0." + "a" * 32, invocation(NOW, "a", "u", queue="q"), NOW + 7_000_000)

    async def play():
        connection = await LeaseServerConnection.open(desk.address, secret_of(tmp_path))
        for session, request in (("", ""), ("s", ""), ("", "r")):
            wanted = Call(0, "w", session, 1, 20_000_000, (Want("q"),), request=request)
            asked = connection.call(wanted)
            await until(lambda: desk._engine.calls and desk._engine.calls[-1][0].wants)
            asked.cancel()
            await until(lambda: desk._engine.hurried)
            assert desk._engine.hurried == [desk._engine.calls[-1][0].number]
            desk.answer(Answer(desk._engine.hurried.pop(), (), (lease,)), NOW)
            if not session + request:
                await until(lambda: len(desk._engine.calls) == 2)
                assert [(report.token, report.outcome) for report in desk._engine.calls[1][0].reports] == [
                    (lease.token, "yielded")
                ]
                desk.answer(Answer(desk._engine.calls[1][0].number, ("ok",)), NOW)
            desk._engine.calls.append((Call(0, "this one is done"), True))
        await until(lambda: not desk._callers)
        assert not connection._waiting
        assert not connection._given_up
        assert not any(peer.calls for peer in desk._peers)
        assert len([1 for call, _ in desk._engine.calls if call.reports]) == 1, (
            "a session or a request hears of its leases with its next call"
        )
        connection.close()

    asyncio.run(play())


def test_an_order_to_a_worker_goes_there_and_comes_back_whether_it_is_known(desk, tmp_path):
    async def play():
        connection = await LeaseServerConnection.open(desk.address, secret_of(tmp_path))
        asked = (("w", "stop"), ("w", "drain"), ("nobody", "stop"))
        assert [await connection.ask("order", *one) for one in asked] == [True, False, False]
        connection.close()

    asyncio.run(play())


@pytest.mark.slow
def test_a_question_to_a_dispatcher_that_stands_still_ends(desk, tmp_path, monkeypatch):
    monkeypatch.setattr(Mailbox, "post", lambda self, message: None)

    async def play():
        connection = await LeaseServerConnection.open(desk.address, secret_of(tmp_path))
        monkeypatch.setattr("scylla_spark.api.leases.lease_servers._PATIENCE_S", 0.1)
        with pytest.raises(UnreachableError):
            await connection.ask("queue", "q")
        assert not connection._waiting
        connection.close()

    asyncio.run(play())


@pytest.mark.slow
def test_all_is_heard_when_a_process_that_had_no_time_has_handed_on_what_had_come(desk, tmp_path):
    async def play():
        desk.listen(1)
        await until(lambda: desk._engine.heard)  # nobody is there
        connection = await LeaseServerConnection.open(desk.address, secret_of(tmp_path))
        desk.listen(2)
        time.sleep(0.5)
        await asyncio.sleep(0)
        time.sleep(0.3)  # a backlog is worked off
        connection.call(Call(0, "w", "s", 1, 0)).add_done_callback(lambda done: done.exception())
        await until(lambda: len(desk._engine.heard) == 2)
        connection.close()

    asyncio.run(play())
    assert desk._engine.heard == [(1, 0), (2, 1)]


@pytest.fixture
def looks(monkeypatch):
    """The calls that somebody who may wait for them has looked at, look by look."""
    made, concerns = [], PendingCall.concerns

    def noted(call, address):
        made.append(call)
        return concerns(call, address)

    monkeypatch.setattr(PendingCall, "concerns", noted)
    return made


def calls_that_wait_here(desk, secret, looks, *, goes_to):
    """What the engine has heard while a call waits for the look-up of its owner, and when that has told who it is."""

    async def play():
        coming = PendingCalls()
        connection = await LeaseServerConnection.open(desk.address, secret, coming)
        found = asyncio.Event()

        async def request():
            with coming.begun() as call:
                await found.wait()
                call.goes_to(goes_to)
                if desk.address in goes_to:
                    connection.call(Call(0, "w", "s", 1, 0)).add_done_callback(lambda done: done.exception())
                await asyncio.sleep(60)  # for the answer

        asking = asyncio.create_task(request())
        await asyncio.sleep(0)
        desk.listen(1)
        await until(lambda: len(looks) > 20)
        before = [*desk._engine.heard]
        found.set()
        await until(lambda: desk._engine.heard)
        asking.cancel()
        connection.close()
        return before, desk._engine.heard

    return asyncio.run(play())


@pytest.mark.slow
def test_a_call_that_waits_in_the_api_is_waited_for_until_it_is_handed_on(desk, tmp_path, looks):
    assert calls_that_wait_here(desk, secret_of(tmp_path), looks, goes_to=[desk.address]) == ([], [(1, 1)])


@pytest.mark.slow
def test_a_call_that_turns_out_to_be_for_another_desk_is_waited_for_no_longer(desk, tmp_path, looks):
    assert calls_that_wait_here(desk, secret_of(tmp_path), looks, goes_to=["another"]) == ([], [(1, 0)])


@pytest.mark.slow
@pytest.mark.parametrize("slow", [True, False])
def test_a_call_whose_body_does_not_come_is_not_waited_for_long(desk, tmp_path, monkeypatch, looks, slow):
    monkeypatch.setattr("scylla_spark.api.leases.lease_servers._BODY_TURNS", 5)

    async def play():
        coming = PendingCalls()
        connection = await LeaseServerConnection.open(desk.address, secret_of(tmp_path), coming)
        with coming.begun() as call:
            call.waits_for_body = slow
            desk.listen(1)
            await until(lambda: desk._engine.heard if slow else len(looks) > 20)
            heard = [*desk._engine.heard]
        await until(lambda: desk._engine.heard)
        connection.close()
        return heard

    assert asyncio.run(play()) == ([(1, 0)] if slow else [])


@pytest.mark.slow
def test_no_call_is_waited_for_longer_than_the_desk_waits(desk, tmp_path, monkeypatch):
    monkeypatch.setattr("scylla_spark.api.leases.lease_servers._HAND_ON_S", 0.1)

    async def play():
        coming = PendingCalls()
        connection = await LeaseServerConnection.open(desk.address, secret_of(tmp_path), coming)
        with coming.begun():
            desk.listen(1)
            await until(lambda: desk._engine.heard)
        assert coming.now(desk.address) == []
        connection.close()

    asyncio.run(play())


@pytest.mark.slow
def test_who_is_gone_is_not_waited_for(desk, tmp_path):
    async def play():
        first, second = [await LeaseServerConnection.open(desk.address, secret_of(tmp_path)) for _ in range(2)]
        await until(lambda: len(desk._peers) == 2)
        first._pong = lambda number: asyncio.sleep(60)  # it has no time
        desk.listen(3)
        await asyncio.sleep(0.2)
        assert desk._engine.heard == []
        first.close()
        await until(lambda: desk._engine.heard == [(3, 0)])
        second.close()

    asyncio.run(play())
