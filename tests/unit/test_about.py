"""What people read of a task: its name, its description and who enqueued it, on the wire and in rows; and what proves the last."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime

import pytest

from scylla_spark import handler
from scylla_spark.client.tasks.enqueue_arguments import command, retried
from scylla_spark.core.engine.memory_use import cost_of
from scylla_spark.core.records.command import CANCEL, ENQUEUE, Command, Rules, encode, validate
from scylla_spark.core.records.enqueued_by import is_proven, signed
from scylla_spark.core.tasks.about import MAX_DESCRIPTION_CHARS, MAX_LABEL_CHARS, About
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.errors import ArgumentError
from scylla_spark.testing import world

NOW = 1_800_000_000_000_000
KEY = TaskKey(NOW, "lane", "key")
TASK = Command(ENQUEUE, KEY, 0, "h", enqueued_us=NOW, payload='{"amount":1.5,"to":"ü"}')
SECRET = "of the deployment"


START = datetime(2027, 1, 4, 9, tzinfo=UTC)


@handler("seen")
def seen(task):
    """Does nothing."""


def read_back(one: Command, **more):
    record = json.loads(encode(one)) | more
    return validate(0, 0, NOW, None, json.dumps(record).encode(), Rules(1))


def test_it_travels_with_the_task_and_costs_no_byte_without_it():
    about = About("Invoices of May", "line 1\nline 2", "ann")
    assert read_back(TASK._replace(about=about)).about == about
    assert "about" not in json.loads(encode(TASK))
    assert read_back(TASK).about is None
    assert json.loads(encode(TASK._replace(about=about)))["version"] == 1, (
        "an older reader keeps it as an unknown field"
    )


@pytest.mark.parametrize("about", [None, {}, {"name": None}, {"colour": "red"}])
def test_a_record_may_say_nothing_of_it(about):
    assert read_back(TASK, about=about).about is None


@pytest.mark.parametrize(
    "about",
    [
        "Invoices", {"name": 7}, {"name": ""}, {"name": " a"}, {"name": "a\nb"}, {"name": "x" * (MAX_LABEL_CHARS + 1)},
        {"description": ""}, {"description": "x" * (MAX_DESCRIPTION_CHARS + 1)}, {"enqueuedBy": "a\x00"}, {"proof": "zz"},
    ],
)  # fmt: skip
def test_what_is_too_long_or_no_text_is_refused(about):
    verdict = read_back(TASK, about=about)
    assert (verdict.reason, verdict.detail[:5]) == ("wrong_value", "about")


def test_secrets_in_it_are_masked_before_they_are_stored():
    about = read_back(
        TASK, about={"name": "password=hunter22", "description": "Authorization: Bearer abcdefghijkl"}
    ).about
    assert about == About("password=***", "Authorization: ***")
    longest = read_back(TASK, about={"name": ("a" * (MAX_LABEL_CHARS - 5)) + "pwd=a"}).about.name
    assert len(longest) == MAX_LABEL_CHARS


def test_a_cancel_says_nothing_of_it():
    assert read_back(Command(CANCEL, KEY, 0, enqueued_us=NOW), about={"name": "a"}).about is None


def test_arguments_are_judged_like_records():
    assert command(NOW, "h", name="a", description="b", enqueued_by="c").about == About("a", "b", "c")
    assert command(NOW, "h").about is None
    with pytest.raises(ArgumentError, match="name is 7"):
        command(NOW, "h", name=7)


def test_a_loaded_task_counts_with_it():
    assert cost_of(TASK._replace(about=About(None, "x" * 500))) == cost_of(TASK) + 500 * (
        1 if TASK.payload.isascii() else 4
    )


def test_who_enqueued_a_task_is_proven_by_the_secret_alone():
    sent = read_back(signed(TASK, "ann", SECRET, None))
    assert (sent.about.enqueued_by, is_proven(sent, SECRET)) == ("ann", True)
    assert not is_proven(sent, "another")
    assert not is_proven(sent, None)
    assert not is_proven(TASK._replace(about=About(enqueued_by="ann")), SECRET)


def test_the_default_handler_is_part_of_what_is_proven():
    sent = signed(TASK._replace(handler=None), "ann", SECRET, "default")
    assert is_proven(read_back(sent)._replace(handler="default"), SECRET)
    assert not is_proven(read_back(sent)._replace(handler="other"), SECRET)


@pytest.mark.parametrize(
    "change",
    [
        {"payload": "{}"}, {"handler": "other"}, {"queue": "other"}, {"key": KEY._replace(uniqueness_key="other")},
        {"about": "name"}, {"about": "enqueued_by"},
    ],
)  # fmt: skip
def test_a_changed_task_has_no_proof(change):
    sent = signed(TASK._replace(about=About("a")), "ann", SECRET, None)
    if isinstance(change.get("about"), str):
        change = {"about": sent.about._replace(**{change["about"]: "bob"})}
    assert is_proven(sent, SECRET)
    assert not is_proven(sent._replace(**change), SECRET)


def test_a_copy_keeps_the_claim_and_loses_the_proof():
    copy = retried(signed(TASK, "ann", SECRET, None), NOW + 1)
    assert copy.about.enqueued_by == "ann"
    assert not is_proven(copy, SECRET)


def test_the_status_of_a_task_shows_it():
    with world(handlers=[seen], now=START) as w:
        status = w.enqueue("seen", {}, name="Invoices", description="of May", enqueued_by="ann").status()
        assert (status.name, status.description, status.enqueued_by) == ("Invoices", "of May", "ann")
        assert not status.enqueued_by_verified


PARTS = (
    "password", "authorization", "cookie", "token", "bearer ", "basic ", "://", "u", ":", "@", "=", "/", " ", "\n", '"', "'", "\\",
    "&", "{", ";", "***", "abcdefgh12",
)  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
def test_a_mask_over_a_masked_text_changes_nothing(seed):
    chance = random.Random(seed)
    for _ in range(300):
        text = "".join(chance.choices(PARTS, k=chance.randrange(1, 40)))
        masked = About.masked(text, text, None)
        assert About.masked(masked.name, masked.description, None) == masked, text


@pytest.mark.parametrize(
    "text",
    ["{://authorization:/{Bearer@://&@password{@abcdefgh12", "://" + "u:p@" * 400,
     "authorization basic authorization\\=\ntoken= \"\"authorization'"],
)  # fmt: skip
def test_the_proof_of_a_contrived_text_holds_after_the_reader_has_masked_it_again(text):
    about = About.masked(None, text, "ann")
    found = read_back(signed(TASK._replace(about=about), "ann", SECRET, None))
    assert found.about.description == about.description
    assert is_proven(found, SECRET)
