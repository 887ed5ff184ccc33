"""Schedules from files: what may be written, and what is said of what may not."""

import json
import sys
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from scylla_spark import Retry, Schedule, Trigger
from scylla_spark.client.schedules import schedule as definitions
from scylla_spark.client.schedules import sets
from scylla_spark.client.schedules.files import read_file, read_files
from scylla_spark.client.schedules.schedule import Constraint
from scylla_spark.clock import to_us
from scylla_spark.core.plan.trigger_format import read_trigger
from scylla_spark.errors import ArgumentError, SetupError

NIGHTLY = Schedule(
    "nightly", "report", Trigger.cron("0 2 * * *", "Europe/Berlin"), payload={"day_of": "{{ planned }}"}, overlap="buffer_one",
    max_running=1, catch_up_window="2h", expires="10m", retry=Retry(max_retries=3, base="30s"), tags=["daily"],
    constraints=[Constraint.time_range("08:00", "22:30", otherwise="abort")],
)  # fmt: skip
TOML = """
[[schedule]]
name = "nightly"
handler = "report"
cron = "0 2 * * *"
tz = "Europe/Berlin"
payload = { day_of = "{{ planned }}" }
overlap = "buffer_one"
max_running = 1
catchUpWindow = "2h"
expires = "10m"
retry = { max_retries = 3, base = "30s" }
tags = ["daily"]
constraints = [{ kind = "time_range", begin = "08:00", end = "22:30", tz = "UTC", otherwise = "abort" }]
"""
YAML = """
schedule:
- name: nightly
  handler: report
  trigger: {kind: cron, expression: 0 2 * * *, tz: Europe/Berlin}
  payload: {day_of: "{{ planned }}"}
  overlap: buffer_one
  maxRunning: 1
  catch_up_window: 2h
  expires: 10m
  retry: {maxRetries: 3, base: 30s}
  tags: [daily]
  constraints:
  - {kind: time_range, begin: 08:00, end: 22:30, tz: UTC, otherwise: abort}
"""


@pytest.fixture
def put(tmp_path):
    """Writes a file; its path."""

    def write(text, name="set.toml"):
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(tmp_path / name)

    return write


@pytest.mark.parametrize(("text", "name"), [(TOML, "a.toml"), (YAML, "a.yaml"), (YAML, "a.yml")])
def test_a_file_defines_what_python_would(put, text, name):
    (found,) = read_files([put(text, name)])
    assert found.definition == NIGHTLY.definition


def test_what_show_prints_as_json_can_be_put_again(put):
    (found,) = read_files([put(json.dumps({"schedule": [NIGHTLY.definition]}), "a.json")])
    assert found.definition == NIGHTLY.definition


@pytest.mark.parametrize(
    ("line", "trigger"),
    [
        ('cron = "0 2 * * * | 30 4 * * *"', Trigger.cron("0 2 * * * | 30 4 * * *")),
        ('every = "15m"\njitter = "1m"', Trigger.every("15m", jitter="1m")),
        ('after = "load"\non = ["failed"]', Trigger.after("load", ["failed"])),
        ('event = "stock"\nwhere = { max_rows = 1 }', Trigger.event("stock", {"max_rows": 1})),
        ('table = "orders"\nmin_rows = 5\nat_most_every = "10m"', Trigger.table("orders", min_rows=5, at_most_every="10m")),
        ('partitions = "orders"\nat_least = 3', Trigger.partitions("orders", 3)),
        ('absent = { event = "beat" }\nwithin = "26h"', Trigger.absent(Trigger.event("beat"), "26h")),
        ('absent = { after = "load", on = ["succeeded"] }\nwithin = "26h"', Trigger.absent(Trigger.after("load"), "26h")),
        ('all = [{ event = "a" }, { event = "b" }]', Trigger.event("a") & Trigger.event("b")),
        ('any = [{ event = "a" }, { kind = "event", name = "b" }]', Trigger.event("a") | Trigger.event("b")),
        ('any = [{ event = "a" }, { event = "b" }]\nat_least = 2', Trigger.any_of(2, Trigger.event("a"), Trigger.event("b"))),
        ('trigger = { event = "a" }', Trigger.event("a")),
    ],
)  # fmt: skip
def test_triggers_may_be_written_in_short(put, line, trigger):
    (found,) = read_files([put(f'[[schedule]]\nname = "s"\nhandler = "h"\n{line}\n')])
    expected = {name: value for name, value in trigger.definition.items() if (name, value) != ("tz", "UTC")}
    assert found.trigger.definition == expected


def test_times_of_toml_are_instants(put):
    (found,) = read_files([put('[[schedule]]\nname = "s"\nhandler = "h"\nat = 2027-01-01T00:00:00+01:00\n')])
    assert found.trigger.definition == {"kind": "at", "times": ["2027-01-01T00:00:00+01:00"]}


def test_yaml_takes_on_for_a_name_and_22_30_for_a_text(put):
    text = "schedule: [{name: s, handler: h, after: x, on: [failed], note: 22:30, lane: no}]"
    (found,) = read_files([put(text, "a.yaml")])
    assert (found.trigger.definition["on"], found.note, found.lane) == (["failed"], "22:30", "no")


