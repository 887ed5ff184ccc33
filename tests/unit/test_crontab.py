"""Crontabs: what becomes of each line, that a file of its schedules reads back, and the command `schedule import`."""

import json
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scylla_spark.cli import one_command as cli
from scylla_spark.client.schedules import files
from scylla_spark.client.schedules.crontab import DIFFERS, REFUSED, TAKEN, file_of_schedules, read_crontab
from scylla_spark.client.schedules.files import definition_of
from scylla_spark.client.schedules.schedule import Schedule, Trigger
from scylla_spark.core.plan.payload_template import Template
from scylla_spark.errors import ArgumentError

CRONTAB = r"""
SHELL=/bin/bash
PATH = "/usr/local/bin:/usr/bin"
MAILTO=ops@example.com

# Nightly report
30 6 * * 1-5   /opt/jobs/report.sh --day yesterday >> /var/log/report.log 2>&1
@daily FOO=1 /opt/jobs/report.sh
0 22 * * *  mail -s "It's 10pm" joe%Joe,%%Where are your kids?\%%
*/5 * * * * docker ps --format '{{.Names}} {{json .}}'
@reboot /opt/start.sh
0~59 * * * * sleep 1
61 * * * * /bin/false
@fortnightly x
0 5 * * *
CRON_TZ=America/New_York
0 9 * JAN-MAR mon,wed /opt/trade
CRON_TZ=Mars/Base
0 9 * * * /opt/trade
"""


def by_number(text, **options):
    return {one.number: one for one in read_crontab(text, "run", "Europe/Berlin", **options)}


def rendered(line):
    return Template(line.schedule["payload"], ()).render({})


def test_each_line_of_a_crontab_is_taken_or_says_why_not():
    found = by_number(CRONTAB)
    verdicts = {number: one.verdict for number, one in found.items()}
    assert verdicts == {
        2: TAKEN, 3: TAKEN, 4: REFUSED, 7: TAKEN, 8: TAKEN, 9: DIFFERS, 10: TAKEN, 11: REFUSED, 12: REFUSED, 13: REFUSED,
        14: REFUSED, 15: REFUSED, 16: TAKEN, 17: TAKEN, 18: REFUSED, 19: REFUSED,
    }  # fmt: skip
    for number, words in {
        4: "not mailed",
        9: "stdin",
        11: "systemd",
        12: "jitter",
        13: "minute",
        14: "@fortnightly",
    }.items():
        assert words in found[number].why
    assert "Mars/Base" in found[18].why
    assert "zone" in found[19].why


def test_a_schedule_keeps_command_environment_zone_and_the_comment_above_it():
    found = by_number(CRONTAB)
    first = found[7].schedule
    assert (first["name"], first["cron"], first["tz"], first["note"]) == (
        "report.sh", "30 6 * * 1-5", "Europe/Berlin", "Nightly report",
    )  # fmt: skip
    assert rendered(found[7]) == {
        "command": ["/bin/bash", "-c", "/opt/jobs/report.sh --day yesterday >> /var/log/report.log 2>&1"],
        "env": {"PATH": "/usr/local/bin:/usr/bin"},
    }
    assert found[8].schedule["name"] == "report.sh-2"
    assert "note" not in found[8].schedule
    assert found[17].schedule["tz"] == "America/New_York"


def test_the_first_percent_sign_ends_the_command_and_later_ones_are_ends_of_lines():
    found = rendered(by_number(CRONTAB)[9])
    assert found["command"][2] == 'mail -s "It\'s 10pm" joe'
    assert found["stdin"] == "Joe,\n\nWhere are your kids?%\n"


@pytest.mark.parametrize(
    ("text", "command", "stdin"),
    [
        (r"date +\%F", "date +%F", None),
        (r"a \\%b", "a \\\\", "b\n"),  # the second backslash is escaped, the percent sign is not
        (r"a \\\%b", "a \\\\%b", None),
        ("a\\", "a\\", None),
        ("a%", "a", None),
        ("a%%", "a", "\n"),
        ("a%b%", "a", "b\n"),
        (r"a%b\%", "a", "b%\n"),
    ],
)
def test_command_and_input_are_those_of_cron(text, command, stdin):
    payload = rendered(by_number(f"@daily {text}\n")[1])
    assert (payload["command"][2], payload.get("stdin")) == (command, stdin)


@pytest.mark.parametrize("field", ["5/15", "0,5/15", "10/1"])
def test_a_step_after_one_number_is_refused_since_crons_ignore_it(field):
    assert "5-59/15" in by_number(f"{field} * * * * x\n")[1].why
    assert by_number("*/5,1-9/2 * * * * x\n")[1].verdict == TAKEN


def test_names_of_many_equal_commands_are_found_in_time():
    lines = read_crontab("@daily x\n@daily x-3\n" + "@daily x\n" * 3, "run", "UTC")
    assert [one.schedule["name"] for one in lines] == ["x", "x-3", "x-2", "x-4", "x-5"]


def test_braces_of_a_command_are_no_places_of_a_template():
    assert rendered(by_number("SHELL={{a}}\n@daily x\n")[2])["command"][0] == "{{a}}"
    assert rendered(by_number(CRONTAB)[10])["command"][2] == "docker ps --format '{{.Names}} {{json .}}'"


