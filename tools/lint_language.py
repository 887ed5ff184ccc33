"""`python tools/lint_language.py [--lower]`: the habits of language that a reader stumbles over, counted per folder.

Each folder has a budget in `language_budgets.json`. A folder without one has the budget 0. A count above its budget is an error.
A count far below its budget is an error, too, until `--lower` (part of `make format`) has lowered the budget.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
BUDGETS: Final = Path(__file__).with_name("language_budgets.json")
SLACK: Final = 20  # so that changes that remove a few do not meet in the file of budgets
LONGEST_SENTENCE: Final = 30  # words
LONGEST_CELL: Final = 300  # characters
MOST_LONG_SENTENCES: Final = 0.05  # of all sentences of the documents

_FOLDERS: Final = ("scylla_spark", "tools", "tests", "docs", "examples", "jobs", "conf")
_SPLIT: Final = ("scylla_spark", "tests")  # their subfolders have budgets of their own
_SUFFIXES: Final = (".py", ".md", ".html", ".js", ".toml")
_OWN: Final = ("tools/lint_language.py", "tests/unit/test_language.py", "CONTRIBUTING.md")  # they quote the words
_WORDS: Final = re.compile(
    r"\b(?:told of|tells? of|telling of|lies? in|stands? in|standing in|let(?:s|ting)? go of|void|whoever|whatever|"
    r"whichever|however (?:many|much|long)|nobody|no one|somebody|likewise|(?:says?|said|tells?|told) whether)\b",
    re.IGNORECASE,
)
_QUESTION: Final = re.compile(
    r'^[ \t]*[rR]?"""(?:Who|Whom|Whose|What|How|Why|Whether|Which|Where|When)\b', re.MULTILINE
)
_BLOCK: Final = re.compile(r"^([ ]*)```.*?^\1```", re.DOTALL | re.MULTILINE)
_LINK: Final = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_TEST: Final = re.compile(r"`[^`]*`?::test_\w+`?")  # the name of a test beside what it shows
_ITEM: Final = re.compile(r"^\s*(?:[-*]|\d+\.) ")


def sentences(page: str) -> Iterator[str]:
    """The sentences of a page: no code, no headings, no tables; an item of a list ends a sentence."""
    paragraph: list[str] = []
    for line in [*_LINK.sub(r"\1", _BLOCK.sub("", page)).splitlines(), ""]:
        ends = not line.strip() or line.lstrip().startswith(("#", "|", "!!!", "<")) or _ITEM.match(line)
        if ends and paragraph:
            yield from re.split(r"(?<=[.!?])\s+", " ".join(paragraph))
            paragraph = []
        if not ends or _ITEM.match(line):
            paragraph.append(_ITEM.sub("", line).strip())


def long_sentences(page: str) -> list[str]:
    """The sentences of a page with more than 30 words."""
    return [one for one in sentences(page) if len(one.split()) > LONGEST_SENTENCE]


def long_cells(page: str) -> list[str]:
    """The cells of a page's tables with more than 300 characters; addresses of links and names of tests do not count."""
    rows = [line for line in _BLOCK.sub("", page).splitlines() if line.startswith("|")]
    cells = (cell.strip() for row in rows for cell in re.split(r"(?<!\\)\|", _TEST.sub("", _LINK.sub(r"\1", row))))
    return [cell for cell in cells if len(cell) > LONGEST_CELL]


def findings(root: Path) -> dict[str, dict[str, int]]:
    """Folder → habit → how often it occurs there; a habit that does not occur is left out.

    Args:
        root: folder of the checkout.
    """
    found: dict[str, Counter[str]] = {}
    for path in _files(root):
        parts, text = path.relative_to(root).parts, path.read_text()
        counts = found.setdefault("/".join(parts[: 2 if parts[0] in _SPLIT else 1]), Counter())
        counts["words"] += len(_WORDS.findall(text))
        counts["questions"] += len(_QUESTION.findall(text)) if path.suffix == ".py" else 0
        if path.suffix == ".md":
            counts["long sentences"] += len(long_sentences(text))
            counts["long cells"] += len(long_cells(text))
    return {folder: {habit: n for habit, n in counts.items() if n} for folder, counts in found.items()}


def _files(root: Path) -> Iterator[Path]:
    for path in (*root.glob("*.md"), *(path for folder in _FOLDERS for path in (root / folder).rglob("*"))):
        if path.suffix in _SUFFIXES and ".min." not in path.name and path.relative_to(root).as_posix() not in _OWN:
            yield path


def complaints(found: dict[str, dict[str, int]], budgets: dict[str, dict[str, int]]) -> list[str]:
    """A sentence for each count that is above its budget, or far below.

    Args:
        found: what `findings` returned.
        budgets: folder → habit → the largest count that is no error.
    """
    said = []
    for folder in sorted({*found, *budgets}):
        for habit in sorted({*found.get(folder, {}), *budgets.get(folder, {})}):
            count, most = found.get(folder, {}).get(habit, 0), budgets.get(folder, {}).get(habit, 0)
            if count > most:
                said.append(f"{folder}: {habit}: {count}, and the budget is {most}. Rewrite what you added.")
            if _is_lax(count, most):
                said.append(f"{folder}: {habit}: {count}, and the budget is still {most}. Lower it with `make format`.")
    return said


def _is_lax(count: int, most: int) -> bool:
    return count < most - SLACK or (count == 0 and most > 0)


def share_of_long_sentences(root: Path) -> float:
    """The share of sentences with more than 30 words in the documents of a checkout, 0 to 1."""
    pages = [path.read_text() for path in (*root.glob("*.md"), *(root / "docs").rglob("*.md"))]
    return sum(len(long_sentences(page)) for page in pages) / sum(1 for page in pages for _ in sentences(page))


def _lower(found: dict[str, dict[str, int]], budgets: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    lowered: dict[str, dict[str, int]] = {}
    for folder, habits in budgets.items():
        for habit, most in habits.items():
            count = found.get(folder, {}).get(habit, 0)
            if least := count if _is_lax(count, most) else most:
                lowered.setdefault(folder, {})[habit] = least
    return lowered


def main(lower: bool) -> int:
    """Prints what is wrong, or lowers the budgets to what is there; returns the exit code.

    Args:
        lower: write the budgets instead of only checking them.
    """
    found, budgets = findings(ROOT), json.loads(BUDGETS.read_text())
    if lower:
        budgets = _lower(found, budgets)
        BUDGETS.write_text(json.dumps(budgets, indent=2, sort_keys=True) + "\n")
    said = complaints(found, budgets)
    if said:
        sys.stderr.write("\n".join([*said, "CONTRIBUTING.md, section Language, says what to write instead.", ""]))
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main("--lower" in sys.argv[1:]))
