"""The quickstart notebook runs from top to bottom in an empty folder, and shows what its text promises."""

import os
from pathlib import Path

import nbformat
import pytest

from tests.acceptance.place import ROOT

pytestmark = pytest.mark.acceptance
QUICKSTART = ROOT / "notebooks" / "quickstart.ipynb"


def test_the_notebook_is_valid_and_carries_no_outputs():
    notebook = nbformat.read(QUICKSTART, as_version=4)
    nbformat.validate(notebook)
    assert [cell.source for cell in notebook.cells if cell.get("outputs") or cell.get("execution_count")] == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the Jupyter libraries
def test_the_quickstart_runs_and_shows_what_it_says(place, monkeypatch):
    from nbclient import NotebookClient

    for name in [name for name in os.environ if name.startswith("SCYLLASPARK_")]:
        monkeypatch.delenv(name)
    notebook = nbformat.read(QUICKSTART, as_version=4)
    folder = place.folder / "notebook"
    folder.mkdir()
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()

    shown = "\n".join(_texts(notebook))
    assert "EnqueueResult(sent=12, refused=0)" in shown
    assert "cancelled" in shown
    assert "'sent_to': 'me@example.org'" in shown
    ended = next(text for text in _texts(notebook) if "error_message" in text)
    states = [line.split("|")[3].strip() for line in ended.splitlines() if line.startswith("|")][1:]
    assert (states.count("succeeded"), states.count("aborted"), states.count("cancelled")) == (12, 1, 1)
    assert sorted(path.name for path in Path(folder).iterdir() if path.suffix == ".py") == ["reminders.py"]


def _texts(notebook):
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            yield output.get("text") or output.get("data", {}).get("text/plain", "")
