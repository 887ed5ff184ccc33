"""Extremes that one side might take and another not be able to hold: each is refused with its reason, or held by all."""

import json
import random
from datetime import UTC, datetime, timedelta, timezone

import pytest

from scylla_spark import failpoint
from scylla_spark.client.tasks import enqueue_arguments
from scylla_spark.clock import iso
from scylla_spark.config.settings import Settings
from scylla_spark.core.records.command import Command, Rejection, Rules, validate
from scylla_spark.core.tasks.key import LATEST_US, TaskKey
from scylla_spark.core.tasks.task import Retry
from scylla_spark.defaults import MOST_RETRIES
from scylla_spark.duration import duration_ms
from scylla_spark.errors import ArgumentError

RULES = Rules(1)
NOW = 1_790_000_000_000_000
PLAIN = {"orderingId": "a", "scheduledTime": iso(NOW + 5_000_000), "uniquenessKey": "u", "taskData": {}}
LAST = datetime(9999, 12, 31, 23, 59, 59, tzinfo=timezone(timedelta(hours=-5)))
FIRST = datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5)))


def judge(field=None, text="", **fields):
    """The verdict on a plain record with some fields, one of them as raw JSON text."""
    value = json.dumps(PLAIN | fields | ({field: "@@"} if field else {}))
    return validate(0, 7, NOW, None, value.replace('"@@"', text).encode(), RULES)


@pytest.mark.parametrize("kind", ["enqueue", "cancel"])
@pytest.mark.parametrize("field", ["scheduledTime", "enqueuedAt"])
@pytest.mark.parametrize("at", [LAST.isoformat(), FIRST.isoformat(), "1969-12-31T23:59:59.999999Z", iso(LATEST_US)])
def test_an_instant_that_some_reader_cannot_hold_is_refused(kind, field, at):
    verdict = judge(**{field: at, "type": kind})
    assert isinstance(verdict, Rejection)
    assert verdict.reason == "time_out_of_range"
    assert field in verdict.detail


@pytest.mark.parametrize("at", ["1970-01-01T00:00:00Z", "1970-01-01T05:00:00+05:00", iso(LATEST_US - 1)])
def test_the_first_and_the_last_legal_instant_can_be_cancelled(at):
    assert isinstance(judge(scheduledTime=at, type="cancel"), Command)


@pytest.mark.parametrize("when", [LAST, FIRST, datetime(1969, 12, 31, tzinfo=UTC)])
def test_a_client_that_names_such_an_instant_is_told(when):
    for attempt in (lambda: TaskKey.of(when, "a", "u"), lambda: enqueue_arguments.moment(NOW, when, None)):
        with pytest.raises(ArgumentError, match="before 1970 or after 2261"):
            attempt()


@pytest.mark.parametrize(
    ("field", "text", "reason"),
    [
        ("retry", '{"maxRetries": 2147483648}', "wrong_value"),
        ("retry", '{"maxRetries": %s}' % ("9" * 400), "wrong_value"),
        ("retry", '{"maxRetries": true}', "wrong_value"),
        ("retry", '{"maxRetries": 1.5}', "wrong_value"),
        ("retry", '{"base": %s}' % ("9" * 400), "wrong_value"),
        ("retry", '{"cap": "36526d"}', "wrong_value"),
        ("timeout", '"%ss"' % ("9" * 400), "wrong_value"),
        ("timeout", '"%s"' % ("1s" * 51), "wrong_value"),
        ("timeout", "1e999", "wrong_value"),
        ("timeout", "true", "wrong_value"),
        ("version", "true", "wrong_value"),
        ("version", "1.0", "wrong_value"),
        ("version", "0", "wrong_value"),
        ("version", "5", "unknown_version"),
        ("version", "9" * 400, "unknown_version"),
        ("priority", "1e2", "wrong_value"),
        ("priority", "9" * 400, "wrong_value"),
        ("taskData", '{"x": %s}' % ("9" * 4301), "not_json"),
        ("taskData", '{"x": 1e99999999999999999999}', "not_finite"),
        ("taskData", '{"x": "\\ud800"}', "not_json"),
        ("taskData", '{{"x": {}1{}}}'.format("[" * 250, "]" * 250), "not_json"),
        ("orderingId", '"\\ud800"', "not_json"),
        ("uniquenessKey", '"\\udfff"', "not_json"),
        ("requestId", '"\\ud800"', "not_json"),
        ("unknown", '{"\\ud800": 1}', "not_json"),
        ("unknown", "NaN", "not_finite"),
    ],
)
def test_what_cannot_be_stored_is_refused(field, text, reason):
    verdict = judge(field, text)
    assert isinstance(verdict, Rejection)
    assert verdict.reason == reason
    assert 0 < len(verdict.detail) <= 500


def test_a_newer_version_is_called_one_even_if_nothing_else_is_right():
    verdict = validate(0, 7, NOW, None, b'{"version": 7, "lane": "a"}', RULES)
    assert isinstance(verdict, Rejection)
    assert verdict.reason == "unknown_version"


@pytest.mark.parametrize("count", [2**31, -1, True, 1.0, "3", 10**400])
def test_a_retry_count_that_no_table_holds_is_refused_with_a_hint(count):
    with pytest.raises(ArgumentError, match=f"whole number from 0 to {MOST_RETRIES}"):
        Retry(max_retries=count)


def test_the_largest_retry_count_travels():
    assert Retry(max_retries=MOST_RETRIES).allows(MOST_RETRIES)
    assert judge("retry", f'{{"maxRetries": {MOST_RETRIES}}}').retry.max_retries == MOST_RETRIES
    with pytest.raises(ValueError, match="2147483647"):
        Settings(dispatch={"max_retries": MOST_RETRIES + 1})


@pytest.mark.parametrize("attempt", [0, 1, 2, 100, 2**31])
def test_a_wait_can_be_reckoned_for_any_attempt(attempt):
    century = Retry(None, "36525d", "36525d")
    assert 0 < century.wait_us(attempt, random.Random(1)) <= duration_ms("36525d") * 1000


def test_a_wild_duration_is_refused_in_few_words():
    for value in (10**5000, -(10**5000), "9" * 5000, float("nan"), float("inf"), timedelta.max):
        with pytest.raises(ArgumentError) as caught:
            duration_ms(value)
        assert len(str(caught.value)) < 300


def test_a_defect_of_ours_is_a_reason_with_its_stack(monkeypatch):
    monkeypatch.setattr(failpoint, "armed", failpoint.parse("judge.command:raise:2"))
    verdicts = [judge() for _ in range(3)]
    assert [isinstance(verdict, Command) for verdict in verdicts] == [True, False, True]
    assert verdicts[1].reason == "defect"
    assert "InjectedFault" in verdicts[1].detail
