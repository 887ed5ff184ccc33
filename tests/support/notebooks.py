"""Executes notebooks with Jupyter; as a program, `python -m tests.support.notebooks`, it stores what their cells show."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import nbformat

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
_CELL_S = 600  # on a busy machine


def executed(path: Path, folder: Path) -> nbformat.NotebookNode:
    """The notebook with the outputs of a run in that folder."""
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook, timeout=_CELL_S, record_timing=False, resources={"metadata": {"path": str(folder)}}
    ).execute()
    return notebook


def texts(notebook: nbformat.NotebookNode) -> Iterator[tuple[str, str]]:
    """Yields what the cells show: the name of the stream, or "", and the text."""
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            yield output.get("name", ""), output.get("text") or output.get("data", {}).get("text/plain", "")


if __name__ == "__main__":
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as folder:
            done = executed(path, Path(folder))
        done.metadata.language_info = {"name": "python"}
        nbformat.write(done, path)
