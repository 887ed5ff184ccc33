"""Definitions of queues: every field, every bad value, and the start values of the settings read alike."""

import json
from dataclasses import fields
from datetime import timedelta

import pytest

from scylla_spark.config.settings import Settings
from scylla_spark.core.engine.queue import QueueLimits
from scylla_spark.core.tasks.task import Retry
from scylla_spark.definitions.notification_rule import NotificationRule
from scylla_spark.definitions.queue import Queue
from scylla_spark.errors import ArgumentError, ConfigError
from scylla_spark.services.dispatch.engine_settings import limits_of
from scylla_spark.services.dispatch.handler_policies import retry_of

WHOLE = {
    "name": "mail", "mode": "pull", "order": "replay", "concurrency": 5, "rate": 2.5, "paused": True, "groupConcurrency": 2,
    "groupSeparator": "/", "weights": {"gold": 10}, "ageing": True, "lease": "30s", "maxRun": "10m", "maxRetries": 3,
    "retryBase": "1s", "retryCap": "1m", "onException": "fail", "onFalse": "redeliver", "keyReuse": "when_done",
    "retention": "1d", "defaultHandler": "send", "description": "letters", "isolation": "handler",
}  # fmt: skip
MOST = 2**31 - 1


def snake(name):
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


def test_every_field_is_read_by_either_of_its_names():
    own = {snake(name): value for name, value in WHOLE.items()}
    assert own.keys() == Queue.model_fields.keys()
    assert Queue.of(WHOLE) == Queue.of(own) == Queue(**own)
    assert Queue.of(WHOLE).definition == WHOLE
    assert Queue.of(WHOLE).values == own


def test_every_field_says_what_it_is():
    assert [name for name, field in Queue.model_fields.items() if name != "name" and not field.description] == []


def test_a_name_alone_is_a_queue_with_defaults():
    assert Queue.of({"name": "mail"}) == Queue(name="mail")
    assert Queue(name="mail").definition == {"name": "mail"}


def test_the_name_may_come_first_and_once():
    assert Queue("mail", rate=5) == Queue(name="mail", rate=5)
    with pytest.raises(ArgumentError, match="two names"):
        Queue("mail", name="mail")
    with pytest.raises(ArgumentError, match="name"):
        Queue("no name")


def test_null_is_no_limit_and_for_retries_it_is_for_ever():
    nothing = dict.fromkeys(("concurrency", "rate", "groupConcurrency", "retryBase", "retention", "defaultHandler"))
    assert Queue.of({"name": "a"} | nothing) == Queue(name="a")
    assert Queue.of({"name": "a", "maxRetries": None}).max_retries is None
    assert Queue.of({"name": "a"}).max_retries == "deployment"


@pytest.mark.parametrize(
    ("definition", "stored"),
    [
        (Queue(name="a", max_retries="deployment"), {"name": "a"}),
        (Queue(name="a", max_retries=None, rate=None), {"name": "a", "maxRetries": None, "rate": None}),
        (
            NotificationRule(name="a", when=["failed"], channel="ops", within=None, every=None),
            {"name": "a", "when": ["failed"], "channel": "ops"},
        ),
    ],
)
def test_a_stored_text_has_no_value_that_older_versions_refuse(definition, stored):
    assert json.loads(definition.text) == stored
    assert type(definition).of(stored) == definition


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
        ("maxRetries", [-1, MOST + 1, "never", True]),
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
            Queue.of({"name": "mail", field: value})
        assert snake(field) in str(caught.value) or "JSON" in str(caught.value), value
        assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize(
    ("field", "near"), [("concurency", "concurrency"), ("groupConcurency", "groupConcurrency"), ("Rate", "rate")]
)
def test_an_unknown_field_is_an_error_that_names_the_nearest(field, near):
    with pytest.raises(ArgumentError, match=f"{field}.*Did you mean {near}"):
        Queue.of({"name": "mail", field: 1})
    with pytest.raises(ArgumentError, match="Fields: name, mode"):
        Queue.of({"name": "mail", "zzz": 1})


