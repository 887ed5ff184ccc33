"""Messages go out to real receivers on this machine that hang, redirect, fail and answer; and nowhere they should not go."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.client import BadStatusLine, InvalidURL
from ipaddress import ip_address
from typing import Any

import pytest
from pydantic import ValidationError

from scylla_spark.clock import boot_us, from_us, now_us
from scylla_spark.config.notify import Notify
from scylla_spark.core.notifications.proof import is_proven, notice_key, proof_of
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.task import Failure, Invocation, Outcome
from scylla_spark.errors import ConfigError
from scylla_spark.executors.notify import address, delivery
from scylla_spark.executors.notify.delivery import Delivered, deliver, judged
from scylla_spark.executors.notify.executor import RETRY, NotifyExecutor
from scylla_spark.executors.notify.post import MAX_ANSWER_BYTES, Answer, target_of
from scylla_spark.executors.notify.signature import key_of, signed
from scylla_spark.io.host import resolving
from tests.support.waiting import holds
from tests.support.webhook_receiver import HANG, TRICKLE, receiving

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
KEY = notice_key("of this deployment")
MESSAGE = {
    "version": 1, "id": "msg_1", "rule": "broken", "channel": "ops", "event": "failed", "notice": "first", "count": 1,
    "since": "2026-03-01T00:00:00Z", "at": "2026-03-01T00:00:00Z", "dedupKey": "broken/0", "handler": "mail.send",
    "key": "2026-03-01T00:00:00Z,a,%C3%BC", "error": {"kind": "OSError", "message": "no route"},
}  # fmt: skip


def notify(url: str, *, private: bool = True, **channel: Any) -> Notify:
    return Notify.model_validate({"channels": {"ops": {"url": url, **channel}}, "private_addresses": private})


OPS = notify("https://hooks.example.com/").channels["ops"]


# -- how long it is tried -----------------------------------------------------------------------------------------------


class Bound:
    """A source of chance that always gives one end of what it is asked for."""

    def __init__(self, end: int) -> None:
        self.end = end

    def randint(self, *ends: int) -> int:
        return ends[self.end]


@pytest.mark.parametrize(("end", "least_h", "most_h"), [(0, 24, 30), (1, 48, 60)])
def test_a_receiver_that_is_down_for_a_day_still_gets_its_messages(end: int, least_h: int, most_h: int) -> None:
    assert RETRY.max_retries is not None
    chance: Any = Bound(end)
    waits = [RETRY.wait_us(attempt, chance) for attempt in range(2, RETRY.max_retries + 2)]
    assert least_h < sum(waits) / 3_600_000_000 < most_h
    assert max(waits) <= 1_800_000_000, "it gets them soon after it is back"
    assert waits[0] <= 5_000_000


# -- signatures ---------------------------------------------------------------------------------------------------------


def test_signatures_are_those_of_the_specification() -> None:
    headers = signed("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, b'{"test": 2432232314}', key_of(SECRET))
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_c2hvcnQ=", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_***"])
def test_what_is_no_secret_is_refused_and_not_repeated(secret: str) -> None:
    with pytest.raises(ConfigError) as refused:
        key_of(secret)
    assert not secret or secret not in f"{refused.value} "[:28]


# -- one message --------------------------------------------------------------------------------------------------------


def test_a_webhook_gets_one_signed_cloud_event() -> None:
    with receiving(204) as receiver:
        done = deliver(MESSAGE, notify(receiver.url, secret=SECRET))
        assert (done.failure, done.result) == (None, '{"status": 204}')
        (request,) = receiver.received
    headers = request.headers
    assert headers["content-type"] == "application/cloudevents+json; charset=utf-8"
    assert abs(int(headers["webhook-timestamp"]) - now_us() // 1_000_000) <= 60
    again = signed("msg_1", int(headers["webhook-timestamp"]), request.body, key_of(SECRET))
    assert headers["webhook-signature"] == again["webhook-signature"]
    assert headers["webhook-id"] == "msg_1"
    assert request.event == {
        "specversion": "1.0", "id": "msg_1", "source": "/scylla-spark/notifications", "type": "scylla-spark.failed.first",
        "subject": MESSAGE["key"], "time": MESSAGE["at"], "datacontenttype": "application/json", "data": MESSAGE,
    }  # fmt: skip


def test_without_a_secret_it_is_not_signed() -> None:
    with receiving(200) as receiver:
        assert deliver(MESSAGE, notify(receiver.url)).failure is None
        assert "webhook-signature" not in receiver.received[0].headers


@pytest.mark.parametrize(
    ("status", "kind", "final"),
    [(410, "gone", True), (404, "http_404", True), (500, "http_500", False), (503, "http_503", False), (429, "http_429", False)],
)  # fmt: skip
def test_an_answer_says_whether_it_is_tried_again(status: int, kind: str, final: bool) -> None:
    with receiving(status) as receiver:
        done = deliver(MESSAGE, notify(receiver.url))
    assert done.failure is not None
    assert (done.failure.kind, done.final, done.result) == (kind, final, None)


@pytest.mark.slow
def test_redirects_are_not_followed() -> None:
    with receiving(204) as elsewhere, receiving((302, {"Location": elsewhere.url})) as receiver:
        done = deliver(MESSAGE, notify(receiver.url))
        assert elsewhere.received == []
    assert done.failure is not None
    assert (done.failure.kind, done.final) == ("http_302", True)


HOOK = "https://hooks.example.com/services/T0SECRET/B0SECRET/xoxb%2Dvery-SECRET?sig=a%26SECRET"


@pytest.mark.parametrize("status", [404, 503])
@pytest.mark.parametrize(
    "said",
    [
        "Cannot POST /services/T0SECRET/B0SECRET/xoxb%2Dvery-SECRET",
        "<pre>/services/T0SECRET/B0SECRET/xoxb-very-SECRET?sig=a&amp;SECRET</pre>",
        '{"path": "\\/services\\/T0SECRET\\/B0SECRET", "sig": "a&SECRET", "key": "SECRETMfKQ9r8GKYqrTwjUPD8ILA=="}',
        "x" * 495 + " T0SECRET",
        "T0SECRET " * (MAX_ANSWER_BYTES // 9) + "T0SEC",
    ],
)
def test_what_a_receiver_repeats_of_url_and_secret_is_not_kept(status: int, said: str) -> None:
    channel = notify(HOOK, secret="whsec_SECRETMfKQ9r8GKYqrTwjUPD8ILA==").channels["ops"]
    failure = judged(Answer(status, None, said.encode()[:MAX_ANSWER_BYTES]), now_us(), channel).failure
    assert failure is not None
    assert "SEC" not in failure.message
    assert "***" in failure.message or said.startswith("xxx")
    assert len(failure.message) < 600


def test_what_a_library_says_of_url_and_secret_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> Answer:
        raise BadStatusLine("GET /services/T0SECRET HTTP/0.9")

    monkeypatch.setattr(delivery, "post", refuse)
    failure = deliver(MESSAGE, notify(HOOK)).failure
    assert failure is not None
    assert ("SECRET" in failure.message, failure.kind) == (False, "unreachable")


def test_what_a_defect_of_ours_says_of_a_channel_is_not_kept(sink: Sink) -> None:
    def broken(_payload: object, settings: Notify) -> Delivered:
        raise RuntimeError(f"no thread for {HOOK}")

    executor = NotifyExecutor(notify(HOOK), KEY, broken)
    executor.start(sink)
    executor.submit([invocation(1)])
    assert holds(lambda: sink.count == 1)
    executor.stop(drain_s=1)
    failure = sink.outcomes[1].failure
    assert failure is not None
    assert ("SECRET" in failure.message, "no thread for ***" in failure.message) == (False, True)


def test_a_thread_that_does_not_start_takes_no_place_at_the_resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", refuse)
        for _ in range(17):
            with pytest.raises(OSError, match="can't start"):
                resolving.resolved("127.0.0.1", 80, 0.1)
    assert resolving.resolved("127.0.0.1", 80, 10)


@pytest.mark.parametrize("answer", [HANG, TRICKLE])
@pytest.mark.slow
def test_a_receiver_that_hangs_is_cut_off_in_time_and_tried_again(answer: int) -> None:
    with receiving(answer) as receiver:
        done = deliver(MESSAGE, notify(receiver.url), total_s=0.5)
    assert done.failure is not None
    assert (done.failure.kind, done.final) == ("timed_out", False)


@pytest.mark.slow
def test_a_resolver_that_hangs_is_left_behind_in_time_and_hangs_few_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: ends.wait(60) or [])
    try:
        for _ in range(20):
            done = deliver(MESSAGE, notify("https://hangs.example/"), total_s=0.05)
            assert done.failure is not None
            assert (done.failure.kind, done.final) == ("timed_out", False)
        assert sum(thread.name == "resolver" for thread in threading.enumerate()) == 16
    finally:
        ends.set()
    assert holds(lambda: not any(thread.name == "resolver" for thread in threading.enumerate()))


def test_a_receiver_that_is_not_there_is_tried_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    done = deliver(MESSAGE, notify(f"http://127.0.0.1:{port}/"))
    assert done.failure is not None
    assert (done.failure.kind, done.final) == ("unreachable", False)


def test_one_that_does_not_speak_tls_is_told_from_one_that_is_not_there() -> None:
    with receiving(204) as receiver:
        done = deliver(MESSAGE, notify(receiver.url.replace("http:", "https:")))
        assert receiver.received == []
    assert done.failure is not None
    assert (done.failure.kind, done.final) == ("certificate", False)


@pytest.mark.parametrize(
    ("header", "wait_ms"),
    [("7", 7_000), ("999999", 3_600_000), ("soon", 0), ("-1", 0), (None, 0), ("9" * 400, 3_600_000)],
)
def test_the_time_that_a_receiver_asks_for_is_honoured_up_to_an_hour(header: str | None, wait_ms: int) -> None:
    done = judged(Answer(429, header, b""), now_us(), OPS)
    assert (done.least_wait_ms, done.final) == (wait_ms, False)


def test_the_time_may_be_a_date() -> None:
    now = now_us()
    date = format_datetime(from_us(now).astimezone(UTC).replace(microsecond=0) + timedelta(seconds=30), usegmt=True)
    assert 28_000 <= judged(Answer(503, date, b""), now, OPS).least_wait_ms <= 30_000
    past = format_datetime(datetime(2020, 1, 1, tzinfo=UTC), usegmt=True)
    assert judged(Answer(503, past, b""), now, OPS).least_wait_ms == 0


@pytest.mark.parametrize(
    "payload", [None, [], {}, {"id": 1}, {**MESSAGE, "channel": "nobody"}, {**MESSAGE, "channel": {}}]
)
def test_a_payload_that_is_no_message_fails_for_good(payload: Any) -> None:
    done = deliver(payload, notify("https://hooks.example.com/"))
    assert done.final
    assert done.failure is not None


def test_answers_are_read_to_a_bound() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        sent = threading.Event()

        def flood() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                try:
                    for _ in range(10_000):
                        connection.sendall(b"x" * MAX_ANSWER_BYTES)
                except OSError:
                    sent.set()

        thread = threading.Thread(target=flood, daemon=True)
        thread.start()
        done = deliver(MESSAGE, notify(f"http://127.0.0.1:{server.getsockname()[1]}/"))
        assert done.result == '{"status": 200}'
        assert sent.wait(10), "it was cut off"
        thread.join(10)


def test_apprise_that_is_not_installed_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "apprise", None)
    done = deliver(MESSAGE, notify("mailto://user:pass@example.com", kind="apprise"))
    assert done.failure is not None
    assert (done.failure.kind, done.final) == ("apprise_missing", True)
    assert "pass@" not in done.failure.message


@pytest.mark.slow
def test_apprise_sends_to_what_its_url_says() -> None:
    pytest.importorskip("apprise", reason="an extra")
    with receiving(200, 500) as receiver:
        settings = notify(receiver.url.replace("http:", "json:"), kind="apprise")
        assert deliver(MESSAGE, settings).failure is None
        assert receiver.received[0].event["title"] == "mail.send: failed"
        failure = deliver(MESSAGE, settings).failure
        assert failure == Failure("unreachable", "Apprise could not send it.")


@pytest.mark.slow
def test_what_apprise_says_of_urls_goes_nowhere(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("apprise", reason="an extra")
    for url in ("slak://T0SECRET/B0SECRET/xoxb", "slack://tokenSECRET", "json://user:passSECRET@127.0.0.1:1/SECRET"):
        failure = deliver(MESSAGE, notify(url, kind="apprise")).failure
        assert failure is not None
        assert "SECRET" not in failure.message
    assert "".join(capfd.readouterr()) + caplog.text == ""


@pytest.mark.slow
def test_receivers_of_apprise_whose_answers_trickle_hold_up_nobody_else(sink: Sink) -> None:
    pytest.importorskip("apprise", reason="an extra")
    with receiving(TRICKLE) as slow, receiving(204) as quick:
        channels = {f"slow{n}": {"kind": "apprise", "url": slow.url.replace("http:", "json:")} for n in range(4)}
        settings = Notify.model_validate(
            {"channels": channels | {"ops": {"url": quick.url}}, "private_addresses": True}
        )
        executor = NotifyExecutor(settings, KEY, lambda payload, settings: deliver(payload, settings, apprise_s=2))
        executor.start(sink)
        executor.submit([invocation(n, f"notify/slow{n}", channel=f"slow{n}") for n in range(4)])
        assert holds(lambda: len(executor.running()) == 4)
        executor.submit([invocation(4)])
        assert holds(lambda: len(sink.outcomes) == 5)
        executor.stop(drain_s=5)
    failures = [sink.outcomes[n].failure for n in range(5)]
    assert [one and one.kind for one in failures] == ["timed_out"] * 4 + [None]


# -- where messages go --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1", "10.0.0.1", "192.168.1.1", "172.16.0.1", "::1", "fc00::1", "100.64.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1",
        "2002:7f00:1::", "fec0::2", "::a00:1", "64:ff9b:1::a00:1", "::ffff:0:7f00:1", "64:ff9b:1:a00:0:100::",
    ],
)  # fmt: skip
def test_private_addresses_are_refused_unless_they_are_allowed(text: str) -> None:
    assert not address.is_allowed(ip_address(text), private=False)
    assert address.is_allowed(ip_address(text), private=True)


@pytest.mark.parametrize(
    "text",
    [
        "169.254.169.254", "fe80::1", "fd00:ec2::254", "100.100.100.200", "168.63.129.16", "0.0.0.0", "::", "224.0.0.1", "ff02::1",
        "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::", "fd20:ce::254", "fd00:42::42", "::a9fe:a9fe",
        "64:ff9b:1::a9fe:a9fe", "::ffff:0:a9fe:a9fe", "64:ff9b::6464:64c8",
        "64:ff9b:1:a9fe:a9:fe00::", "64:ff9b:1:a9fe:a9:fe00:808:808", "64:ff9b:1:a9:fe:a9fe::", "64:ff9b:1:0:a9:fea9:fe00:0", "64:ff9b:1::",
    ],
)  # fmt: skip
def test_link_local_addresses_and_metadata_services_are_refused_always(text: str) -> None:
    assert not address.is_allowed(ip_address(text), private=True)


@pytest.mark.parametrize(
    "text", ["93.184.215.14", "2606:2800:21f::1", "64:ff9b::808:808", "64:ff9b:1::808:808", "64:ff9b:1:808:8:800::"]
)
def test_public_addresses_are_allowed(text: str) -> None:
    assert address.is_allowed(ip_address(text), private=False)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0x7f.1", "2130706433", "[::1]"])
def test_a_webhook_to_this_machine_is_refused_before_anything_is_sent(host: str) -> None:
    with receiving(204) as receiver:
        url = receiver.url.replace("127.0.0.1", host)
        done = deliver(MESSAGE, notify(url, private=False))
        assert receiver.received == []
    assert done.failure is not None
    assert (done.failure.kind, done.final) == ("channel_refused", True)
    assert "notify.private_addresses" in done.failure.message


def test_a_host_is_resolved_once_and_refused_if_one_of_its_addresses_is_private(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def resolver(host: str, port: int, **_: Any) -> list[Any]:
        asked.append(host)
        return [(socket.AF_INET, 1, 6, "", (text, port)) for text in ("93.184.215.14", "127.0.0.1")]

    monkeypatch.setattr(socket, "getaddrinfo", resolver)
    with pytest.raises(address.AddressRefusedError):
        address.places("rebinds.example", 80, private=False, within_s=10)
    assert asked == ["rebinds.example"]
    assert [one.address[0] for one in address.places("rebinds.example", 80, private=True, within_s=10)] == [
        "93.184.215.14",
        "127.0.0.1",
    ]


UNPRINTABLE = [
    "https://x/secret ",
    "https://x/a b/secret",
    "https://x/secret\n",
    "https://x/\tsecret",
    "https://x/ключ/secret",
]


@pytest.mark.parametrize(
    "url", ["ftp://x/", "https://", "https://user:secret@x/", "https://x:99999/", "http://[::1/", *UNPRINTABLE]
)
def test_a_url_that_is_not_usable_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        target_of(url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("url", UNPRINTABLE)
def test_settings_with_a_url_that_no_request_can_have_are_refused_and_do_not_repeat_it(url: str) -> None:
    with pytest.raises(ValidationError, match="blanks") as refused:
        notify(url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("error", [InvalidURL("/secret "), UnicodeError("/ключ/secret")])
def test_what_python_says_of_a_url_is_not_repeated(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def refuse(*_: object, **__: object) -> Answer:
        raise error

    monkeypatch.setattr(delivery, "post", refuse)
    failure = deliver(MESSAGE, notify("https://x.example/secret")).failure
    assert failure is not None
    assert (failure.kind, "secret" in failure.message) == ("channel_refused", False)


# -- the executor -------------------------------------------------------------------------------------------------------


class Sink:
    def __init__(self) -> None:
        self.outcomes: dict[int, Outcome] = {}
        self.count = 0

    def __call__(self, outcomes: Sequence[Outcome]) -> None:
        self.count += len(outcomes)
        self.outcomes |= {one.id: one for one in outcomes}


def invocation(number: int, lane: str = "notify/ops", channel: str = "ops", **more: Any) -> Invocation:
    key = TaskKey(1_800_000_000_000_000, lane, f"notice/{number}")
    message = {**MESSAGE, "id": f"msg_{number}", "channel": channel}
    text = json.dumps({**message, "proof": proof_of(message, KEY)})
    return Invocation(number, key, 1, 7, "scylla.notify", "_notify", text, 0, 0, 60_000)._replace(**more)


@pytest.fixture
def sink() -> Sink:
    return Sink()


class Gate:
    """Sends when it is opened, and notes in which order."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.sent: list[str] = []

    def __call__(self, payload: Any, settings: Notify) -> Delivered:
        assert self.open.wait(30)
        self.sent.append(payload["id"])
        return Delivered("{}")


