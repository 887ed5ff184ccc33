"""The page on tests, and the example of a project that has some: both are run by pytest, as their readers would."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scylla_spark.testing import World, world

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "testing.md").read_text()


def run_pytest(folder: Path) -> str:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:schemathesis",
        "-c",
        "pytest.ini",
        ".",
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def copied(folder: Path, files: dict[str, str]) -> Path:
    for name, text in {**files, "pytest.ini": "[pytest]\nfilterwarnings = error\n"}.items():
        (folder / name).write_text(text)
    return folder


@pytest.mark.slow
def test_the_files_of_the_page_pass(tmp_path):
    files = dict(re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE, re.DOTALL))
    assert set(files) == {"handlers.py", "test_handlers.py", "conftest.py", "test_with_the_fixture.py"}
    assert "7 passed" in run_pytest(copied(tmp_path, files))


@pytest.mark.slow
def test_the_example_of_a_project_passes_and_is_short(tmp_path):
    files = {path.name: path.read_text() for path in (ROOT / "examples" / "reminders").glob("*.py")}
    assert "3 passed" in run_pytest(copied(tmp_path, files))
    assert sum(len(text.splitlines()) for text in files.values()) <= 60


def test_the_handlers_of_the_quickstart_do_what_it_says(tmp_path):
    cells = json.loads((ROOT / "notebooks" / "quickstart.ipynb").read_text())["cells"]
    (source,) = ["".join(cell["source"]) for cell in cells if "%%writefile reminders.py" in "".join(cell["source"])]
    file = tmp_path / "quickstart_reminders.py"
    file.write_text(source.partition("\n")[2])
    with world([str(file)]) as w:
        sent, without = w.enqueue("remind", {"email": "me@example.org"}), w.enqueue("remind", {"email": None})
        later = w.enqueue("remind", {"email": "c0@example.org"}, delay="1h")
        assert later.cancel() == "cancelled"
        w.advance("2h")
        assert sent.result() == {"sent_to": "me@example.org", "attempt": 1}
        assert [w.task(one.key).state for one in (without, later)] == ["aborted", "cancelled"]


@pytest.mark.slow
def test_the_test_of_the_start_pages_passes(tmp_path):
    pages = "".join((ROOT / "docs" / "start" / name).read_text() for name in ("quickstart.md", "python.md"))
    files = dict(re.findall(r"```python title=\"((?:test_)?tasks\.py)\"\n(.*?)```", pages, re.DOTALL))
    assert "1 passed" in run_pytest(copied(tmp_path, files))


@pytest.mark.slow
def test_the_handlers_of_the_pages_for_users_of_other_tools_run(tmp_path):
    files = {}
    for page, handler, payload in (
        ("celery", "remind", {"email": "a@example.org", "invoice": 17}),
        ("airflow", "load", {"day": "2026-11-27"}),
        ("cron", "report", {"command": ["true"]}),
        ("pagerduty", "escalate", {"level": 2}),
        ("scylla", "ship", {"orderId": "233", "details": {"product1": 1}}),
        ("cdap", "aggregate", {"partitions": 5}),
    ):
        text = (ROOT / "docs" / "coming-from" / f"{page}.md").read_text()
        (files[f"jobs_{page}.py"],) = re.findall(r"```python title=\"jobs\.py\"\n(.*?)```", text, re.DOTALL)
        files[f"test_{page}.py"] = (
            f"import jobs_{page}\n\n\ndef test_it_succeeds(scylla_world):\n"
            f"    task = scylla_world.enqueue({handler!r}, {payload!r})\n    scylla_world.advance('1s')\n"
            "    assert scylla_world.task(task.key).state == 'succeeded'\n"
        )
    assert "6 passed" in run_pytest(copied(tmp_path, files))


def test_the_page_names_all_that_a_world_can_do():
    public = {name for name in vars(World) if not name.startswith("_")} - {"now", "plan", "rejected"}
    assert {name for name in public if not re.search(rf"`{name}\b|[`, ]{name}[(`]", PAGE)} == set()
