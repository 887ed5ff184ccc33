"""The grammar by which tasks are chosen: what each term means, and what is said of a text that is none."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scylla_spark.clock import to_us
from scylla_spark.core.tasks.filter import FIELDS, OneOf, Range, TaskFilter, fields_by_kind, read_filter, without_fields
from scylla_spark.errors import ArgumentError
from scylla_spark.task_states import OPEN

NOW = to_us(datetime.fromisoformat("2026-11-22T12:00:00+00:00"))
MINUTE = 60_000_000


def us(text: str) -> int:
    return to_us(datetime.fromisoformat(text))


@pytest.mark.parametrize(
    ("text", "conditions"),
    [
        ("", ()),
        ("   ", ()),
        ("state:retry_wait", (OneOf("state", ("retry_wait",)),)),
        ("state:open", (OneOf("state", OPEN),)),
        ("state:failed,failed,aborted", (OneOf("state", ("failed", "aborted")),)),
        ("queue:mail handler:remind", (OneOf("queue", ("mail",)), OneOf("handler", ("remind",)))),
        ('lane:"cust 9" key:inv-17', (OneOf("lane", ("cust 9",)), OneOf("key", ("inv-17",)))),
        (r'lane:"a \"b\" \\ c",d', (OneOf("lane", ('a "b" \\ c', "d")),)),
        ("tag:tenant:7,eu", (OneOf("tag", ("tenant:7", "eu")),)),
        ("lane:a:b", (OneOf("lane", ("a:b",)),)),
        ("Lane:ä☃", (OneOf("lane", ("ä☃",)),)),
        ("error:Timeout", (OneOf("error", ("Timeout",)),)),
        ("fingerprint:1F9d6fb6,abcd", (OneOf("fingerprint", ("1f9d6fb6", "abcd")),)),
        ("late:>5m", (Range("late", 5 * MINUTE + 1, None),)),
        ("late:<=1h30m", (Range("late", None, 90 * MINUTE + 1),)),
        ("scheduled:<2026-12-01", (Range("scheduled", None, us("2026-12-01T00:00:00+00:00")),)),
        ("scheduled:>2026-12-01", (Range("scheduled", us("2026-12-02T00:00:00+00:00"), None),)),
        (
            "scheduled:2026-12-01",
            (Range("scheduled", us("2026-12-01T00:00:00+00:00"), us("2026-12-02T00:00:00+00:00")),),
        ),
        ("scheduled:>=2026-12-01T09:00:00+01:00", (Range("scheduled", us("2026-12-01T08:00:00+00:00"), None),)),
        ("enqueued:>=-2h ended:<now", (Range("enqueued", NOW - 120 * MINUTE, None), Range("ended", None, NOW))),
        ("scheduled:>=now scheduled:<now", (Range("scheduled", NOW, None), Range("scheduled", None, NOW))),
        ("attempts:>3 priority:0", (Range("attempts", 4, None), Range("priority", 0, 1))),
    ],
)
def test_terms_mean_what_they_say(text, conditions):
    assert read_filter(text, NOW) == TaskFilter(conditions)


@pytest.mark.parametrize(
    ("text", "position", "told"),
    [
        ("foo", 1, "no term"),
        ("fingerprint:abc", 13, "no fingerprint"),
        ("fingerprint:abcd,xyzw", 18, "no fingerprint"),
        ("fingerprint:<abcd", 1, "no order"),
        (f"fingerprint:{'a' * 17}", 13, "no fingerprint"),
        ("queue:mail foo", 12, "no term"),
        ("stat:failed", 1, "Did you mean state?"),
        ("tag.tenant:7", 1, "no term"),
        ("state:faild", 7, "Did you mean failed?"),
        ("state:failed,nope", 14, "no state"),
        ("lane:", 6, "missing"),
        ("lane:a,", 8, "missing"),
        ('lane:""', 6, "empty"),
        ('lane:"a', 6, "not closed"),
        ('lane:"a"b', 9, "space is missing"),
        ("lane:>a", 1, "no order"),
        ("state:<failed", 1, "no order"),
        ("late:5m", 6, "needs a comparison"),
        ("late:>soon", 7, "not a duration"),
        ("late:>1m,2m", 10, "one value"),
        ("scheduled:2026-12-01T00:00:00Z", 11, "needs a comparison"),
        ("scheduled:<2026-12-01T00:00:00", 12, "zone"),
        ("scheduled:<2026-13-01", 12, "no instant"),
        ("scheduled:<9999-01-01", 12, "2261"),
        ("scheduled:>+200000d", 12, "out of range"),
        ("attempts:>x", 11, "no whole number"),
        ("attempts:>1234567890", 11, "no whole number"),
        ("attempts:>٣", 11, "no whole number"),
        ("scheduled:>=2026-12-02 queue:a scheduled:<2026-12-01", 32, "ends before it begins"),
        ("ended:<-2h ended:>-1h", 12, "ends before it begins"),
        ("attempts:5 attempts:3", 12, "ends before it begins"),
        ("lane:" + ",".join(["a"] * 101), 206, "more than 100"),
        ("x" * 4_001, 4_001, "4000 characters"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(text, position, told):
    with pytest.raises(ArgumentError) as caught:
        read_filter(text, NOW)
    assert told in str(caught.value)
    assert caught.value.fields["position"] == position
    assert caught.value.hint


WORDS = st.sampled_from(
    [*FIELDS, ":", "<", ">=", ",", '"', "\\", " ", "now", "-1h", "5m", "2026-12-01", "open", "failed", "7"]
)


@pytest.mark.slow
@given(st.text(max_size=60) | st.lists(WORDS, max_size=12).map("".join))
def test_any_text_is_a_filter_or_an_error_with_a_place(text):
    wrong = None
    try:
        assert all(isinstance(one, OneOf | Range) for one in read_filter(text, NOW).conditions)
    except ArgumentError as error:
        wrong = error.fields["position"]
    assert wrong is None or 1 <= wrong <= len(text) + 1


@pytest.mark.slow
@given(st.lists(st.text(min_size=1), min_size=1, max_size=5))
def test_any_value_can_be_quoted(values):
    quoted = ",".join('"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' for value in values)
    assert read_filter(f"lane:{quoted}", NOW).conditions == (OneOf("lane", tuple(values)),)


def test_terms_of_some_fields_can_be_taken_out_of_a_text():
    text = '  state:open,failed lane:"a state:b"   late:>5m key:x '
    assert without_fields(text, ("state", "late")) == 'lane:"a state:b" key:x'
    assert without_fields(text, ()) == text.strip().replace("   ", " ")
    assert without_fields("", ("state",)) == ""


def test_every_field_is_explained_with_what_its_values_are():
    values = {"name": "abcd", "instant": "<now", "duration": ">5m", "number": ">3"}
    told = fields_by_kind()
    assert sorted(field for fields in told.values() for field in fields) == sorted(FIELDS)
    for kind, fields in told.items():
        for field in fields:
            assert read_filter(f"{field}:{'open' if field == 'state' else values[kind]}", 10**15).conditions
