"""The commands about backfills, in front of a real planner without brokers."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from scylla_spark import Schedule, Scheduler, Trigger
from scylla_spark.cli import one_command as cli
from scylla_spark.cli.context import Context
from scylla_spark.client.schedules import backfills
from tests.support.api_site import SiteConnection
from tests.support.delta_tables import make


@pytest.fixture
def connection(tmp_path, monkeypatch):
    make(f"{tmp_path}/tables")
    connection = SiteConnection(str(tmp_path))
    scheduler = Scheduler(connection.settings)
    scheduler.connection = connection
    scheduler.close = lambda: None
    monkeypatch.setattr(Context, "scheduler", lambda self: scheduler)
    for schedule in (
        Schedule("team/daily", "h", Trigger.cron("0 3 * * *")),
        Schedule("rollup", "h", Trigger.table(f"{tmp_path}/orders", min_rows=2)),
    ):
        connection.plan.ask("put", schedules=[schedule.definition])
    return connection


@pytest.fixture
def run(connection, capsys):
    def call(*words, code=0):
        assert cli.run(["schedule", *words]) == code
        out, err = capsys.readouterr()
        return json.loads(out) if "json" in words else out + err

    return call


def test_a_backfill_is_asked_for_listed_paused_resumed_and_cancelled(run, connection):
    assert "team/daily has no backfill." in run("backfills", "team/daily")
    days = ("2026-01-01T00:00:00Z", "2026-01-05T00:00:00Z")
    assert "Its tasks have the tag backfill:team/daily/1" in run("backfill", "team/daily", *days, "--yes")
    connection.plan.planner.pass_s(0)
    connection.plan.planner.pass_s(60)
    connection.plan.planner.end(0)
    (row,) = run("backfills", "team/daily", "-o", "json")
    assert (row["tag"], row["state"], row["done"], row["total"], row["left"]) == (
        "backfill:team/daily/1",
        "running",
        1,
        4,
        2,
    )
    assert row["begun_at"].endswith("Z")
    assert row["ends_at"] > row["begun_at"]
    assert "backfill-resume backfill:team/daily/1" in run("backfill-pause", "backfill:team/daily/1")
    assert "paused already" in run("backfill-pause", "backfill:team/daily/1", code=4)
    assert "goes on" in run("backfill-resume", "backfill:team/daily/1")
    assert "is cancelled" in run("backfill-cancel", "backfill:team/daily/1", "--yes")
    assert "cancelled" in run("backfills", "team/daily")
    assert "There is no backfill 'backfill:team/daily/2'" in run("backfill-pause", "backfill:team/daily/2", code=3)


def test_whole_numbers_are_versions_of_the_table_that_a_schedule_watches(run, connection, tmp_path):
    for number in (1, 1, 3):
        write_deltalake(f"{tmp_path}/orders", pa.table({"id": list(range(number))}), mode="append")
    rows = run("backfill", "rollup", "0", "2", "--dry-run", "-o", "json")
    assert [(row["from_version"], row["to_version"], row["rows"], row["commits"]) for row in rows] == [(0, 2, 4, 2)]
    assert "planned_at" in rows[0]
    assert rows[0]["partition"] is None
    assert "Its tasks have the tag" in run("backfill", "rollup", "0", "2", "--yes")
    connection.plan.planner.pass_s(0)
    assert len(connection.plan.planner.sent) == 1
    rows = run("backfill", "rollup", "-1", "2", "--reprocess", "all", "--dry-run", "-o", "json")
    assert [(row["from_version"], row["to_version"]) for row in rows] == [(-1, 1), (1, 2)]
    assert "two versions as whole numbers" in run("backfill", "rollup", "0", code=2)
    assert "watches no table" in run("backfill", "team/daily", "0", "2", code=2)


def test_a_begin_with_a_minus_is_no_option_and_an_option_that_does_not_exist_is_refused(run, connection):
    rows = run("backfill", "team/daily", "-7d", "--dry-run", "--reprocess", "all", "-o", "json")
    assert len(rows) in (7, 8)
    some = run("backfill", "--exclude", "-8d/-3d", "--dry-run", "team/daily", "-7d", "-1d", "-o", "json")
    assert len(some) in (1, 2)
    assert run("backfill", "--dry-run", "-o", "json", "--", "team/daily", "-7d", "-1d")
    assert "No such option: --exlude" in run("backfill", "team/daily", "-7d", "now", "--exlude", "-3d", code=2)
    assert "No such option: --exlude" in run("backfill", "team/daily", "2026-01-01T00:00:00Z", "--exlude", "x", code=2)
    assert "No such option" in run("backfill", "team/daily", "-d7", code=2)
    assert "unexpected extra argument" in run("backfill", "team/daily", "-7d", "-1d", "-2d", code=2)


def test_of_schedules_whose_long_names_end_alike_the_tag_names_the_one_that_is_meant(run, connection, monkeypatch):
    names = [f"team-{letter}/" + "x" * 60 for letter in "ab"]
    for name in names:
        connection.plan.ask("put", schedules=[Schedule(name, "h", Trigger.cron("0 3 * * *"), paused=True).definition])
        run("backfill", name, "2026-01-01T00:00:00Z", "2026-01-05T00:00:00Z", "--yes")
    tags = [run("backfills", name, "-o", "json")[0]["tag"] for name in names]
    assert [len(tag) for tag in tags] == [64, 64]
    run("backfill-pause", tags[1])
    entries = connection.plan.planner.shadow.entries
    assert [entries[name].backfills[1].state for name in names] == ["running", "paused"]
    monkeypatch.setattr(backfills, "tag_of", lambda name, number: tags[1])
    said = run("backfill-cancel", tags[1], "--yes", code=4)
    assert names[0] in said
    assert names[1] in said
    assert entries[names[1]].backfills[1].state == "paused"