@pytest.fixture
def gate() -> Iterator[Gate]:
    found = Gate()
    yield found
    found.open.set()


def test_messages_of_a_lane_go_out_in_order_and_those_of_others_beside_them(sink: Sink, gate: Gate) -> None:
    executor = NotifyExecutor(Notify(), KEY, gate)
    executor.start(sink)
    executor.submit([invocation(number) for number in range(20)])
    executor.submit([invocation(100, "notify/other")])
    assert holds(lambda: set(executor.running()) == {0, 100})
    gate.open.set()
    assert holds(lambda: len(sink.outcomes) == 21)
    assert [one for one in gate.sent if one != "msg_100"] == [f"msg_{number}" for number in range(20)]
    executor.stop(drain_s=1)


def test_one_that_fails_gives_back_those_behind_it(sink: Sink) -> None:
    with receiving(503, 204) as receiver:
        executor = NotifyExecutor(notify(receiver.url), KEY)
        executor.start(sink)
        executor.submit([invocation(1), invocation(2), invocation(3)])
        assert holds(lambda: len(sink.outcomes) == 3)
        assert [sink.outcomes[n].outcome for n in (1, 2, 3)] == ["failed", "not_started", "not_started"]
        executor.submit([invocation(4)])
        assert holds(lambda: len(sink.outcomes) == 4)
        assert sink.outcomes[4].outcome == "succeeded"
        executor.stop(drain_s=1)


