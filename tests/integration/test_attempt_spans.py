"""Spans of attempts: made by the children that run them, sent by OpenTelemetry to where its variables say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from scylla_spark.clock import now_us
from scylla_spark.config.settings import Settings
from scylla_spark.errors import ArgumentError
from scylla_spark.executors.local.local_executors import KIND
from scylla_spark.worker.handlers import resolved
from scylla_spark.worker.lease import Lease
from scylla_spark.worker.processes import ChildPlace
from tests.support import span_file, traced_handlers
from tests.support.executor_conformance import Running, invocation
from tests.support.http_script import lease_view

HANDLERS = traced_handlers.__file__
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GIVEN = f"00-{TRACE}-{PARENT}-01"


@contextmanager
def exporting(folder: Path) -> Iterator[Path]:
    """The folder of an exporter that children find; `span_file.read` returns what was sent."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in span_file.install(folder).items():
            patch.setenv(name, value)
        patch.syspath_prepend(str(folder))
        yield folder


@pytest.fixture
def spans(tmp_path):
    with exporting(tmp_path) as folder:
        yield folder


def traced(handler, payload=None, **more):
    return invocation(handler, payload, **more)._replace(traceparent=GIVEN)


def started(*, enabled: bool) -> Running:
    """All pools of a deployment with these handlers, with one child each."""
    dispatch = {"min_children": 1, "max_children": 1}
    settings = Settings(handlers=(HANDLERS,), otel={"enabled": enabled}, dispatch=dispatch, _env_file=None)
    return Running(KIND.make(settings))


class Story:
    """What was called in the pools of one deployment, and the spans that came of it."""

    def __init__(self, folder: Path) -> None:
        shared = started(enabled=True)
        try:
            self.calls = {
                "first": traced("t.seen")._replace(attempt=1, planned_us=now_us() - 3_000_000),
                "untraced": invocation("t.seen"),
                **{how: traced("t.end", how) for how in ("fail", "abort", "yield")},
                "asks": traced("t.asks"),
                "own": traced("t.own"),
                "environment": invocation("t.environment"),
                "hang": traced("t.hang", timeout_ms=500),
            }
            self.outcomes = dict(zip(self.calls, shared.run(*self.calls.values()), strict=True))
            self.batch = [
                invocation("t.batch", payload, lane="one", key=str(n))._replace(traceparent=GIVEN)
                for n, payload in enumerate([{}, 1, {}])
            ]
            shared.run(*self.batch)
            on_loop = {
                "slow": traced("t.async", 0.2),
                "quick": traced("t.async", 0.1),
                "cut off": traced("t.async", 60, timeout_ms=300),
            }
            self.calls |= on_loop
            self.outcomes |= zip(on_loop, shared.run(*on_loop.values()), strict=True)
            own = {name: invocation(f"t.{name}") for name in ("limited", "sandboxed")}
            self.calls |= own
            self.outcomes |= {name: shared.run(call)[0] for name, call in own.items()}
        finally:
            shared.executor.stop(drain_s=0)
        self.spans = [json.loads(line) for line in (folder / "spans").read_text().splitlines()]

    def span(self, name: str) -> dict[str, Any]:
        """The span of this call."""
        key = str(self.calls[name].key)
        (found,) = [one for one in self.spans if one["attributes"].get("scyllaspark.key") == key]
        return found

    def result(self, name: str) -> Any:
        return json.loads(self.outcomes[name].result)

    def traceparent(self, span: dict[str, Any]) -> str:
        return f"00-{TRACE}-{span['context']['span_id'][2:]}-01"


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    with exporting(tmp_path_factory.mktemp("spans")) as folder:
        return Story(folder)


def test_attempt_is_a_span_below_the_one_in_which_its_task_was_enqueued(story):
    span = story.span("first")
    assert (span["name"], span["kind"], span["parent_id"]) == ("t.seen", "SpanKind.CONSUMER", f"0x{PARENT}")
    assert story.result("first") == story.traceparent(span)
    assert span["resource"]["attributes"]["service.name"] == "shop"
    attributes = dict(span["attributes"])
    assert attributes.pop("scyllaspark.lateness_ms") >= 3000  # its scheduled time does not matter: it was planned later
    assert attributes == {
        "scyllaspark.key": str(story.calls["first"].key), "scyllaspark.queue": "default", "scyllaspark.attempt": 1,
        "scyllaspark.outcome": "succeeded",
    }  # fmt: skip


def test_task_without_a_trace_begins_one_and_a_later_attempt_tells_no_lateness(story):
    span = story.span("untraced")
    assert span["parent_id"] is None
    assert span["attributes"]["scyllaspark.attempt"] == 3
    assert "scyllaspark.lateness_ms" not in span["attributes"]


