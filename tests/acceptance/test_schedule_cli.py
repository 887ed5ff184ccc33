"""The command line about schedules, against a running deployment: a file is applied, its runs are seen, and reasons are told."""

import json

import pytest

from scylla_spark import TaskKey
from tests.acceptance.place import PATIENCE
from tests.support.waiting import eventually

FILE = """
[[schedule]]
name = "cli-beat"
handler = "work"
every = "1s"
payload = {{ mark = "{mark}" }}
owner = "cli"
tags = ["cli"]

[[schedule]]
name = "cli-both"
handler = "work"
all = [{{ event = "cli-go" }}, {{ partitions = "cli-data", at_least = 2 }}]
owner = "cli"
"""
ALONE = '[[schedule]]\nname = "cli-both"\nhandler = "work"\nevent = "cli-go"\nowner = "cli"\n'

WAITS = """
[[schedule]]
name = "cli-waits"
handler = "work"
all = [{ event = "cli-go" }, { partitions = "cli-data", at_least = 2 }]
"""


@pytest.fixture
def call(deployment):
    """A command's output, as JSON if it is that; its exit code is checked."""

    def run(*words, code=0):
        done = deployment.call(*words)
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout) if "json" in words else done.stdout + done.stderr

    return run


def test_a_file_is_applied_with_its_plan_and_what_is_left_out_is_removed(call, deployment):
    file = deployment.folder / "cli.toml"
    file.write_text(FILE.format(mark="one"))
    rows = call("schedule", "apply", str(file), "--prune", "cli", "--dry-run", "-o", "json")
    assert [(row["name"], row["change"]) for row in rows] == [("cli-beat", "added"), ("cli-both", "added")]
    assert "This would add 2 schedules" in call("schedule", "apply", str(file), code=2)
    call("schedule", "apply", str(file), "--prune", "cli", "--yes")
    assert "Nothing would change." in call("schedule", "apply", str(file), "--prune", "cli", "--yes")

    file.write_text(FILE.format(mark="two"))
    (row,) = call("schedule", "apply", str(file), "--yes", "-o", "json")
    assert (row["change"], row["field"], row["before"], row["after"]) == ("changed", "payload.mark", "one", "two")
    runs = eventually(lambda: [run for run in deployment.history() if run.mark == "two"], PATIENCE)
    assert runs[0].key.uniqueness_key.startswith("cli-beat/")

    (listed,) = call("schedule", "list", "--tag", "cli", "--next-before", "+1m", "-o", "json")
    assert (listed["name"], listed["trigger"], listed["revision"]) == ("cli-beat", "every 1s", 2)
    (before,) = call("schedule", "previous", "cli-beat", "1", "-o", "json")
    assert before["verdict"] in ("launched", "skipped", "obsolete")  # the change took back what had been handed over
    some = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:06Z", "--exclude", "2026-01-01T00:00:01Z")
    stretch = ("--exclude", "2026-01-01T00:00:03Z/2026-01-01T00:00:05Z")
    rows = call("schedule", "backfill", "cli-beat", *some, *stretch, "--dry-run", "-o", "json")
    assert [row["planned_at"][17:19] for row in rows] == ["00", "02", "05"]
    call("schedule", "pause", "cli-beat")
    call("schedule", "resume", "cli-beat", "--begin", "now")
    call("schedule", "pause", "--tag", "cli", "--note", "enough", "--yes")
    assert "It is paused, by " in call("schedule", "explain", "cli-beat")
    assert "paused already" in call("schedule", "pause", "cli-beat", code=4)
    told = call("schedule", "fires", "cli-beat", "--since", "-10m", "-o", "json")
    assert {"launched"} <= {row["verdict"] for row in told}

    file.write_text(ALONE)
    rows = call("schedule", "apply", str(file), "--prune", "cli", "--yes", "-o", "json")
    assert {(row["name"], row["change"]) for row in rows} == {("cli-beat", "removed"), ("cli-both", "changed")}
    assert "There is no schedule 'cli-beat' any more" in call("schedule", "explain", "cli-beat")
    call("schedule", "delete", "cli-both", "--yes")
    call("schedule", "show", "cli-both", code=3)


