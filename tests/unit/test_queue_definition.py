"""Definitions of queues: every field, every bad value, and the start values of the settings read alike."""

import json
from dataclasses import fields

import pytest

from scylla_spark.config.settings import Queue, Settings
from scylla_spark.core.engine.queue import QueueLimits
from scylla_spark.core.queues.definition import (
    ATTRIBUTES,
    FIELDS,
    MAX_DEFINITION_BYTES,
    QueueDefinition,
    queue_fields,
    queue_text,
    read_queue,
)
from scylla_spark.core.tasks.task import Retry
from scylla_spark.errors import ArgumentError, ConfigError
from scylla_spark.services.dispatch.engine_settings import limits_of

WHOLE = {
    "name": "mail", "mode": "pull", "order": "replay", "concurrency": 5, "rate": 2.5, "paused": True, "groupConcurrency": 2,
    "groupSeparator": "/", "weights": {"gold": 10}, "ageing": True, "lease": "30s", "maxRun": "10m", "maxRetries": 3,
    "retryBase": "1s", "retryCap": "1m", "onException": "fail", "onFalse": "redeliver", "keyReuse": "when_done",
    "retention": "1d", "defaultHandler": "send", "description": "letters", "isolation": "handler",
}  # fmt: skip
READ = QueueDefinition(
    "mail", "pull", "replay", 5, 2.5, True, 2, "/", {"gold": 10}, True, 30_000_000, 600_000_000, 3, 1_000_000, 60_000_000, "fail",
    "redeliver", "when_done", 86_400_000_000, "send", "letters", "handler",
)  # fmt: skip
MOST = 2**31 - 1


def test_every_field_is_read():
    assert set(WHOLE) == set(FIELDS)
    assert read_queue(WHOLE) == READ


def test_a_name_alone_is_a_queue_with_defaults():
    assert read_queue({"name": "mail"}) == QueueDefinition("mail")


def test_null_is_no_limit_and_for_retries_it_is_for_ever():
    nothing = dict.fromkeys(("concurrency", "rate", "groupConcurrency", "retryBase", "retention", "defaultHandler"))
    assert read_queue({"name": "a"} | nothing) == QueueDefinition("a")
    assert read_queue({"name": "a", "maxRetries": None}).max_retries is None
    assert read_queue({"name": "a"}).max_retries == "deployment"


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("name", ["", "a b", "x" * 201, 5, None, "a\n"]),
        ("mode", ["Push", "", 1, None]),
        ("order", ["fifo", None]),
        ("concurrency", [0, -1, MOST + 1, 1.5, "5", True]),
        ("rate", [0, -1, 1e-7, 1e10, float("nan"), float("inf"), 10**400, "1", True]),
        ("paused", ["yes", 1, None]),
        ("groupConcurrency", [0, MOST + 1, "1"]),
        ("groupSeparator", ["", "x" * 1025, None, 1]),
        ("weights", [{"a": 0}, {"a": 1001}, {"a": 1.5}, {"": 1}, {"a" * 1025: 1}, [], None, {str(n): 1 for n in range(1001)}]),
        ("ageing", ["no", 0]),
        ("lease", ["-1s", "soon", None, -1, "101y", [], True]),
        ("maxRun", ["", None, float("inf")]),
        ("maxRetries", [-1, MOST + 1, "deployment", "forever", True]),
        ("retryBase", ["x", -5]),
        ("retryCap", ["x", -5]),
        ("onException", ["ignore", None]),
        ("onFalse", ["fail", None]),
        ("keyReuse", ["always", None]),
        ("retention", ["x", -5]),
        ("defaultHandler", ["", "a b"]),
        ("description", ["x" * 1025, None, "\ud800", 1]),
        ("isolation", ["vm", None, "process"]),
    ],
)  # fmt: skip
def test_a_bad_value_is_an_error_that_names_its_field(field, values):
    for value in values:
        with pytest.raises(ArgumentError) as caught:
            read_queue({"name": "mail", field: value})
        assert field in str(caught.value) or "its texts" in str(caught.value), value
        assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize(
    ("field", "near"), [("concurency", "concurrency"), ("group_concurrency", "groupConcurrency"), ("Rate", "rate")]
)
def test_an_unknown_field_is_an_error_that_names_the_nearest(field, near):
    with pytest.raises(ArgumentError, match=f"{field}.*Did you mean {near}"):
        read_queue({"name": "mail", field: 1})
    with pytest.raises(ArgumentError, match="Fields: name, mode"):
        read_queue({"name": "mail", "zzz": 1})