def test_span_of_an_attempt_that_failed_is_an_error_with_its_message(story):
    failed, aborted, yielded = (story.span(how) for how in ("fail", "abort", "yield"))
    assert failed["status"] == {"status_code": "ERROR", "description": "no such order"}
    assert failed["attributes"]["error.type"] == "ValueError"
    assert aborted["status"] == {"status_code": "ERROR", "description": "no_address"}
    assert yielded["status"] == {"status_code": "UNSET"}
    assert [one["attributes"]["scyllaspark.outcome"] for one in (failed, aborted, yielded)] == [
        "failed", "aborted", "yielded",
    ]  # fmt: skip


def test_attempt_that_is_killed_has_a_span_too(story):
    assert story.outcomes["hang"].outcome == "timed_out"
    span = story.span("hang")
    assert span["attributes"]["scyllaspark.outcome"] == "cut_off"
    assert (span["status"]["status_code"], span["context"]["trace_id"]) == ("ERROR", f"0x{TRACE}")


def test_what_a_handler_does_belongs_to_the_span_of_its_attempt(story):
    (asked,) = story.outcomes["asks"].follow_ups
    assert json.loads(asked.record)["traceparent"] == story.result("asks") == story.traceparent(story.span("asks"))
    (pick,) = [one for one in story.spans if one["name"] == "pick"]
    assert pick["parent_id"] == story.span("own")["context"]["span_id"]
    assert story.result("own") == story.traceparent(pick)


def test_call_for_several_tasks_is_one_span_with_links(story):
    (span,) = [one for one in story.spans if one["name"] == "t.batch"]
    assert [link["context"]["span_id"] for link in span["links"]] == [f"0x{PARENT}"] * 3
    assert (span["parent_id"], span["attributes"]["scyllaspark.tasks"]) == (None, 3)
    assert span["attributes"]["scyllaspark.outcome"] == "failed"
    assert span["status"] == {"status_code": "ERROR", "description": "as asked"}


def test_calls_on_one_loop_have_a_span_each_and_their_parts_know_it(story):
    for name in ("slow", "quick"):
        assert story.result(name) == [story.traceparent(story.span(name))] * 2
    assert story.outcomes["cut off"].outcome == "timed_out"
    assert story.span("cut off")["attributes"]["error.type"] == "timed_out"


def test_handler_with_limits_has_spans_and_one_in_a_sandbox_has_nothing_of_them(story):
    assert "OTEL_SERVICE_NAME" in story.result("limited")
    assert story.span("limited")["attributes"]["scyllaspark.outcome"] == "succeeded"
    assert story.result("sandboxed") == []
    assert not [one for one in story.spans if one["name"] == "t.sandboxed"]


def test_setting_decides_for_all_pools_and_without_it_nothing_of_opentelemetry_is_there(story, spans):
    here = story.result("environment")
    assert ("OTEL_SERVICE_NAME" in here, "opentelemetry.sdk.trace" in here) == (True, True)
    pools = started(enabled=False)
    try:
        assert json.loads(pools.one("t.environment").result) == []
        assert json.loads(pools.one("t.async", 0).result) == [None, None]
    finally:
        pools.executor.stop(drain_s=0)
    assert span_file.read(spans) == {}


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
from scylla_spark.handlers import shared_resources
from scylla_spark.handlers.open_spans import opened
from scylla_spark.worker.handlers import resolved
from scylla_spark.worker.threads import HerePlace
from tests.integration.test_attempt_spans import leased

HerePlace(resolved(({HANDLERS!r},)), opened()).work(leased())
shared_resources.end_all()
"""
    path = os.pathsep.join([str(spans), str(Path.cwd()), *sys.path])
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, env={**os.environ, "PYTHONPATH": path})
    assert span_file.read(spans)["t.seen succeeded"]["parent_id"] == f"0x{PARENT}"


def test_exporter_that_is_not_installed_is_told_at_the_start(spans, monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "pigeon")
    with pytest.raises(ArgumentError, match=r"'pigeon', for which no package is installed. Such as: pip install"):
        started(enabled=True)


def test_spans_that_break_cost_no_attempt_anything(spans, monkeypatch):
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "256")  # smaller than a batch, which the SDK refuses
    pools = started(enabled=True)
    try:
        calls = [traced("t.seen") for _ in range(3)]
        assert [outcome.outcome for outcome in pools.run(*calls)] == ["succeeded"] * 3
    finally:
        pools.executor.stop(drain_s=0)
