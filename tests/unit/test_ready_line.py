"""The line that says ready is read as it was written, among whatever else stands on a process's stdout."""

import json

import pytest

from scylla_spark.services.ready_line import read_ready_line, ready_line

FACTS = {"roles": ["ingest", "dispatch"], "pid": 7, "kafka": "127.0.0.1:9092", "data": "/tmp/ü", "metrics": None}


def test_the_line_is_read_as_it_was_written():
    line = ready_line(**FACTS)
    assert "\n" not in line
    assert read_ready_line(line) == read_ready_line(line + "\n") == {"ready": True} | FACTS
    assert json.loads(line)["ready"] is True


@pytest.mark.parametrize("line", ["", "ready: kafka x", '{"ready": true', '{"event": "ready"}', "26/11/22 WARN Utils"])
def test_other_lines_say_nothing(line):
    assert read_ready_line(line) is None
