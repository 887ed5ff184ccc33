"""How commands speak: data on stdout as table, json, jsonl or csv; talk on stderr."""

from __future__ import annotations

import csv
import json
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

from scylla_spark.errors import ArgumentError
from scylla_spark.visible import spreadsheet_cell, visible, visible_json, visible_lines

FORMATS: Final = ("table", "json", "jsonl", "csv")
_NARROWEST: Final = 20  # columns are not wrapped to fewer characters
_INSTANT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_INSTANT_SHORT: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
_PIPED_WIDTH: Final = 10_000  # not a terminal: nothing is wrapped


@dataclass(slots=True)
class Output:
    """Where and how to write.

    Attributes:
        form: one of FORMATS.
        columns: names to show, in order; empty: all that the command gives.
        color: whether a terminal gets colours.
        quiet: say nothing but data and errors.
    """

    form: str = "table"
    columns: tuple[str, ...] = ()
    color: bool = True
    quiet: bool = False

    def rows(self, rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, empty: str = "Nothing found.") -> None:
        """Writes a listing.

        Args:
            rows: JSON-like values.
            columns: the names a table shows unless --columns says otherwise; json formats carry every field.
            empty: what to say where there is nothing.

        Raises:
            ArgumentError: --columns names something that the rows do not have.
        """
        known = list(dict.fromkeys([*columns, *(name for row in rows[:1] for name in row)]))
        if unknown := [name for name in self.columns if name not in known]:
            raise ArgumentError(f"There is no column {', '.join(unknown)}.", hint=f"Columns: {', '.join(known)}.")
        if not rows:
            self.say(empty)
        shown = list(self.columns or (columns if self.form == "table" else known))
        picked = [{name: row.get(name) for name in shown} for row in rows]
        if self.form == "json":
            _write(visible_json(picked, indent=2) + "\n")
        elif self.form == "jsonl":
            _write("".join(visible_json(row) + "\n" for row in picked))
        elif self.form == "csv":
            writer = csv.writer(sys.stdout, lineterminator="\n")
            writer.writerow(shown)
            writer.writerows([_plain(row[name]) for name in shown] for row in picked)
        elif picked:
            self._table(picked, shown)

    def record(self, record: Mapping[str, Any]) -> None:
        """Writes one thing: in a table one line per field, in json one object.

        Raises:
            ArgumentError: a chosen column is not there.
        """
        names = self.columns or tuple(record)
        if unknown := [name for name in names if name not in record]:
            raise ArgumentError(f"There is no column {', '.join(unknown)}.", hint=f"Columns: {', '.join(record)}.")
        picked = {name: record[name] for name in names}
        if self.form == "json":
            _write(visible_json(picked, indent=2) + "\n")
        elif self.form == "table":
            self._fields(picked)
        else:
            self.rows([picked], tuple(names))

    def value(self, name: str, value: Any) -> None:
        """Writes one value: in a table bare, for use in scripts; else as a record of one field, which alone is exact."""
        if self.form == "table":
            _write(visible(_text(value)) + "\n")
        else:
            self.record({name: value})

    def entry(self, record: Mapping[str, Any], text: str) -> None:
        """Writes one of many as they come, at once: in a table as a line of text, in json formats as an object on a line.

        Args:
            record: JSON-like values.
            text: the same for people.

        Raises:
            ArgumentError: a chosen column is not there, or the form is csv.
        """
        if unknown := [name for name in self.columns if name not in record]:
            raise ArgumentError(f"There is no column {', '.join(unknown)}.", hint=f"Columns: {', '.join(record)}.")
        if self.form == "csv":
            raise ArgumentError("What comes line by line is no csv.", hint="Choose -o json.")
        picked = {name: record[name] for name in self.columns or record}
        _write((visible(text) if self.form == "table" and not self.columns else visible_json(picked)) + "\n")
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            raise ReaderGone from None

    def text(self, text: str, indent: int = 0) -> None:
        """A sentence on stdout, folded between words; lines after the first stand further in."""
        import textwrap

        first, others = " " * indent, " " * (indent + 2)
        lines = textwrap.wrap(
            visible(text), _width(), initial_indent=first, subsequent_indent=others, break_long_words=False,
            break_on_hyphens=False,
        )  # fmt: skip
        _write("\n".join(lines) + "\n")

    def lines(self, text: str) -> None:
        """Text of several lines on stdout, such as a traceback, as it is."""
        _write(visible_lines(text.rstrip("\n")) + "\n")

    def say(self, text: str) -> None:
        """One line for people, on stderr."""
        if not self.quiet:
            sys.stderr.write(visible_lines(text) + "\n")

    def _table(self, rows: list[dict[str, Any]], names: list[str]) -> None:
        """Writes a table; where it is wider than the terminal even with its sentences wrapped, a record per row."""
        cells = [[visible(_short(name, _text(row[name]))) for name in names] for row in rows]
        widths = _fitted([[*names], *cells], _width() - 2 * (len(names) - 1))
        if widths is None:
            self._records(rows, names, cells)
            return
        right = [
            all(isinstance(row[name], int | None) and not isinstance(row[name], bool) for row in rows) for name in names
        ]
        styles = [[_style(name, row[name]) for name in names] for row in rows]
        self._line(names, ["bold"] * len(names), widths, right)
        _write("─" * (sum(widths) + 2 * (len(widths) - 1)) + "\n")
        for line, style in zip(cells, styles, strict=True):
            self._line(line, style, widths, right)

    def _line(self, cells: list[str], styles: list[str], widths: list[int], right: list[bool]) -> None:
        """Writes a row of a table; rich would take a hundred times as long for a thousand of them."""
        folded = [_in_width(cell, width) for cell, width in zip(cells, widths, strict=True)]
        for parts in zip_longest(*folded, fillvalue=("", 0)):
            shown = []
            for (text, taken), style, width, to_right in zip(parts, styles, widths, right, strict=True):
                blank, colored = " " * (width - taken), self._colored(text, style) if text else ""
                shown.append(blank + colored if to_right else colored + blank)
            _write("  ".join(shown).rstrip() + "\n")

    def _records(self, rows: list[dict[str, Any]], names: list[str], cells: list[list[str]]) -> None:
        """The first value of a row stands alone on its line, so that it is whole; the others follow with their names."""
        for row, (first, *others) in zip(rows, cells, strict=True):
            _write(first + "\n")
            line = ""
            for name, cell in zip(names[1:], others, strict=True):
                pair = f"{name}: {cell}"
                if line and len(line) + len(pair) + 4 > _width():
                    self._record_line(line, row)
                    line = ""
                if cell:
                    line += ("  " if line else "") + pair
            if line:
                self._record_line(line, row)

    def _record_line(self, line: str, row: Mapping[str, Any]) -> None:
        text = "\n    ".join(_folded(line, _width() - 4)) if len(line) + 2 > _width() else line
        for name in ("state", "outcome"):
            if style := _style(name, row.get(name)):
                text = text.replace(f"{name}: {row[name]}", f"{name}: {self._colored(row[name], style)}", 1)
        _write(f"  {text}\n")

    def _colored(self, text: str, style: str) -> str:
        code = _ANSI.get(style, "") if self.color and sys.stdout.isatty() else ""
        return f"{code}{text}{_RESET if code else ''}"

    def _fields(self, record: Mapping[str, Any]) -> None:
        """One line per field, long values folded between words; without rich, which is slow to import."""
        indent = max(map(len, record), default=0) + 2
        width = max(20, _width() - indent)
        for name, value in record.items():
            lines = [visible(line) for line in _text(value).rstrip("\n").split("\n")]
            folded = [part for line in lines for part in _folded(line, width)]
            text = self._colored(("\n" + " " * indent).join(folded), _style(name, value))
            _write(f"{name:<{indent}}{text}".rstrip() + "\n")


