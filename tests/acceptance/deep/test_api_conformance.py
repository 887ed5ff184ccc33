"""The API of a running deployment does what its description says, for whatever is made up from the description, and against it."""

from __future__ import annotations

import json
from http import HTTPStatus

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.support.openapi_file import FILE

EXAMPLES = 15
CLOSES = frozenset({"create_token"})  # with its first success all others would be refused
COSTLY = {"simulate_queue": 3}  # examples of what takes a process of its own
_PATIENCE_MS = 50  # of requests that wait: what they wait for does not come
CHECKS = (status_code_conformance, content_type_conformance, response_schema_conformance)


@schemathesis.serializer("application/x-ndjson", "application/vnd.apache.arrow.stream")
def as_it_is(_context, value):
    return value if isinstance(value, bytes) else str(value).encode(errors="replace")


SCHEMA = schemathesis.openapi.from_dict(json.loads(FILE.read_text()))
OPERATIONS = {
    operation.definition.raw["operationId"]: operation
    for operation in (found.ok() for found in SCHEMA.get_all_operations())
    if operation.path != "/v1/stream"  # it has no end
}


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["right", "wrong"])
@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_no_answer_is_a_defect_or_undocumented(deployment, name, mode):
    if mode is GenerationMode.NEGATIVE and not (OPERATIONS[name].body or OPERATIONS[name].query):
        pytest.skip("nothing about it can be wrong")
    if mode is GenerationMode.POSITIVE and name in CLOSES:
        pytest.skip("it would close the API to all that follows")

    @given(case=OPERATIONS[name].as_strategy(generation_mode=mode))
    @settings(
        max_examples=COSTLY.get(name, EXAMPLES), deadline=None, database=None, derandomize=True, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    def ask(case):
        waits = (case.query or {}).get("wait_ms")
        if type(waits) is int:
            case.query["wait_ms"] = min(waits, _PATIENCE_MS)
        answer = case.call(base_url=deployment.api, timeout=60)
        defect = answer.status_code >= 500 and answer.status_code != HTTPStatus.GATEWAY_TIMEOUT
        assert not defect, (case.as_curl_command(), answer.text)
        case.validate_response(answer, checks=CHECKS)

    ask()
