"""Links the first use of a word of the glossary on each page of the documentation site to its meaning."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
_ROW: Final = re.compile(r"^\| (.+?) \| (.+?) \| `.+?` \|$", re.MULTILINE)
_PART: Final = re.compile(r"<[^>]+>|[^<]+")
_TAG: Final = re.compile(r"</?(\w+)")
_CLOSED: Final = (
    "a",
    "code",
    "pre",
    "h1",
    "h2",
    "h3",
    "h4",
    "th",
    "svg",
    "script",
    "style",
)  # nothing is linked inside
LINKED: Final = (
    "attempt",
    "back-off",
    "checkpoint",
    "child",
    "closed hour",
    "completion",
    "deferred",
    "epoch",
    "fact",
    "fence",
    "fire",
    "forkserver",
    "grace",
    "horizon",
    "ingest",
    "lane",
    "lateness",
    "lease",
    "look-ahead",
    "nonce",
    "outcome",
    "planned time",
    "planner",
    "replay order",
    "scheduled time",
    "start fact",
    "task key",
    "tenure",
    "watchdog",
)
"""Words of the glossary that mean something else in other systems, or nothing; words such as `task` are not linked."""


def meanings() -> dict[str, str]:
    """Word → meaning, from the glossary."""
    text = (ROOT / "docs" / "glossary.md").read_text()
    return {word: meaning for word, meaning in _ROW.findall(text) if word in LINKED}


def anchor(word: str) -> str:
    """The id of a word's row on the page of the glossary."""
    return f"word-{word.replace(' ', '-')}"


def with_anchors(page: str) -> str:
    """The HTML of the glossary, with an id at each word that is linked."""
    for word in LINKED:
        page = page.replace(f"<td>{word}</td>", f'<td id="{anchor(word)}">{word}</td>')
    return page


def with_links(page: str, glossary: str, words: dict[str, str]) -> str:
    """The HTML of a page, in which the first use of each word in a text is a link; code, headings and links stay as they are.

    Args:
        page: HTML.
        glossary: address of the glossary as seen from the page.
        words: word → meaning.
    """
    left, depth, found = dict(words), 0, []
    for part in _PART.findall(page):
        if part.startswith("<"):
            name = _TAG.match(part)
            if name is not None and name[1] in _CLOSED and not part.endswith("/>"):
                depth += -1 if part.startswith("</") else 1
        elif depth == 0 and left:
            pattern = re.compile(rf"\b({'|'.join(sorted(map(re.escape, left), key=len, reverse=True))})\b")
            part = pattern.sub(lambda use: _link(use[1], glossary, left), part)
        found.append(part)
    return "".join(found)


def _link(word: str, glossary: str, left: dict[str, str]) -> str:
    meaning = left.pop(word, None)
    if meaning is None:
        return word
    plain = html.escape(re.sub(r"[`*]", "", meaning))
    return f'<a class="word" href="{glossary}#{anchor(word)}" title="{plain}">{word}</a>'
