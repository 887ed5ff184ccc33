"""One rule for names: whatever judges one accepts and refuses the same."""

from __future__ import annotations

import json

import pytest

from scylla_spark.config.settings import Settings
from scylla_spark.core.records.command import Command, Rules, validate
from scylla_spark.errors import ArgumentError, ConfigError
from scylla_spark.handlers import registry as handler_registry
from scylla_spark.handlers.registry import handler
from scylla_spark.name import is_name
from tests.support.fine_and_wrong_names import FINE_NAMES, WRONG_NAMES

NOW = 1_790_000_000_000_000


@pytest.fixture(autouse=True)
def _empty_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(handler_registry, "_registered", {})


def accepted(field, name):
    """Whether a record that names a handler or a queue so is accepted."""
    record = {"orderingId": "a", "uniquenessKey": "u", "scheduledTime": "2098-01-01T00:00:00Z", "taskData": {}}
    verdict = validate(0, 0, NOW, b"a", json.dumps(record | {field: name}).encode(), Rules(partitions=1))
    return isinstance(verdict, Command)


@pytest.mark.parametrize("name", FINE_NAMES)
def test_a_fine_name_is_fine_for_everybody(name):
    assert is_name(name)
    handler(name)(lambda task: None)
    assert accepted("handler", name)
    assert accepted("queue", name)
    Settings.load(queues={name: {}}, ingest={"default_handler": name})


@pytest.mark.parametrize("name", WRONG_NAMES)
def test_a_wrong_name_is_refused_by_everybody(name):
    assert not is_name(name)
    with pytest.raises(ArgumentError, match=r"not a handler name.*letters"):
        handler(name)
    assert not accepted("handler", name)
    assert not accepted("queue", name)
    for settings in ({"queues": {name: {}}}, {"ingest": {"default_handler": name}}):
        with pytest.raises(ConfigError, match="names are 1 to 200"):
            Settings.load(**settings)


def test_what_is_no_text_is_no_name():
    with pytest.raises(ArgumentError, match="handler name"):
        handler(3)
