"""The line that says ready is read as it was written, among whatever else stands on a process's stdout."""

import json
import os
from types import SimpleNamespace

import pytest

from scylla_spark.config.settings import Settings
from scylla_spark.processes.ready_line import read_ready_line, ready_block, ready_facts, ready_line

FACTS = {"roles": ["ingest", "dispatch"], "pid": 7, "kafka": "127.0.0.1:9092", "data": "/tmp/ü", "metrics": None}


def test_the_line_is_read_as_it_was_written():
    line = ready_line(FACTS)
    assert "\n" not in line
    assert read_ready_line(line) == read_ready_line(line + "\n") == {"ready": True} | FACTS
    assert json.loads(line)["ready"] is True


def test_facts_are_those_of_the_deployment(tmp_path):
    settings = Settings(data_dir=tmp_path, kafka={"bootstrap_servers": "127.0.0.1:9092"})
    told = ready_facts(
        SimpleNamespace(
            settings=settings, roles=("ingest",), metrics="http://127.0.0.1:1", addresses={"api": "http://127.0.0.1:2"}
        )
    )
    assert told == {
        "roles": ("ingest",), "pid": os.getpid(), "kafka": "127.0.0.1:9092", "data": str(tmp_path), "metrics": "http://127.0.0.1:1",
        "api": "http://127.0.0.1:2",
    }  # fmt: skip


@pytest.mark.parametrize("line", ["", "ready: kafka x", '{"ready": true', '{"event": "ready"}', "26/11/22 WARN Utils"])
def test_other_lines_say_nothing(line):
    assert read_ready_line(line) is None


@pytest.mark.parametrize(
    ("names", "handlers", "command"),
    [
        (["a b", "c"], "a b, c", "task enqueue 'a b'"),
        ([], "none: no task can run. Start with --handlers MODULE", "task list"),
    ],
)
def test_people_are_shown_handlers_the_dashboard_and_what_to_try(names, handlers, command):
    facts = FACTS | {"data": "/tmp/d d", "api": "http://127.0.0.1:8080"}
    lines = ready_block(facts, names, one_machine=True).splitlines()
    assert lines == [
        "ready",
        "  data       /tmp/d d",
        "  kafka      127.0.0.1:9092",
        "  api        http://127.0.0.1:8080",
        "  dashboard  http://127.0.0.1:8080/ui/",
        f"  handlers   {handlers}",
        f"  next       scylla-spark --data '/tmp/d d' {command}",
    ]


def test_a_process_that_dispatches_nothing_shows_no_handlers():
    lines = ready_block(FACTS, None, one_machine=False).splitlines()
    assert lines == [
        "ready",
        "  data       /tmp/ü",
        "  kafka      127.0.0.1:9092",
        "  next       scylla-spark task list",
    ]