def test_lines_of_a_system_crontab_name_a_user():
    found = by_number("17 *\t* * *\troot  cd / && run-parts /etc/cron.hourly\n0 0 * * * root\n", system=True)
    assert (found[1].verdict, found[2].verdict) == (DIFFERS, REFUSED)
    assert found[1].schedule["payload"]["user"] == "root"
    assert "'root'" in found[1].why


def test_the_handler_of_the_page_runs_what_an_import_gives_it(tmp_path):
    page = Path("docs/coming-from/cron.md").read_text()
    (code,) = re.findall(r"```python title=\"command\.py\"\n(.*?)```", page, re.DOTALL)
    names = {}
    exec(code, names)
    (line,) = read_crontab(f"TO={tmp_path}/out\n@daily cat > $TO%one%two\n", "command", "UTC")[1:]
    names["command"](SimpleNamespace(payload=rendered(line)), None)
    assert (tmp_path / "out").read_text() == "one\ntwo\n"


def test_runs_are_as_under_cron():
    fields = by_number("@hourly x\n")[1].schedule
    assert (fields["overlap"], fields["catch_up"], fields["retry"]) == ("allow_all", "none", {"max_retries": 0})


def test_a_random_delay_is_jitter_and_a_leading_dash_is_left_out():
    found = by_number("RANDOM_DELAY=10\n-0 4 * * * x\nRANDOM_DELAY=soon\n")
    assert found[2].schedule["jitter"] == "10m"
    assert [one.verdict for one in found.values()] == [DIFFERS, DIFFERS, REFUSED]


def test_a_last_line_without_an_end_is_named():
    assert "no newline" in by_number("@hourly x")[1].why


def test_an_unknown_zone_is_refused():
    with pytest.raises(ArgumentError, match="Mars/Base"):
        read_crontab("", "run", "Mars/Base")


def test_an_imported_schedule_has_the_zone_of_its_line():
    definition = definition_of(by_number("30 6 * * *\tx\n")[1].schedule)
    assert Schedule.of(definition).trigger == Trigger.cron("30 6 * * *", "Europe/Berlin")


@given(st.text(st.characters(codec="utf-8"), max_size=200), st.booleans())
def test_any_text_is_judged_and_what_is_taken_reads_back(text, system):
    lines = read_crontab(f"* * * * * root {text}\n{text}\n", "run", "UTC", system=system)
    for line, read in zip(
        [one for one in lines if one.schedule], tomllib.loads(file_of_schedules(lines)).get("schedule", []), strict=True
    ):
        assert read == line.schedule
        assert Schedule.of(definition_of(read)).name == read["name"]


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        code = cli.run(["--data", str(tmp_path / "data"), "schedule", "import", *arguments])
        return code, *capsys.readouterr()

    return call


def test_the_command_reports_each_line_and_writes_a_file_that_lint_takes(run, tmp_path, capsys):
    (tmp_path / "crontab").write_text(CRONTAB)
    code, out, err = run("crontab", "--handler", "run", "--tz", "UTC", "--to", "jobs.toml", "-o", "json")
    assert (code, [row["line"] for row in json.loads(out)][:3]) == (1, [2, 3, 4])
    assert err.startswith("7 taken, 1 differs, 8 refused\n")
    assert cli.run(["schedule", "lint", "jobs.toml"]) == 0
    assert "docker: runs every fifth minute" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("file", "system"),
    [
        ("/etc/crontab", True),
        ("/etc/cron.d/jobs", True),
        ("/etc/../etc/cron.d/jobs", True),
        ("/etc/crontabs/root", False),
        ("crontab", False),
    ],
)
def test_files_of_the_system_name_users(run, monkeypatch, file, system):
    monkeypatch.setattr(files, "text_of", lambda *_: "@daily root x\n")
    _, out, _ = run(file, "--handler", "run", "--tz", "UTC", "-o", "json")
    assert ("user of the dispatcher" in json.loads(out)[0]["why"]) == system


def test_a_file_that_exists_is_not_written_over(run, tmp_path):
    (tmp_path / "crontab").write_text("@daily x\n")
    (tmp_path / "jobs.toml").write_text("mine")
    code, _, err = run("crontab", "--handler", "run", "--tz", "UTC", "--to", "jobs.toml")
    assert (code, "jobs.toml exists" in err) == (2, True)
    assert (tmp_path / "jobs.toml").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nowhere", "--handler", "run", "--tz", "UTC"), "nowhere cannot be read"),
        (("crontab", "--handler", "run", "--tz", "CET+9"), "CET+9"),
        (("crontab", "--handler", "no name", "--tz", "UTC"), "handler"),
        (("crontab", "--handler", "run", "--tz", "UTC", "--to", "x.yaml"), "TOML"),
    ],
)
def test_wrong_arguments_are_named(run, tmp_path, arguments, words):
    (tmp_path / "crontab").write_text("@daily x\n")
    code, out, err = run(*arguments)
    assert code != 0
    assert words in out + err
