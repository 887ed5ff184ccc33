"""The page on schedules: what stands there as a file is one, and what it says to be the same in Python and elsewhere is."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from scylla_spark import Constraint
from scylla_spark.client.schedules.files import definition_of, read_files
from scylla_spark.client.schedules.schedule import Schedule
from scylla_spark.core.plan import constraint_format
from scylla_spark.core.plan.schedule_format import read_schedule

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "schedules.md").read_text()
FILES = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
WRITTEN = re.findall(r"^\| `(Constraint\..*?)` \| `(\{.*?\})`", PAGE, re.MULTILINE)
KINDS = set(constraint_format._CONSTRAINTS)


@pytest.mark.parametrize("text", FILES, ids=range(len(FILES)))
def test_a_file_on_the_page_is_one(tmp_path: Path, text: str) -> None:
    (tmp_path / "schedules.toml").write_text(text)
    assert len(read_files([str(tmp_path / "schedules.toml")])) == text.count("[[schedule]]") > 0


def read(constraint: Any) -> Any:
    definition = definition_of({"name": "s", "handler": "h", "event": "e", "constraints": [constraint]})
    assert Schedule.of(definition).definition == definition
    return read_schedule(definition).constraints


@pytest.mark.parametrize(("python", "text"), WRITTEN)
def test_a_constraint_means_the_same_in_python_and_as_an_object(python: str, text: str) -> None:
    in_python: Constraint = eval(python, {"Constraint": Constraint})
    assert read(in_python.definition) == read(json.loads(text))


def test_every_kind_of_constraint_is_written_on_both_pages() -> None:
    assert {json.loads(text)["kind"] for _, text in WRITTEN} == KINDS
    wire = (DOCS / "wire.md").read_text().partition("`constraints` is a list of objects")[2]
    assert set(re.findall(r"^\| `(\w+)` \|", wire.partition("What breaks a rule")[0], re.MULTILINE)) - {"kind"} == KINDS


def test_what_is_called_as_in_python_is_the_same_kind() -> None:
    assert read({"kind": "max_running", "most": 2}) == read({"kind": "concurrency", "most": 2})
