"""Lines as people and programs get them: nothing that a terminal obeys, one object per line, and each line once."""

from __future__ import annotations

import json

import pytest

from scylla_spark.cli.output import Output
from scylla_spark.client.tasks.logs import LineFilter, _Told, place_of
from scylla_spark.config.settings import Settings
from scylla_spark.core.records.log_record import LogLine, LogRecord, marker
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.errors import ArgumentError, UnreachableError
from scylla_spark.io.kafka import task_lines_reader, topics
from scylla_spark.io.kafka.task_lines_reader import LogLines

KEY = TaskKey(1, "lane", "key")


def record(attempt, *numbers, epoch=7):
    return LogRecord(KEY, attempt, epoch, tuple(LogLine(n, n, "stdout", None, str(n), "[1]") for n in numbers))


def test_a_line_is_shown_without_what_a_terminal_obeys_and_exact_as_json(capsys):
    Output().entry({"text": "\x1b[2J"}, "at \x1b[2J\nlast")
    Output(form="json").entry({"text": "\x1b[2J\u202e", "seq": 1}, "")
    Output(form="json", columns=("seq",)).entry({"text": "x", "seq": 1}, "")
    table, exact, chosen = capsys.readouterr().out.splitlines()
    assert table == "at \\x1b[2J\\nlast"
    assert "\x1b" not in exact
    assert json.loads(exact) == {"text": "\x1b[2J\u202e", "seq": 1}
    assert json.loads(chosen) == {"seq": 1}


def test_what_comes_line_by_line_is_no_csv_and_has_no_unknown_columns():
    with pytest.raises(ArgumentError, match="csv"):
        Output(form="csv").entry({"text": "x"}, "x")
    with pytest.raises(ArgumentError, match="no column nothing"):
        Output(columns=("nothing",)).entry({"text": "x"}, "x")


def test_lines_that_come_twice_are_given_out_once_and_runs_of_one_attempt_are_told_apart():
    told = _Told(LineFilter())
    first = list(told.news([record(1, 1, 2), record(1, 2)]))
    assert [line.seq for line in first] == [1, 2]
    assert first[0].fields == {"text": "[1]"}
    again = list(told.news([record(1, 1, 2, 3), record(1, 1, epoch=8), record(2, 1)]))
    assert [(line.attempt, line.epoch, line.seq) for line in again] == [(1, 7, 3), (1, 8, 1), (2, 7, 1)]


def test_reading_goes_on_behind_any_line_or_marker():
    gap = LogRecord(KEY, 1, 7, (marker(3, 3, 2),))
    every = list(_Told(LineFilter()).news([record(1, 1, 2), gap, record(1, 5), record(2, 1)]))
    assert [line.stream for line in every] == ["stdout", "stdout", "scheduler", "stdout", "stdout"]
    for index, line in enumerate(every):
        told = _Told(LineFilter(after=place_of(line)))
        assert list(told.news([record(1, 1, 2), gap, record(1, 5), record(2, 1)])) == every[index + 1 :]
    assert _Told(LineFilter(attempt=2)).wants(2)
    assert not _Told(LineFilter(attempt=2)).wants(1)


class Broker:
    """A consumer, and the clock: of a topic of ten records each poll gives one, until the broker has gone."""

    def __init__(self, stays: int) -> None:
        self.stays = stays
        self.at = 0
        self.now = 0
        self.polls = 0

    def assign(self, places):
        self.places = places

    def seek(self, place, offset):
        self.at = offset

    def beginning_offsets(self, places):
        return dict.fromkeys(places, 0)

    def end_offsets(self, places):
        return dict.fromkeys(places, 10)

    def position(self, place):
        return self.at

    def poll(self, timeout_ms):
        self.polls += 1
        assert self.polls < 1_000
        if self.at < self.stays:
            self.at += 1
            self.now += 15_000_000  # a slow one
        else:
            self.now += timeout_ms * 1_000
        return {}


@pytest.mark.parametrize("stays", [10, 4])
def test_lines_are_read_as_long_as_any_come_and_not_for_ever(monkeypatch, tmp_path, stays):
    broker = Broker(stays)
    monkeypatch.setattr(topics, "client_consumer", lambda *given, **options: broker)
    monkeypatch.setattr(task_lines_reader, "boot_us", lambda: broker.now)
    reader = LogLines(Settings(data_dir=str(tmp_path), partitions=4), KEY, 0)
    if stays == 10:
        assert list(reader.rest()) == []
        return
    with pytest.raises(UnreachableError, match="in time"):
        list(reader.rest())
    assert broker.now <= 4 * 15_000_000 + 21_000_000
