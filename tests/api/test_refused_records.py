"""Refused records whose values are large: lists show beginnings, one record is shown whole, and a replay holds few of them at once."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from scylla_spark.api.tasks import rejected as route
from scylla_spark.clock import iso
from scylla_spark.io.delta import rejected_records
from scylla_spark.io.delta.rejected_records import Beginnings
from scylla_spark.schemas import REJECTED
from tests.support.api_site import Site, kind
from tests.support.delta_tables import append, at, make_filled, rejected

WHEN = datetime(2026, 11, 22, tzinfo=UTC)
LONG = 100_000
GOOD = {"orderingId": "o", "scheduledTime": iso(at(9)), "taskData": {}, "handler": "h"}


def good(number: int) -> bytes:
    return json.dumps(GOOD | {"uniquenessKey": str(number), "taskData": {"text": "x" * LONG}}).encode()


def made(tmp_path, values) -> Site:
    rows = [rejected(n, "wrong_partition", value, WHEN + timedelta(days=n % 2)) for n, value in enumerate(values)]
    make_filled(f"{tmp_path}/tables", lambda path: append(path, REJECTED, rows))
    return Site(str(tmp_path))


def test_a_list_has_beginnings_of_values_and_one_record_has_all_of_it(tmp_path):
    values = [b"short", b"a" * 1023 + "é".encode() + b"a", b"\xff" * LONG]
    with made(tmp_path, values).client() as client:
        rows = {int(row["offset"]): row for row in client.get("/v1/rejected").json()["rejected"]}
        one = client.get("/v1/rejected/tasks/0/2").json()
        short = client.get("/v1/rejected/tasks/0/0").json()
    assert [(rows[n]["value_bytes"], rows[n]["value_is_cut"]) for n in range(3)] == [
        (5, False),
        (1026, True),
        (LONG, True),
    ]
    assert rows[0] == short
    assert (rows[1]["value"], rows[1]["value_base64"]) == ("a" * 1023, None), "no half of a character"
    assert len(rows[2]["value"]) == 1024
    assert (one["value"], one["value_is_cut"]) == ("\ufffd" * LONG, False)


@pytest.mark.parametrize("place", ["tasks/0/7", "tasks/1/0", "schedules/0/0"])
def test_a_record_that_was_not_refused_is_not_found(tmp_path, place):
    with made(tmp_path, [b"{"]).client() as client:
        assert kind(client.get(f"/v1/rejected/{place}")) == "/problems/not-found"


@pytest.mark.parametrize("bounds", [Beginnings(1024, 3 * LONG, 10**9), Beginnings(1024, 10**9, 3 * 1024)])
def test_of_a_page_so_many_bytes_are_read_and_told_and_the_rest_is_listed_without(tmp_path, monkeypatch, bounds):
    monkeypatch.setattr(route, "_SHOWN", bounds)
    read = []
    ours = rejected_records.RejectedRecords._values
    monkeypatch.setattr(
        rejected_records.RejectedRecords, "_values",
        lambda self, rows, most: (found := ours(self, rows, most), read.extend(found.values()))[0],
    )  # fmt: skip
    with made(tmp_path, [b"x" * LONG] * 9).client() as client:
        rows = client.get("/v1/rejected").json()["rejected"]
    assert [row["value"] is None for row in rows] == [False] * 3 + [True] * 6
    assert all(row["value_is_cut"] for row in rows)
    assert sum(map(len, read)) == 3 * 1024


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_replay_reads_and_sends_a_few_at_a_time(tmp_path, monkeypatch, dry_run):
    monkeypatch.setattr(rejected_records, "PORTION_BYTES", 3 * LONG)
    site = made(tmp_path, [good(number) for number in range(7)] + [b"{"])
    portions, finish = [], site.connection.sender.finish
    monkeypatch.setattr(site.connection.sender, "finish", lambda some: portions.append(len(some)) or finish(some))
    with site.client() as client:
        told = client.post(f"/v1/rejected:replay?dry_run={str(dry_run).lower()}").json()
    assert (told["matched"], told["sent"], told["refused_again"]) == (8, 0 if dry_run else 7, 1)
    assert sum(portions) == (0 if dry_run else 7)
    assert all(number <= 3 for number in portions)
    keys = {json.loads(record.value)["uniquenessKey"] for record in site.connection.sender.records}
    assert keys == (set() if dry_run else {str(number) for number in range(7)})
