"""The alert rules fire when they should, and rules and dashboard name metrics that processes export."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.missing_package import absent

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "monitoring" / "scylla-spark-rules.yml"
TESTS = Path(__file__).with_name("alert_rules.test.yml")


@pytest.fixture(scope="module")
def tools():
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import grafana_dashboard
        import reference_pages

        yield grafana_dashboard, reference_pages
    finally:
        sys.path.remove(str(ROOT / "tools"))


@pytest.fixture(scope="module")
def exported(tools):
    """Every name that `/metrics` of some process has."""
    ends = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}
    families = [one for several in tools[1].metric_families().values() for one in several]
    return {one.name + end for one in families for end in ends.get(one.type, ("",))}


def rules():
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return group["rules"]


def names(expression):
    return set(re.findall(r"scyllaspark_\w+", expression))


@pytest.mark.slow
def test_every_alert_fires_and_stays_silent_as_its_tests_say():
    promtool = shutil.which("promtool")
    if promtool is None:
        absent("promtool is not installed here")
    done = subprocess.run([promtool, "test", "rules", TESTS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_test_that_fires_and_one_that_is_silent():
    tested = {
        (test["name"], bool(test["alert_rule_test"][0]["exp_alerts"]))
        for test in yaml.safe_load(TESTS.read_text())["tests"]
    }
    alerts = [rule["alert"] for rule in rules()]
    assert tested == {(f"{name} fires", True) for name in alerts} | {(f"{name} stays silent", False) for name in alerts}


def test_every_alert_has_a_threshold_a_duration_and_a_section_of_the_runbook():
    page = (ROOT / "docs" / "monitoring.md").read_text()
    for rule in rules():
        notes = rule["annotations"]
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["for"]
        section = page.partition(f"### {rule['alert']}\n")[2]
        assert section.strip().startswith(
            f"**{notes['threshold']}**, for {rule['for']}, {rule['labels']['severity']}."
        ), rule
        assert notes["runbook"] == f"docs/monitoring.md#{rule['alert'].lower()}"
    assert re.findall(r"^### (ScyllaSpark\w+)$", page, re.M) == [rule["alert"] for rule in rules()]


def test_rules_and_their_tests_name_metrics_that_are_exported(exported):
    texts = [rule["expr"] for rule in rules()]
    texts += [one["series"] for test in yaml.safe_load(TESTS.read_text())["tests"] for one in test["input_series"]]
    assert set().union(*map(names, texts)) <= exported


def test_the_dashboard_is_made_from_the_metrics_of_now_and_shows_each(tools, exported):
    stored = tools[0].FILE.read_text()
    assert stored == tools[0].text(), "run: make format"
    shown = set().union(
        *(names(one["expr"]) for panel in json.loads(stored)["panels"] for one in panel.get("targets", ()))
    )
    assert shown <= exported
    families = {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in exported}
    assert {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in shown} == families


def test_titles_of_the_dashboard_are_words_and_units_are_on_the_axis(tools):
    panels = {one["title"]: one for one in tools[0].dashboard()["panels"] if one["type"] != "row"}
    assert [title for title in panels if not re.fullmatch(r"[A-Z][A-Za-z ]*", title)] == []
    assert {
        "Disk free",
        "Log lines per second",
        "API request",
        "Start delay",
        "Certificate expires in",
    } <= panels.keys()
    units = {title: one["fieldConfig"]["defaults"]["unit"] for title, one in panels.items()}
    assert {unit for title, unit in units.items() if title.endswith(" per second")} == {"cps"}
    assert (units["Disk free"], units["Start delay"], units["Ready"]) == ("bytes", "s", "short")
    for title, panel in panels.items():
        if title.endswith(" expires in"):
            assert panel["targets"][0]["expr"].endswith(" - time()")
            assert "shown as the time that is left" in panel["description"]


def test_each_description_of_the_dashboard_is_read_alone(tools):
    texts = [one["description"] for one in tools[0].dashboard()["panels"] if one["type"] != "row"]
    assert [text for text in texts if " of them " in f" {text} "] == []


def test_the_dashboard_keeps_tags_apart(tools):
    (panel,) = [one for one in tools[0].dashboard()["panels"] if one["title"] == "Tagged start delay"]
    assert [one["legendFormat"] for one in panel["targets"]] == ["p50 {{tag}}", "p99 {{tag}}"]
    assert all("sum by (le, tag)" in one["expr"] for one in panel["targets"])
