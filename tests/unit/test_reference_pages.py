"""The reference that the site makes from the code: nothing is missing, and pages name only metrics that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from reference_pages import FAILURES, PAGES, REFUSALS, table
from scylla_spark import __all__ as public
from scylla_spark import schemas
from scylla_spark.api.problems import KINDS
from scylla_spark.config.settings import Settings
from scylla_spark.definitions.queue import Queue
from scylla_spark.errors import ExitCode

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return {name.removeprefix("reference/").removesuffix(".md"): make() for name, make in PAGES.items()}


@pytest.mark.slow
def test_the_pages_name_every_setting_command_operation_table_error_and_name(pages):
    assert "| `data_dir` | `scyllaspark-data` | path |" in pages["settings"]
    assert "| `dispatch.look_ahead` | `5m` | duration |" in pages["settings"]
    named = set(re.findall(r"^\| `([\w.]+)` \|", pages["settings"], re.MULTILINE))
    assert named >= {f"queues.NAME.{name}" for name in Queue.model_fields if name != "name"}
    assert named >= {f"dispatch.{name}" for name in Settings.model_fields["dispatch"].annotation.model_fields}
    assert {"## scylla-spark up", "## scylla-spark task enqueue", "## scylla-spark queue put"} <= set(
        pages["cli"].splitlines()
    )
    described = json.loads((ROOT / "docs" / "openapi.json").read_text())["paths"]
    operations = {one["operationId"] for path in described.values() for one in path.values()}
    assert operations == set(re.findall(r"\| \[`(\w+)`\]\(#", pages["http"]))
    for one in vars(schemas).values():
        if isinstance(one, schemas.Table):
            assert f"\n## {one.name}\n" in pages["tables"]
            assert all(f"| `{column.name}` | " in pages["tables"] for column in one.columns)
    assert all(f"| {code.value} | {code.meaning} |" in pages["errors"] for code in ExitCode)
    assert all(f"| `{kind.type}` | {kind.status} |" in pages["errors"] for kind in KINDS)
    assert all(f"\n## {name}\n" in pages["python"] for name in public)
    assert "| `planner.py` | " in pages["modules"]


@pytest.mark.slow
def test_documents_name_only_metrics_that_exist(pages):
    made = set(re.findall(r"`(scyllaspark_\w+)`", pages["metrics"]))
    assert {"scyllaspark_in_flight", "scyllaspark_ingest_lag_records", "scyllaspark_api_requests_total"} <= made
    for page in (ROOT / "docs").rglob("*.md"):
        named = set(re.findall(r"`(scyllaspark_\w+)`", page.read_text())) - {"scyllaspark_"}
        assert named <= made, page.name


@pytest.mark.slow
def test_every_code_of_the_index_is_one_of_the_code_and_has_a_page(pages):
    code = "".join(path.read_text() for path in (ROOT / "scylla_spark").rglob("*.py"))
    assert [one for one in (*FAILURES, *REFUSALS) if f'"{one}"' not in code] == []
    assert [one for one in (*FAILURES, *REFUSALS) if f"| `{one}` | [" not in pages["errors"]] == []


def test_cells_of_tables_break_no_table():
    assert table(("a", "b"), [("x|y", "1\n2"), ("<dir>", "`<x>`")]) == (
        "| a | b |\n| --- | --- |\n| x\\|y | 1 2 |\n| &lt;dir> | `<x>` |\n"
    )
