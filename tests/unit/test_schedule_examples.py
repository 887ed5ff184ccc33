"""The examples of schedules in the pages are definitions that the planner takes."""

import json
import re
from pathlib import Path

import pytest

from scylla_spark.client.schedules.files import read_files
from scylla_spark.core.plan.commands import plan_command
from scylla_spark.core.plan.commands.plan_command import PlanCommand, read_command
from scylla_spark.core.plan.schedule_format import read_schedule
from scylla_spark.core.plan.state import plan_log
from scylla_spark.core.records import command

ROOT = Path(__file__).parents[2]


def blocks(page, language):
    return re.findall(rf"```{language}(?: title=\S+)?\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


class Recorder:
    """Stands for a scheduler; keeps what is put."""

    def __init__(self):
        self.put = []

    def put_schedules(self, *schedules):
        self.put += schedules


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("docs/schedules.md", ["nightly", "rollup", "alarm"])
    ],  # those of the start pages are pasted in tests/acceptance/alone
)
def test_schedules_in_python_can_be_put(page, names):
    (code,) = [block for block in blocks(page, "python") if "Schedule(" in block]
    whole = code.replace("sched = Scheduler.connect()\n", "").partition('sched.schedule("')[0]
    recorder = Recorder()
    exec(whole, {"sched": recorder})
    assert [schedule.name for schedule in recorder.put] == names


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("docs/start/quickstart.md", ["daily-report"]),
        ("docs/schedules.md", ["nightly", "both", "restore", "maintenance", "merge"]),
        ("docs/coming-from/cron.md", ["report"]),
        ("docs/coming-from/airflow.md", ["load", "publish"]),
        ("docs/coming-from/cdap.md", ["aggregate", "summary"]),
        ("docs/coming-from/databricks.md", ["rollup"]),
    ],
)
def test_schedules_in_toml_can_be_read(tmp_path, page, names):
    (tmp_path / "page.toml").write_text("\n".join(block for block in blocks(page, "toml") if "[[schedule]]" in block))
    assert [schedule.name for schedule in read_files([str(tmp_path / "page.toml")])] == names


def test_every_command_of_the_wire_is_shown_once_and_valid():
    lines = [line for block in blocks("docs/wire.md", "json") for line in block.splitlines() if '"type"' in line]
    read = [read_command(line.encode()) for line in lines]
    assert all(isinstance(one, PlanCommand) for one in read), read
    assert [one.type for one in read if one.type != "backfill"] == list(
        dict.fromkeys(one.type for one in read if one.type != "backfill")
    )
    assert {one.type for one in read} == plan_command._SELECT | plan_command._NEEDS.keys()
    for definition in json.loads(lines[0])["schedules"]:
        read_schedule(definition)


def test_pages_name_all_types_and_the_newest_versions():
    wire, protocol = ((ROOT / "docs" / page).read_text() for page in ("wire.md", "protocol.md"))
    (types,) = [line for line in wire.splitlines() if line.startswith("| `type` | required | `put`")]
    assert set(re.findall(r"`(\w+)`", types)) - {"type"} == plan_command._SELECT | plan_command._NEEDS.keys()
    assert f"| `version` | 1 to {plan_command.VERSION} |" in wire
    assert f"| 2 to {plan_log.VERSION}, `plan` |" in wire
    assert f"{command.MAX_RECORD_BYTES:,} bytes" in wire
    since = {int(number) for number in re.findall(r"^- (\d+) where", protocol, re.MULTILINE)}
    assert since == set(range(3, plan_log.VERSION + 1))


def test_the_producer_of_the_page_sends_what_fits_as_utf_8():
    (code,) = [block for block in blocks("docs/wire.md", "python") if "KafkaProducer(" in block]
    body = (
        code.partition("now = ")[2].partition("producer.send")[0].replace('{"invoice": 17}', '{"text": "客" * 55_000}')
    )
    value = re.search(r"value=(json\.dumps\(.*?\)\.encode\(\))", code)[1]
    names = {}
    exec(f"import json\nfrom datetime import datetime, timedelta, timezone\nnow = {body}\nvalue = {value}", names)
    assert len(names["value"]) < command.MAX_RECORD_BYTES
    assert len(json.dumps(names["task"]).encode()) > command.MAX_RECORD_BYTES
