"""What is said of a task for people comes through Kafka and the tables, from every way to enqueue it."""

from datetime import UTC, datetime

from scylla_spark.clock import to_us
from scylla_spark.core.tasks.key import HOUR_US, TaskKey
from tests.acceptance.http_api import Wire
from tests.acceptance.place import PATIENCE
from tests.support.waiting import eventually


def test_name_description_and_who_enqueued_it_are_shown_and_chosen_by(deployment, scheduler, foreign):
    wire = Wire(deployment.process.ready()["api"])
    said = {"name": "Invoices", "description": "of May"}
    lane = {"ordering_id": "about"}
    python = scheduler.enqueue("work", {"ms": 0}, delay="30d", enqueued_by="ann", **said, **lane).key
    http = TaskKey.parse(wire("POST", "/v1/tasks", {"handler": "work", "delay": "30d"} | said | lane)["id"])
    words = ["work", "--delay", "30d", "--ordering-id", "about", "--name", "Invoices", "--description", "of May"]
    called = deployment.call("task", "enqueue", *words)
    assert called.returncode == 0, called.stderr
    key = TaskKey(to_us(datetime.now(UTC)) + HOUR_US, "about", "kafka")
    foreign.put(key, about=said | {"enqueuedBy": "mallory", "proof": "0" * 32}).get(timeout=30)

    def listed():
        return wire("GET", "/v1/tasks?filter=lane:about%20name:Invoices%20description:may")["tasks"]

    rows = eventually(lambda: len(found := listed()) == 4 and found, PATIENCE, "the tables show all four", listed)
    shown = {row["uniqueness_key"]: wire("GET", f"/v1/tasks/{row['id']}") for row in rows}
    assert all((one["name"], one["description"]) == ("Invoices", "of May") for one in shown.values())
    assert not any(one["enqueued_by_verified"] for one in shown.values())
    who = {key: one["enqueued_by"] for key, one in shown.items()}
    assert (who[python.uniqueness_key], who[http.uniqueness_key], who["kafka"]) == ("ann", None, "mallory")
    retold = deployment.call("task", "list", "--filter", "lane:about enqueued_by:ann,mallory")
    assert retold.stdout.count("about") == 2, retold.stdout
    for row in rows:
        wire.cancel(row["id"])