def test_receivers_that_never_answer_keep_no_other_channel_waiting(sink: Sink) -> None:
    silent, names = threading.Event(), [f"silent-{number}" for number in range(9)]
    channels = {name: {"url": "https://hooks.example.com/"} for name in (*names, "ops")}

    def send(payload: Any, settings: Notify) -> Delivered:
        if payload["channel"] != "ops":
            silent.wait()
        return Delivered("{}")

    executor = NotifyExecutor(Notify.model_validate({"channels": channels}), KEY, send)
    executor.start(sink)
    try:
        executor.submit([invocation(number, f"notify/{name}", name) for number, name in enumerate(names)])
        assert holds(lambda: len(executor.running()) == len(names))
        executor.submit([invocation(len(names))])
        assert holds(lambda: list(sink.outcomes) == [len(names)])
    finally:
        silent.set()
        executor.stop(drain_s=10)


@pytest.mark.parametrize("asked_ms", [0, 1_000, 3_600_000])
def test_what_a_receiver_asks_for_is_a_wish_beside_the_retry_policy_in_force(sink: Sink, asked_ms: int) -> None:
    executor = NotifyExecutor(
        Notify(), KEY, lambda _payload, _settings: Delivered(None, Failure("http_503", "no"), False, asked_ms)
    )
    executor.start(sink)
    executor.submit([invocation(1)])
    assert holds(lambda: sink.count == 1)
    assert (sink.outcomes[1].least_wait_ms, sink.outcomes[1].wait_ms) == (asked_ms, None)
    executor.stop(drain_s=5)