@pytest.mark.parametrize("value", [None, 5, [], "mail", {}, {5: 6}])
def test_what_is_no_queue_is_an_error(value):
    with pytest.raises(ArgumentError):
        read_queue(value)


@pytest.mark.slow
def test_nothing_that_is_nested_or_large_harms_the_reader():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ArgumentError, match="nested too deep"):
        read_queue({"name": "mail", "weights": deep})
    with pytest.raises(ArgumentError, match=str(MAX_DEFINITION_BYTES)):
        read_queue({"name": "mail", "weights": {f"{number:0900}": 1 for number in range(100)}})


def test_extremes_are_read():
    extremes = {
        "concurrency": MOST, "rate": 1e-6, "groupConcurrency": MOST, "maxRetries": MOST, "retryBase": "36525d", "lease": 0,
        "weights": {"x" * 1024: 1000}, "groupSeparator": "😀" * 1024,
    }  # fmt: skip
    found = read_queue({"name": "x" * 200} | extremes)
    assert (found.concurrency, found.lease_us, found.retry_base_us) == (MOST, 0, 36_525 * 86_400_000_000)


@pytest.mark.parametrize(
    "value", [WHOLE, {"name": "a"}, {"name": "a", "maxRetries": None}, {"name": "a", "lease": 0.25}]
)
def test_a_definition_written_out_is_read_as_the_same(value):
    found = read_queue(value)
    assert read_queue(queue_fields(found)) == found
    assert read_queue(json.loads(queue_text(value))) == found


def test_a_policy_of_retries_is_taken_from_the_queue_field_by_field():
    otherwise = Retry(7, "5s", "10s")
    assert QueueDefinition("a").retry(otherwise) == Retry.from_ms(7, 5_000, 10_000)
    assert QueueDefinition("a", max_retries=None, retry_cap_us=1_000_000).retry(otherwise) == Retry.from_ms(
        None, 5_000, 1_000
    )


def snake(name):
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


def test_settings_know_the_same_fields_with_the_same_defaults():
    assert {snake(name) for name in FIELDS} == {"name", *Queue.model_fields}
    given = {
        name: Queue().model_dump(mode="json")[snake(name)] for name in FIELDS if name not in ("name", "maxRetries")
    }
    assert read_queue({"name": "a"} | given) == QueueDefinition("a")
    assert Queue().max_retries == QueueDefinition("a").max_retries


def test_a_field_travels_under_its_attribute_in_camel_case_without_its_unit():
    assert {snake(name): attribute.removesuffix("_us") for name, attribute in ATTRIBUTES.items()} == {
        name: name for name in ("name", *Queue.model_fields)
    }


def test_every_limit_of_the_engine_follows_from_a_field():
    plain = limits_of(QueueDefinition("a"))
    other = limits_of(read_queue(WHOLE))
    assert plain == QueueLimits()
    assert [one.name for one in fields(QueueLimits) if getattr(other, one.name) == getattr(plain, one.name)] == []


def test_settings_say_the_same_as_a_definition():
    own = {snake(name): value for name, value in WHOLE.items() if name != "name"}
    assert read_queue(Queue(**own).definition("mail")) == READ
    assert read_queue(Queue(max_retries="forever").definition("a")).max_retries is None
    assert Queue().definition("a") == {"name": "a"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"rate": 1e-300},
        {"concurrency": 2**40},
        {"default_handler": "a b"},
        {"weights": {"a": 0}},
        {"max_retries": "never"},
    ],
)
def test_settings_refuse_what_the_reader_refuses(wrong, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Settings.load(queues={"mail": wrong})


def test_tasks_that_are_leased_cannot_be_asked_to_run_in_a_sandbox():
    assert read_queue({"name": "mail", "isolation": "sandbox"}).isolation == "sandbox"
    with pytest.raises(ArgumentError, match="its tasks are leased"):
        read_queue({"name": "mail", "isolation": "sandbox", "mode": "pull"})
