"""Texts of foreign code, made to fit into what carries and stores them."""

from __future__ import annotations

from typing import Final

from pydantic_core import to_json

_MARK: Final = "\n[...]\n"
_LONGEST_ESCAPE: Final = 6  # bytes that a control character becomes in JSON


def clean(text: str) -> str:
    """The text with a mark in place of lone surrogates, which no topic or table would take."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def cut(text: str, most: int) -> str:
    """The text, or its beginning and end with a mark between them, so that as JSON it has at most so many bytes.

    Args:
        text: any.
        most: bytes, at least some dozens.
    """
    text = clean(text)
    if len(text) * _LONGEST_ESCAPE + 2 <= most or len(to_json(text)) <= most:
        return text
    fits, too_many = 0, len(text)
    while too_many - fits > 1:
        kept = (fits + too_many) // 2
        fits, too_many = (kept, too_many) if len(to_json(_ends(text, kept))) <= most else (fits, kept)
    return _ends(text, fits)


def _ends(text: str, kept: int) -> str:
    return text[: kept - kept // 2] + _MARK + text[len(text) - kept // 2 :]