def test_what_is_killed_is_reported_once(sink: Sink, gate: Gate) -> None:
    executor = NotifyExecutor(Notify(), KEY, gate)
    executor.start(sink)
    executor.submit([invocation(1), invocation(2)])
    assert holds(lambda: set(executor.running()) == {1})
    executor.kill([1, 2])
    assert [sink.outcomes[n].outcome for n in (1, 2)] == ["timed_out", "not_started"]
    gate.open.set()
    executor.submit([invocation(3)])
    assert holds(lambda: 3 in sink.outcomes)
    assert sink.count == 3
    executor.stop(drain_s=1)


def test_what_is_killed_gives_its_place_to_others_and_holds_back_its_own_lane(sink: Sink, gate: Gate) -> None:
    before = set(threading.enumerate())

    def threads() -> int:
        return sum(thread.name == "notify" for thread in set(threading.enumerate()) - before)

    executor = NotifyExecutor(Notify(), KEY, gate)
    executor.start(sink)
    executor.submit([invocation(number, f"notify/{number}") for number in range(4)])
    assert holds(lambda: set(executor.running()) == {0, 1, 2, 3})
    executor.kill([0, 1, 2, 3])
    executor.submit([invocation(4, "notify/0"), *(invocation(number, f"notify/{number}") for number in range(5, 9))])
    assert holds(lambda: set(executor.running()) == {5, 6, 7, 8})
    gate.open.set()
    assert holds(lambda: len(sink.outcomes) == 9)
    assert [sink.outcomes[n].outcome for n in range(9)] == ["timed_out"] * 4 + ["succeeded"] * 5
    assert gate.sent.index("msg_0") < gate.sent.index("msg_4")
    assert holds(lambda: executor.rooms()["notify"] == 64 and threads() == 4)
    executor.stop(drain_s=1)
    assert holds(lambda: threads() == 0)


