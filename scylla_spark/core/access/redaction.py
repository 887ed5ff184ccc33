"""Secrets out of what handlers write: by the names that stand before them, and by the values that we know.

It is a net, not a wall: what has no telling name and is no secret of the settings passes. Every pattern is bounded in what it tries
for one place of a text, because the text is foreign and the thread that looks at it shares its interpreter with the engine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from pydantic_core import from_json

from scylla_spark.visible import on_one_line

MASK: Final = "***"
_LEAST_CHARS: Final = 6  # of a known value: a shorter one would mask ordinary words
_MOST_LINES: Final = 1_000  # of a known value: each is looked for in each line that is written
_NAMES: Final = (
    r"password|passwd|passphrase|pwd|secret|token|authorization|api[-_]?key|access[-_]?key|private[-_]?key"
    r"|credentials?|cookie"
)
_SENSITIVE: Final = re.compile(rf"(?:{_NAMES})$", re.IGNORECASE)
_WHICH: Final = r"(?:(?<=cookie)(?P<pairs>)|(?<=authorization)(?P<scheme>)|)"  # is looked at behind a name only
_QUOTED: Final = r"\"[^\"\\]*(?:\\(?s:.)[^\"\\]*)*\\?\"?|'[^'\\]*(?:\\(?s:.)[^'\\]*)*\\?'?"
_TO_THE_END: Final = r"[^\r\n]+"  # cookies stand behind each other
_ASSIGNED: Final = re.compile(
    rf"((?:{_NAMES}){_WHICH}[\"']?\s{{0,4}}[:=]>?\s{{0,4}})"
    rf"(?:(?:{_QUOTED})(?(pairs)(?:\s{{0,4}};{_TO_THE_END})?)"
    rf"|(?(pairs){_TO_THE_END}|(?:(?(scheme)[\w-]+|(?:bearer|basic|digest))\s{{1,4}}[^\s,;\"']+|[^\s,;&\"'{{}}\[\]]+)))",
    re.IGNORECASE,
)
_BEARER: Final = re.compile(r"\b(bearer\s{1,4})[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)
_IN_URL: Final = re.compile(r"(://[^\s/:@]{0,200}:)[^\s/@]{1,200}@")
_LONGEST_CHARS: Final = 500  # more than any pattern takes for one secret without a blank
_HINTS: Final = ("pass", "pwd", "secret", "token", "auth", "key", "credential", "cookie", "bearer", "://")


def is_telling(name: str) -> bool:
    """Returns True if a name says that its value is a secret."""
    return _SENSITIVE.search(name) is not None


class Redaction:
    """Masks secrets in texts and fields.

    Args:
        values: secrets that are known; those of fewer than six characters are not looked for. Of one with blanks around it, or of
            several lines, what is within, and each line, is one, too: a file's last line ends, and a key is printed line by line.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._values = _longest_first(part for value in values for part in _parts(value))
        folded = map(on_one_line, self._values)  # the others stand in a line only if they stand in the text
        self._folded_values = _longest_first(one for one in folded if " " in one or one not in self._values)

    def text(self, text: str, *, cut_mark: str = "") -> str:
        """The text with a mask in place of each secret that was found.

        Args:
            text: what was written.
            cut_mark: stands at the end of a text that was cut; before it what a known secret begins with is masked, too.
        """
        if cut_mark and text.endswith(cut_mark):
            return _without(_without_begun(text.removesuffix(cut_mark), self._values), self._values) + cut_mark
        return _without(text, self._values)

    def line(self, text: str, *, is_cut: bool) -> str:
        """The text on one line (see `on_one_line`), without secrets as they were written, nor as they stand on one line.

        Args:
            text: what was written, or its beginning.
            is_cut: it is the beginning only. What a known secret begins with is masked at its end then, and its last word is left
                out, because it may be the beginning of a secret that is known by what stands behind it.
        """
        said = _without_begun(text, self._values) if is_cut else text
        line = on_one_line(_without(said, self._values))
        line = _without(_without_begun(line, self._folded_values) if is_cut else line, self._folded_values)
        return line[: max(line.rfind(" "), len(line) - _LONGEST_CHARS, 0)] if is_cut else line

    def fields(self, fields: str) -> str | None:
        """A JSON object with masks in place of the values of telling names; None if it is no such object."""
        try:
            found = from_json(fields, allow_inf_nan=False)
        except (ValueError, TypeError):  # the latter of a lone surrogate
            return None
        return json.dumps(self._masked(found), ensure_ascii=False) if isinstance(found, dict) else None

    def _masked(self, value: Any, depth: int = 0) -> Any:
        if depth > 8:
            return MASK
        if isinstance(value, dict):
            return {
                self.text(name): MASK if is_telling(name) else self._masked(one, depth + 1)
                for name, one in value.items()
            }
        if isinstance(value, list):
            return [self._masked(one, depth + 1) for one in value]
        return self.text(value) if isinstance(value, str) else value


def _parts(value: str) -> Iterator[str]:
    """A value, and what of it may stand alone; the lines around a key in PEM say nothing of it, and stand in certificates, too."""
    yield value
    yield value.strip()
    if lines := value.strip().splitlines()[:_MOST_LINES]:
        yield from (line.strip() for line in lines if not line.startswith("-----"))


def _longest_first(values: Iterable[str]) -> list[str]:
    return sorted({value for value in values if len(value) >= _LEAST_CHARS}, key=len, reverse=True)


def _without(text: str, values: Iterable[str]) -> str:
    for value in values:
        if value in text:
            text = text.replace(value, MASK)
    if not _has_hint(text):
        return text
    text = _ASSIGNED.sub(rf"\1{MASK}", text)
    text = _BEARER.sub(rf"\1{MASK}", text)
    return _IN_URL.sub(rf"\1{MASK}@", text)


def _without_begun(text: str, values: Iterable[str]) -> str:
    """The text without the longest beginning of a value with which it ends."""
    begun = max((_begun_chars(text, value) for value in values), default=0)
    return text[: len(text) - begun] + MASK if begun else text


def _begun_chars(text: str, value: str) -> int:
    """With how many of the first characters of a value a text ends."""
    at = max(len(text) - len(value), 0)
    while (at := text.find(value[0], at)) >= 0:
        if value.startswith(text[at:]):
            return len(text) - at
        at += 1
    return 0


def _has_hint(text: str) -> bool:
    """Returns True if any pattern can match: a tenth of the cost of a pattern that ignores case, and nearly every line has none.

    Folded, since the patterns take letters such as the long s for what they stand for.
    """
    folded = text.casefold()
    for hint in _HINTS:  # noqa: SIM110 - a generator costs more than all the looks
        if hint in folded:
            return True
    return False
