"""Whatever stands in a table, a message or an answer, nothing that a terminal or a spreadsheet obeys is ever printed."""

from __future__ import annotations

import csv
import io
import json
import logging
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scylla_spark import log
from scylla_spark.cli import one_command as cli
from scylla_spark.cli.output import Output, error
from scylla_spark.config.settings import Log
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.schemas import ATTEMPTS, COMPLETIONS, REJECTED, TASKS
from scylla_spark.visible import as_clause, spreadsheet_cell, visible, visible_json, visible_json_begin, visible_lines
from tests.support.delta_tables import append, at, fact, make, rejected, task

# colour, title, clipboard, C1's CSI, DEL, backspace, carriage return, a line of "ours", direction, isolates, zero width, separators
HOSTILE = (
    "\x1b[31mred\x1b]0;title\x07\x1b]52;c;YQ==\x07\x9b31m\x7f\b\rerror: fake\nerror: fake\t"
    "\u202egnp.exe\u2066x\u2069\u200b\ufeff\u2028\u2029\x85"
)
FORMULAS = ["=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1", " =1", "\uff1d1"]


def harmless(text: str) -> bool:
    """Nothing but printable letters and the ends of lines."""
    return all(letter.isprintable() or letter == "\n" for letter in text)


def test_an_error_of_a_library_becomes_a_part_of_a_sentence():
    told = "\x1b[31mGeneric S3 error\x1b[0m: \r\n  timed out.\n\tSource: {kind: \u202etimeout}. \n"
    assert as_clause(told) == "Generic S3 error: timed out. Source: {kind: \\u202etimeout}"


@given(st.text(st.characters(codec=None)))
def test_any_text_becomes_printable_and_printable_text_stays(text):
    shown = visible(text)
    assert shown.isprintable()
    assert shown == text or not text.isprintable()
    assert harmless(visible_lines(text))
    assert all(line.startswith("  ") for line in visible_lines(text).split("\n")[1:])


