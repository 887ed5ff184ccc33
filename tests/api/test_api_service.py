"""The parent of the API: it holds the address, and its child is started again whatever ends it."""

from __future__ import annotations

import json
import os
import urllib.request

import pytest

from scylla_spark.api import service
from scylla_spark.api.service import ApiService, check_address
from scylla_spark.config.settings import Api, Metrics, Settings
from scylla_spark.errors import ConfigError
from scylla_spark.io.kafka.topics import announce
from scylla_spark.services.metrics_server import MetricsServer
from tests.support.waiting import holds


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "example.org"])
def test_an_address_that_others_reach_is_refused_unless_it_is_said_to_be_trusted(host):
    with pytest.raises(ConfigError, match="every client could do everything"):
        check_address(Api(host=host))
    check_address(Api(host=host, trusted_network=True))
    check_address(Api(host=host, tokens="always", public_url="https://tasks.example.com"))


@pytest.mark.parametrize("url", [None, "", "http://tasks.example.com", "tasks.example.com", "ftp://https"])
def test_an_address_that_others_reach_needs_tls_that_is_declared(url):
    with pytest.raises(ConfigError, match="sent unencrypted") as refused:
        check_address(Api(host="0.0.0.0", tokens="always", public_url=url))
    assert "api.public_url" in (refused.value.hint or "")
    check_address(Api(host="0.0.0.0", tokens="always", public_url=url, trusted_network=True))
    check_address(Api(host="127.0.0.1", tokens="always", public_url=url))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_nothing(host):
    check_address(Api(host=host))


@pytest.fixture
def made(tmp_path):
    server = MetricsServer(Metrics())
    settings = Settings(
        data_dir=tmp_path,
        kafka={"bootstrap_servers": "127.0.0.1:1", "auth": "plain", "tls": True, "username": "u", "password": "secret"},
        queues={"q": {"rate": 1}},
        api={"port": 0},
    )
    found = ApiService(settings, server)
    yield found
    found.stop()
    server.stop()


def health(address: str) -> object:
    with urllib.request.urlopen(f"{address}/healthz", timeout=60) as answer:
        return json.loads(answer.read())


def test_a_child_that_cannot_be_started_just_now_is_tried_again(made, monkeypatch):
    tries = []

    def refuse(*_):
        tries.append(1)
        raise BlockingIOError(11, "no process is left")

    monkeypatch.setattr(service, "_FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(service, "_child", refuse)
    before = len(os.listdir("/proc/self/fd"))
    made.start()
    assert holds(lambda: len(tries) > 3, 10)
    assert made._thread.is_alive()
    made.stop()
    assert len(os.listdir("/proc/self/fd")) <= before + 1, "no end of a pipe is left open"


@pytest.mark.slow
def test_the_child_serves_is_started_again_and_ends_with_its_parent(made, monkeypatch):
    monkeypatch.setattr(service, "_FIRST_PAUSE_S", 0.01)
    made.start()
    assert holds(made.ready, 60)
    assert health(made.address) == {"status": "ok"}
    assert made.trouble() is None
    first = made._process
    with open(f"/proc/{first.pid}/cmdline", "rb") as command, open(f"/proc/{first.pid}/environ", "rb") as environment:
        assert b"secret" not in command.read() + environment.read()
    first.kill()
    assert health(made.address) == {"status": "ok"}, "who asks meanwhile waits"
    assert made._process.pid != first.pid
    assert made.alive()
    assert holds(lambda: made.trouble() is None, 60)
    made.stop()
    assert made._process.returncode == 0
    assert "starts again" in made.trouble()


def test_without_a_port_of_the_settings_the_last_one_comes_first_then_the_default_then_a_free_one(
    tmp_path, monkeypatch
):
    def port() -> int:
        with ApiService(Settings(data_dir=tmp_path), MetricsServer(Metrics()))._listening() as found:
            return int(found.getsockname()[1])

    with service.listening("127.0.0.1", 0) as first, service.listening("127.0.0.1", 0) as second:
        default, before = (int(one.getsockname()[1]) for one in (first, second))
    monkeypatch.setattr(service, "API_PORT", default)
    assert port() == default
    announce(tmp_path, {"api": f"http://127.0.0.1:{before}"})
    assert port() == before
    with service.listening("127.0.0.1", before):
        assert port() == default
        with service.listening("127.0.0.1", default):
            assert port() not in (default, before)


def test_a_port_that_is_taken_is_told():
    with service.listening("127.0.0.1", 0) as taken, pytest.raises(ConfigError, match="cannot be served"):
        service.listening("127.0.0.1", taken.getsockname()[1])


def test_without_its_packages_there_is_no_api_and_all_else_is_ready(made, monkeypatch):
    monkeypatch.setattr(service, "find_spec", lambda name: None)
    made.start()
    assert (made.ready(), made.alive(), made.address) == (True, True, None)
    assert "pip install 'scylla-spark[api]'" in made.trouble()
