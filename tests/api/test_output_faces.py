"""Files that attempts left behind, as the API, the dashboard and the command line give them: to be saved, never to be shown."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import datetime
from urllib.parse import quote

import pytest

from scylla_spark.api.leases import outputs
from scylla_spark.cli import one_command as cli
from scylla_spark.cli.context import Context
from scylla_spark.clock import to_us
from scylla_spark.core.tasks.key import TaskKey, id_of
from scylla_spark.core.tasks.output import OutputTerms, links_text, outputs_place
from scylla_spark.handlers.outputs import AttemptOutputs
from scylla_spark.schemas import ATTEMPTS, COMPLETIONS, TASKS
from tests.support.api_site import Site, kind
from tests.support.dashboard_site import seen
from tests.support.delta_tables import PARTITIONS, append, at, fact, make, task
from tests.support.invocations import invocation

KEY = TaskKey(at(10), "cust/9 ä", "inv")
FILE = 'ü "50%" 报告.html'
CONTENT = b"<script>alert(1)</script>" * 100_000


@pytest.fixture
def site(tmp_path):
    return made(tmp_path)


def made(tmp_path):
    path = f"{tmp_path}/tables"
    make(path)
    append(path, TASKS, [task(KEY, 1)])
    terms = OutputTerms(str(tmp_path / "outputs"), PARTITIONS, 10_000_000)
    rows = {}
    for attempt, files in ((1, {"a.txt": b"first", FILE: CONTENT}), (2, {"a.txt": b"second"})):
        writer = AttemptOutputs(terms, invocation(*KEY, attempt=attempt))
        rows[attempt] = links_text([writer.write(name, data, None) for name, data in files.items()])
    append(path, ATTEMPTS, [fact(KEY, 1, "failed", 2, outputs=rows[1], error_class="E")])
    append(path, COMPLETIONS, [fact(KEY, 2, "succeeded", 3, outputs=rows[2])])
    return Site(str(tmp_path))


@pytest.fixture
def client(site):
    with site.client() as client:
        yield client


def address(attempt, *name):
    return "/".join([f"/v1/tasks/{id_of(KEY)}/attempts/{attempt}/outputs", *(quote(one, safe="") for one in name)])


def test_outputs_of_each_attempt_are_listed_from_the_tables(look):
    first, second = (look.get(address(attempt)).json()["outputs"] for attempt in (1, 2))
    assert [(one["name"], one["bytes"], one["media_type"]) for one in first] == [
        ("a.txt", 5, "text/plain"), (FILE, len(CONTENT), "text/html"),
    ]  # fmt: skip
    assert [one["name"] for one in second] == ["a.txt"]
    attempts = look.get(f"/v1/tasks/{id_of(KEY)}/attempts").json()["attempts"]
    assert [one["outputs"] for one in attempts] == [first, second]


def test_attempts_and_outputs_say_where_files_and_lines_are_read(look):
    attempts = look.get(f"/v1/tasks/{id_of(KEY)}/attempts").json()["attempts"]
    assert [[one["url"] for one in attempt["outputs"]] for attempt in attempts] == [
        [address(1, "a.txt"), address(1, FILE)], [address(2, "a.txt")],
    ]  # fmt: skip
    assert look.get(attempts[0]["outputs"][1]["url"]).content == CONTENT
    assert [one["logs_url"] for one in attempts] == [f"/v1/tasks/{id_of(KEY)}/logs?attempt={n}" for n in (1, 2)]
    newest = look.get(f"/v1/tasks/{id_of(KEY)}").json()["last_attempt"]
    assert newest == attempts[-1]


def test_a_file_comes_whole_as_an_attachment_that_no_browser_shows(look):
    answer = look.get(address(1, FILE))
    assert (answer.status_code, answer.content) == (200, CONTENT)
    assert answer.headers["content-disposition"] == f"attachment; filename*=UTF-8''{quote(FILE, safe='')}"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in answer.headers["content-security-policy"]
    assert answer.headers["content-length"] == str(len(CONTENT))
    assert look.get(address(2, "a.txt")).content == b"second"


@pytest.mark.parametrize(
    "path",
    [address(1, "b"), address(2, FILE), address(3), address(1, "../a.txt"), address(1, ".."), address(1, "\0"),
     address(1) + "/%ff", address(1) + "/%2e%2e%2f%2e%2e"],
)  # fmt: skip
def test_what_no_attempt_has_left_behind_is_not_found(look, path):
    assert kind(look.get(path)) in ("/problems/not-found", "/problems/no-such-path")


@pytest.mark.parametrize("attempt", [0, "x", 2**31])
def test_what_is_no_attempt_is_refused(look, attempt):
    assert kind(look.get(address(attempt))) == "/problems/invalid"


def test_a_file_that_was_purged_is_not_found_and_its_link_stays(client, site):
    for path in (site.settings.data_dir / "outputs").rglob("a.txt"):
        path.unlink()
    found = client.get(address(1, "a.txt"))
    assert kind(found) == "/problems/not-found"
    assert "purged" in found.json()["hint"]
    assert len(client.get(address(1)).json()["outputs"]) == 2


# -- what leased workers leave behind -------------------------------------------------------------------------------------

LEASE = "1." + "a" * 32


class Owner:
    """What the owner of a partition says of leases."""

    def __init__(self, told):
        self.told, self.links = told, []

    async def output(self, token, link):
        assert token == LEASE
        if link is not None:
            self.links.append(link)
        return self.told


def uploaded(client, site, body, name="ü.txt", told=None, **headers):
    headers = {given.replace("_", "-"): value for given, value in headers.items()}
    owner = Owner({"key": list(KEY), "attempt": 2, "sizes": {"a.txt": 6}} if told is None else told)
    site.app.state.api.lease_servers.output = owner.output
    answer = client.put(f"/v1/leases/{LEASE}/outputs/{quote(name, safe='')}", content=body, headers=headers)
    return answer, owner.links


def test_a_leased_worker_leaves_a_file_larger_than_other_bodies_behind(client, site):
    answer, links = uploaded(client, site, CONTENT, content_type="text/html; charset=utf-8")
    assert answer.status_code == 200, answer.text
    assert len(CONTENT) > site.settings.api.max_body
    assert answer.json() == links[0]._asdict()
    assert (links[0].name, links[0].bytes, links[0].media_type) == ("ü.txt", len(CONTENT), "text/html")
    place = site.settings.outputs_path / outputs_place(KEY, 2, PARTITIONS)
    assert (place / "ü.txt").read_bytes() == CONTENT
    assert sorted(path.name for path in place.iterdir()) == ["a.txt", "ü.txt"]


@pytest.mark.parametrize(
    ("name", "told", "problem"),
    [
        ("../x", None, "/problems/invalid"), (".x", None, "/problems/invalid"), ("x", "lease_lost", "/problems/conflict"),
        ("x", "unavailable", "/problems/unreachable"),
        ("x", {"key": list(KEY), "attempt": 2, "sizes": {"other": 256 * 1024 * 1024 - 2}}, "/problems/invalid"),
        ("x", {"key": list(KEY), "attempt": 2, "sizes": {str(n): 0 for n in range(50)}}, "/problems/conflict"),
    ],
)  # fmt: skip
def test_of_a_lease_that_is_over_or_of_too_much_nothing_is_kept(client, site, name, told, problem):
    before = {path for path in site.settings.outputs_path.rglob("*") if path.is_file()}
    answer, links = uploaded(client, site, b"abc", name, told)
    assert (kind(answer), links) == (problem, [])
    assert {path for path in site.settings.outputs_path.rglob("*") if path.is_file()} == before


def test_a_file_that_the_owner_refuses_in_the_end_is_not_kept(client, site):
    before = {path for path in site.settings.outputs_path.rglob("*") if path.is_file()}

    async def output(token, link):
        return "outputs_full" if link is not None else {"key": list(KEY), "attempt": 2, "sizes": {}}

    site.app.state.api.lease_servers.output = output
    answer = client.put(f"/v1/leases/{LEASE}/outputs/late.txt", content=b"abc")
    assert kind(answer) == "/problems/conflict"
    assert {path for path in site.settings.outputs_path.rglob("*") if path.is_file()} == before


def test_a_file_that_the_owner_refuses_replaces_nothing(client, site):
    async def output(token, link):
        return "outputs_full" if link is not None else {"key": list(KEY), "attempt": 2, "sizes": {"a.txt": 6}}

    site.app.state.api.lease_servers.output = output
    answer = client.put(f"/v1/leases/{LEASE}/outputs/a.txt", content=b"longer than before")
    assert kind(answer) == "/problems/conflict"
    assert client.get(address(2, "a.txt")).content == b"second"


@pytest.mark.parametrize(("headers", "most_pieces"), [({"Content-Length": "4000"}, 0), ({}, 2)])
def test_a_file_of_which_too_much_comes_is_not_read_to_its_end(client, site, headers, most_pieces):
    read = []

    async def pieces():
        for _ in range(4):
            read.append(1)
            yield bytes(1_000)

    told = {"key": list(KEY), "attempt": 2, "sizes": {"other": site.settings.outputs.max_bytes - 1_500}}
    answer, links = uploaded(client, site, pieces(), "a.txt", told, Expect="100-continue", **headers)
    assert (kind(answer), answer.json()["reason"], links) == ("/problems/invalid", "too_large", [])
    assert "1500 are left" in answer.json()["detail"]
    assert len(read) <= most_pieces
    assert client.get(address(2, "a.txt")).content == b"second"


def test_a_file_whose_lease_ended_while_it_came_replaces_nothing(client, site):
    told = [{"key": list(KEY), "attempt": 2, "sizes": {"a.txt": 6}}, "lease_lost"]

    async def output(token, link):
        return told.pop(0)

    site.app.state.api.lease_servers.output = output
    answer = client.put(f"/v1/leases/{LEASE}/outputs/a.txt", content=b"longer than before")
    assert kind(answer) == "/problems/conflict"
    assert client.get(address(2, "a.txt")).content == b"second"


def test_of_two_files_of_one_name_at_once_the_link_is_that_of_the_one_that_stays(client, site):
    links, noted = [], threading.Event()

    async def another_waits():
        async with asyncio.timeout(10):
            while len(links) == 1 and not any(turn._waiters for turn in outputs._TURNS.values()):
                await asyncio.sleep(0.001)

    async def output(token, link):
        if link is not None:
            links.append(link)
            noted.set()
            if len(links) == 1:
                await another_waits()
        return {"key": list(KEY), "attempt": 2, "sizes": {}}

    def put(body):
        answer = client.put(f"/v1/leases/{LEASE}/outputs/twice.txt", content=body)
        assert answer.status_code == 200, answer.text

    site.app.state.api.lease_servers.output = output
    with ThreadPoolExecutor() as pool:
        first = pool.submit(put, b"first")
        noted.wait(10)
        put(b"another")
        first.result()
    (kept,) = site.settings.outputs_path.rglob("twice.txt")
    assert len(kept.read_bytes()) == links[-1].bytes


def test_a_leased_worker_tells_lines_while_it_holds_the_lease(client, site):
    told = []

    async def lines(token, lines):
        told.append((token, lines))
        return "ok" if token == LEASE else "lease_lost"

    site.app.state.api.lease_servers.lines = lines
    at = "2026-11-23T02:00:00.5Z"
    rows = [
        {"seq": 1, "at": at, "text": "ü"},
        {"seq": 3, "at": at, "text": "", "stream": "logging", "level": "error", "fields": {"a": 1}},
    ]
    answer = client.post(f"/v1/leases/{LEASE}/logs", json={"lines": rows})
    assert (answer.status_code, answer.json()) == (200, {"taken": 2}), answer.text
    at_us = to_us(datetime.fromisoformat(at))
    assert told == [(LEASE, [(1, at_us, "stdout", None, "ü", None), (3, at_us, "logging", "error", "", '{"a":1}')])]
    assert kind(client.post("/v1/leases/other/logs", json={"lines": rows})) == "/problems/conflict"
    for wrong in ({"lines": []}, {"lines": [rows[0] | {"seq": 0}]}, {"lines": [rows[0] | {"stream": "scheduler"}]}, {}):
        assert kind(client.post(f"/v1/leases/{LEASE}/logs", json=wrong)) == "/problems/invalid"


def test_the_page_of_a_task_lists_files_and_gives_them_as_the_api_does(look):
    page = look.get(f"/ui/tasks/{id_of(KEY)}")
    assert FILE in seen(page)
    assert CONTENT[:24].decode() not in page.text
    link = f"/ui/tasks/{id_of(KEY)}/attempts/1/outputs/{quote(FILE, safe='')}"
    assert f'href="{link}"' in page.text
    answer = look.get(link)
    assert answer.content == CONTENT
    assert answer.headers["content-disposition"].startswith("attachment")


def test_the_command_lists_files_and_saves_of_each_name_the_newest(site, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Context, "scheduler", lambda _: nullcontext(site.app.state.api.scheduler))
    run = ["--data", str(tmp_path), "task", "outputs", str(KEY), "-o", "json"]
    assert cli.run(run) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["attempt"], row["name"]) for row in rows] == [(1, "a.txt"), (1, FILE), (2, "a.txt")]
    assert cli.run([*run, "--save", "copies"]) == 0
    assert {path.name: path.read_bytes() for path in (tmp_path / "copies").iterdir()} == {
        "a.txt": b"second",
        FILE: CONTENT,
    }
    assert cli.run([*run, "--save", "copies"]) == 4, "nothing is replaced"
    assert cli.run([*run, "--attempt", "2"]) == 0
