"""Each promise of docs/guarantees.md names tests that `make test` runs, and each test that is marked as a promise is named there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
DOCUMENT = TESTS.parent / "docs" / "guarantees.md"
_NAMED = re.compile(r"`([\w/]+\.py)`::(\w+)")


def promises() -> dict[str, list[str]]:
    """Promise → the tests in the second column of its row, as file::name."""
    table = DOCUMENT.read_text().partition("| promise |")[2].partition("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    return {row[0]: ["::".join(found) for found in _NAMED.findall(row[1])] for row in rows}


def marked() -> set[str]:
    """Tests with the marker `promise`, as file::name; of a test class that is marked, the class."""
    found = set()
    for path in TESTS.rglob("test_*.py"):
        text = path.read_text()
        if "mark.promise" in text:
            nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.ClassDef)]
            file = path.relative_to(TESTS).as_posix()
            found |= {f"{file}::{node.name}" for node in nodes if _is_promise(node)}
    return found


def _is_promise(node: ast.FunctionDef | ast.ClassDef) -> bool:
    return "pytest.mark.promise" in map(ast.unparse, node.decorator_list)


def test_every_promise_names_a_test_of_make_test():
    assert len(promises()) >= 48
    assert [promise for promise, tests in promises().items() if not tests] == []


@pytest.mark.slow
def test_the_tests_that_promises_name_and_those_that_are_marked_are_the_same():
    named = {test for tests in promises().values() for test in tests}
    assert named - marked() == set(), "named in docs/guarantees.md, but not marked `promise`"
    assert marked() - named == set(), "marked `promise`, but not named in docs/guarantees.md"
