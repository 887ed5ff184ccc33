"""The screen System over the real API: what is away hides nothing else, and refused records are sent again only after a look."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta

import pytest

from scylla_spark.api.deployment import system
from scylla_spark.clock import from_us, iso, now_us
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.dashboard.system import TABS
from scylla_spark.schemas import AUDIT_TRAIL, REJECTED, TASKS
from tests.support.api_site import Site
from tests.support.dashboard_site import ORIGIN, seen, sent, token_of
from tests.support.delta_tables import append, at, make_filled, rejected, task

HOSTILE = "<svg onload=alert(1)> \u202e"
NOW = datetime.now(UTC)


def refused(count: int) -> list[dict]:
    """Records that were refused for their partition, and would be accepted now."""
    soon = iso(now_us() + 3_600_000_000)
    values = [
        {
            "type": "enqueue",
            "scheduledTime": soon,
            "orderingId": HOSTILE,
            "uniquenessKey": str(number),
            "taskData": {},
            "handler": "h",
        }
        for number in range(count)
    ]
    return [rejected(n, "wrong_partition", json.dumps(value).encode(), NOW) for n, value in enumerate(values)]


def made(folder):
    make_filled(f"{folder}/tables", filled)
    return Site(str(folder))


@pytest.fixture
def site(tmp_path):
    return made(tmp_path)


def filled(path: str) -> None:
    append(path, TASKS, [task(TaskKey(at(10), "a", "k"), 1)])


@pytest.fixture
def client(site):
    with site.client() as client:
        yield client


@pytest.mark.parametrize("path", [path for path, _ in TABS])
def test_every_part_of_the_screen_is_a_page_also_without_brokers(look, path):
    page = look.get(f"/ui/{path}")
    assert page.status_code == 200
    assert page.text.count('aria-current="page"') == 2, "the screen and its part"


def test_kafka_that_is_away_is_told_of_and_partitions_are_shown_all_the_same(look):
    page = seen(look.get("/ui/system"))
    assert "Kafka does not answer." in page
    assert "No dispatcher answers." in page
    assert "0 of 4" in page


def test_dispatchers_are_put_together_from_their_partitions(client, monkeypatch):
    held = {"tasks_behind": 2, "outcomes_behind": 0, "folded_until": None, "closed_until": None, "open_hours": 0}
    rows = [
        held | {"partition": number, "owner": owner, "state": state, "epoch": epoch, "lanes": 1, "loaded": 10, "in_flight": 3}
        for number, owner, state, epoch in ((0, "a:1", "active", 7), (1, "a:1", "active", 8), (2, "b:1", None, None), (3, None, None, None))
    ]  # fmt: skip
    monkeypatch.setattr(system, "partition_rows", lambda connection: (rows, ""))
    page = seen(client.get("/ui/system"))
    assert "a:1 answers 0, 1 7, 8 2 20 6" in page
    assert "b:1 silent 2" in page
    assert "3 of 4" in page
    assert "Not in the tables yet tasks 8" in page


def test_what_was_written_is_shown_with_its_phases(client, site):
    merge = {"timestamp": 1_795_390_464_006, "operation": "MERGE", "version": 4, "operationMetrics": {
        "numSourceRows": "1312", "executionTimeMs": "12000", "scanTimeMs": "6000", "rewriteTimeMs": "3000"}}  # fmt: skip
    site.connection.readers.history = lambda table, limit: [merge] if table is TASKS else []
    page = client.get("/ui/system/tables")
    assert "MERGE 1 312" in seen(page)
    assert '<rect class="scan" x="0" width="50.0"' in page.text
    assert '<rect class="rest" x="75.0" width="25.0"' in page.text


def test_refused_records_are_shown_as_text_and_found_by_reason(client, tmp_path):
    append(f"{tmp_path}/tables", REJECTED, [*refused(1), rejected(9, "not_json", HOSTILE.encode(), NOW)])
    page = client.get("/ui/system/rejected")
    assert "<svg onload" not in page.text
    assert "not_json" in seen(page)
    assert "not_json" not in seen(client.get("/ui/system/rejected?reason=wrong_partition")).replace("Reason", "")


def test_refused_records_are_sent_again_only_after_a_preview(client, site, tmp_path):
    append(f"{tmp_path}/tables", REJECTED, [*refused(2), rejected(9, "not_json", b"{", NOW)])
    preview = client.get("/ui/system/rejected?reason=&since=&limit=50&now=&preview=1")
    assert "2 of 3 would be sent" in seen(preview)
    assert site.connection.sender.records == []
    answer = sent(client, "/ui/system/rejected/replay", preview, reason="", since="", limit="50", now="")
    assert answer.status_code == 303
    assert len(site.connection.sender.records) == 2
    assert "2 records were sent again; 1 would be rejected again." in seen(
        client.get("/ui/system/rejected", headers=ORIGIN)
    )


def test_more_than_a_hundred_are_sent_only_by_who_types_their_number(client, site, tmp_path):
    append(f"{tmp_path}/tables", REJECTED, refused(101))
    fields = {"reason": "", "since": "", "limit": "1000", "now": ""}
    preview = client.get("/ui/system/rejected", params=fields | {"preview": "1"})
    assert "Type 101 to confirm" in seen(preview)
    assert sent(client, "/ui/system/rejected/replay", preview, **fields, typed="100").status_code == 409
    assert site.connection.sender.records == []
    assert sent(client, "/ui/system/rejected/replay", preview, **fields, typed="101").status_code == 303


@pytest.mark.parametrize("wrong", [{"since": "yesterday"}, {"limit": "many"}, {"limit": "-1"}])
def test_a_replay_that_cannot_be_read_is_refused(look, looked_at, wrong):
    fields = {"reason": "", "since": "", "limit": "10", "now": ""} | wrong
    assert look.get("/ui/system/rejected", params=fields | {"preview": "1"}).status_code in (400, 422)


def test_the_audit_trail_is_filtered_and_goes_on_to_older_entries(client, tmp_path):
    rows = [
        {"at": from_us(at(1)) - timedelta(seconds=number), "token": "0a1b2c3d4e5f" if number else "ffffffffffff", "name": HOSTILE,
         "operation": "pause_queue", "method": "POST", "path": f"/v1/queues/{HOSTILE}:pause", "status": 200 if number else 403,
         "client": "127.0.0.1", "plan_offset": number}
        for number in range(120)
    ]  # fmt: skip
    append(f"{tmp_path}/tables", AUDIT_TRAIL, rows)
    page = client.get("/ui/system/audit")
    assert "<svg onload" not in page.text
    assert "Older" in seen(page)
    assert seen(client.get("/ui/system/audit?token=ffffffffffff")).count("pause queue") == 1
    older = client.get("/ui/system/audit", params={"before": iso(at(1) - 100_000_000)})
    assert "Older" not in seen(older)


def test_tokens_and_the_rest_of_administration_are_for_admins(client, site):
    sent(client, "/ui/login", client.get("/ui/login"), token=token_of(site, "read"), next="/ui/system")
    assert client.get("/ui/system").status_code == 200
    assert [client.get(f"/ui/system/{part}").status_code for part in ("tokens", "audit", "rejected")] == [403, 403, 403]
    sent(client, "/ui/login", client.get("/ui/login"), token=token_of(site, "admin"), next="/ui/system")
    page = seen(client.get("/ui/system/tokens"))
    assert "somebody" in page
    assert "admin" in page


def test_a_token_is_made_shown_once_and_revoked(client, site):
    sent(client, "/ui/login", client.get("/ui/login"), token=token_of(site, "admin"), next="/ui/system")
    page = client.get("/ui/system/tokens")
    fields = {
        "name": HOSTILE,
        "scope.read": "1",
        "scopes": "lease:gpu tasks:write:queue=mail",
        "namespaces": "gpu mail",
        "days": "7",
    }
    made = sent(client, "/ui/system/tokens/create", page, **fields)
    found = re.search(r"ss_([0-9a-z]{12})_[0-9a-z]+", made.text)
    assert made.status_code == 200, seen(made)
    assert found is not None
    assert HOSTILE not in made.text
    assert made.headers["cache-control"] == "no-store"
    assert found[0] not in repr(made.headers)
    stored = site.connection.plan.state().tokens[found[1]]
    assert (stored.name, stored.scopes, stored.namespaces) == (
        HOSTILE,
        ("read", "lease:gpu", "tasks:write:queue=mail"),
        ("gpu", "mail"),
    )
    assert 6 < (stored.expires_us - now_us()) / 86_400_000_000 < 8
    listed = client.get("/ui/system/tokens")
    assert found[1] in listed.text
    assert found[0] not in listed.text
    done = sent(client, "/ui/system/tokens/revoke", listed, id=found[1])
    assert done.status_code == 303
    assert site.connection.plan.state().tokens[found[1]].revoked


@pytest.mark.parametrize("fields", [
    {"name": "x"}, {"name": "", "scope.read": "1"}, {"name": "x", "scopes": "all"},
    {"name": "x", "scope.read": "1", "days": "0.5"}, {"name": "x", "scope.read": "1", "days": "0"},
])  # fmt: skip
def test_a_token_that_cannot_be_made_is_said_and_what_was_typed_stays(client, site, fields):
    sent(client, "/ui/login", client.get("/ui/login"), token=token_of(site, "admin"), next="/ui/system")
    answer = sent(
        client, "/ui/system/tokens/create", client.get("/ui/system/tokens"), **fields | {"namespaces": "kept/"}
    )
    assert answer.status_code == 422
    assert 'role="alert"' in answer.text
    assert 'value="kept/"' in answer.text
    assert len(site.connection.plan.state().tokens) == 1


def test_tokens_are_made_by_administrators_alone(client, site):
    sent(client, "/ui/login", client.get("/ui/login"), token=token_of(site, "read", "tasks:write"), next="/ui/system")
    page = client.get("/ui/system")
    for path, fields in (("create", {"name": "x", "scope.read": "1"}), ("revoke", {"id": "0a1b2c3d4e5f"})):
        assert sent(client, f"/ui/system/tokens/{path}", page, **fields).status_code == 403
    assert len(site.connection.plan.state().tokens) == 1
