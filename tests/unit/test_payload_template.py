"""Templates: what a place may say, what it becomes, and what is refused when a schedule is put."""

import contextlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scylla_spark.core.plan.payload_template import Instant, Template
from scylla_spark.errors import ArgumentError

NAMES = ("planned", "schedule", "orders", "upstream")
PLANNED = Instant(1_774_745_100_500_000)  # 2026-03-29T00:45:00.5Z
VALUES = {
    "planned": PLANNED, "schedule": "roll", "orders": {"from_version": 3, "to_version": 7, "rows": [1, 2]}, "upstream": {"key": None},
}  # fmt: skip


def rendered(value):
    return Template(value, NAMES).render(VALUES)


def test_a_text_that_is_one_place_becomes_the_value_with_its_type():
    assert rendered("{{ orders.from_version }}") == 3
    assert rendered("{{orders.rows}}") == [1, 2]
    assert rendered("{{ planned }}") == "2026-03-29T00:45:00.500000Z"


def test_very_many_beginnings_of_places_without_an_end_are_refused_at_once():
    begun = time.thread_time()
    with pytest.raises(ArgumentError, match="has no end"):
        Template("{{" * 100_000, NAMES)
    assert time.thread_time() - begun < 1


def test_places_stand_within_texts_lists_and_objects():
    assert rendered({"range": ["v{{ orders.from_version }}..{{ orders.to_version }}", 5, None], "{{ key }}": "plain { } }}"}) == {
        "range": ["v3..7", 5, None], "{{ key }}": "plain { } }}",
    }  # fmt: skip


def test_times_are_moved_and_written_in_a_zone():
    assert rendered('{{ planned | add("-1d") | date("%Y-%m-%d") }}') == "2026-03-28"
    assert rendered('at {{ planned | date("%H:%M", "Europe/Berlin") }}!') == "at 01:45!"
    assert rendered('{{ planned | add("30m") | date("%H:%M", "Europe/Berlin") }}') == "03:15"


def test_what_a_fire_lacks_is_an_error_or_has_a_default():
    assert rendered('{{ upstream.key | default("by hand") }}') == "by hand"
    with pytest.raises(ArgumentError, match=r"has no upstream\.key"):
        rendered("{{ upstream.key }}")
    with pytest.raises(ArgumentError, match=r"has no planned\.x"):
        rendered("{{ planned.x }}")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("{{ planed }}", "orders, planned"), ("{{ planned", "Close it"), ("{{ }}", "Begin with a name"), ("{{ 7 }}", "Begin with a name"),
        ("{{ planned.__class__() }}", "filters"), ("{{ planned | upper() }}", "filters"), ('{{ planned | add("x") }}', "1h30m"),
        ('{{ planned | date("%Q") }}', "no %Q"), ('{{ planned | date("%") }}', "%%"), ('{{ planned | date("%H", "Mars") }}', "IANA"),
        ('{{ planned | date("a","UTC","c") }}', "Filters are"), ("{{ planned ~ planned }}", "filters"), ("{% if x %}{{ x }}", "orders"),
        (r'{{ planned | date("\q") }}', "JSON"), ('{{ planned | date("\\ud800") }}', "no text can"),
    ],
)  # fmt: skip
def test_a_bad_place_is_refused_when_it_is_read(text, hint):
    with pytest.raises(ArgumentError) as error:
        Template({"a": [text]}, NAMES)
    assert hint in str(error.value)


def test_a_filter_for_times_refuses_other_values():
    with pytest.raises(ArgumentError, match="is no time"):
        rendered('{{ schedule | add("1d") }}')


def test_too_many_places_are_refused():
    with pytest.raises(ArgumentError, match="1000 places"):
        Template(["{{ planned }}" * 3_000], NAMES)


PIECES = [
    "{{",
    "}}",
    "planned",
    "|",
    "date(",
    'add("',
    '")',
    '"',
    "\\",
    "%",
    ".",
    ",",
    "1d",
    "\ud800",
    " ",
    "\n",
    "{{ planned }}",
]


@pytest.mark.slow
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=12).map("".join), st.booleans())
def test_any_value_is_a_template_or_is_refused_with_words(text, nested):
    with contextlib.suppress(ArgumentError):
        Template({"a": [text]} if nested else text, NAMES).render(VALUES)