def error(message: str, hint: str = "") -> None:
    """One or two lines on stderr."""
    sys.stderr.write(f"error: {visible_lines(message)}\n" + (f"  {visible_lines(hint)}\n" if hint else ""))


def printable(values: Mapping[str, Any], instants: Iterable[str] = ()) -> dict[str, Any]:
    """A row for output: microseconds of the named columns as RFC 3339 text."""
    from scylla_spark.clock import iso

    times = set(instants)
    return {name: iso(value) if name in times and value is not None else value for name, value in values.items()}


def _width() -> int:
    return shutil.get_terminal_size((100, 25)).columns if sys.stdout.isatty() else _PIPED_WIDTH


def _fitted(lines: list[list[str]], room: int) -> list[int] | None:
    """Widths of columns that show every word whole, the widest narrowed until all fit; None: they do not fit.

    A single column is as wide as it is: nothing stands beside it.
    """
    from rich.cells import cell_len

    columns = list(zip(*lines, strict=True))
    widths = [max(map(cell_len, column)) for column in columns]
    least = [min(width, max(_NARROWEST, _longest_word(column))) for width, column in zip(widths, columns, strict=True)]
    if len(columns) > 1 and sum(least) > room:
        return None
    while sum(widths) > room and widths != least:
        widest = max((index for index, width in enumerate(widths) if width > least[index]), key=widths.__getitem__)
        widths[widest] -= 1
    return widths


