"""Links of the documents lead to files and sections that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from reference_pages import PAGES

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")])
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def text_of(path: Path) -> str:
    """A document without its blocks of code."""
    return re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(path: Path) -> set[str]:
    """The sections of a document, as links name them."""
    titles = re.findall(r"^#+ (.*)$", text_of(path), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).strip().lower() for title in titles)
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in plain}


def broken(path: Path) -> list[str]:
    """Links of a document that lead nowhere."""
    found = []
    for link in _LINK.findall(text_of(path)):
        name, _, anchor = link.partition("#")
        if link.startswith(("http:", "https:", "mailto:")):
            continue
        place = (path.parent / name).resolve() if name else path
        if place.is_relative_to(ROOT / "docs") and str(place.relative_to(ROOT / "docs")) in PAGES:
            continue  # `make docs` makes this page from the code, and checks the link
        if not place.exists() or (anchor and place.suffix == ".md" and anchor not in anchors(place)):
            found.append(link)
    return found


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_and_sections_that_exist(path):
    assert broken(path) == []


def test_sections_that_docstrings_name_exist():
    named = {
        found
        for folder in ("scylla_spark", "tools")
        for path in (ROOT / folder).rglob("*.py")
        for found in re.findall(r"\b(docs/[\w/-]+\.md)#([\w-]+)", path.read_text())
    }
    assert [f"{document}#{anchor}" for document, anchor in named if anchor not in anchors(ROOT / document)] == []
