"""The notebooks run from top to bottom in an empty folder, and show what their texts promise; so do the outputs that they carry."""

import json
import os
import re

import nbformat
import pytest

from tests.support.notebooks import NOTEBOOKS, executed, texts

JAVA = "WARNING: Using incubator modules: jdk.incubator.vector\n"  # the only line that nobody asked for
FAILED = "attempt failed handler=remind "  # a warning, as a library logs it


def quickstart(shown):
    """What the texts of the quickstart promise."""
    told = "\n".join(shown)
    assert "EnqueueResult(sent=12, refused=0)" in told
    assert "cancelled" in told
    assert "'sent_to': 'me@example.org'" in told
    ended = next(text for text in shown if "error_message" in text)
    states = [line.split("|")[3].strip() for line in ended.splitlines() if line.startswith("|")][1:]
    assert (states.count("succeeded"), states.count("aborted"), states.count("cancelled")) == (12, 1, 1)
    assert "p50_ms" in told


def data_in_work_out(shown):
    """Each run sums up its own versions."""
    told = "".join(shown)
    waits, _, ran = told.partition("|after|upto|")
    assert "has seen nothing since the last launch" in waits
    assert "launched at" not in waits, "sixty rows are too few"
    assert ran.count("Its run ended as succeeded") == 2
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in ran.splitlines() if line.startswith("|")]
    assert [row[:3] for row in rows if len(row) == 4] == [["0", "2", "succeeded"], ["2", "3", "succeeded"]]
    assert [json.loads(row[3]) for row in rows if len(row) == 4] == [
        {"orders": 120, "amount": 2 * sum(range(60))},
        {"orders": 250, "amount": sum(range(250))},
    ]
    assert "after version 0, up to 2: 120 orders" in ran
    assert "after version 2, up to 3: 250 orders" in ran


PROMISES = {"quickstart": (quickstart, "reminders.py"), "data_in_work_out": (data_in_work_out, "totals.py")}


def test_every_notebook_has_promises():
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} == set(PROMISES)


@pytest.mark.parametrize("name", PROMISES)
def test_the_notebook_carries_the_outputs_of_one_whole_run(name):
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1)), "renew it: make notebooks"
    warned = {text for stream, text in texts(notebook) if stream == "stderr"}
    assert {text for text in warned if not text.startswith(FAILED)} <= {JAVA}
    PROMISES[name][0]([text for _, text in texts(notebook)])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the Jupyter libraries
@pytest.mark.parametrize("name", PROMISES)
def test_the_notebook_runs_and_shows_what_it_says(name, place, monkeypatch):
    for setting in [setting for setting in os.environ if setting.startswith("SCYLLASPARK_")]:
        monkeypatch.delenv(setting)
    folder = place.folder / "notebook"
    folder.mkdir()
    told = list(texts(executed(NOTEBOOKS / f"{name}.ipynb", folder)))
    PROMISES[name][0]([text for _, text in told])
    # libraries may warn on a busy machine; we say nothing below a warning
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", text) for _, text in told]
    assert [text for text in plain if re.search(r"\[(debug|info) *\]|INFO:|DEBUG:", text)] == []
    assert [path.name for path in folder.iterdir() if path.suffix == ".py"] == [PROMISES[name][1]]
