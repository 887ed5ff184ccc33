"""The texts of numbers, durations, instants and names on pages. `now` is an argument."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

from markupsafe import Markup

from scylla_spark.clock import iso, to_us
from scylla_spark.visible import CutJson, visible, visible_json_begin

MOST_JSON: Final = 32 * 1024
NOTHING: Final = "\u2013"
_S: Final = 1_000_000
_UNITS: Final = (("d", 86_400 * _S), ("h", 3_600 * _S), ("min", 60 * _S), ("s", _S))


def count_text(value: float | None) -> str:
    """A number with narrow gaps between thousands."""
    if value is None:
        return NOTHING
    return f"{value:,}".replace(",", "\u202f") if isinstance(value, int) else f"{value:,.1f}".replace(",", "\u202f")


def span_text(us: float | None) -> str:
    """A span of time in the two units that matter: 3 ms, 1.2 s, 4 min 5 s, 2 d 3 h.

    Negative spans are written as none: a clock that steps must not show the past as minus something.
    """
    if us is None:
        return NOTHING
    us = max(us, 0)
    if us < _S:
        return f"{us / 1000:.0f}\u202fms" if us >= 1000 or us == 0 else "<1\u202fms"
    if us < 60 * _S:
        return f"{us / _S:.1f}\u202fs"
    for place, (unit, size) in enumerate(_UNITS):
        if us >= size:
            whole, rest = divmod(int(us), size)
            lower, small = _UNITS[place + 1]
            more = f" {rest // small}\u202f{lower}" if rest >= small else ""
            return f"{whole}\u202f{unit}{more}"
    return NOTHING


def ms_text(ms: float | None) -> str:
    """The same of milliseconds."""
    return span_text(None if ms is None else ms * 1000)


def instant_of(text: str) -> int | None:
    """Microseconds since the epoch of an RFC 3339 text; None: it is none."""
    try:
        return to_us(datetime.fromisoformat(text))
    except (ValueError, OverflowError):
        return None


def ago_text(us: int, now: int) -> str:
    """Returns the distance of an instant from now in words."""
    gap = us - now
    if abs(gap) < _S:
        return "now"
    if 60 * _S <= abs(gap) < 3_600 * _S:  # seconds would only make it restless
        gap = int(gap / (60 * _S)) * 60 * _S
    return f"in {span_text(gap)}" if gap > 0 else f"{span_text(-gap)} ago"


def moment_markup(text: str | None, now: int) -> Markup:
    """An instant in UTC, with how far it is from now; both machine-readable.

    Args:
        text: RFC 3339; None: there is none.
        now: microseconds since the epoch.
    """
    us = instant_of(text) if text else None
    if us is None:
        return Markup('<span class="none">{}</span>').format(NOTHING)
    whole = iso(us)
    shown = whole[:19].replace("T", " ")
    return Markup('<time datetime="{}" title="{}">{} <span class="ago">{}</span></time>').format(
        whole, whole, shown, ago_text(us, now)
    )


def name_markup(text: str | None, kind: str = "name") -> Markup:
    """A name that somebody else chose: never markup, in its own direction of writing, and what cannot be seen made visible.

    Args:
        text: the name; None: there is none.
        kind: class of the element.
    """
    if text is None:
        return Markup('<span class="none">{}</span>').format(NOTHING)
    seen = visible(text) or "\u00a0"
    return Markup('<bdi class="{}" title="{}">{}</bdi>').format(kind, seen, seen)


def json_text(value: Any) -> CutJson:
    """The beginning of a JSON value for people; numbers stay exact however large, and what cannot be seen is escaped."""
    return visible_json_begin(value, MOST_JSON)


def lines_text(text: str) -> str:
    """Several lines, of which what cannot be seen is escaped."""
    return "\n".join(visible(line) for line in text.split("\n"))


def segment(text: str) -> str:
    """A name as one segment of a path."""
    return quote(text, safe="")


def filter_term(field: str, value: str) -> str:
    """A term of the filter grammar that means exactly this value."""
    plain = value and all(letter.isalnum() or letter in "-_./@" for letter in value)
    quoted = value.replace("\\", "\\\\").replace('"', '\\"')
    return f"{field}:{value}" if plain else f'{field}:"{quoted}"'
