"""`scylla-spark worker` says at its start what keeps it from leasing, and waits for no answer without end."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest

from scylla_spark.cli import one_command as cli
from scylla_spark.errors import UnreachableError
from scylla_spark.worker.connection import asked, site
from scylla_spark.worker.worker import Worker
from tests.support.api_site import Site
from tests.support.delta_tables import make
from tests.support.http_script import Script
from tests.support.served_site import served

NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """What a worker that ends at once has said beside its first line."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Worker, "run", lambda *_, **__: None)

    def call(url, *queues):
        words = [word for queue in queues for word in ("--queue", queue)]
        assert cli.run(["worker", "run", "--url", url, "--handlers", "h.py", *words]) == 0
        return [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")]

    return call


def test_a_wrong_address_is_told(run):
    (said,) = run(NOWHERE, "a", "b")
    assert "127.0.0.1:9 gives no answer" in said
    assert said.endswith("It is asked again until it answers.")


def test_what_is_no_api_is_told(run):
    with Script([(200, "hello")]) as other:
        (said,) = run(other.url, "a", "b")
    assert "is not the API of scylla-spark. Check --url." in said


def test_queues_that_give_workers_nothing_are_told(run, tmp_path):
    make(f"{tmp_path}/tables")
    there = Site(str(tmp_path))
    with there.client() as client:
        client.put("/v1/queues/pushed", json={"rate": 1})
        client.put("/v1/queues/pulled", json={"mode": "pull"})
    with served(there) as url:
        pushed, missing = run(url, "pushed", "pulled", "missing")
    assert pushed.startswith("warning: dispatchers run the tasks of queue 'pushed'")
    assert missing.startswith("warning: queue 'missing' is not defined")
    assert missing.endswith("`scylla-spark queue put missing --mode pull` makes it a queue of workers.")


def test_an_answer_that_comes_in_drops_ends_at_the_limit():
    stop = threading.Event()

    def drip() -> None:
        with contextlib.suppress(OSError):
            client, _ = listener.accept()
            with client:
                client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
                while not stop.wait(0.02):
                    client.sendall(b" ")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=drip)
        server.start()
        with pytest.raises(UnreachableError, match=r"gives no whole answer within 0\.3 s"):
            asked(site(f"http://127.0.0.1:{listener.getsockname()[1]}"), "GET", "/v1/workers", within_s=0.3)
        stop.set()
        server.join(10)
