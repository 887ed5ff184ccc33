"""What handlers print and log can be read, whatever becomes of them, and nothing else suffers from it."""

import json
import subprocess
import urllib.error
import urllib.request

import polars as pl
import pytest

from scylla_spark import TaskKey
from scylla_spark.core.tasks.key import id_of
from tests.acceptance.place import PATIENCE, now
from tests.support.waiting import eventually


def lines(scheduler, key, within=PATIENCE, enough=lambda found: True):
    def look():
        found = list(scheduler.task(key).logs())
        return found if enough(found) else None

    return eventually(look, within, "the lines are there")


def has_text(text):
    return lambda found: any(line.text == text for line in found)


def test_what_a_handler_prints_and_logs_is_kept_with_its_streams_levels_and_fields_and_without_secrets(
    deployment, scheduler, foreign
):
    key = TaskKey(now(), "tell-all", "1")
    foreign.put(key, {}, handler="tell")
    foreign.flush()
    deployment.recorded([key])
    found = lines(scheduler, key, enough=has_text("without an end"))

    assert [line.seq for line in found] == list(range(1, 207))
    assert {line.attempt for line in found} == {1}
    assert [(line.stream, line.level, line.text) for line in found[:4]] == [
        ("stdout", None, "printed password=***"),
        ("stderr", None, "printed as an error"),
        ("logging", "warning", "3 left"),
        ("logging", "info", "told"),
    ]
    assert found[2].fields == {"logger": "shop", "sku": "a-1", "api_key": "***"}
    assert [line.text for line in found[4:204]] == ["threaded"] * 200
    assert [line.text for line in found[204:]] == ["the last words", "without an end"]
    assert list(scheduler.task(key).logs(attempt=2)) == []


def test_of_a_process_that_dies_the_lines_before_its_death_are_kept_and_of_a_flood_both_ends(
    deployment, scheduler, foreign
):
    key = TaskKey(now(), "tell-die", "1")
    foreign.put(key, {"die": True, "lines": 50_000}, handler="tell", retry={"maxRetries": 0})
    foreign.flush()
    assert deployment.recorded([key])[key].failure.kind == "child_died"
    found = lines(scheduler, key, enough=has_text("the last words"))

    assert found[-1].text == "the last words"
    assert found[0].text == "printed password=***"
    (gap,) = [line for line in found if line.stream == "scheduler"]
    assert len(found) - 1 + gap.fields["missing"] == found[-1].seq == 50_205, "every line is there or counted"
    assert gap.text == f"[{gap.fields['missing']} lines are left out here]"
    assert sum(len(line.text) for line in found) < 1024 * 1024


def test_of_many_async_tasks_in_one_process_each_keeps_its_own_lines(deployment, scheduler, foreign):
    keys = [TaskKey(now(), f"tell-async-{n}", f"{n}") for n in range(20)]
    for key in keys:
        foreign.put(key, {"ms": 500}, handler="nap")
    foreign.flush()
    ends = deployment.recorded(keys)
    assert len({ends[key].result for key in keys}) == 1, "one process"
    for key in keys:
        found = lines(scheduler, key, enough=has_text(f"awake {key.uniqueness_key}"))
        assert [line.text for line in found] == [f"asleep {key.uniqueness_key}", f"awake {key.uniqueness_key}"]


def test_task_logs_follows_a_running_task_until_its_end(deployment, foreign, tmp_path):
    key, file = TaskKey(now(), "tell-slowly", "1"), tmp_path / "go on"
    foreign.put(key, {"file": str(file)}, handler="tell")
    foreign.flush()
    command = deployment.command("task", "logs", str(key), "-f", "-o", "json")
    with subprocess.Popen(command, env=deployment.environment, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        first = [json.loads(reader.stdout.readline()) for _ in range(204)]
        assert first[3]["text"] == "told", "while it runs"
        file.touch()
        rest = [json.loads(line) for line in reader.stdout]
        assert reader.wait(PATIENCE) == 0
    assert [line["text"] for line in rest] == ["the last words", "without an end"]
    assert [line["seq"] for line in [*first, *rest]] == list(range(1, 207))


def test_lines_come_to_stand_in_the_table_and_are_the_same_from_there(deployment, scheduler, foreign):
    key = TaskKey(now(), "tell-table", "1")
    foreign.put(key, {}, handler="tell")
    foreign.flush()
    deployment.recorded([key])
    before = lines(scheduler, key, enough=has_text("without an end"))

    def stored():
        rows = deployment.rows("attempt_logs").filter(pl.col("ordering_id") == key.ordering_id).sort("seq")
        return [rows] if len(rows) == len(before) else None

    (rows,) = eventually(stored, PATIENCE, "the lines are in the table")
    assert rows["text"].to_list() == [line.text for line in before]
    assert rows["uniqueness_key"].unique().to_list() == ["1"]
    assert list(scheduler.task(key).logs()) == before


def test_the_api_gives_pages_of_lines_and_a_stream_that_ends_with_the_task(deployment, scheduler, foreign, tmp_path):
    key, file = TaskKey(now(), "tell-http", "1"), tmp_path / "go on"
    foreign.put(key, {"file": str(file)}, handler="tell")
    foreign.flush()
    lines(scheduler, key, enough=has_text("told"))
    address = f"{deployment.api}/v1/tasks/{id_of(key)}/logs"
    stream = urllib.request.Request(address, headers={"Accept": "text/event-stream"})
    with urllib.request.urlopen(stream, timeout=PATIENCE) as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        assert answer.readline() == b": welcome\n"
        file.touch()
        told = answer.read().decode()
    assert told.count("event: line") == 206
    assert told.endswith("event: end\ndata: {}\n\n")
    last = [line for line in told.splitlines() if line.startswith("id: ")][-2].removeprefix("id: ")
    again = urllib.request.Request(address, headers={"Accept": "text/event-stream", "Last-Event-ID": last})
    with urllib.request.urlopen(again, timeout=PATIENCE) as answer:
        assert answer.read().decode().count("event: line") == 1

    found, cursor, pages = [], "", 0
    while cursor is not None:
        with urllib.request.urlopen(f"{address}?limit=100{cursor and '&cursor=' + cursor}", timeout=PATIENCE) as answer:
            page = json.load(answer)
        found, cursor, pages = found + page["lines"], page["next"], pages + 1
    assert (pages, [line["seq"] for line in found]) == (3, list(range(1, 207)))
    with pytest.raises(urllib.error.HTTPError, match="422"):
        urllib.request.urlopen(f"{address}?cursor=nonsense", timeout=PATIENCE)