def test_a_handler_that_nobody_has_is_told_of_when_it_is_stored_and_while_its_run_waits(call, deployment):
    file = deployment.folder / "cli.toml"
    file.write_text('[[schedule]]\nname = "cli-nosuch"\nhandler = "nosuch"\nevent = "cli-never"\n')
    assert "No dispatcher that runs has a handler 'nosuch'" in call("schedule", "apply", str(file), "--yes")
    key = call("schedule", "run", "cli-nosuch").strip()
    eventually(lambda: "no_handler" in call("task", "explain", key), PATIENCE)
    call("task", "cancel", key)
    call("schedule", "delete", "cli-nosuch", "--yes")


def test_what_a_trigger_waits_for_is_explained_until_it_holds(call, deployment):
    file = deployment.folder / "cli.toml"
    file.write_text(WAITS)
    call("schedule", "apply", str(file), "--yes")
    call("event", "emit", "cli-go", "--fields", '{"n": 1}')
    call("event", "partitions", "cli-data", "--rows", "7")
    waits = "event:cli-go holds, 1 seen; dataset:cli-data waits, 1 seen"
    eventually(lambda: waits in " ".join(call("schedule", "explain", "cli-waits").split()), PATIENCE)
    call("event", "partitions", "cli-data")
    eventually(lambda: "ended as succeeded" in call("schedule", "explain", "cli-waits"), PATIENCE)
    key = call("schedule", "run", "cli-waits", "--payload", '{"mark": "by hand"}').strip()
    eventually(lambda: "by hand" in [run.mark for run in deployment.history()], PATIENCE)
    assert "launched by hand" in call("schedule", "explain", "cli-waits")
    newest = call("schedule", "fires", "cli-waits", "--limit", "1", "-o", "json")[0]
    assert newest["by_hand"]
    assert newest["uniqueness_key"] == TaskKey.parse(key).uniqueness_key
    call("schedule", "delete", "cli-waits", "--yes")


def test_a_crontab_becomes_schedules_that_run(call, deployment):
    crontab, file = deployment.folder / "crontab", deployment.folder / "imported.toml"
    crontab.write_text("# once a year\n0 0 1 1 * /opt/cli-yearly.sh 10\\%%go\n")
    asked = ("--handler", "work", "--tz", "Europe/Berlin", "--to", str(file), "-o", "json")
    (row,) = call("schedule", "import", str(crontab), *asked)
    assert (row["line"], row["verdict"], row["schedule"]) == (2, "differs", "cli-yearly.sh")
    call("schedule", "apply", str(file), "--yes")
    key = call("schedule", "run", "cli-yearly.sh").strip()
    eventually(lambda: "ended as succeeded" in call("schedule", "explain", "cli-yearly.sh"), PATIENCE)
    task = call("task", "show", key, "-o", "json")
    assert task["payload"]["command"] == ["/bin/sh", "-c", "/opt/cli-yearly.sh 10%"]
    call("schedule", "delete", "cli-yearly.sh", "--yes")


def test_days_of_a_calendar_are_kept_year_by_year(call, deployment):
    (deployment.folder / "days").write_text("2026-12-24 Christmas Eve  # ours\n2027-07-01\n")
    call("calendar", "put", "cli", str(deployment.folder / "days"))
    call("calendar", "fill", "cli", "--country", "de", "2027")
    days = {row["day"]: row["note"] for row in call("calendar", "show", "cli", "-o", "json")}
    assert days["2026-12-24"] == "Christmas Eve", "other years stay"
    assert "2027-07-01" not in days, "those of the year are replaced"
    assert days["2027-10-03"] == "Tag der Deutschen Einheit"
    (deployment.folder / "days").write_text("")
    call("calendar", "put", "cli", str(deployment.folder / "days"))
    call("calendar", "show", "cli", code=3)
