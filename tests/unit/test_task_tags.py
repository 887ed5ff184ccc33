"""Tags: what they may be, and that they go with a task from who enqueues it to who looks at it, and to its handler."""

import json
from datetime import UTC, datetime

import pytest

from scylla_spark import Schedule, Trigger
from scylla_spark.client.tasks.enqueue_arguments import command
from scylla_spark.core.records.command import Command, Rejection, Rules, encode, validate
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.tags import MAX_TAG_CHARS, MOST_TAGS, is_tag, tags_of_runs
from scylla_spark.errors import ArgumentError
from scylla_spark.testing import call, world
from tests.support.worker_harness import PullWorld

START = datetime(2026, 3, 1, 9, tzinfo=UTC)
NOW = 1_800_000_000_000_000
KEY = TaskKey(NOW, "lane", "u")


def seen(payload, ctx):
    return list(ctx.tags)


def spawn(task, ctx):
    ctx.enqueue("seen", {}, name="child", tags=["child"])
    return list(ctx.tags)


def judged(**fields):
    record = json.loads(encode(Command("enqueue", KEY, 0, "h", enqueued_us=NOW))) | fields
    return validate(0, 0, NOW, None, json.dumps(record).encode(), Rules(1))


def test_tags_travel_in_their_order_each_once():
    one = Command("enqueue", KEY, 0, "h", enqueued_us=NOW, tags=("b", "a"))
    assert validate(0, 0, NOW, None, encode(one), Rules(1)) == one
    assert judged(tags=["x", "y", "x"]).tags == ("x", "y")
    assert judged(tags=None).tags == judged(tags=[]).tags == ()


def test_an_older_reader_is_not_kept_from_a_task_with_tags():
    assert json.loads(encode(Command("enqueue", KEY, 0, "h", tags=("a",))))["version"] == 1


@pytest.mark.parametrize(
    "tags", ["a", {"a": 1}, [7], [""], [" a"], ["a\n"], ["a\x00"], ["x" * (MAX_TAG_CHARS + 1)], [str(n) for n in range(MOST_TAGS + 1)]]
)  # fmt: skip
def test_what_is_no_tag_is_refused(tags):
    verdict = judged(tags=tags)
    assert isinstance(verdict, Rejection)
    assert verdict.reason == "wrong_value"
    assert verdict.detail.startswith("tags")


def test_as_many_and_as_long_as_allowed_pass():
    tags = [f"{n:02}" + "ü" * (MAX_TAG_CHARS - 2) for n in range(MOST_TAGS)]
    assert judged(tags=tags).tags == tuple(tags)


def test_one_text_is_not_taken_for_several():
    with pytest.raises(ArgumentError, match="tags is 'billing'"):
        command(NOW, "h", tags="billing")
    assert command(NOW, "h", tags=iter(["a", "b", "a"])).tags == ("a", "b")


def test_a_mapping_is_not_taken_for_its_names():
    with pytest.raises(ArgumentError, match="tags have no values") as refused:
        command(NOW, "h", tags={"team": "blue", 7: 8})
    assert "'team:blue'" in refused.value.hint


@pytest.mark.parametrize("tags", ["billing", {"team": "blue"}])
def test_the_tags_of_a_schedule_are_several_texts_too(tags):
    with pytest.raises(ArgumentError, match="tags is"):
        Schedule("nightly", handler="seen", trigger=Trigger.every("1h"), tags=tags)


def test_a_cancel_has_none():
    record = json.loads(encode(Command("cancel", KEY, 0, enqueued_us=NOW))) | {"tags": ["a"]}
    assert validate(0, 0, NOW, None, json.dumps(record).encode(), Rules(1)).tags == ()


def test_a_handler_and_who_looks_see_them():
    with world(handlers=[seen], now=START) as w:
        task = w.enqueue("seen", {}, tags=["eu", "billing"])
        w.advance("1s")
        assert task.result() == ["eu", "billing"]
        assert task.status().tags == ("eu", "billing")
    assert call(seen, {}, tags=["eu"]).result == ["eu"]


def test_what_a_handler_enqueues_has_its_own():
    with world(handlers=[seen, spawn], now=START) as w:
        w.enqueue("spawn", {}, tags=["parent"])
        w.advance("1s")
        assert [run.result for run in w.runs if run.handler == "seen"] == [["child"]]


def test_the_tags_of_a_schedule_are_on_its_runs():
    with world(handlers=[seen], now=START) as w:
        w.put_schedules(
            Schedule("nightly", handler="seen", trigger=Trigger.every("1h"), tags=["eu", "x" * 100, "billing"])
        )
        w.advance("2h")
        assert [run.result for run in w.runs if run.handler == "seen"][:1] == [["eu", "billing"]]


def test_of_many_tags_of_a_schedule_its_runs_have_the_first():
    assert tags_of_runs([*"abcdefghijklmnopqrstuvwxyz", "a"]) == tuple("abcdefghijklmnop")
    assert not any(map(is_tag, ["", " ", "a ", "\u2028", "x" * 65, None]))


def test_a_worker_is_told_of_them():
    pull = PullWorld()
    pull.put(tags=("gpu", "eu"), traceparent="t")
    (lease,) = pull.leases(pull.once())
    assert (lease.task.tags, lease.task.traceparent) == (("gpu", "eu"), "t")
