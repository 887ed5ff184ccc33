"""The commands about schedules that need no deployment: lint, and what is wrong with calendars and files."""

import json
import sys
from datetime import date
from zoneinfo import ZoneInfo

import pytest

from scylla_spark.cli import one_command as cli
from scylla_spark.cli.commands import calendar, schedule_backfill
from scylla_spark.clock import iso, to_us
from scylla_spark.errors import ArgumentError

GOOD = '[[schedule]]\nname = "nightly"\nhandler = "report"\ncron = "0 12 * * *"\n'
HANDLERS = 'from scylla_spark import handler\n\n\n@handler("report")\ndef report(task, ctx):\n    pass\n'


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        code = cli.run(["--data", str(tmp_path / "data"), *arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_lint_says_what_each_schedule_means(run, tmp_path):
    (tmp_path / "a.toml").write_text(GOOD)
    code, out, err = run("schedule", "lint", "a.toml")
    assert (code, out) == (0, "nightly: runs at 12:00 every day, UTC time\n")
    assert err == "schedules: 1, errors: 0, warnings: 0\n"


def test_lint_finds_errors_in_every_schedule_and_ends_with_1(run, tmp_path):
    bad = '[[schedule]]\nname = "bad"\nhandler = "report"\ncron = "61 * * * *"\n'
    (tmp_path / "a.toml").write_text(bad + GOOD + GOOD + GOOD.replace("nightly", "odd").replace("report", "nobody"))
    (tmp_path / "lint_handlers.py").write_text(HANDLERS)
    code, out, _ = run("schedule", "lint", "a.toml", "--handlers", str(tmp_path / "lint_handlers.py"), "-o", "json")
    found = {row["schedule"]: [one["level"] for one in row["findings"]] for row in json.loads(out)}
    assert code == 1
    assert found == {"bad": ["error"], "nightly": ["error"], "odd": ["error"]}
    assert "another schedule of the file has its name" in out
    assert "The field minute" in out


def test_lint_finds_the_handlers_of_the_settings_in_the_current_folder(run, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "a.toml").write_text(GOOD.replace("report", "report_here"))
    (tmp_path / "scyllaspark.toml").write_text('handlers = ["lint_here"]\n')
    code, _, err = run("schedule", "lint", "a.toml")
    assert (code, "No module named 'lint_here'" in err, "defect" in err) == (7, True, False)
    (tmp_path / "lint_here.py").write_text(HANDLERS.replace("report", "report_here"))
    code, _, err = run("schedule", "lint", "a.toml")
    assert (code, err) == (0, "schedules: 1, errors: 0, warnings: 0\n")


def test_a_day_of_a_backfill_begins_at_midnight_of_the_schedule():
    berlin = ZoneInfo("Europe/Berlin")
    wanted = {
        "2026-03-29": "2026-03-28T23:00:00Z",
        "2026-03-30": "2026-03-29T22:00:00Z",
        "2026-03-30T09:00": "2026-03-30T07:00:00Z",
    }
    for text, is_at in (wanted | {"2026-03-30T09:00Z": "2026-03-30T09:00:00Z"}).items():
        assert iso(to_us(schedule_backfill._begin_or_end(text, berlin))) == is_at
    assert schedule_backfill._excluded("2026-03-29/2026-03-30", berlin) == tuple(
        schedule_backfill._begin_or_end(day, berlin) for day in ("2026-03-29", "2026-03-30")
    )
    assert schedule_backfill._begin_or_end("17", berlin) == 17
    for local in (berlin, None):
        with pytest.raises(ArgumentError, match="is no instant"):
            schedule_backfill._begin_or_end("yesterday", local)
    with pytest.raises(ArgumentError, match="is no instant"):
        schedule_backfill._begin_or_end("2026-03-29", None)


def test_a_warning_is_no_error(run, tmp_path):
    (tmp_path / "a.toml").write_text(GOOD.replace("0 12", "*/7 *"))
    code, out, _ = run("schedule", "lint", "a.toml")
    assert code == 0
    assert "  warning: */7 minutes do not divide the hour" in out


def test_a_jitter_beyond_the_time_when_it_expires_is_a_warning(run, tmp_path):
    (tmp_path / "a.toml").write_text(GOOD + 'expires = "5m"\njitter = "5m"\n')
    code, out, _ = run("schedule", "lint", "a.toml")
    assert code == 0
    assert "  warning: jitter may let it start after it expires" in out


def test_a_steering_command_needs_names_or_a_tag(run):
    for words in (["pause"], ["resume"], ["delete", "--yes"], ["pause", "a", "--tag", "b"]):
        code, _, err = run("schedule", *words)
        assert (code, "Which schedules?" in err) == (2, True)


def test_a_day_that_does_not_exist_is_told_with_its_line(run, tmp_path):
    (tmp_path / "days").write_text("# ours\n2027-12-24\n2027-02-30 # no\n")
    code, _, err = run("calendar", "put", "ours", "days")
    assert code == 2
    assert "days, line 3: '2027-02-30' is no day." in err


def test_what_follows_a_day_says_what_it_is(tmp_path):
    (tmp_path / "days").write_text("# ours\n2027-12-24\t Christmas  Eve # closed\n\n  2027-12-31\n")
    assert calendar._read(tmp_path / "days") == {date(2027, 12, 24): "Christmas  Eve", date(2027, 12, 31): ""}


def test_holidays_without_their_package_are_a_clear_error(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "holidays", None)
    code, _, err = run("calendar", "fill", "de", "--country", "de", "2027")
    assert code == 7
    assert "scylla-spark[calendars]" in err


@pytest.mark.slow
def test_a_country_that_nobody_knows_is_an_error(run):
    pytest.importorskip("holidays")
    code, _, err = run("calendar", "fill", "x", "--country", "xx", "2027")
    assert code == 2
    assert "No holidays are known" in err


@pytest.mark.slow
@pytest.mark.parametrize(("language", "name"), [(None, "Tag der Deutschen Einheit"), ("en_US", "German Unity Day")])
def test_names_of_holidays_do_not_depend_on_who_asks(monkeypatch, language, name):
    pytest.importorskip("holidays")
    monkeypatch.setenv("LANGUAGE", "uk")
    assert calendar._holidays("de", None, language, [2026, 2027])[date(2027, 10, 3)] == name


def test_a_language_that_a_country_does_not_have_is_an_error(run):
    pytest.importorskip("holidays")
    code, _, err = run("calendar", "fill", "x", "--country", "de", "--language", "fr", "2027")
    assert code == 2
    assert "Pass one of de, en_US" in err


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_fields_of_an_event_are_an_object(run, text):
    code, _, err = run("event", "emit", "stock", "--fields", text)
    assert code == 2
    assert "event's fields" in err
