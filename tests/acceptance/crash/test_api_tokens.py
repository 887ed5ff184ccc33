"""Tokens of the HTTP API on real processes: made, shown, revoked and followed by the API while it runs; a worker that shows one."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request

from scylla_spark import Queue
from scylla_spark.worker.worker import Worker
from tests.support.waiting import eventually


def status(address: str, token: str | None, path: str = "/v1/queues/mail") -> int:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(address + path, headers=headers), timeout=60) as answer:
            return answer.status
    except urllib.error.HTTPError as answer:
        with answer:
            return answer.code


def test_tokens_are_made_obeyed_and_revoked_while_everything_runs(crash_site):
    process = crash_site.running()
    address, scheduler = crash_site.api, crash_site.client()
    scheduler.put_queue(Queue(name="mail", mode="pull"))
    assert status(address, None) == 200, "without any token all is open"

    made = crash_site.call(
        "token", "create", "ci", "--scope", "read", "--namespace", "ma", "--expires", "+1h", "-o", "json"
    )
    assert made.returncode == 0, made.stderr
    reader = json.loads(made.stdout)[0]["token"]
    eventually(lambda: status(address, None) == 401, 6, "who shows no token is refused")
    assert (status(address, reader), status(address, None, "/healthz")) == (200, 200)
    assert status(address, reader, "/v1/queues/gpu") == 404

    leaser = scheduler.create_token("worker", ["lease:mail"])
    assert status(address, leaser) == 403
    handle = scheduler.enqueue("anything", {"n": 1}, queue="mail", ordering_id="leased")
    worker = Worker(address, "mail", token=leaser)
    done = threading.Event()

    def work() -> None:
        for lease in worker.leases():
            lease.complete({"ok": True})
            done.set()
            return

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert done.wait(60)
    assert handle.result(timeout="60s") == {"ok": True}

    listed = crash_site.call("token", "list", "-o", "json")
    assert {one["name"]: one["state"] for one in json.loads(listed.stdout)} == {"ci": "active", "worker": "active"}
    assert crash_site.call("token", "revoke", reader.split("_")[1]).returncode == 0
    eventually(lambda: status(address, reader) == 401, 6, "a revoked token is refused")
    admin = scheduler.create_token("admin", ["admin"])

    def entries():
        headers = {"Authorization": f"Bearer {admin}"}
        with urllib.request.urlopen(
            urllib.request.Request(f"{address}/v1/audit", headers=headers), timeout=60
        ) as answer:
            return {(one["name"], one["operation"], one["status"]) for one in json.load(answer)["entries"]}

    wanted = {("", "", 401), ("worker", "get_queue", 403)}
    eventually(lambda: entries() >= wanted, 120, "the table says who was not allowed to", entries)
    for secret in (reader[-64:], leaser[-64:]):
        assert secret not in listed.stdout + process.told()
