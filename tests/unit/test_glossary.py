"""The glossary: one line per word, in order, each with a file that is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINES = re.findall(r"^\| (.+?) \| (.+?) \| `(.+?)` \|$", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)


def test_words_stand_once_and_in_order():
    words = [word for word, _, _ in LINES]
    assert len(words) >= 40
    assert words == sorted(set(words))


def test_every_word_lives_in_a_file_that_is_there():
    assert [file for _, _, file in LINES if not (ROOT / "scylla_spark" / file).is_file()] == []


def test_a_meaning_is_a_sentence_or_two():
    assert [word for word, meaning, _ in LINES if not meaning.endswith(".") or len(meaning) > 250] == []
