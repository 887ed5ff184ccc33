"""Schedules beside handlers: what `@handler(schedules=…)` takes, and which of them a module brings along."""

import queue
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from scylla_spark import handler
from scylla_spark.cli.commands import root_commands
from scylla_spark.cli.commands.schedule_apply import of_module
from scylla_spark.client.schedules.files import owner_of
from scylla_spark.client.schedules.schedule import Schedule, Trigger
from scylla_spark.errors import ArgumentError, ConfigError, UnreachableError
from scylla_spark.processes import ready_line

MODULE = """
from scylla_spark import handler
import brought_elsewhere

NIGHTLY = {"name": "brought-nightly", "cron": "0 2 * * *", "tz": "Europe/Berlin", "payload": {"full": True}}


@handler("brought@1", schedules=[NIGHTLY, {"name": "brought-manual", "trigger": {"kind": "manual"}}])
def brought(task): ...


@handler("brought-plain")
def plain(task): ...
"""
ELSEWHERE = (
    "from scylla_spark import handler\n\n\n"
    '@handler("brought-elsewhere", schedules=[{"name": "elsewhere", "every": "1h"}])\ndef other(task): ...\n'
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "brought_elsewhere.py").write_text(ELSEWHERE)
    return tmp_path


@pytest.mark.parametrize("file", [False, True])
def test_a_module_brings_the_schedules_of_its_own_handlers_and_owns_them(folder, file):
    name = f"brought_module_{file}"
    (folder / f"{name}.py").write_text(
        MODULE.replace("brought@1", f"brought-{file}").replace("brought-plain", f"{name}.plain")
    )
    owner = f"module:{(folder / name).resolve()}.py" if file else f"module:{name}"
    nightly, manual = of_module(f"./{name}.py" if file else name)
    assert nightly.definition == Schedule(
        "brought-nightly", f"brought-{file}", Trigger.cron("0 2 * * *", "Europe/Berlin"), payload={"full": True},
        owner=owner,
    ).definition  # fmt: skip
    assert (manual.trigger, manual.owner) == (Trigger.manual(), owner)
    assert [one.name for one in of_module("brought_elsewhere")] == ["elsewhere"]


def test_a_wrong_schedule_is_named_with_module_handler_and_field(folder):
    (folder / "brought_wrong.py").write_text(
        ELSEWHERE.replace("brought-elsewhere", "brought-wrong").replace("1h", "often")
    )
    with pytest.raises(ArgumentError, match=r"brought_wrong, handler 'brought-wrong', schedule 'elsewhere': .*period"):
        of_module("brought_wrong")


def test_a_module_that_cannot_be_imported_is_an_error_of_configuration(folder):
    (folder / "brought_broken.py").write_text("import no_such_module\n")
    with pytest.raises(ConfigError, match="no_such_module"):
        of_module("brought_broken")


@pytest.mark.parametrize("wrong", [[{"handler": "x"}], [{"owner": "me"}], ["nightly"], [Trigger.manual()]])
def test_what_is_no_schedule_of_a_handler_is_refused_where_it_is_written(wrong):
    with pytest.raises(ArgumentError, match="schedules="):
        handler("brought-refused", schedules=wrong)


def test_a_handler_of_a_function_of_another_module_is_of_the_module_that_registers_it(folder):
    (folder / "brought_plain.py").write_text("def plain(task): ...\n")
    (folder / "brought_registers.py").write_text(
        "from brought_plain import plain\nfrom scylla_spark import handler\n\n"
        'handler("brought-registered", schedules=[{"name": "registered", "every": "1h"}])(plain)\n'
    )
    assert [one.name for one in of_module("brought_registers")] == ["registered"]


def test_a_handler_that_two_modules_bring_along_is_of_the_first(folder):
    (folder / "brought_twice").mkdir()
    (folder / "brought_twice" / "__init__.py").write_text("from brought_twice import part\n")
    (folder / "brought_twice" / "part.py").write_text(ELSEWHERE.replace("brought-elsewhere", "brought-twice"))
    brought = root_commands._brought(["brought_twice", "brought_twice.part", "brought_twice"])
    assert [(one.name, one.owner) for one in brought] == [("elsewhere", "module:brought_twice")]


def test_a_planner_that_does_not_answer_does_not_keep_a_service_that_is_ready(folder, monkeypatch):
    asked, gate, said = threading.Event(), threading.Event(), queue.Queue()

    class Silent:
        @contextmanager
        def scheduler(self):
            asked.set()
            gate.wait(60)
            raise UnreachableError("No planner answered within 30 s.")
            yield

        output = SimpleNamespace(say=said.put, form="table")

    monkeypatch.setattr(ready_line, "ready_facts", lambda _: {})
    monkeypatch.setattr(ready_line, "ready_line", lambda _: "ready")
    root_commands._say_ready(Silent(), [Schedule("a", "a", Trigger.manual(), owner="module:a")], None)
    assert asked.wait(60)
    gate.set()
    assert "were not applied: No planner answered" in said.get(timeout=60)


def test_files_of_one_name_in_different_folders_have_different_owners(folder, monkeypatch):
    for name in ("one", "two"):
        (folder / name).mkdir()
    assert owner_of("one/jobs.py") != owner_of("two/jobs.py")
    monkeypatch.chdir(folder / "one")
    assert owner_of("jobs.py") == owner_of(f"{folder}/one/jobs.py") == owner_of("../one/jobs.py")


def test_what_a_module_prints_stays_out_of_the_rows(folder, capsys):
    (folder / "brought_loud.py").write_text("print('loaded')\n")
    assert of_module("brought_loud") == []
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "loaded\n")
