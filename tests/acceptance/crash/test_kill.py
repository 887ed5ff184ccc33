"""kill -9 of a whole deployment under load: nothing is lost, nothing runs after its completion, nothing is left behind."""

import json
import random
import signal
import sys
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from scylla_spark import Queue, Schedule, TaskKey, Trigger
from scylla_spark.clock import iso
from scylla_spark.testing import judge, measures
from scylla_spark.testing.history import NEVER
from tests.acceptance import worker_handlers
from tests.acceptance.crash.crash_site import across
from tests.acceptance.http_api import Wire, joined, worker
from tests.acceptance.place import PATIENCE, SECOND, Process, now
from tests.support.waiting import eventually, holds


@pytest.mark.promise
@across("killed")
def test_a_definition_of_a_queue_outlives_kill_9_and_once_it_is_deleted_the_settings_are_in_force(site):
    client = site.client()
    before = [client.enqueue("work", {"ms": 300}, queue="few", ordering_id=f"few-a-{n}") for n in range(3)]
    for handle in before:
        handle.result(timeout=PATIENCE)
    assert measures.peak(site.history("few-a-")) == 1
    client.queue("few").update(description="begins with what the settings say")
    assert client.queue("few").get().fields["concurrency"] == 1
    client.put_queue(Queue(name="few", paused=True))
    paused_at = now()
    eventually(lambda: now() > paused_at + SECOND, 60)
    waiting = [client.enqueue("work", {"ms": 300}, queue="few", ordering_id=f"few-b-{n}") for n in range(4)]
    yield
    client = site.client()
    client.enqueue("work", {}, queue="free").result(timeout=PATIENCE)
    assert not holds(lambda: site.history("few-b-"), 3), "it was paused before the first start"
    client.queue("few").delete()
    for handle in waiting:
        client.task(handle.key).result(timeout=PATIENCE)
    assert measures.peak(site.history("few-b-")) == 1


@pytest.mark.promise
@across("killed", turn=2)
def test_leases_outlive_a_dispatcher_that_is_killed_and_no_other_worker_gets_them_meanwhile(site):
    wire = Wire(site.api)
    enough = site.folder / "enough"
    # a lease that lasts until the API is back, also on a busy machine
    words = ("--slots", "3", "--lease", "5m")
    steady = worker(site, site.api, "steady", "gpu", *words, handlers=worker_handlers.__file__)
    joined(wire, site.outlives(steady))
    wire.put_all("gpu", 3, "kept-", handler="work", payload={"until": str(enough)})
    wire.put_all("gpu", 5, "more-", handler="work")
    eventually(lambda: len(site.history("kept-")) == 3, PATIENCE, "three have begun")
    begun = {run.key: run.attempt for run in site.history("kept-")}
    silent = wire.put("gpu", handler="other")
    given = now()
    (orphan,) = wire.lease("gpu", handlers=["other"], wait_ms=10_000)
    yield
    eventually(
        lambda: wire.lease("gpu", handlers=["other"], wait_ms=5_000), PATIENCE, "the lease that nobody kept has expired"
    )
    if site.down_at < given + 20 * SECOND:  # else it had ended before the kill, on a busy machine
        assert now() - (site.back_at - site.start_us) > 20 * SECOND, "its new owner gave it a whole new term"
    assert wire.end("complete", orphan) == "lease_lost"
    assert wire.state(silent) == "running"
    assert len(site.history("kept-")) == 3, "no other worker got them"
    enough.touch()
    kept = eventually(lambda: _all(site, "kept-", 3), PATIENCE, "the leases were kept, and reported")
    assert {key: row["attempt"] for key, row in kept.items()} == begun
    more = eventually(lambda: _all(site, "more-", 5), PATIENCE, "the worker goes on")
    assert {row["outcome"] for row in [*kept.values(), *more.values()]} == {"succeeded"}
    assert len(site.history("kept-")) == 3, "each ran once"
    assert steady.stop() == 0


@across("killed")
def test_handlers_with_sessions_of_spark_connect_optimize_and_compute_before_their_deployment_is_killed(site):
    orders, sums = site.folder / "orders", site.folder / "sums"
    for number in range(5):
        write_deltalake(str(orders), pa.table({"shop": [number % 2], "amount": [number]}), mode="append")
    client = site.client()
    client.put_schedules(
        Schedule("make_small", "query", Trigger.event("close"), payload={"sql": f"OPTIMIZE delta.`{orders}`"}),
        Schedule("sums", "sums", Trigger.event("close"), payload={"table": str(orders), "into": str(sums)}),
    )
    client.emit("close")
    eventually(lambda: len(DeltaTable(str(orders)).file_uris()) == 1, 2 * PATIENCE, "the table is one file")
    eventually(lambda: DeltaTable.is_deltatable(str(sums)), 2 * PATIENCE, "the sums are written")
    found = DeltaTable(str(sums)).to_pyarrow_table().to_pylist()
    assert sorted(map(tuple, map(dict.values, found))) == [(0, 6), (1, 4)]
    assert client.enqueue("session_id").result(timeout="120s")[0]
    yield
    assert site.client().enqueue("session_id").result(timeout="120s")[0], "and after it"


