"""The payload of a run by hand is checked by the JSON schema that its handler declares."""

import pytest
from pydantic import BaseModel

from scylla_spark.client.handlers import check_payload, gathered
from scylla_spark.errors import ArgumentError


class Line(BaseModel):
    amount: int


class Order(BaseModel):
    day: str
    lines: list[Line] = []


def known(*schemas, name="work"):
    """A catalogue in which each dispatcher reports one schema."""
    plain = {
        "name": name, "registered_as": name, "runs_on": "auto", "isolation": None, "max_batch": None, "concurrency": None,
        "timeout_ms": None, "retry": None, "module": "m", "function": "f", "about": "", "result": None,
    }  # fmt: skip
    return gathered((f"http://d{n}:1", {"handlers": [plain | {"payload": schema}]}) for n, schema in enumerate(schemas))


ORDER = Order.model_json_schema()


def test_a_payload_that_matches_is_taken():
    check_payload(known(ORDER), "work", {"day": "2026-01-01", "lines": [{"amount": 1}]})


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        ({}, "'day' is a required property"),
        ({"day": 1}, "day: 1 is not of type 'string'"),
        ({"day": "x", "lines": [{"amount": "1"}]}, r"lines\.0\.amount: '1' is not of type 'integer'"),
        ({"day": ["x" * 10_000]}, "day: "),
    ],
)
def test_a_payload_that_does_not_match_is_refused_with_its_field(payload, said):
    with pytest.raises(ArgumentError, match=said) as refused:
        check_payload(known(ORDER), "work", payload)
    assert refused.value.fields["reason"] == "payload_invalid"
    assert len(str(refused.value)) < 1_000


@pytest.mark.parametrize(
    "found",
    [
        known(None),
        known(),
        known(ORDER, name="other"),
        known(ORDER, {"type": "string"}),
        known({"type": "nonsense"}),
        known({"properties": {"day": {"pattern": "("}}}),
        known({"$ref": "https://example.invalid/schema.json"}),
        known({"properties": 5}),
        known({"patternProperties": {"(a+)+$": {"type": "string"}}}),
        known({"properties": {"day": {"pattern": "(?=a)"}}}),
    ],
)
def test_without_one_schema_that_can_be_checked_every_payload_is_taken(found):
    check_payload(found, "work", {"day": 1})


def test_no_payload_makes_the_check_slow():
    """Callers choose the payload: pairs of items that are compared, or a backtracking engine, would take minutes or years."""
    pattern = {"properties": {"day": {"type": "string", "pattern": "^(a+)+$"}}}
    with pytest.raises(ArgumentError, match=r"does not match '\^\(a\+\)\+\$'"):
        check_payload(known(pattern), "work", {"day": "a" * 1_000 + "b"})
    check_payload(known(pattern), "work", {"day": "aaa"})
    each = {"properties": {"lines": {"uniqueItems": True}}}
    check_payload(known(each), "work", {"lines": [{"n": n // 2} for n in range(20_000)]})