def _longest_word(cells: Sequence[str]) -> int:
    """The width of the longest piece of text that must not be divided: a word, or an instant."""
    from rich.cells import cell_len

    return max(
        cell_len(cell) if _INSTANT_SHORT.match(cell) else max(map(cell_len, cell.split() or [""])) for cell in cells
    )


def _in_width(cell: str, width: int) -> list[tuple[str, int]]:
    """The lines of a cell, divided between words; with the width of each."""
    from rich.cells import cell_len

    taken = cell_len(cell)
    if taken <= width:
        return [(cell, taken)]
    from rich.console import Console
    from rich.text import Text

    lines = [line.plain for line in Text(cell).wrap(Console(width=width), width, overflow="fold")]
    return [(line, cell_len(line)) for line in lines]


def _folded(line: str, width: int) -> list[str]:
    """Lines of at most so many characters, divided between words; a longer word has a line of its own."""
    import textwrap

    return textwrap.wrap(
        line, width, break_long_words=False, break_on_hyphens=False, replace_whitespace=False, expand_tabs=False
    ) or [""]


def _short(name: str, text: str) -> str:
    """An instant to the millisecond, without the letters that programs need."""
    if name.endswith(("_at", "_time", "_start")) and _INSTANT.fullmatch(text):
        return text.replace("T", " ").removesuffix("Z")[:23]
    return text


class ReaderGone(Exception):
    """Nobody reads stdout any more."""


def _write(text: str) -> None:
    try:
        sys.stdout.write(text)
    except BrokenPipeError:
        raise ReaderGone from None


def _plain(value: Any) -> str:
    """For programs: JSON's words for booleans, no pictures of emptiness."""
    if isinstance(value, bool):
        return json.dumps(value)
    return spreadsheet_cell(value) if isinstance(value, str) else _text(value)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    return visible_json(value)


STATE_COLORS: Final = {
    "succeeded": "green", "failed": "red", "aborted": "red", "cancelled": "yellow", "expired": "yellow", "duplicate": "yellow",
    "running": "cyan", "retry_wait": "yellow", "ready": "bold",
}  # fmt: skip

_RESET: Final = "\x1b[0m"
_ANSI: Final = {"green": "\x1b[32m", "red": "\x1b[31m", "yellow": "\x1b[33m", "cyan": "\x1b[36m", "bold": "\x1b[1m"}


def _style(name: str, value: Any) -> str:
    return STATE_COLORS.get(value, "") if name in ("state", "outcome") and isinstance(value, str) else ""
