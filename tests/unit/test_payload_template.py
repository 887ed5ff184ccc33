"""Templates: what a place may say, what it becomes, and what is refused when a schedule is put."""

import contextlib
import time
from datetime import date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scylla_spark.clock import to_us
from scylla_spark.core.plan.payload_template import Instant, Template
from scylla_spark.core.plan.times.cron import cron
from scylla_spark.errors import ArgumentError

NAMES = ("planned", "schedule", "orders", "upstream")
PLANNED = Instant(1_774_745_100_500_000)  # 2026-03-29T00:45:00.5Z
VALUES = {
    "planned": PLANNED, "schedule": "roll", "orders": {"from_version": 3, "to_version": 7, "rows": [1, 2]}, "upstream": {"key": None},
}  # fmt: skip


def us(text):
    return to_us(datetime.fromisoformat(text))


def rendered(value):
    return Template(value, NAMES).render(VALUES)


def test_a_text_that_is_one_place_becomes_the_value_with_its_type():
    assert rendered("{{ orders.from_version }}") == 3
    assert rendered("{{orders.rows}}") == [1, 2]
    assert rendered("{{ planned }}") == "2026-03-29T00:45:00.500000Z"


def test_a_place_that_is_a_text_stands_for_it():
    template = Template({"a": """{{ "{{" }}.Names}} {{ planned }}""", "b": '{{ "{{" }}'}, {"planned"})
    assert template.render({"planned": "now"}) == {"a": "{{.Names}} now", "b": "{{"}
    with pytest.raises(ArgumentError, match="cannot be read"):
        Template(r'{{ "\x" }}', set())


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


@pytest.mark.parametrize("expression", ["0 0 * * *", "30 23 * * *", "30 2 * * *"])
@pytest.mark.parametrize(
    "how",
    [
        'add("-1d") | date("%Y-%m-%d", "Europe/Berlin")',
        'add("-1d", "Europe/Berlin") | add("0h") | date("%F", "Europe/Berlin")',
    ],
)
def test_the_local_day_before_is_each_day_of_the_year_once(expression, how):
    template = Template(f"{{{{ planned | {how} }}}}", NAMES)
    times, at = cron(expression, "Europe/Berlin"), us("2026-01-01T23:45:00+01:00")
    found = []
    for _ in range(364):
        at = times.next_after(at)
        found.append(template.render({"planned": Instant(at)}))
    assert found == [str(date(2026, 1, 1) + timedelta(days=number)) for number in range(364)]


@pytest.mark.parametrize(
    ("planned", "shift", "local"),
    [
        ("2026-03-29T12:00:00+02:00", "-24h", "2026-03-28T11:00"), ("2026-03-29T12:00:00+02:00", "-1d", "2026-03-28T12:00"),
        ("2026-03-28T12:00:00+01:00", "+1d12h", "2026-03-30T00:00"), ("2026-03-28T02:30:00+01:00", "1d", "2026-03-29T03:00"),
        ("2026-10-24T12:00:00+02:00", "1w", "2026-10-31T12:00"), ("2026-01-31T09:00:00+01:00", "1mo", "2026-02-28T09:00"),
        ("2026-03-31T09:00:00+02:00", "-13mo", "2025-02-28T09:00"), ("2024-02-29T09:00:00+01:00", "1y", "2025-02-28T09:00"),
        ("2026-01-15T09:00:00+01:00", "-1y2mo1w", "2024-11-08T09:00"), ("2026-01-15T09:00:00+01:00", "-90m", "2026-01-15T07:30"),
    ],
)  # fmt: skip
def test_days_and_longer_are_units_of_a_calendar_and_hours_are_durations(planned, shift, local):
    template = Template(f'{{{{ planned | add("{shift}") | date("%Y-%m-%dT%H:%M", "Europe/Berlin") }}}}', NAMES)
    assert template.render({"planned": Instant(us(planned))}) == local


def test_a_shift_beyond_all_calendars_is_refused():
    with pytest.raises(ArgumentError, match="outside of what calendars know"):
        rendered('{{ planned | add("-100y")' + ' | add("-100y")' * 30 + ' | date("%Y") }}')


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
        ('{{ planned | add("1.5d") }}', "whole"), ('{{ planned | add("101y") }}', "less"), ('{{ planned | add("-") }}', "whole"),
        ('{{ planned | add("1d", "Mars") }}', "IANA"),
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
