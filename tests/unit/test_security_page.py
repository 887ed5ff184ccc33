"""Each line of the threat model names tests, and they exist."""

from __future__ import annotations

import re
from pathlib import Path

from scylla_spark.config.settings import Settings
from scylla_spark.io.kafka import rights

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()


def section(title: str) -> str:
    return re.split(r"^##+ ", PAGE.partition(f"# {title}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


def rows(title: str) -> list[list[str]]:
    """Cells of a section's table, without its head."""
    lines = [line for line in section(title).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def test_every_threat_has_a_test_that_exists():
    missing = []
    for threat, _, tests in rows("Threats, what is done about them, and the test"):
        file, named = "", re.findall(r"`(tests/[\w/.]+|…)::(\w+)`", tests)
        assert named, threat
        for place, test in named:
            file = file if place == "…" else place
            if f"def {test}(" not in (ROOT / file).read_text():
                missing.append(f"{file}::{test}")
    assert missing == []


def test_the_page_names_the_rights_and_groups_that_are_checked():
    told = section("Rights")
    for right in {name for names in rights.NEEDED.values() for name in names}:
        assert right.title().replace("_", "") in told
    for group in rights.group_ids(Settings(_env_file=None)):
        assert f"`{group}`" in told
