"""The one grammar by which tasks are chosen: `state:retry_wait queue:mail tag:billing error:Timeout late:>5m scheduled:<2026-12-01`.

Terms stand beside each other and must all hold. A term is a field, a colon and a value; several values set apart by commas mean any of
them; a value in double quotes may hold anything, with a backslash before `"` and a backslash. Numbers, durations and instants may have
`<`, `<=`, `>` or `>=` before them. Instants are RFC 3339 with a zone, a day (in UTC), `now`, or a distance from now such as `-2h`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection
from datetime import UTC, date, datetime
from itertools import pairwise
from typing import Final, NamedTuple

from scylla_spark.clock import read_instant, to_us
from scylla_spark.core.access.scopes import ALL_QUEUES, QueueBounds
from scylla_spark.core.tasks.key import is_storable
from scylla_spark.duration import duration_us
from scylla_spark.errors import ArgumentError, shown
from scylla_spark.task_states import ENDED, OPEN, STATES

MOST_CHARS: Final = 4_000
MOST_VALUES: Final = 100
DAY_US: Final = 86_400_000_000
_TERM: Final = re.compile(r"([A-Za-z_]+):(<=|>=|<|>)?")
_QUOTED: Final = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_BARE: Final = re.compile(r'[^\s,"]+')
_FINGERPRINT: Final = re.compile(r"[0-9A-Fa-f]{4,16}", re.ASCII)
_NUMBER_CHARS: Final = 9


class OneOf(NamedTuple):
    """A field has one of some values.

    `tag`: among the tags. `description`: as a part of it, in any letters. `schedule`: whose run it is. `worker`: that leased its newest
    attempt. `error`: as a part of the last failure's class or code, in any letters. `fingerprint`: that of the last failure begins with
    one.
    """

    field: str
    values: tuple[str, ...]


class Range(NamedTuple):
    """A field lies in [low, high): microseconds since the epoch, microseconds (`late`), or a number; None: no bound."""

    field: str
    low: int | None
    high: int | None


class TaskFilter(NamedTuple):
    """The conditions on a task; without any, all tasks pass.

    Attributes:
        conditions: which must all hold.
        queues: those that the caller may see; the text of a filter does not name them.
        partition: only tasks of this partition; the text of a filter does not name it, either.
    """

    conditions: tuple[OneOf | Range, ...] = ()
    queues: QueueBounds = ALL_QUEUES
    partition: int | None = None


class _Value(NamedTuple):
    """A value, and where it stands."""

    text: str
    place: int


class _Term(NamedTuple):
    """A term, before it is understood."""

    field: str
    comparison: str
    values: list[_Value]
    place: int


def read_filter(text: str, now: int) -> TaskFilter:
    """Reads a filter.

    Args:
        text: of the filter.
        now: microseconds since the epoch, for distances from now.

    Raises:
        ArgumentError: it is none; `fields["position"]` says where, counted in characters from 1.
    """
    if len(text) > MOST_CHARS:
        raise _wrong(f"The filter has more than {MOST_CHARS} characters.", MOST_CHARS, "Choose by fewer values.")
    found: list[OneOf | Range] = []
    for term in _terms(text):
        kind = FIELDS.get(term.field)
        if kind is None:
            near = difflib.get_close_matches(term.field, FIELDS, 1)
            hint = f"Did you mean {near[0]}?" if near else f"Fields: {', '.join(FIELDS)}."
            raise _wrong(f"There is no field {term.field!r}.", term.place, hint)
        found.append(kind(term, now))
        _check_ends(found, term)
    return TaskFilter(tuple(found))


def _check_ends(found: list[OneOf | Range], last: _Term) -> None:
    """Refuses a range that ends before it begins: whoever mixes up its ends is not to be told that there is nothing.

    Args:
        found: what is understood by now.
        last: the newest term of it.

    Raises:
        ArgumentError: with the newest term the range of its field is upside down.
    """
    ends = [one for one in found if isinstance(one, Range) and one.field == last.field]
    low = max((one.low for one in ends if one.low is not None), default=None)
    high = min((one.high for one in ends if one.high is not None), default=None)
    if low is not None and high is not None and high < low:
        raise _wrong(f"The range of {last.field} ends before it begins.", last.place, "No task can be in it.")


def without_fields(text: str, fields: Collection[str]) -> str:
    """The text of a filter without its terms of some fields.

    Raises:
        ArgumentError: it is none.
    """
    terms = _terms(text)
    places = [*(term.place for term in terms), len(text)]
    kept = (
        text[place:end].strip()
        for term, (place, end) in zip(terms, pairwise(places), strict=True)
        if term.field not in fields
    )
    return " ".join(kept)


def _terms(text: str) -> list[_Term]:
    found: list[_Term] = []
    place = 0
    while True:
        place += len(text[place:]) - len(text[place:].lstrip())
        if place == len(text):
            return found
        match = _TERM.match(text, place)
        if match is None:
            word = text[place:].split(None, 1)[0][:40]
            raise _wrong(
                f"{word!r} is no term.",
                place,
                "Write FIELD:VALUE, such as state:failed; quote values that hold spaces.",
            )
        values, end = _values(text, match.end())
        found.append(_Term(match[1].lower(), match[2] or "=", values, place))
        place = end


def _values(text: str, place: int) -> tuple[list[_Value], int]:
    found: list[_Value] = []
    while True:
        quoted = _QUOTED.match(text, place)
        bare = None if quoted else _BARE.match(text, place)
        match = quoted or bare
        if match is None:
            open_quote = text[place : place + 1] == '"'
            what = "A quote is not closed." if open_quote else "A value is missing."
            raise _wrong(what, place, 'Write FIELD:VALUE, or FIELD:"VALUE WITH SPACES".')
        value = re.sub(r"\\(.)", r"\1", quoted[1], flags=re.DOTALL) if quoted else match[0]
        found.append(_Value(value, place))
        if len(found) > MOST_VALUES:
            raise _wrong(f"There are more than {MOST_VALUES} values.", place, "Choose by fewer.")
        place = match.end()
        if text[place : place + 1] != ",":
            if place < len(text) and not text[place].isspace():
                raise _wrong("A space is missing after the value.", place, "Set terms apart by spaces.")
            return found, place
        place += 1


# -- what the fields mean -----------------------------------------------------------------------------------------------


def _text(term: _Term, now: int) -> OneOf:
    _without_comparison(term)
    if empty := [value for value in term.values if not value.text]:
        raise _wrong("The value is empty.", empty[0].place, "Leave the term out.")
    return OneOf(term.field, tuple(value.text for value in term.values))


def _fingerprint(term: _Term, now: int) -> OneOf:
    _without_comparison(term)
    if wrong := [value for value in term.values if not _FINGERPRINT.fullmatch(value.text)]:
        hint = (
            "Copy it from the page or the error of a task: at least 4 of its 16 hexadecimal digits, from the first on."
        )
        raise _wrong(f"{shown(wrong[0].text)} is no fingerprint.", wrong[0].place, hint)
    return OneOf(term.field, tuple(value.text.lower() for value in term.values))


def _state(term: _Term, now: int) -> OneOf:
    _without_comparison(term)
    names: list[str] = []
    for value in term.values:
        group = {"open": OPEN, "ended": ENDED}.get(value.text)
        if group is None and value.text not in STATES:
            near = difflib.get_close_matches(value.text, STATES, 1)
            hint = (
                f"Did you mean {near[0]}?"
                if near
                else f"States: {', '.join(STATES)}; open and ended stand for several."
            )
            raise _wrong(f"There is no state {shown(value.text)}.", value.place, hint)
        names += group or (value.text,)
    return OneOf(term.field, tuple(dict.fromkeys(names)))


def _number(term: _Term, now: int) -> Range:
    value = _single(term)
    if not (value.text.isascii() and value.text.isdigit()) or len(value.text) > _NUMBER_CHARS:
        raise _wrong(f"{shown(value.text)} is no whole number.", value.place, f"Such as {term.field}:>3.")
    number = int(value.text)
    return _range(term, number, number + 1)


def _duration(term: _Term, now: int) -> Range:
    value = _single(term)
    try:
        us = duration_us(value.text)
    except ArgumentError as error:
        raise _wrong(error.message, value.place, f"Such as {term.field}:>5m or {term.field}:>1h30m.") from None
    if term.comparison == "=":
        raise _wrong("A duration needs a comparison.", value.place, f"Such as {term.field}:>5m.")
    return _range(term, us, us + 1)


def _instant(term: _Term, now: int) -> Range:
    value = _single(term)
    low, length = _moment(value, now)
    if length == 1 and term.comparison == "=":
        raise _wrong(
            "An instant needs a comparison.", value.place, f"Such as {term.field}:<2026-12-01, or a day alone."
        )
    return _range(term, low, low + length)


def _moment(value: _Value, now: int) -> tuple[int, int]:
    """Returns where a time begins, and how long it is: a day, or an instant."""
    text = value.text
    hint = "Write 2026-12-01, 2026-12-01T09:00:00Z, now, -2h or +30m."
    try:
        if text == "now":
            return now, 1
        if text[:1] in ("+", "-"):
            us, length = now + (1 if text[0] == "+" else -1) * duration_us(text[1:]), 1
        elif len(text) == 10:
            day = date.fromisoformat(text)
            us, length = to_us(datetime(day.year, day.month, day.day, tzinfo=UTC)), DAY_US
        else:
            us, length = to_us(read_instant(text)), 1
    except (ValueError, OverflowError) as error:
        why = error.message if isinstance(error, ArgumentError) else f"{shown(text)} is no instant with a zone."
        raise _wrong(why, value.place, hint) from None
    if not is_storable(us):
        raise _wrong(f"{shown(text)} is before 1970 or after 2261.", value.place, hint)
    return us, length


def _range(term: _Term, low: int, after: int) -> Range:
    """The bounds of a comparison with what lies in [low, after)."""
    return {
        "=": Range(term.field, low, after),
        "<": Range(term.field, None, low),
        "<=": Range(term.field, None, after),
        ">": Range(term.field, after, None),
        ">=": Range(term.field, low, None),
    }[term.comparison]


def _single(term: _Term) -> _Value:
    if len(term.values) > 1:
        raise _wrong(
            f"{term.field} takes one value.",
            term.values[1].place,
            f"Write {term.field}: twice for both ends of a range.",
        )
    return term.values[0]


def _without_comparison(term: _Term) -> None:
    if term.comparison != "=":
        raise _wrong(f"{term.field} has no order.", term.place, f"Write {term.field}:VALUE.")


def _wrong(message: str, place: int, hint: str) -> ArgumentError:
    return ArgumentError(
        f"{message} (at character {place + 1} of the filter)", hint=hint, reason="filter", position=place + 1
    )


FIELDS: Final[dict[str, Callable[[_Term, int], OneOf | Range]]] = {
    "state": _state,
    "queue": _text,
    "handler": _text,
    "lane": _text,
    "key": _text,
    "tag": _text,
    "name": _text,
    "description": _text,
    "enqueued_by": _text,
    "error": _text,
    "fingerprint": _fingerprint,
    "schedule": _text,
    "worker": _text,
    "late": _duration,
    "scheduled": _instant,
    "enqueued": _instant,
    "ended": _instant,
    "attempts": _number,
    "priority": _number,
}
"""Field → how its terms are read."""
_KINDS: Final[dict[Callable[[_Term, int], OneOf | Range], str]] = {
    _instant: "instant",
    _duration: "duration",
    _number: "number",
}


def fields_by_kind() -> dict[str, tuple[str, ...]]:
    """All fields of the grammar, for whoever explains it: "name", "instant", "duration" or "number" → those whose values are such."""
    found: dict[str, list[str]] = {}
    for field, read in FIELDS.items():
        found.setdefault(_KINDS.get(read, "name"), []).append(field)
    return {kind: tuple(fields) for kind, fields in found.items()}
