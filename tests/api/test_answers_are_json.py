"""Numbers that JSON can write and no float can hold: refused where they would be kept, and null in what is answered of older records."""

from __future__ import annotations

import json

import pytest
from pydantic_core import from_json

from scylla_spark.api.leases.views import bounded
from scylla_spark.core.tasks.key import TaskKey, id_of
from scylla_spark.errors import ArgumentError
from scylla_spark.schemas import TASKS
from tests.support.api_site import Site
from tests.support.delta_tables import append, at, make_filled, task


def refuse(word):
    raise AssertionError(f"{word} is not JSON")


def test_what_is_stored_is_answered_as_json(tmp_path):
    key = TaskKey(at(13), "l", "k")
    row = task(key, 1) | {"payload": '{"a": 1e400, "b": [-1e400, 12345678901234567890, {"c": 0.5}]}'}
    make_filled(f"{tmp_path}/tables", lambda path: append(path, TASKS, [row]))
    with Site(str(tmp_path)).client() as client:
        answer = client.get(f"/v1/tasks/{id_of(key)}")
    payload = json.loads(answer.text, parse_constant=refuse)["payload"]
    assert payload == {"a": None, "b": [None, 12345678901234567890, {"c": 0.5}]}


@pytest.mark.parametrize("text", ["1e400", "[-1e400]", '{"a": 1e999}'])
def test_what_a_worker_reports_is_kept_only_if_it_is_json(text):
    with pytest.raises(ArgumentError, match="cannot be kept"):
        bounded("result", from_json(text, allow_inf_nan=False), 1000)
    assert bounded("result", {"a": 1.5, "ä": None}, 1000) == '{"a":1.5,"ä":null}'
