"""Notifications on real processes: one failure is one signed message, many are one with a count, and a kill -9 doubles none."""

import json

from scylla_spark import NotificationRule, Retry
from scylla_spark.executors.notify.signature import key_of, signed
from tests.acceptance.crash.crash_site import SECRET, across
from tests.acceptance.place import PATIENCE
from tests.support.waiting import eventually, holds


def messages(receiver, rule="broken"):
    """What came of a rule, each message once; those that came again came as they were, and all are signed."""
    found = {}
    for one in receiver.received:
        again = signed(one.headers["webhook-id"], int(one.headers["webhook-timestamp"]), one.body, key_of(SECRET))
        assert one.headers["webhook-signature"] == again["webhook-signature"]
        assert found.setdefault(one.headers["webhook-id"], one.body) == one.body
    return [one for body in found.values() if (one := json.loads(body)["data"])["rule"] == rule]


def told(receiver, rule="broken"):
    return [(one["event"], one["notice"], one["count"]) for one in messages(receiver, rule)]


@across("killed")
def test_the_end_of_each_task_that_names_a_channel_is_reported_across_a_kill(site):
    client, gate = site.client(), site.folder / "asked"
    asks = {"ordering_id": "asks", "notify": "ops", "retry": Retry(0)}
    tasks = [client.enqueue("says", {"says": says}, **asks) for says in ([1], [])]
    tasks.append(client.enqueue("work", {"until": str(gate)}, **asks | {"retry": Retry()}))
    ends = [("succeeded", "first", 1), ("failed", "first", 1)]
    eventually(lambda: told(site.receiver, "task") == ends, PATIENCE, "two ends", lambda: told(site.receiver, "task"))
    eventually(lambda: "Did you mean 'ops'?" in "".join(client.handler_warnings.of([], ["opz"])), PATIENCE)
    yield
    gate.touch()
    ends.append(("succeeded", "first", 1))
    eventually(lambda: told(site.receiver, "task") == ends, PATIENCE, "three ends", lambda: told(site.receiver, "task"))
    assert [one["key"] for one in messages(site.receiver, "task")] == [str(task.key) for task in tasks]


@across("killed")
def test_failures_are_reported_once_counted_and_resolved_across_a_kill(site):
    receiver, client = site.receiver, site.client()
    rule = NotificationRule(name="broken", when=["failed"], channel="ops", handlers=["errand"], digest="15s")
    assert client.put_notification_rule(rule, author="me") == "added"
    for number in range(10):
        client.enqueue("errand", {"failures": 99}, ordering_id=f"fails-{number}", retry=Retry(0))
    eventually(lambda: told(receiver)[:1] == [("failed", "first", 1)] and len(receiver.received) >= 2, PATIENCE)
    eventually(lambda: client.notification_rules()["broken"].open[0]["count"] == 10, PATIENCE)
    yield
    client = site.client()
    # one digest, or several where the machine is so slow that its failures took longer than one
    eventually(lambda: sum(count for _, _, count in told(receiver)) == 10, PATIENCE, "the digest")
    assert {(event, notice) for event, notice, _ in told(receiver)[1:]} == {("failed", "repeated")}
    digests = len(told(receiver))
    client.enqueue("errand", {}, ordering_id="works").result(PATIENCE)
    eventually(lambda: len(told(receiver)) > digests, PATIENCE, "it is resolved")
    assert told(receiver)[digests:] == [("failed", "resolved", 10)]
    assert client.notification_rules()["broken"].open == []

    first = messages(receiver)[0]
    assert (first["queue"], first["handler"], first["status"]) == ("default", "errand", "failed")
    assert (first["error"]["kind"], first["attempts"]) == ("RuntimeError", 1)
    done = site.call("notify", "test", "broken", "-o", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)[0]["done"] == "arrived"
    assert told(receiver)[digests + 1 :] == [("test", "test", 1)]
    assert not holds(lambda: len(told(receiver)) > digests + 2, 3)

    rows = eventually(lambda: [r for r in site.rows("tasks").to_dicts() if r["queue"] == "_notify"], PATIENCE)
    assert {row["handler"] for row in rows} == {"scylla.notify"}
    assert SECRET not in repr(rows)
    (put,) = eventually(lambda: site.rows("notification_rules").to_dicts(), PATIENCE)
    assert (put["name"], put["channel"], put["author"]) == ("broken", "ops", "me")
    assert SECRET not in site.running().told()