@pytest.mark.promise
@across("killed", turn=2)
def test_killed_under_load_it_loses_nothing_and_repeats_nothing_that_had_completed(site):
    acknowledged = site.folder / "acknowledged.jsonl"
    command = [sys.executable, "-m", "tests.acceptance.crash.load", str(site.data), str(acknowledged)]
    load = site.outlives(Process("load", command, site.folder, site.environment))
    enough = random.randrange(50, 600)
    eventually(lambda: len(_keys(acknowledged)) > enough, PATIENCE)

    def end_load():
        assert load.running, load.told()
        load.signal(signal.SIGKILL)
        load.ended()

    site.while_down(end_load)
    yield
    accepted = _keys(acknowledged)
    ended = site.completed(accepted)
    runs = site.history("kill-")
    assert judge.lost(accepted, ended) == []
    assert {ended[key]["outcome"] for key in accepted} == {"succeeded"}
    assert judge.revived(runs, {key: row["finished_at"] for key, row in site.completions("kill-").items()}) == []
    assert judge.overlapping(runs) == []
    assert judge.early(runs) == []
    assert judge.misnumbered(runs) == []
    rows = site.rows("tasks").select("scheduled_time", "ordering_id", "uniqueness_key")
    assert rows.is_duplicated().sum() == 0, "one row per key"


@pytest.mark.promise
@across("killed", turn=3)
def test_a_planner_that_is_killed_across_a_time_runs_that_time_once(site):
    client = site.client()
    at = (now() + site.start_us // 2) // SECOND * SECOND + 8 * SECOND  # later than the kill comes on this machine, now
    due = datetime.fromtimestamp(at // SECOND, UTC)
    cron = f"{due.second} {due.minute} {due.hour} * * *"
    client.put_schedules(
        Schedule("once", "work", Trigger.cron(cron), payload={"mark": "{{ planned }}"}),
        Schedule("many", "work", Trigger.every("1s"), catch_up="all", overlap="buffer_all"),
    )
    site.not_before = at + 2 * SECOND
    yield
    assert site.down_at < at - 3 * SECOND, "too slow: it was handed over ahead of its time"
    found = eventually(lambda: runs_of(site, "once"), PATIENCE)
    assert [(run.key.uniqueness_key.split("/")[1], run.mark) for run in found] == [(iso(at), iso(at))]
    assert found[0].start > at + 2 * SECOND
    eventually(lambda: runs_of(site, "many") and runs_of(site, "many")[-1].start > now() - 3 * SECOND, PATIENCE)
    site.client().schedule("many").pause("enough")
    runs = runs_of(site, "many")  # one that had ended, but was not recorded before the kill, may run again
    ended_at = {key: row["finished_at"] for key, row in site.completions().items()}
    assert judge.revived(runs, ended_at) == []
    planned = sorted(key.uniqueness_key.split("/")[1] for key in {run.key for run in runs})
    assert len(planned) == len(set(planned)), "no time is planned twice"
    first = datetime.fromisoformat(planned[0])
    wanted = {iso(int(first.timestamp() + n) * SECOND) for n in range(len(planned))}
    assert wanted == set(planned), "and none left out"
    assert len(runs_of(site, "once")) == 1


@across("killed")
def test_no_process_outlives_a_killed_deployment(site):
    assert Wire(site.api)("GET", "/healthz")
    yield
    assert site.survivors == [], "no child, no broker, no JVM and no API"


def runs_of(site, name):
    """Runs of a schedule that have ended, by start."""
    return [run for run in site.history() if run.key.uniqueness_key.startswith(f"{name}/") and run.end != NEVER]


def _all(site, prefix, number):
    """The completions of so many tasks, once they are there."""
    found = site.completions(prefix)
    return found if len(found) >= number else None


def _keys(acknowledged):
    text = acknowledged.read_text() if acknowledged.exists() else ""
    return [TaskKey(*json.loads(line)) for line in text[: text.rfind("\n") + 1].splitlines()]
