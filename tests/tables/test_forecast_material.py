"""What the tables tell of a past window, and the command that plays it again."""

from __future__ import annotations

import json
import re

import pytest

from scylla_spark.cli import one_command as cli
from scylla_spark.clock import from_us
from scylla_spark.config.settings import Settings
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.errors import ArgumentError, NotFoundError, WaitTimeoutError
from scylla_spark.io.delta.forecast_material import past
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.schemas import ATTEMPTS, COMPLETIONS, QUEUES, TASKS
from scylla_spark.services.simulate.what_if import Question, what_if, what_if_apart
from tests.support.delta_tables import append, at, fact, make, task

SECOND = 1_000_000
NOON = at(12)
LANE = [TaskKey(NOON, "a", unique) for unique in "xyz"]
MAIL = [TaskKey(NOON, f"box-{n}", "u") for n in range(3)]
RETRIED = TaskKey(NOON + SECOND, "r", "u")
LONG = TaskKey(NOON + SECOND, "l", "u")
OPEN = TaskKey(NOON + SECOND, "o", "u")
CANCELLED = TaskKey(NOON + SECOND, "c", "u")
LATER = TaskKey(at(15), "a", "u")


def ended(key: TaskKey, begin_s: float, end_s: float, attempt: int = 1, outcome: str = "succeeded", **more) -> dict:
    """A row of `completions`; times in seconds after noon."""
    times = {name: from_us(NOON + int(s * SECOND)) for name, s in (("started_at", begin_s), ("finished_at", end_s))}
    return fact(key, attempt, outcome, **times | more)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A lane of three tasks of a second each, a queue of three, a retried task, a long one, one open, one cancelled."""
    folder = tmp_path_factory.mktemp("past")
    path = f"{folder}/tables"
    make(path)
    append(path, TASKS, [task(key) for key in [*LANE, RETRIED, LONG, OPEN, CANCELLED, LATER]])
    append(path, TASKS, [task(key, queue="mail") for key in MAIL])
    append(path, COMPLETIONS, [ended(key, 2 * n, 2 * n + 1) for n, key in enumerate(LANE)])
    append(
        path, COMPLETIONS, [ended(key, 0.1 * n, 0.1 * n + 1) for n, key in enumerate(MAIL, 1)] * 2
    )  # a repeat, as after a crash
    failed = fact(RETRIED, 1, "failed", next_at=from_us(NOON + 7 * SECOND))
    start, end = from_us(NOON + 2 * SECOND), from_us(NOON + 3 * SECOND)
    append(path, ATTEMPTS, [failed | {"started_at": start, "finished_at": end}])
    append(path, ATTEMPTS, [fact(LONG, 1, "started") | {"started_at": from_us(NOON + SECOND)}])
    append(path, COMPLETIONS, [ended(RETRIED, 8, 9, 2), ended(LONG, 1, 6), ended(LATER, 0, 1)])
    append(path, COMPLETIONS, [ended(CANCELLED, 0, 1, 0, "cancelled", started_at=None)])
    return str(folder)


@pytest.fixture
def readers(data):
    return TableReader(f"{data}/tables")


def test_a_window_holds_what_ran_in_it_and_counts_what_did_not(readers):
    found = past(readers, NOON, at(13))
    assert len(found.tasks) == 8
    assert (found.unfinished, found.unrun) == (1, 1)
    assert found.tasks["time_us"].is_sorted()


def test_durations_and_first_starts_are_those_that_were_recorded(readers):
    rows = {row["ordering_id"]: row for row in past(readers, NOON, at(13)).tasks.to_dicts()}
    retried, long = rows["r"], rows["l"]
    assert retried["earlier"] == [{"lasted_us": SECOND, "wait_us": 4 * SECOND}]
    assert (retried["started_us"], retried["lasted_us"]) == (NOON + 2 * SECOND, SECOND)
    assert (long["earlier"], long["lasted_us"]) == (None, 5 * SECOND)


def test_a_task_that_was_enqueued_late_could_not_start_before(tmp_path):
    make(f"{tmp_path}/tables")
    late, again = TaskKey(NOON, "late", "u"), TaskKey(NOON, "again", "u")
    append(
        f"{tmp_path}/tables",
        TASKS,
        [task(late, enqueued_at=from_us(NOON + SECOND)), task(again, enqueued_at=from_us(at(14)))],
    )
    append(f"{tmp_path}/tables", COMPLETIONS, [ended(late, 2, 3), ended(again, 0, 1)])
    rows = {row["ordering_id"]: row for row in past(TableReader(f"{tmp_path}/tables"), NOON, at(13)).tasks.to_dicts()}
    assert (rows["late"]["known_us"], rows["again"]["known_us"]) == (NOON + SECOND, NOON)


def test_tasks_of_one_batch_call_share_its_time(tmp_path):
    make(f"{tmp_path}/tables")
    batch, alone = [TaskKey(NOON, f"b{n}", "u") for n in range(4)], TaskKey(NOON, "alone", "u")
    append(f"{tmp_path}/tables", TASKS, [task(key, handler="many") for key in batch] + [task(alone)])
    append(f"{tmp_path}/tables", COMPLETIONS, [ended(key, 1, 3) for key in [*batch, alone]])
    rows = past(TableReader(f"{tmp_path}/tables"), NOON, at(13)).tasks
    assert sorted(rows["lasted_us"]) == [SECOND // 2] * 4 + [2 * SECOND]


def test_a_window_without_runs_is_an_error_that_says_so(readers):
    with pytest.raises(NotFoundError, match="has run"):
        past(readers, at(1), at(2))
    with pytest.raises(ArgumentError, match="empty"):
        past(readers, at(2), at(2))


# -- the command --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def simulate(data, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        window = [
            "--from",
            "2099-01-02T12:00:00Z",
            "--to",
            "2099-01-02T13:00:00Z",
            "--fact-delay",
            "0s",
            "--capacity",
            "0",
        ]
        code = cli.run(["--data", data, "simulate", *window, *arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return call


SIMULATED = ("p50_ms", "p95_ms", "p99_ms", "max_ms", "makespan_s")


def figures(out: str) -> dict:
    return {(row["scope"], row["name"]): row for row in json.loads(out)["rows"]}


def test_without_a_change_both_sides_of_a_simulation_are_the_same(simulate):
    for row in figures(simulate("-o", "json", "--lanes", "9")[1]).values():
        assert {name: row[f"predicted_{name}"] for name in SIMULATED} == {name: row[name] for name in SIMULATED}


def test_simulate_tells_then_and_now_per_queue_and_for_the_worst_lanes(simulate):
    code, out, _ = simulate("-o", "json", "--lanes", "1")
    assert code == 0
    assert json.loads(out)["tasks"] == 8
    rows = figures(out)
    assert [scope for scope, _ in rows] == ["all", "queue", "queue", "lane"]
    lane = rows["lane", "a"]
    assert (lane["measured_max_ms"], lane["max_ms"], lane["predicted_max_ms"], lane["count"]) == (4000, 2000, 2000, 3)
    assert (lane["measured_makespan_s"], lane["makespan_s"], lane["predicted_makespan_s"]) == (5, 3, 3)
    assert rows["queue", "mail"]["predicted_max_ms"] == 0


def test_simulate_plays_under_the_limits_that_are_set(simulate):
    rows = figures(simulate("-o", "json", "--slots", "1")[1])
    assert rows["all", ""]["predicted_makespan_s"] == 17  # 12 s of work, then a retry that waits for 4 and takes 1
    assert rows["all", ""]["makespan_s"] < 17, "the other side has the slots of today"
    rows = figures(simulate("-o", "json", "--queue", "mail.paused=true")[1])
    assert rows["queue", "mail"]["never_started"] == 3
    assert rows["queue", "default"]["never_started"] == 0
    paused_now = figures(simulate("-o", "json", "--set", "queues.mail.paused=true")[1])
    assert paused_now["queue", "mail"]["never_started"] == 0, "a pause of today says nothing of the past"


@pytest.mark.slow
def test_simulate_plays_with_a_queue_as_it_is_stored_and_with_what_is_changed_of_it(simulate, data):
    stored = {"name": "mail", "concurrency": 1, "mode": "pull"}
    assert changed(simulate)["queue", "mail"]["predicted_max_ms"] == 0
    append(
        f"{data}/tables",
        QUEUES,
        [definition("mail", 5, stored), definition("mail", 4, {"name": "mail", "paused": True})],
    )
    assert changed(simulate)["queue", "mail"]["predicted_max_ms"] == 2000, "played as if it were pushed"
    assert changed(simulate, "mail.concurrency=2")["queue", "mail"]["predicted_max_ms"] == 1000
    assert changed(simulate, "mail.concurrency=none")["queue", "mail"]["predicted_max_ms"] == 0
    append(f"{data}/tables", QUEUES, [definition("mail", 6, None)])
    assert changed(simulate)["queue", "mail"]["predicted_max_ms"] == 0
    assert changed(simulate, "mail.paused=true")["queue", "mail"]["never_started"] == 3


def changed(simulate, *changes):
    return figures(simulate("-o", "json", *(part for change in changes for part in ("--queue", change)))[1])


def definition(name, revision, fields):
    row = dict.fromkeys(QUEUES.columns)
    return row | {"name": name, "revision": revision, "definition": json.dumps(fields) if fields is not None else None}


@pytest.mark.parametrize(
    ("change", "says"), [("mail", "changes no queue"), ("mail.speed=3", "speed"), ("mail.rate=-1", "rate")]
)
def test_simulate_says_what_is_wrong_with_a_change(simulate, change, says):
    code, _, err = simulate("--queue", change)
    assert code == 2
    assert says in err


@pytest.mark.slow
def test_what_is_played_apart_is_the_same_and_its_errors_come_back(data):
    settings = Settings(_env_file=None, data_dir=data)
    question = Question(NOON, at(13), {"mail": {"paused": True}}, capacity=0)
    assert what_if_apart(settings, question, 60).rows == what_if(settings, question).rows
    with pytest.raises(NotFoundError, match="has run"):
        what_if_apart(settings, question._replace(start_us=at(1), stop_us=at(2)), 60)
    with pytest.raises(ArgumentError, match="paused"):
        what_if_apart(settings, question._replace(changes={"mail": {"paused": 3}}), 60)
    with pytest.raises(WaitTimeoutError, match="longer"):
        what_if_apart(settings, question, 0.001)


def test_simulate_speaks_to_people_in_a_table(simulate):
    code, out, err = simulate("--slots", "1")
    assert code == 0
    assert re.search(r"^all .* → 17 s$", out, re.MULTILINE), out
    assert re.search(r"Measured then: p50 .*, max 4 s\.", err)
    assert "left out: 1 unfinished, 1 that ended without a run" in err


def test_simulate_of_a_window_without_data_ends_with_not_found(simulate):
    code, out, err = simulate("--from", "2099-01-05T12:00:00Z", "--to", "2099-01-05T13:00:00Z")
    assert (code, out) == (3, "")
    assert "has run" in err
