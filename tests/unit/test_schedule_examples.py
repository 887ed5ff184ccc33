"""The examples of schedules in the pages are definitions that the planner takes."""

import json
import re
from pathlib import Path

import pytest

from scylla_spark.client.schedules.files import read_files
from scylla_spark.core.plan.commands.plan_command import PlanCommand, read_command
from scylla_spark.core.plan.schedule_format import read_schedule

ROOT = Path(__file__).parents[2]


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


class Recorder:
    """Stands for a scheduler; keeps what is put."""

    def __init__(self):
        self.put = []

    def put_schedules(self, *schedules):
        self.put += schedules


@pytest.mark.parametrize(
    ("page", "names"), [("README.md", ["nightly", "rollup"]), ("docs/schedules.md", ["nightly", "rollup", "alarm"])]
)
def test_schedules_in_python_can_be_put(page, names):
    (code,) = [block for block in blocks(page, "python") if "Schedule(" in block]
    whole = code.replace("sched = Scheduler.connect()\n", "").partition('sched.schedule("')[0]
    recorder = Recorder()
    exec(whole, {"sched": recorder})
    assert [schedule.name for schedule in recorder.put] == names


@pytest.mark.parametrize(
    ("page", "names"),
    [("README.md", ["nightly", "rollup"]), ("docs/schedules.md", ["nightly", "both", "maintenance"])],
)
def test_schedules_in_toml_can_be_read(tmp_path, page, names):
    (tmp_path / "page.toml").write_text("\n".join(block for block in blocks(page, "toml") if "[[schedule]]" in block))
    assert [schedule.name for schedule in read_files([str(tmp_path / "page.toml")])] == names


def test_every_command_of_the_wire_is_shown_once_and_valid():
    lines = [line for block in blocks("docs/wire.md", "json") for line in block.splitlines() if '"type"' in line]
    read = [read_command(line.encode()) for line in lines]
    assert all(isinstance(one, PlanCommand) for one in read), read
    assert sorted(one.type for one in read) == sorted(
        [
            "put",
            "pause",
            "resume",
            "delete",
            "run",
            "event",
            "partitions",
            "calendar",
            "put_queue",
            "delete_queue",
            "put_token",
            "delete_token",
            "put_rule",
            "delete_rule",
            "test_rule",
            "audit",
        ]
    )
    for definition in json.loads(lines[0])["schedules"]:
        read_schedule(definition)
