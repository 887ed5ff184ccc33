"""The notebooks run from top to bottom in an empty folder, and show what their texts promise."""

import json
import os
from pathlib import Path

import nbformat
import pytest

from tests.acceptance.place import ROOT

NOTEBOOKS = ROOT / "notebooks"
QUICKSTART = NOTEBOOKS / "quickstart.ipynb"
DATA_IN = NOTEBOOKS / "data_in_work_out.ipynb"


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_the_notebook_is_valid_and_carries_no_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert [cell.source for cell in notebook.cells if cell.get("outputs") or cell.get("execution_count")] == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the Jupyter libraries
def test_the_quickstart_runs_and_shows_what_it_says(place, monkeypatch):
    texts, left = _executed(QUICKSTART, place, monkeypatch)

    shown = "\n".join(texts)
    assert "EnqueueResult(sent=12, refused=0)" in shown
    assert "cancelled" in shown
    assert "'sent_to': 'me@example.org'" in shown
    ended = next(text for text in texts if "error_message" in text)
    states = [line.split("|")[3].strip() for line in ended.splitlines() if line.startswith("|")][1:]
    assert (states.count("succeeded"), states.count("aborted"), states.count("cancelled")) == (12, 1, 1)
    assert left == ["reminders.py"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the Jupyter libraries
def test_data_in_work_out_runs_and_each_run_sums_up_its_own_versions(place, monkeypatch):
    texts, left = _executed(DATA_IN, place, monkeypatch)

    shown = "".join(texts)
    assert "{'totals': 'added'}" in shown
    waits, _, ran = shown.partition("{'totals': 'added'}")[2].partition("|after|upto|")
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
    assert left == ["totals.py"]


def _executed(path, place, monkeypatch):
    """What the cells of a notebook show, and the modules that it leaves in its folder."""
    from nbclient import NotebookClient

    for name in [name for name in os.environ if name.startswith("SCYLLASPARK_")]:
        monkeypatch.delenv(name)
    notebook = nbformat.read(path, as_version=4)
    folder = place.folder / "notebook"
    folder.mkdir()
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    return list(_texts(notebook)), sorted(path.name for path in Path(folder).iterdir() if path.suffix == ".py")


def _texts(notebook):
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            yield output.get("text") or output.get("data", {}).get("text/plain", "")
