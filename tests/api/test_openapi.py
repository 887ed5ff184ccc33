"""The description of the API: the committed one is the code's, and every operation says what may come of it."""

from __future__ import annotations

import json
import re

import pytest

from scylla_spark.api import problems
from tests.support.openapi_file import FILE, text

DESCRIBED = json.loads(FILE.read_text())
OPERATIONS = [
    (method, path, operation) for path, methods in DESCRIBED["paths"].items() for method, operation in methods.items()
]


@pytest.mark.slow
def test_the_committed_description_is_that_of_the_code():
    assert FILE.read_text() == text(), "renew it: .venv/bin/python -m tests.support.openapi_file"


def test_it_is_openapi_3_1():
    assert DESCRIBED["openapi"].startswith("3.1")


VERBS = (
    "abort|apply|backfill|cancel|check|clear|complete|count|create|delete|drain|emit|end|enqueue|explain|extend|fail|get|lease|list|pause|"
    "put|replay|report|reschedule|restore|resume|retry|revoke|run|send|simulate|skip|stop|stream|sync|test|update|yield"
)


def test_operations_have_names_of_a_verb_and_a_noun():
    names = [operation["operationId"] for _, _, operation in OPERATIONS]
    assert len(set(names)) == len(names)
    named = re.compile(f"({VERBS})(_(?!an?_|the_|of_)[a-z]+){{1,3}}")
    assert [name for name in names if not named.fullmatch(name)] == ["whoami"]


def missing_of(method, operation) -> list[str]:
    """Returns what the description of an operation does not say."""
    answers = operation["responses"]
    told = " ".join(one["description"] for one in answers.values())
    needed = [problems.WRONG_HOST, problems.BUSY, problems.UNREACHABLE, problems.TOO_LARGE]
    if operation.get("parameters"):
        needed.append(problems.INVALID)  # parameters may be wrong
    if method in ("put", "post", "patch") and "application/json" in operation.get("requestBody", {}).get("content", {}):
        needed.append(problems.NOT_JSON)
    missing = [kind.type for kind in needed if kind.type not in told]
    if not operation["description"].endswith((".", "!")):
        missing.append("a description")
    if not any(status.startswith("2") for status in answers):
        missing.append("a success")
    return missing


def test_every_operation_documents_itself_and_its_problems():
    found = {f"{method} {path}": missing_of(method, operation) for method, path, operation in OPERATIONS}
    assert {name: missing for name, missing in found.items() if missing} == {}
    assert len(found) > 90


def test_references_lead_somewhere():
    names = set(re.findall(r'"#/components/schemas/(\w+)"', FILE.read_text()))
    assert names <= DESCRIBED["components"]["schemas"].keys()


def test_models_are_described():
    mute = [name for name, schema in DESCRIBED["components"]["schemas"].items() if not schema.get("description")]
    assert mute == []
