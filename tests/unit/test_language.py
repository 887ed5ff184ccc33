"""The lint of language: what it counts, and that no folder is above its budget."""

import json

import pytest

from lint_language import (
    BUDGETS,
    MOST_LONG_SENTENCES,
    ROOT,
    _lower,
    complaints,
    findings,
    long_cells,
    long_sentences,
    share_of_long_sentences,
)


@pytest.mark.slow
def test_no_folder_is_above_its_budget_or_far_below():
    assert complaints(findings(ROOT), json.loads(BUDGETS.read_text())) == []


def test_few_sentences_of_the_documents_are_long():
    assert share_of_long_sentences(ROOT) <= MOST_LONG_SENTENCES


def test_words_and_questions_are_counted_in_the_folder_of_their_file(tmp_path):
    for name, text in {
        "scylla_spark/core/a.py": '"""Whether it is so."""\n\n# Whoever calls is told of it.\n',
        "scylla_spark/core/b.py": 'def f():\n    """What is void."""\n',
        "scylla_spark/api/c.py": '"""Returns what it is given."""\nlet_go_of = avoid = 1\n',
        "docs/d.md": "Nobody knows.\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert findings(tmp_path) == {
        "scylla_spark/core": {"words": 3, "questions": 2},
        "scylla_spark/api": {},
        "docs": {"words": 1},
    }


def test_sentences_are_counted_without_code_tables_and_headings():
    words, more = " word" * 29, " word" * 30
    assert long_sentences(f"A{words}.\n") == []
    assert long_sentences(f"A{words}\nword.\n") == [f"A{words} word."]
    assert long_sentences(f"# A{more}\n\n| A{more} |\n\n```\nA{more}\n```\n") == []
    assert long_sentences(f"- A{words}\n- A{words}\n") == []


def test_cells_are_measured_without_the_addresses_of_links():
    assert long_cells(f"| {'x' * 300} | [y](#{'z' * 300}) |") == []
    assert long_cells(f"| {'x' * 301} | y |") == ["x" * 301]
    assert long_cells(f"| `tests/a.py::test_{'x' * 300}`, `unit/b.py`::test_{'y' * 300} |") == []


def test_a_count_above_its_budget_and_one_far_below_are_named():
    assert complaints({"docs": {"words": 1}}, {}) == [
        "docs: words: 1, and the budget is 0. Rewrite what you added.",
    ]
    assert complaints({"docs": {"words": 10}}, {"docs": {"words": 30}}) == []
    assert complaints({"docs": {"words": 9}}, {"docs": {"words": 30}}) == [
        "docs: words: 9, and the budget is still 30. Lower it with `make format`.",
    ]
    assert complaints({}, {"docs": {"words": 1}}) == [
        "docs: words: 0, and the budget is still 1. Lower it with `make format`.",
    ]


def test_budgets_only_fall_and_only_where_they_are_lax():
    budgets = {"api": {"words": 5}, "core": {"words": 50, "questions": 50}, "docs": {"words": 5}}
    found = {"api": {"words": 6, "questions": 1}, "core": {"words": 49, "questions": 29}}
    assert _lower(found, budgets) == {"api": {"words": 5}, "core": {"words": 50, "questions": 29}}