def test_a_recurrence_without_a_start_begins_with_the_epoch_of_its_zone(put):
    (short,) = read_files([put(schedule('rrule = "FREQ=MONTHLY;BYDAY=-1FR"\ntz = "Europe/Berlin"'))])
    (whole,) = read_files(
        [put(schedule('trigger = { kind = "rrule", rule = "FREQ=MONTHLY;BYDAY=-1FR", tz = "Europe/Berlin" }'))]
    )
    assert short.trigger == whole.trigger == Trigger.rrule("FREQ=MONTHLY;BYDAY=-1FR", tz="Europe/Berlin")
    assert short.trigger.definition["start"] == "1970-01-01T00:00:00"
    times = read_trigger(short.trigger.definition).times
    assert times.next_after(to_us(datetime(2026, 12, 1, tzinfo=UTC)), {}) == to_us(
        datetime(2026, 12, 24, 23, tzinfo=UTC)
    )
    with pytest.raises(ArgumentError, match="COUNT needs a start"):
        Trigger.rrule("FREQ=DAILY;COUNT=3")


def schedule(line):
    return f'[[schedule]]\nname = "s"\nhandler = "h"\n{line}\n'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (schedule('cron = "61 * * * *"'), ["schedule 's'", "The field minute"]),
        (schedule('every = "1h"\noverlap = "both"'), ["schedule 's'", "overlap"]),
        (schedule('every = "1h"\noverlapp = "skip"'), ["schedule 's'", "overlapp", "Did you mean overlap?"]),
        (schedule('every = "1h"\ncron = "0 * * * *"'), ["schedule 's'", "two triggers, cron and every", "all ="]),
        (schedule('every = "1h"\ntrigger = { event = "x" }'), ["schedule 's'", "has a `trigger` already"]),
        (schedule('tz = "UTC"'), ["schedule 's'", "names no trigger"]),
        (schedule(""), ["schedule 's'", "trigger"]),
        (schedule("trigger = 5"), ["schedule 's'", "trigger: 5 is no object"]),
        (schedule('every = "1h"\nmax_running = 1\nmaxRunning = 2'), ["schedule 's'", "stands there twice"]),
        (schedule('every = "1h"\nstart_at = 2027-01-01T00:00:00'), ["schedule 's'", "startAt"]),
        (schedule('every = "1h"\nat_least = 2'), ["schedule 's'", "atLeast"]),
        (schedule('every = "1h"\nretry = { max_retriez = 2 }'), ["schedule 's'", "retry"]),
        (schedule('every = "1h"\npayload = { a = "{{ nobody }}" }'), ["schedule 's'", "nobody"]),
        ('[[schedule]]\nhandler = "h"\nevery = "1h"\n', ["schedule number 1", "name"]),
        ("schedule = [5]", ["schedule number 1", "object with fields"]),
        ("schedule = []", ["no list `schedule`"]),
        ("[schedules]\n", ["no list `schedule`"]),
        ('other = 1\n[[schedule]]\nname = "s"', ["'other'"]),
        ("[[schedule\n", ["cannot be read", "line 1"]),
        (b"\xff\xfe", ["no text in UTF-8"]),
    ],
)
def test_what_is_wrong_in_a_file_is_told_with_its_place(put, text, told):
    path = put(text)
    with pytest.raises(ArgumentError) as error:
        read_files([path])
    assert [part for part in [path, *told] if part not in str(error.value)] == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("schedule: [", "cannot be read"),
        ("schedule: [{name: a, name: b}]", "'name' stands there twice"),
        ("schedule: !!python/object/apply:os.getpid []", "could not determine a constructor"),
        ("- 1", "no list `schedule`"),
        ("schedule: [{1: 2}]", "the name of a field is a text"),
        ("", "no list `schedule`"),
    ],
)
def test_what_is_wrong_in_a_yaml_file_is_told(put, text, told):
    path = put(text, "a.yaml")
    with pytest.raises(ArgumentError, match=r"a\.yaml") as error:
        read_files([path])
    assert told in str(error.value)


def test_a_file_that_is_not_there_or_of_another_kind_is_told(tmp_path):
    with pytest.raises(ArgumentError, match=r"none\.toml cannot be read: No such file"):
        read_files([str(tmp_path / "none.toml")])
    with pytest.raises(ArgumentError, match=r"end in \.toml"):
        read_files([str(tmp_path / "a.ini")])


def test_one_bad_schedule_does_not_hide_the_others(put):
    found = read_file(put(schedule('every = "1h"') + schedule('every = "0s"') + schedule('event = "x"')))
    assert [one.error is None for one in found] == [True, False, True]


def test_yaml_without_its_package_is_a_clear_error(put, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(SetupError, match=r"scylla-spark\[yaml\]"):
        read_files([put(YAML, "a.yaml")])


def test_how_many_runs_are_waited_for_stands_beside_after(put):
    text = """
[[schedule]]
name = "a"
handler = "report"
after = "load"
on = ["failed"]
at_least = 3
"""
    expected = Schedule("a", "report", Trigger.after("load", ["failed"], at_least=3)).definition
    assert [one.definition for one in read_files([put(text)])] == [expected]


def test_a_definition_is_judged_once_and_is_the_schedule_that_python_makes(monkeypatch):
    judged, judge = [], definitions.read_schedule
    monkeypatch.setattr(definitions, "read_schedule", lambda value: judged.append(value) or judge(value))
    assert Schedule.of(NIGHTLY.definition).definition == NIGHTLY.definition
    assert len(judged) == 1


def test_a_set_that_removes_nothing_is_put_without_reading_what_is_stored():
    asked = []

    def ask(kind, **fields):
        asked.append((kind, fields["schedules"]))
        return SimpleNamespace(done={"nightly": "added"})

    assert sets.put(SimpleNamespace(ask=ask), [NIGHTLY], None, "me") == {"nightly": "added"}
    assert asked == [("put", [NIGHTLY.definition])]