@given(
    st.recursive(st.text(st.characters(codec=None)), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
)
@pytest.mark.slow
def test_json_stays_exact(value):
    for indent in (None, 2):
        shown = visible_json(value, indent)
        assert harmless(shown)
        assert json.loads(shown) == value
    assert "\n" not in visible_json(value)


@given(st.text(st.characters(codec=None)))
def test_no_cell_is_a_formula_or_more_than_a_line(text):
    cell = spreadsheet_cell(text)
    assert cell.isprintable()
    assert not cell.lstrip().startswith(("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20"))


@pytest.mark.parametrize("text", FORMULAS)
def test_a_formula_gets_an_apostrophe(text):
    assert spreadsheet_cell(text) == "'" + visible(text)


def test_escapes_say_what_was_there():
    assert visible("a\x1b[1m\n\u202e\x9b\U000e0001ä €") == r"a\x1b[1m\n\u202e\x9b\U000e0001ä €"


# -- the command line on a table full of it ------------------------------------------------------------------------------

KEYS = [TaskKey(at(10, minute), text, f"u{HOSTILE}") for minute, text in enumerate([HOSTILE, *FORMULAS])]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    make(f"{folder}/tables")
    rows = [
        task(key, queue=key.ordering_id, handler=key.ordering_id, payload=json.dumps({HOSTILE: HOSTILE}))
        for key in KEYS
    ]
    append(f"{folder}/tables", TASKS, rows)
    broke = {"error_class": HOSTILE, "error_message": HOSTILE, "error_stack": HOSTILE}
    append(f"{folder}/tables", ATTEMPTS, [fact(KEYS[0], 1, "failed", **broke)])
    append(f"{folder}/tables", COMPLETIONS, [fact(key, 2, "failed", **broke) for key in KEYS])
    refused = rejected(5, "not_json", HOSTILE.encode(), KEYS[0].scheduled_time) | {"detail": HOSTILE}
    append(f"{folder}/tables", REJECTED, [refused])
    return str(folder)


COMMANDS = {
    "task list": ["task", "list"],
    "task list, cut": ["task", "list", "--limit", "1"],
    "task list of a lane": ["task", "list", "--ordering-id", HOSTILE],
    "task list of a hostile state": ["task", "list", "--state", HOSTILE],
    "task list of a hostile column": ["task", "list", "--columns", HOSTILE],
    "task show": ["task", "show", str(KEYS[0])],
    "task show, not there": ["task", "show", str(KEYS[0]._replace(uniqueness_key=f"other{HOSTILE}"))],
    "task show, no key": ["task", "show", HOSTILE],
    "task explain": ["task", "explain", str(KEYS[0])],
    "task retry, dry": ["task", "retry", "--ordering-id", HOSTILE, "--dry-run"],
    "task enqueue": ["task", "enqueue", HOSTILE, "--ordering-id", HOSTILE, "--payload", HOSTILE],
    "lane show": ["lane", "show", HOSTILE],
    "rejected list": ["rejected", "list"],
    "rejected replay, dry": ["rejected", "replay", "--dry-run"],
    "config show": ["--set", f"ingest.default_handler={HOSTILE}", "config", "show"],
    "config show of a wrong value": ["--set", f"partitions={HOSTILE}", "config", "show"],
    "an unknown command": [HOSTILE],
    "an unknown option": ["task", "list", f"--{HOSTILE}"],
    "an unknown file": ["task", "import", HOSTILE],
}


@pytest.mark.parametrize("form", ["table", "json", "jsonl", "csv"])
@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_prints_anything_that_a_terminal_obeys(command, form, data, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    cli.run(["--data", data, "-o", form, *COMMANDS[command]])
    out, err = capsys.readouterr()
    assert out + err
    assert harmless(out)
    assert harmless(err)
    assert "TaskKey" not in (out + err).replace("'TaskKey", "")
    assert "\nerror: fake" not in out + err
    assert sum(line.startswith("error:") for line in err.split("\n")) <= 1
    if form == "csv":
        cells = [cell for row in csv.reader(io.StringIO(out)) for cell in row]
        assert [
            cell for cell in cells if cell[:1] in ("=", "+", "@") or (cell[:1] == "-" and not cell[1:].isdigit())
        ] == []


def test_json_of_a_hostile_task_is_exact(data, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert cli.run(["--data", data, "task", "list", "-o", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["ordering_id"] for row in rows] == [key.ordering_id for key in reversed(KEYS)]


def test_the_key_to_continue_after_can_be_pasted_into_a_shell(capsys, monkeypatch, tmp_path):
    folder, lane = tmp_path / "d", "a'; touch pwned; '"
    make(f"{folder}/tables")
    append(f"{folder}/tables", TASKS, [task(TaskKey(at(10, minute), lane, "u")) for minute in range(2)])
    monkeypatch.chdir(tmp_path)
    assert cli.run(["--data", str(folder), "task", "list", "--limit", "1"]) == 0
    told = capsys.readouterr().err.partition("--after ")[2]
    pasted = subprocess.run(["sh", "-c", f"printf %s {told}"], capture_output=True, text=True, check=True).stdout
    assert pasted == str(TaskKey(at(10, 1), lane, "u"))
    assert not (tmp_path / "pwned").exists()


@pytest.mark.slow
def test_a_traceback_is_harmless_too(tmp_path):
    arguments = ["--debug", "--data", str(tmp_path), "task", "show", HOSTILE]
    done = subprocess.run(
        [sys.executable, "-m", "scylla_spark.cli", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, "as without --debug"
    assert "Traceback" in done.stderr
    assert harmless(done.stderr)


def test_talk_errors_and_values_are_harmless(capsys):
    Output().say(HOSTILE)
    error(HOSTILE, HOSTILE)
    Output().value("result", HOSTILE)
    Output().value("result", {"a": HOSTILE})
    out, err = capsys.readouterr()
    assert harmless(out + err)
    assert [line for line in err.split("\n") if line.startswith("error: fake")] == []


def test_what_libraries_log_is_harmless(capsys, monkeypatch):
    monkeypatch.setattr(logging.root, "handlers", [])
    log.configure(Log())
    logging.getLogger("kafka").error("member %s", HOSTILE)
    err = capsys.readouterr().err
    assert "fake" in err
    assert harmless(err)


@pytest.mark.slow
@given(
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda more: st.lists(more) | st.dictionaries(st.text(), more),
        max_leaves=20,
    )
)
def test_the_beginning_of_short_json_is_all_of_it(value):
    text, is_cut = visible_json_begin(value, 100_000)
    assert (json.loads(text), is_cut, harmless(text)) == (value, False, True)
    assert visible_json_begin(value, len(text)).text.startswith(text[:20])


def test_what_is_written_of_deep_json_does_not_grow_with_its_depth():
    value = json.loads("[" * 190 + "0," * 50_000 + "0" + "]" * 190)
    assert visible_json_begin({"a": [1, {"b": []}]}, 1000).text == visible_json({"a": [1, {"b": []}]}, indent=2)
    assert len(visible_json_begin(value, 10**9).text) < 500_000
    text, is_cut = visible_json_begin(value, 1000)
    assert (len(text), is_cut) == (1000, True)
