"""Spans of attempts: made by the children that run them, sent by OpenTelemetry to where its variables say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scylla_spark.config.settings import Settings
from scylla_spark.errors import ArgumentError
from scylla_spark.executors.catalog import asked_for
from scylla_spark.executors.local.pool import KIND, LocalPool
from scylla_spark.executors.loops.pool import LOOPS
from scylla_spark.worker.handlers import resolved
from scylla_spark.worker.lease import Lease
from scylla_spark.worker.processes import ChildPlace
from tests.support import span_file, traced_handlers
from tests.support.executor_conformance import GRACE_S, Running, invocation
from tests.support.http_script import lease_view
from tests.support.waiting import eventually

HANDLERS = traced_handlers.__file__
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GIVEN = f"00-{TRACE}-{PARENT}-01"


@pytest.fixture
def spans(tmp_path, monkeypatch):
    """The folder of an exporter that children find; `span_file.read` tells what was sent."""
    for name, value in span_file.install(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.fixture
def start():
    pools = []

    def start(**settings):
        pool = LocalPool([HANDLERS], min_children=1, max_children=1, kill_grace_s=GRACE_S, **settings)
        pools.append(pool)
        return Running(pool)

    yield start
    for pool in pools:
        pool.stop(drain_s=0)


def traced(handler, payload=None, **more):
    return invocation(handler, payload, **more)._replace(traceparent=GIVEN)


def sent_by(running, folder):
    running.executor.stop(drain_s=0)
    return span_file.read(folder)


def test_attempt_is_a_span_below_the_one_in_which_its_task_was_enqueued(spans, start):
    running = start(spans=True)
    call = traced("t.seen")._replace(attempt=1)
    seen = json.loads(running.run(call)[0].result)
    (span,) = sent_by(running, spans).values()
    assert (span["name"], span["kind"], span["parent_id"]) == ("t.seen", "SpanKind.CONSUMER", f"0x{PARENT}")
    assert seen == f"00-{TRACE}-{span['context']['span_id'][2:]}-01"
    assert span["resource"]["attributes"]["service.name"] == "shop"
    late = span["attributes"].pop("scyllaspark.lateness_ms")
    assert late < 0  # its time lies ahead
    assert span["attributes"] == {
        "scyllaspark.key": str(call.key), "scyllaspark.queue": "default", "scyllaspark.attempt": 1, "scyllaspark.outcome": "succeeded",
    }  # fmt: skip


def test_task_without_a_trace_begins_one_and_a_later_attempt_tells_no_lateness(spans, start):
    running = start(spans=True)
    running.one("t.seen")
    (span,) = sent_by(running, spans).values()
    assert span["parent_id"] is None
    assert span["attributes"]["scyllaspark.attempt"] == 3
    assert "scyllaspark.lateness_ms" not in span["attributes"]


def test_span_of_an_attempt_that_failed_is_an_error_with_its_message(spans, start):
    running = start(spans=True)
    running.run(*[traced("t.end", how) for how in ("fail", "abort", "yield")])
    found = sent_by(running, spans)
    assert found["t.end failed"]["status"] == {"status_code": "ERROR", "description": "no such order"}
    assert found["t.end failed"]["attributes"]["error.type"] == "ValueError"
    assert found["t.end aborted"]["status"] == {"status_code": "ERROR", "description": "no_address"}
    assert found["t.end yielded"]["status"] == {"status_code": "UNSET"}


def test_attempt_that_is_killed_has_a_span_too(spans, start):
    running = start(spans=True)
    assert running.run(traced("t.hang", timeout_ms=500))[0].outcome == "timed_out"
    span = eventually(lambda: span_file.read(spans).get("t.hang cut_off"), 10)
    assert (span["status"]["status_code"], span["context"]["trace_id"]) == ("ERROR", f"0x{TRACE}")


def test_what_a_handler_does_belongs_to_the_span_of_its_attempt(spans, start):
    running = start(spans=True)
    outcome = running.run(traced("t.asks"))[0]
    seen = json.loads(running.run(traced("t.own"))[0].result)
    found = sent_by(running, spans)
    assert json.loads(outcome.follow_ups[0].record)["traceparent"] == json.loads(outcome.result)
    assert found["pick"]["parent_id"] == found["t.own succeeded"]["context"]["span_id"]
    assert seen == f"00-{TRACE}-{found['pick']['context']['span_id'][2:]}-01"


def test_call_for_several_tasks_is_one_span_with_links(spans, start):
    running = start(spans=True)
    calls = [
        invocation("t.batch", payload, lane="one", key=str(n))._replace(traceparent=GIVEN)
        for n, payload in enumerate([{}, 1, {}])
    ]
    running.run(*calls)
    (span,) = sent_by(running, spans).values()
    assert [link["context"]["span_id"] for link in span["links"]] == [f"0x{PARENT}"] * 3
    assert (span["parent_id"], span["attributes"]["scyllaspark.tasks"]) == (None, 3)
    assert (span["name"], span["attributes"]["scyllaspark.outcome"]) == ("t.batch", "failed")
    assert span["status"] == {"status_code": "ERROR", "description": "as asked"}


def test_calls_on_one_loop_have_a_span_each_and_their_parts_know_it(spans):
    running = Running(LocalPool([HANDLERS], kill_grace_s=GRACE_S, kind=LOOPS, spans=True))
    calls = [traced("t.async", 0.2), traced("t.async", 0.1), traced("t.async", 60, timeout_ms=300)]
    first, second, third = running.run(*calls)
    running.executor.stop(drain_s=0)
    spans_of = [json.loads(line) for line in (spans / "spans").read_text().splitlines()]
    ids = {span["attributes"]["scyllaspark.key"]: span["context"]["span_id"][2:] for span in spans_of}
    for call, outcome in zip(calls, (first, second), strict=False):
        assert json.loads(outcome.result) == [f"00-{TRACE}-{ids[str(call.key)]}-01"] * 2
    assert third.outcome == "timed_out"
    ended = {span["attributes"]["scyllaspark.key"]: span for span in spans_of}[str(calls[2].key)]
    assert ended["attributes"]["error.type"] == "timed_out"


class Deaf:
    """A `Reporter` that does nothing with what it is told."""

    def report(self, lease, text):
        pass


def leased():
    view = lease_view(1, handler="t.seen")
    return Lease(view | {"task": view["task"] | {"traceparent": GIVEN}}, Deaf())


def test_leased_attempt_is_a_span_in_a_child_of_a_worker(spans):
    place = ChildPlace((HANDLERS,), resolved((HANDLERS,)), wants_spans=True)
    place.open()
    place.work(leased())
    place.close()
    span = span_file.read(spans)["t.seen succeeded"]
    assert (span["parent_id"], span["attributes"]["scyllaspark.queue"]) == (f"0x{PARENT}", "q")


def test_leased_attempt_is_a_span_in_a_thread_of_a_worker(spans):
    program = f"""
