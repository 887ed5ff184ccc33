"""Makes text that came from elsewhere safe to print: what a terminal or a spreadsheet would obey becomes visible.

Producers choose identifiers, payloads, results and errors. Printed as they are, they could move the cursor, change
colours or the clipboard, turn the direction of writing, fake a line of ours, or run as a formula. Everything that prints uses
one of these functions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

# Control and format characters (ESC, C1, bidi, zero width), separators, unassigned and private ones are not "printable".
_DEEPEST: Final = 8
_NAMED: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
_FORMULA: Final = re.compile(r"[\s]*[=+\-@\t\r\uff1d\uff0b\uff0d\uff20]")


def on_one_line(text: str) -> str:
    """The text with one blank in place of each run of blanks and of characters that cannot be printed, and none at its ends."""
    return " ".join("".join(one if one.isprintable() else " " for one in text).split())


def visible(text: str) -> str:
    r"""The text on one line, what cannot be seen as escapes: \x1b, \u202e, \n."""
    return text if text.isprintable() else "".join(map(_seen, text))


def as_clause(text: str) -> str:
    """The text as a part of a sentence: its lines one after the other, without colours of a terminal and without a full stop."""
    return visible(" ".join(_COLOURS.sub("", text).split())).rstrip(". ")


def visible_lines(text: str) -> str:
    """The same, but line ends stay; the lines after the first are indented, so that none can pass for a line of its own."""
    return "\n  ".join(visible(line) for line in text.split("\n"))


def visible_json(value: Any, indent: int | None = None) -> str:
    """Exact JSON; what cannot be seen is written with JSON's own escapes."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return text if text.isprintable() else "".join(_escaped(letter) for letter in text)


class CutJson(NamedTuple):
    """JSON for people, of which a page shows the beginning.

    Attributes:
        text: on several lines, indented down to a depth.
        is_cut: whether there is more.
    """

    text: str
    is_cut: bool


def visible_json_begin(value: Any, most: int) -> CutJson:
    """The beginning of exact JSON, as `visible_json`; no more of it is made than is shown.

    Lines are indented down to a depth only: with each level that goes on, they would grow by it.

    Args:
        value: of plain JSON types.
        most: characters, before what cannot be seen is escaped.
    """
    shown: list[str] = []
    left = most
    for piece in _pieces(value, 0):
        shown.append(piece[:left])
        left -= len(piece)
        if left < 0:
            break
    text = "".join(shown)
    return CutJson(text if text.isprintable() else "".join(map(_escaped, text)), left < 0)


def _pieces(value: Any, depth: int) -> Iterator[str]:
    if depth == _DEEPEST or not value or not isinstance(value, dict | list):
        yield json.dumps(value, ensure_ascii=False)
        return
    opens, closes = "{}" if isinstance(value, dict) else "[]"
    gap = f"{opens}\n{'  ' * (depth + 1)}"
    for name in value if isinstance(value, dict) else range(len(value)):
        yield f"{gap}{json.dumps(name, ensure_ascii=False)}: " if isinstance(value, dict) else gap
        yield from _pieces(value[name], depth + 1)
        gap = f",\n{'  ' * (depth + 1)}"
    yield f"\n{'  ' * depth}{closes}"


def spreadsheet_cell(text: str) -> str:
    """A text for a CSV file: on one line, and not a formula (such get an apostrophe in front, which spreadsheets do not show)."""
    return ("'" if _FORMULA.match(text) else "") + visible(text)


def _seen(letter: str) -> str:
    if letter.isprintable():
        return letter
    code = ord(letter)
    named = _NAMED.get(letter)
    return named or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")


def _escaped(letter: str) -> str:
    if letter.isprintable() or letter == "\n":
        return letter
    return f"\\u{ord(letter):04x}" if ord(letter) < 0x10000 else json.dumps(letter)[1:-1]