@pytest.mark.parametrize("value", [None, 5, [], "mail", {}, {5: 6}])
def test_what_is_no_queue_is_an_error(value):
    with pytest.raises(ArgumentError):
        Queue.of(value)


@pytest.mark.slow
def test_nothing_that_is_nested_or_large_harms_the_reader():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ArgumentError, match="nested too deep"):
        Queue.of({"name": "mail", "weights": deep})
    with pytest.raises(ArgumentError, match=str(Queue.most_bytes)):
        Queue.of({"name": "mail", "weights": {f"{number:0900}": 1 for number in range(100)}})


def test_extremes_are_read():
    extremes = {
        "concurrency": MOST, "rate": 1e-6, "groupConcurrency": MOST, "maxRetries": MOST, "retryBase": "36525d", "lease": 0,
        "weights": {"x" * 1024: 1000}, "groupSeparator": "😀" * 1024,
    }  # fmt: skip
    found = Queue.of({"name": "x" * 200} | extremes)
    assert (found.concurrency, found.lease, found.retry_base) == (MOST, timedelta(), timedelta(days=36_525))


@pytest.mark.parametrize(
    "value", [WHOLE, {"name": "a"}, {"name": "a", "maxRetries": None}, {"name": "a", "lease": 0.25}]
)
def test_a_definition_written_out_is_read_as_the_same(value):
    found = Queue.of(value)
    assert Queue.of(found.values) == found
    assert Queue.of(json.loads(found.text)) == found


def test_a_policy_of_retries_is_taken_from_the_queue_field_by_field():
    otherwise = Retry(7, "5s", "10s")
    assert retry_of(Queue(name="a"), otherwise) == Retry.from_ms(7, 5_000, 10_000)
    assert retry_of(Queue(name="a", max_retries=None, retry_cap="1s"), otherwise) == Retry.from_ms(None, 5_000, 1_000)


def test_every_limit_of_the_engine_follows_from_a_field():
    plain = limits_of(Queue(name="a"))
    other = limits_of(Queue.of(WHOLE))
    assert plain == QueueLimits()
    assert [one.name for one in fields(QueueLimits) if getattr(other, one.name) == getattr(plain, one.name)] == []


def test_settings_hold_queues_whose_names_are_their_keys(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = {snake(name): value for name, value in WHOLE.items() if name != "name"}
    assert Settings.load(queues={"mail": own}).queues == {"mail": Queue.of(WHOLE)}
    assert Settings.load(queues={"a": {"max_retries": "forever"}}).queues["a"].max_retries is None
    assert Settings.load(queues={"a": {}}).queues["a"].definition == {"name": "a"}


@pytest.mark.parametrize(
    ("queues", "words"),
    [
        ({"no name": {}}, r"queues\.no name\.name: .*'no name' is no name; names are 1 to 200 ASCII letters"),
        ({"mail": {"name": "post"}}, "the queue 'mail' has another name"),
        ({"mail": {"isolation": "sandbox", "mode": "pull"}}, r"queues\.mail: .*asks for a sandbox"),
    ],
)
def test_settings_name_the_queue_that_is_wrong(queues, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=words):
        Settings.load(queues=queues)


def test_queues_are_read_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for field, text in {
        "concurrency": "5", "rate": "0.5", "paused": "true", "lease": "5s", "default_handler": "123", "weights": '{"a": 2}'
    }.items():  # fmt: skip
        monkeypatch.setenv(f"SCYLLASPARK_QUEUES__mail__{field}", text)
    wanted = Queue(
        name="mail", concurrency=5, rate=0.5, paused=True, lease="5s", default_handler="123", weights={"a": 2}
    )
    assert Settings.load().queues == {"mail": wanted}


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
    with pytest.raises(ConfigError, match=rf"queues\.mail\.{next(iter(wrong))}"):
        Settings.load(queues={"mail": wrong})


def test_tasks_that_are_leased_cannot_be_asked_to_run_in_a_sandbox():
    assert Queue.of({"name": "mail", "isolation": "sandbox"}).isolation == "sandbox"
    with pytest.raises(ArgumentError, match="its tasks are leased"):
        Queue.of({"name": "mail", "isolation": "sandbox", "mode": "pull"})