def test_a_place_is_free_at_the_latest_when_its_thread_is_back(
    sink: Sink, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    executor = NotifyExecutor(Notify(), KEY, gate)
    executor.start(sink)
    executor.submit([invocation(number, f"notify/{number}") for number in range(4)])
    assert holds(lambda: set(executor.running()) == {0, 1, 2, 3})
    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", refuse)
        executor.kill([0, 1, 2, 3])
    executor.submit([invocation(4, "notify/4")])
    gate.open.set()
    assert holds(lambda: 4 in sink.outcomes)
    assert holds(lambda: executor.rooms()["notify"] == 64)
    executor.stop(drain_s=1)


def test_nothing_is_reported_after_a_stop(sink: Sink, gate: Gate) -> None:
    executor = NotifyExecutor(Notify(), KEY, gate)
    executor.start(sink)
    executor.submit([invocation(1), invocation(2)])
    assert holds(lambda: set(executor.running()) == {1})
    executor.stop(drain_s=0.05)
    assert [one.outcome for one in sink.outcomes.values()] == ["not_started"]
    gate.open.set()
    assert holds(lambda: gate.sent == ["msg_1"])
    assert sink.count == 1


@pytest.mark.parametrize(
    "change",
    [
        {"proof": None},
        {"proof": "0" * 64},
        {"proof": "\u00e4"},
        {"proof": ["x"]},
        {"rule": "another"},
        {"more": 1},
        {"count": 2},
    ],
)
def test_only_messages_of_the_planner_are_sent(sink: Sink, change: dict[str, Any]) -> None:
    with receiving(204) as receiver:
        executor = NotifyExecutor(notify(receiver.url), KEY)
        executor.start(sink)
        forged = json.dumps(json.loads(invocation(1).payload) | change)
        without = json.dumps(MESSAGE)
        executor.submit(
            [invocation(1, "a", payload=forged), invocation(2, "b", payload=without), invocation(3, "c", payload="[]")]
        )
        assert holds(lambda: len(sink.outcomes) == 3)
        assert receiver.received == []
    found = [(one.failure.kind, one.final) for one in sink.outcomes.values() if one.failure is not None]
    assert found == [("message_unproven", True)] * 3
    executor.stop(drain_s=1)


def test_a_message_that_was_copied_is_the_same_message_and_receivers_never_see_the_proof(sink: Sink) -> None:
    with receiving(204, 204) as receiver:
        executor = NotifyExecutor(notify(receiver.url, secret=SECRET), KEY)
        executor.start(sink)
        executor.submit([invocation(1), invocation(2)._replace(payload=invocation(1).payload)])
        assert holds(lambda: len(sink.outcomes) == 2)
        assert [one.headers["webhook-id"] for one in receiver.received] == ["msg_1", "msg_1"]
        assert all(b"proof" not in one.body for one in receiver.received)
    executor.stop(drain_s=1)


def test_without_a_key_nothing_is_proven() -> None:
    assert not is_proven(MESSAGE | {"proof": proof_of(MESSAGE, b"")}, b"")


def test_what_comes_too_late_and_what_is_not_ours_does_not_run(sink: Sink) -> None:
    with receiving(204) as receiver:
        executor = NotifyExecutor(notify(receiver.url), KEY)
        executor.start(sink)
        executor.submit([invocation(1, "a", start_by_us=boot_us() - 1), invocation(2, "b", handler="mail.send")])
        executor.submit([invocation(3, "c", payload="[")])
        assert holds(lambda: len(sink.outcomes) == 3)
        assert receiver.received == []
    assert sink.outcomes[1].outcome == "not_started"
    failure = sink.outcomes[2].failure
    assert failure is not None
    assert (failure.kind, sink.outcomes[2].final) == ("handler_unknown", True)
    assert sink.outcomes[3].outcome == "failed"
    assert executor.rooms()["notify"] == 64
    executor.stop(drain_s=1)
