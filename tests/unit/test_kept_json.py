"""What may be kept of an attempt is one rule: who runs a handler, who reports and who reads it take the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from pydantic_core import from_json

from scylla_spark.api.leases.views import SyncBody, bounded
from scylla_spark.core.tasks.kept_json import MAX_LEVELS, kept_text
from scylla_spark.errors import ArgumentError
from scylla_spark.executors.local.report import read, read_note
from scylla_spark.handlers.call import encode_result
from scylla_spark.handlers.call_notes import _object_text
from scylla_spark.handlers.framing import ProtocolError
from scylla_spark.worker.containers.ending import verdict_of_output
from scylla_spark.worker.containers.last_lines import LastLines
from scylla_spark.worker.lease import Lease
from tests.support.http_script import lease_view

MOST = 64 * 1024


def nested(levels: int) -> Any:
    """An object so deep."""
    value: Any = []
    for _ in range(levels - 2):
        value = [value]
    return {"a": value}


class Nobody:
    """A `Reporter` who keeps what he is told."""

    told: Any = None

    def report(self, lease: Lease, text: str) -> None:
        self.told = json.loads(text)

    def sign(self, lease: Lease, **fields: str) -> None:
        self.told = {name: json.loads(text) for name, text in fields.items()}


def said_by_a_lease(call: Callable[[Lease, Any], object], name: str) -> Callable[[Any], Any]:
    def say(value: Any) -> Any:
        nobody = Nobody()
        call(Lease(lease_view(1), nobody), value)
        return nobody.told[name]

    return say


def written_by_a_program(value: Any) -> Any:
    out = LastLines()
    out.feed(json.dumps(value).encode())
    return result_of(verdict_of_output(out))


def returned_by_a_handler(value: Any) -> Any:
    return result_of(encode_result(value))


def told_by_a_child(value: Any) -> Any:
    record = [3, "succeeded", 1, 1, json.dumps(value), None, 0]
    return result_of(read(record).verdicts[0])


def result_of(verdict: Any) -> Any:
    if verdict.failure is not None:
        assert (verdict.outcome, verdict.failure[0]) == ("failed", "result_not_serialisable")
        raise ArgumentError(verdict.failure[1])
    return json.loads(verdict.result)


def noted_by_a_child(value: Any) -> Any:
    return json.loads(read_note(["note", 3, None, json.dumps(value), None])[1].checkpoint)


def sent_to_the_api(value: Any) -> Any:
    """As a worker in any language sends it; the API's reader of bodies is the first that could refuse it."""
    one = {"lease": "0.1", "outcome": "succeeded", "result": value, "checkpoint": value, "metrics": value}
    body = {"seq": 1, "session": "s", "results": [one], "progress": [{"lease": "0.1", "checkpoint": value}]}
    call = SyncBody.model_validate(from_json(json.dumps(body), allow_inf_nan=False)).call("w")
    report, sign = call.reports[0], call.signs[0]
    assert report.result == report.checkpoint == report.metrics == sign.note.checkpoint
    return json.loads(report.result or "")


PLACES = {
    "handler": returned_by_a_handler,
    "child": told_by_a_child,
    "program": written_by_a_program,
    "checkpoint of a handler": lambda value: json.loads(_object_text(value)),
    "checkpoint of a child": noted_by_a_child,
    "worker": said_by_a_lease(Lease.complete, "result"),
    "metrics of a worker": said_by_a_lease(lambda lease, value: lease.complete(metrics=value), "metrics"),
    "checkpoint of a worker": said_by_a_lease(Lease.checkpoint, "checkpoint"),
    "yield of a worker": said_by_a_lease(lambda lease, value: lease.yield_(checkpoint=value), "checkpoint"),
    "api": sent_to_the_api,
    "field of the api": lambda value: json.loads(bounded("fields", value, MOST) or ""),
}


@pytest.fixture(params=PLACES.values(), ids=PLACES.keys())
def say(request):
    return request.param


def test_what_is_as_deep_as_it_may_be_is_kept_wherever_it_is_said(say):
    for value in (nested(MAX_LEVELS), {"a": [[]] * 1_000, "b": '"\\' + "[" * 1_000 + "{"}):
        assert say(value) == value


@pytest.mark.parametrize("levels", [MAX_LEVELS + 1, 250, 900])
def test_what_is_deeper_is_refused_wherever_it_is_said(say, levels):
    with pytest.raises((ArgumentError, ProtocolError, ValueError)):
        say(nested(levels))


@pytest.mark.parametrize("value", [{"a": "\ud800"}, {"\udfff": 1}])
def test_half_a_character_is_refused_wherever_it_is_said(say, value):
    with pytest.raises((ArgumentError, ProtocolError, ValueError)):
        say(value)


def test_what_json_cannot_hold_has_no_text():
    for value in (float("inf"), float("nan"), {1}, b"x", 10**5_000):
        with pytest.raises((TypeError, ValueError)):
            kept_text({"a": value})
