"""Instants as texts: every way in takes the same ones."""

import json
from datetime import UTC, datetime

import pytest
from pydantic import TypeAdapter

from scylla_spark.api.context import Instant
from scylla_spark.cli.commands.task_import import _keywords
from scylla_spark.cli.context import instant
from scylla_spark.clock import read_instant, to_us
from scylla_spark.core.plan.trigger_format import read_trigger
from scylla_spark.core.records.command import Command, Rules, validate
from scylla_spark.core.tasks.filter import read_filter
from scylla_spark.core.tasks.key import TaskKey, partition_of
from scylla_spark.dashboard.own_api import ApiProblem
from scylla_spark.dashboard.request_values import instant_given

MOMENT = to_us(datetime(2026, 11, 30, 10, tzinfo=UTC))
HTTP = TypeAdapter(Instant)


def from_kafka(text):
    fields = {"orderingId": "a", "uniquenessKey": "u", "taskData": {}, "scheduledTime": text}
    found = validate(partition_of("a", 8), 0, MOMENT, b"a", json.dumps(fields).encode(), Rules(partitions=8))
    if not isinstance(found, Command):
        raise ValueError(found.detail)
    return found.key.time_us


WAYS = {
    "a record of tasks": from_kafka,
    "a definition of a trigger": lambda text: read_trigger({"kind": "at", "times": [text]}).times.rule.instants_us[0],
    "HTTP": lambda text: to_us(HTTP.validate_json(json.dumps(text))),
    "the id of a task": lambda text: TaskKey.parse(f"{text},a,u").time_us,
    "the command line": instant,
    "an import": lambda text: to_us(_keywords({"at": text}, "h")["at"]),
    "a filter": lambda text: read_filter(f'scheduled:>="{text}"', MOMENT).conditions[0].low,
    "the dashboard": lambda text: instant_given("at", text),
    "Python": lambda text: to_us(read_instant(text)),
}
"""Who reads an instant → microseconds since the epoch."""


@pytest.mark.parametrize("way", WAYS)
def test_every_way_in_reads_the_instants_of_rfc_3339_and_no_others(way):
    read = WAYS[way]
    for text in (
        "2026-11-30t10:00:00z",
        "2026-11-30T10:00:00.000000999Z",
        "2026-11-30T10:00Z",
        "2026-11-30T09:30:00-00:30",
    ):
        assert read(text) == MOMENT, text
    for text in (
        "2026-11-30 10:00:00Z", "2026-11-30T10:00:00,5Z", "2026-11-30T10:00:00+0200", "2026-11-30T10:00:00\N{MINUS SIGN}02:00",
        "20261130T100000Z", "2026-W49-1T10:00:00Z", "2026-11-30T10Z", "2026-11-30T24:00:00Z", "2026-02-30T10:00:00Z", "1796032800",
    ):  # fmt: skip
        with pytest.raises((ValueError, ApiProblem)):
            read(text)
