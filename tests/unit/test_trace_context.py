"""Trace context: from the span in which a task is enqueued to its handler, and to what that enqueues."""

import json
import subprocess
import sys
from datetime import UTC, datetime

import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

from scylla_spark.client.tasks.enqueue_arguments import command
from scylla_spark.core.records.command import Command, Rejection, Rules, encode, validate
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.trace_context import current_trace, is_traceparent
from scylla_spark.testing import call, world

START = datetime(2026, 3, 1, 9, tzinfo=UTC)
NOW = 1_800_000_000_000_000
KEY = TaskKey(NOW, "lane", "u")
GIVEN = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OURS = "00-000000000000000000000000000000ab-00000000000000cd-00"


def in_span():
    return use_span(NonRecordingSpan(SpanContext(0xAB, 0xCD, is_remote=False, trace_flags=TraceFlags(0))))


def seen(payload, ctx):
    return ctx.traceparent


def spawn(task, ctx):
    ctx.enqueue("seen", {}, name="inherits")
    ctx.enqueue("seen", {}, name="says", traceparent=OURS)


def spawn_in_span(task, ctx):
    with in_span():
        ctx.enqueue("seen", {}, name="child")


def test_it_travels_and_what_is_none_is_refused():
    one = Command("enqueue", KEY, 0, "h", enqueued_us=NOW, traceparent=GIVEN)
    assert validate(0, 0, NOW, None, encode(one), Rules(1)) == one
    for wrong in ("", "00-x", GIVEN.upper(), GIVEN + "-more", 7, GIVEN.replace("00-", "ff-", 1)):
        record = json.loads(encode(one)) | {"traceparent": wrong}
        verdict = validate(0, 0, NOW, None, json.dumps(record).encode(), Rules(1))
        assert isinstance(verdict, Rejection), wrong
        assert (verdict.reason, verdict.detail[:11]) == ("wrong_value", "traceparent")


def test_without_a_span_and_without_a_word_there_is_none():
    assert current_trace() is None
    assert command(NOW, "h").traceparent is None


def test_the_current_span_is_taken_unless_another_is_given():
    with in_span():
        assert trace.get_current_span().get_span_context().trace_id == 0xAB
        assert command(NOW, "h").traceparent == OURS
        assert command(NOW, "h", traceparent=GIVEN).traceparent == GIVEN


@pytest.mark.slow
def test_opentelemetry_is_not_imported_for_it():
    program = "import sys, scylla_spark; scylla_spark.Scheduler; from scylla_spark.client.tasks.enqueue_arguments import command\n"
    program += "assert command(0, 'h').traceparent is None\nassert 'opentelemetry' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_handler_is_told_of_it():
    with world(handlers=[seen], now=START) as w:
        task = w.enqueue("seen", {}, traceparent=GIVEN)
        w.advance("1s")
        assert task.result() == GIVEN
        assert task.status().traceparent == GIVEN
    assert call(seen, {}, traceparent=GIVEN).result == GIVEN


def test_what_a_handler_enqueues_belongs_to_the_trace_of_its_task():
    with world(handlers=[seen, spawn], now=START) as w:
        w.enqueue("spawn", {}, traceparent=GIVEN)
        w.advance("1s")
        assert sorted(run.result for run in w.runs if run.handler == "seen") == [OURS, GIVEN]


def test_what_a_handler_enqueues_in_a_span_belongs_to_that():
    with world(handlers=[seen, spawn_in_span], now=START) as w:
        w.enqueue("spawn_in_span", {}, traceparent=GIVEN)
        w.advance("1s")
        assert [run.result for run in w.runs if run.handler == "seen"] == [OURS]


def test_zeros_name_no_trace():
    assert is_traceparent(GIVEN)
    assert not is_traceparent("00-" + "0" * 32 + "-00f067aa0ba902b7-01")
    assert not is_traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-" + "0" * 16 + "-01")
