"""Handlers that declare the types of their payload and their result: checked when enqueued, and again where they run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from scylla_spark.client.tasks import enqueue_arguments
from scylla_spark.core.tasks.task import Task, TaskContext
from scylla_spark.errors import ArgumentError
from scylla_spark.handlers import registry as handler_registry
from scylla_spark.handlers.call import call
from scylla_spark.handlers.registry import handler, load, registered
from scylla_spark.handlers.value_type import ValueType
from tests.support.invocations import invocation

NOW = 1_800_000_000_000_000


class Remind(BaseModel):
    email: str
    at: datetime | None = None
    tries: int = Field(default=3, alias="maxTries")


@dataclass
class Receipt:
    sent_to: str
    at: datetime


class Box(TypedDict):
    size: int


class Tree(BaseModel):
    below: Tree | None = None


@pytest.fixture(autouse=True)
def _empty_registry(monkeypatch):
    monkeypatch.setattr(handler_registry, "_registered", {})


def verdict(function, payload: object):
    handler("h")(function)
    text = payload if isinstance(payload, str) else json.dumps(payload)
    return call(load([])["h"], invocation(NOW, payload=text), NOW)


def remind(p: Remind, ctx: TaskContext) -> Receipt:
    return Receipt(f"{p.email} x{p.tries}", datetime(2026, 11, 23, tzinfo=UTC))


def test_handler_gets_a_value_of_its_type_and_its_result_is_written_as_json():
    found = verdict(remind, {"email": "a@b", "maxTries": 4})
    assert json.loads(found.result) == {"sent_to": "a@b x4", "at": "2026-11-23T00:00:00Z"}


def test_payload_that_does_not_fit_ends_the_task_for_good_and_names_the_field():
    found = verdict(remind, {"email": "secret@b", "maxTries": "many"})
    assert (found.outcome, found.failure[0]) == ("aborted", "payload_invalid")
    assert "The payload does not fit Remind: field 'maxTries'" in found.failure[1]
    assert "many" not in found.failure[1]


@pytest.mark.parametrize("payload", [None, [], "[" * 5_000 + "]" * 5_000, 3, {"email": None}])
def test_whatever_the_payload_is_it_fails_and_nothing_is_raised(payload):
    assert verdict(remind, payload).failure[0] == "payload_invalid"


def test_model_that_holds_itself_is_read_to_the_depth_that_the_reader_takes():
    def deep(p: Tree) -> None: ...

    assert verdict(deep, {"below": {"below": None}}).outcome == "succeeded"
    payload: dict = {}
    for _ in range(900):
        payload = {"below": payload}
    found = verdict(deep, payload)
    assert (found.outcome, found.failure[0]) == ("aborted", "payload_invalid")


def test_whole_task_is_given_to_handlers_that_say_nothing_else():
    def bare(task):
        return task.payload

    def named(task: Task) -> dict:
        return task.payload

    def quoted(task: scylla_spark.Task):  # noqa: F821 - stays text
        return task.payload

    for function in (bare, named, quoted):
        handler_registry._registered.clear()
        assert json.loads(verdict(function, {"a": 1}).result) == {"a": 1}


def test_plain_dict_and_typed_dict_are_given_as_dicts():
    def plain(p: dict) -> dict:
        return p

    def box(p: Box) -> Box:
        return p

    assert json.loads(verdict(plain, {"a": [1]}).result) == {"a": [1]}
    handler_registry._registered.clear()
    assert json.loads(verdict(box, {"size": "7"}).result) == {"size": 7}


def test_result_that_is_not_what_was_declared_fails():
    def wrong(p: dict) -> Receipt:
        return {"sent_to": "x"}

    found = verdict(wrong, {})
    assert (found.outcome, found.failure[0]) == ("failed", "result_invalid")
    assert "field 'at'" in found.failure[1]


def test_result_may_be_plain_json_that_fits():
    def fits(p: dict) -> list[Receipt]:
        return [{"sent_to": "x", "at": "2026-11-23T00:00:00Z"}]

    assert json.loads(verdict(fits, {}).result) == [{"sent_to": "x", "at": "2026-11-23T00:00:00Z"}]


def test_result_annotated_with_plain_json_is_written_as_before():
    def plain(p: dict) -> dict[str, list[int]] | None:
        return {"a": "no list of numbers"}

    assert json.loads(verdict(plain, {}).result) == {"a": "no list of numbers"}


def test_validator_that_raises_something_else_fails_like_a_handler():
    class Moody(BaseModel):
        x: int

        def model_post_init(self, context: object) -> None:
            raise LookupError("no database")

    def moody(p: Moody) -> None: ...

    moody.__annotations__["p"] = Moody
    found = verdict(moody, {"x": 1})
    assert (found.outcome, found.failure[0], found.failure[1]) == ("failed", "LookupError", "no database")


def test_type_that_cannot_be_found_or_written_is_refused_at_registration():
    def unknown(p: Nowhere) -> None: ...  # noqa: F821 - is the point

    def odd(p: object) -> None: ...

    odd.__annotations__["p"] = type("Odd", (), {})
    for function, what in ((unknown, "Nowhere"), (odd, "Odd")):
        with pytest.raises(ArgumentError, match=f"(?s)'h'.*{what}"):
            handler("h")(function)


def test_enqueued_function_stands_for_its_name_and_its_payload_is_checked():
    handler("mail.remind")(remind)
    sent = enqueue_arguments.command(NOW, remind, Remind(email="a@b", maxTries=5), ordering_id="lane")
    assert sent.handler == "mail.remind"
    assert json.loads(sent.payload) == {"email": "a@b", "at": None, "maxTries": 5}
    assert remind(Remind(email="c"), None).sent_to == "c x3"  # and it stays a plain function


def test_dict_that_fits_is_sent_with_its_defaults():
    handler("mail.remind")(remind)
    sent = enqueue_arguments.command(NOW, remind, {"email": "a@b"})
    assert json.loads(sent.payload) == {"email": "a@b", "at": None, "maxTries": 3}


@pytest.mark.parametrize("payload", [None, {}, {"email": 3}, Receipt("x", datetime(2026, 1, 1, tzinfo=UTC)), object()])
def test_payload_that_does_not_fit_is_not_sent(payload):
    handler("mail.remind")(remind)
    with pytest.raises(ArgumentError, match="payload does not fit Remind"):
        enqueue_arguments.command(NOW, remind, payload)


def test_function_that_is_no_handler_or_two_is_not_sent():
    with pytest.raises(ArgumentError, match="is no handler"):
        enqueue_arguments.command(NOW, remind, {})
    handler("one")(remind)
    handler("two")(remind)
    with pytest.raises(ArgumentError, match=r"\['one', 'two'\]"):
        registered(remind)


def test_result_is_read_as_the_type_that_the_function_declares():
    handler("mail.remind")(remind)
    declared = enqueue_arguments.returned_by(remind)
    read = declared.read('{"sent_to": "a", "at": "2026-11-23T00:00:00Z"}')
    assert read == Receipt("a", datetime(2026, 11, 23, tzinfo=UTC))
    with pytest.raises(ArgumentError, match="The result does not fit Receipt: field 'at'"):
        declared.read('{"sent_to": "a"}')
    assert enqueue_arguments.returned_by("mail.remind") is None


def test_what_plain_writes_is_read_back():
    declared = ValueType(Remind, "payload")
    one = Remind(email="a", at=datetime(2026, 1, 1, tzinfo=UTC), maxTries=9)
    assert declared.of_json(json.loads(json.dumps(declared.plain(one)))) == one