from scylla_spark.executors import shared_resources
from scylla_spark.executors.local.attempt_spans import opened
from scylla_spark.worker.handlers import resolved
from scylla_spark.worker.threads import HerePlace
from tests.integration.test_attempt_spans import leased

HerePlace(resolved(({HANDLERS!r},)), opened()).work(leased())
shared_resources.end_all()
"""
    path = os.pathsep.join([str(spans), str(Path.cwd()), *sys.path])
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, env={**os.environ, "PYTHONPATH": path})
    assert span_file.read(spans)["t.seen succeeded"]["parent_id"] == f"0x{PARENT}"


@pytest.mark.parametrize("enabled", [True, False])
def test_setting_decides_for_all_pools_and_without_it_nothing_of_opentelemetry_is_there(spans, enabled):
    settings = Settings(handlers=(HANDLERS,), otel={"enabled": enabled}, _env_file=None)
    running = Running(KIND.make(settings))
    loops = Running(asked_for(settings, running.executor.handlers())["async"])
    here = json.loads(running.one("t.environment").result)
    told = json.loads(loops.one("t.async", 0).result)
    for one in (running, loops):
        one.executor.stop(drain_s=0)
    assert ("OTEL_SERVICE_NAME" in here, "opentelemetry.sdk.trace" in here) == (enabled, enabled)
    assert (told[0] is not None, len(here) > 0) == (enabled, enabled)
    assert len(span_file.read(spans)) == (2 if enabled else 0)


def test_handler_with_limits_has_spans_and_one_in_a_sandbox_has_nothing_of_them(spans):
    settings = Settings(handlers=(HANDLERS,), otel={"enabled": True}, _env_file=None)
    shared = Running(KIND.make(settings))
    own = asked_for(settings, shared.executor.handlers())
    running = [Running(own[f"own/{handler}"]) for handler in ("t.limited", "t.sandboxed")]
    here = [
        json.loads(one.one(handler).result) for one, handler in zip(running, ("t.limited", "t.sandboxed"), strict=True)
    ]
    for one in (shared, *running):
        one.executor.stop(drain_s=0)
    assert ("OTEL_SERVICE_NAME" in here[0], here[1]) == (True, [])
    assert list(span_file.read(spans)) == ["t.limited succeeded"]


def test_exporter_that_is_not_installed_is_told_at_the_start(spans, start, monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "pigeon")
    with pytest.raises(ArgumentError, match=r"'pigeon', for which no package is installed. Such as: pip install"):
        start(spans=True)


@pytest.mark.parametrize(("name", "value"), [("OTEL_BSP_MAX_QUEUE_SIZE", "256"), ("OTEL_BSP_SCHEDULE_DELAY", "0")])
def test_spans_that_break_cost_no_attempt_anything(spans, start, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    running = start(spans=True)
    calls = [traced("t.seen") for _ in range(3)]
    assert [outcome.outcome for outcome in running.run(*calls)] == ["succeeded"] * 3
