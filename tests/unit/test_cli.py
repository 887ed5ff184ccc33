"""The command line: what it says where, and its exit codes."""

import inspect
import io
import json
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

import scylla_spark
from scylla_spark import cli
from scylla_spark.cli import one_command
from scylla_spark.cli.app import app
from scylla_spark.cli.commands.task_import import tasks as read_tasks
from scylla_spark.cli.context import instant
from scylla_spark.cli.output import Output
from scylla_spark.client.connection import Connection
from scylla_spark.client.handlers import HandlerWarnings
from scylla_spark.client.tasks import enqueue_arguments
from scylla_spark.client.tasks.handle import TaskHandle
from scylla_spark.client.tasks.resend_rejected import repaired
from scylla_spark.config.settings import Settings
from scylla_spark.core.records.command import Command, Rules, WireRetry, encode, validate
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.status import Attempt, TaskStatus
from scylla_spark.core.tasks.task import Failure, Retry
from scylla_spark.errors import ArgumentError, ExitCode, UnreachableError
from scylla_spark.io.kafka.topic_setup import plan_topics
from scylla_spark.schemas import COMPLETIONS, REJECTED, TASKS
from tests.support.delta_tables import append, at, fact, make, rejected, task

KEYS = [TaskKey(at(10, minute), f"lane-{minute % 2}", f"u{minute}") for minute in range(4)]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A data folder with four tasks, one of them failed, and a refused record; nothing serves it."""
    folder = tmp_path_factory.mktemp("data")
    make(f"{folder}/tables")
    append(f"{folder}/tables", TASKS, [task(key, queue="mail" if key is KEYS[0] else "default") for key in KEYS])
    append(f"{folder}/tables", COMPLETIONS, [fact(KEYS[3], 2, "failed", error_class="E", error_message="broke")])
    append(f"{folder}/tables", REJECTED, [rejected(5, "not_json", b"\x1b[31m", KEYS[0].scheduled_time)])
    return str(folder)


@pytest.fixture
def run(data, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # no stray settings file
    monkeypatch.setattr("scylla_spark.log.configure", lambda log: None)  # it sets up the whole process

    def call(*arguments):
        code = one_command.run(["--data", data, *arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_a_listing_goes_to_stdout_and_talk_to_stderr(run):
    code, out, err = run("task", "list", "--limit", "2")
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines()[2:]] == [
        [str(KEYS[3]), "failed"],
        [str(KEYS[2]), "scheduled"],
    ]
    assert err == f"There may be more: --after {KEYS[2]}\n"


@pytest.mark.parametrize("place", ["front", "back", "equals"])
def test_global_options_may_stand_anywhere(run, place):
    arguments = {
        "front": ["-o", "json", "task", "list"],
        "back": ["task", "list", "-o", "json"],
        "equals": ["task", "list", "--output=json"],
    }
    code, out, _ = run(*arguments[place])
    assert code == 0
    assert [row["uniqueness_key"] for row in json.loads(out)] == ["u3", "u2", "u1", "u0"]


def test_jsonl_and_csv_carry_the_same_rows(run):
    _, lines, _ = run("task", "list", "-o", "jsonl", "--columns", "uniqueness_key,state")
    assert json.loads(lines.splitlines()[0]) == {"uniqueness_key": "u3", "state": "failed"}
    _, table, _ = run("task", "list", "-o", "csv", "--columns", "uniqueness_key,state,cancel_requested")
    assert table.splitlines()[::4] == ["uniqueness_key,state,cancel_requested", "u0,scheduled,false"]


def test_a_listing_continues_after_a_key(run):
    for more in ((), ("--filter", "handler:h,x")):
        _, out, _ = run("task", "list", "--after", str(KEYS[2]), "-o", "jsonl", "--columns", "key", *more)
        assert [json.loads(line)["key"] for line in out.splitlines()] == [str(KEYS[1]), str(KEYS[0])]


def test_tasks_are_chosen_by_state_queue_and_lane(run):
    def keys(*options):
        return run("task", "list", *options, "-o", "csv", "--columns", "uniqueness_key")[1].split()[1:]

    assert keys("--queue", "mail") == ["u0"]
    assert keys("--ordering-id", "lane-1") == ["u3", "u1"]
    assert keys("--state", "failed") == ["u3"]
    assert keys("--state", "open") == ["u2", "u1", "u0"]


@pytest.mark.parametrize("chosen", [(), ("--filter", "state:open"), ("--filter", "state:open", "--urgent")])
def test_a_list_says_what_due_tasks_wait_for(run, tmp_path, monkeypatch, chosen):
    make(f"{tmp_path}/tables")
    due = [TaskKey(at(10) - 100 * 365 * 86_400_000_000, "lane", name) for name in ("a", "b")]
    append(f"{tmp_path}/tables", TASKS, [task(due[0], queue="mail"), task(due[1])])
    monkeypatch.setattr(
        HandlerWarnings, "waiting", lambda self: {("mail", "h"): "no_worker", ("mail", "other"): "no_handler"}
    )
    _, out, _ = run(
        "--data", str(tmp_path), "task", "list", *chosen, "-o", "csv", "--columns", "uniqueness_key,state,reason"
    )
    assert sorted(out.split()[1:]) == ["a,ready,no_worker", "b,ready,"]


def test_a_list_says_that_nobody_knows_who_has_which_handler(run, tmp_path, monkeypatch):
    def away(self):
        raise UnreachableError("Kafka did not answer.")

    make(f"{tmp_path}/tables")
    append(f"{tmp_path}/tables", TASKS, [task(TaskKey(at(10) - 100 * 365 * 86_400_000_000, "lane", "a"))])
    monkeypatch.setattr(HandlerWarnings, "waiting", away)
    code, out, err = run("--data", str(tmp_path), "task", "list")
    assert (code, "ready" in out, "no_handler" in out, "Kafka did not answer in time" in err) == (0, True, False, True)


def test_a_window_lists_what_is_still_to_run(run):
    window = ("--from", "2099-01-02T10:00:00Z", "--to", "2099-01-02T10:03:01Z", "--limit", "9")
    _, out, _ = run("task", "list", *window, "-o", "csv", "--columns", "uniqueness_key")
    assert out.split()[1:] == ["u0", "u1", "u2"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["task", "list", "--from", "2099-01-02T10:00:00Z", "--to", "2099-01-02T11:00:00Z"], "limit"),
        (["task", "list", "--from", "2099-01-02T10:00:00Z", "--to", "2099-01-02T19:00:00Z", "--limit", "5"], "8 hours"),
        (["task", "list", "--from", "2099-01-02T10:00:00Z", "--to", "2099-01-02T10:00:00Z", "--limit", "5"], "empty"),
        (["task", "list", "--limit", "0"], "limit"),
        (["task", "list", "--limit", "10001"], "limit"),
        (["task", "list", "--state", "done"], "no state"),
        (["task", "list", "--limit", "many"], "--limit"),
        (["task", "list", "--state", "done"], "States:"),
        (["task", "list", "--from", "yesterday"], "no instant"),
        (["task", "list", "--from", "2099-01-02T10:00:00"], "no time zone"),
        (["task", "list", "--after", "u1"], "not the id of a task"),
        (["task", "list", "--columns", "nope"], "no column nope"),
        (["task", "show", "TaskKey(x,y,z)"], "not the id of a task"),
        (["task", "show"], "ID"),
        (["task", "show", "a", "b"], "one or three"),
        (["task", "enqueue", "h", "--payload", "[1]"], "not a JSON object"),
        (["task", "enqueue", "h", "--payload", "{"], "not JSON"),
        (["task", "enqueue", "h", "--payload", "@/nowhere"], "cannot be read"),
        (["task", "cancel"], "Which tasks"),
        (["task", "import", "/nowhere.jsonl"], "cannot be read"),
        (["task", "import", "tasks.xml"], "not known"),
        (["-o", "xml", "task", "list"], "Formats"),
        (["--set", "dispatch", "task", "list"], "section.key=value"),
        (["nope"], "No such command"),
        (["run", "cook"], "no role"),
    ],
)
def test_bad_arguments_are_exit_code_2_with_the_reason(run, monkeypatch, arguments, said):
    monkeypatch.setenv("SCYLLASPARK_KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:1")
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert "Traceback" not in err
    assert len(err.splitlines()) <= 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--set", "dispatch.nope=1"], "dispatch.nope"),
        (["--config", "/nowhere.toml"], "no settings file"),
        (["--profile", "nope"], "scyllaspark.nope.toml"),
    ],
)
def test_wrong_settings_are_exit_code_7_with_the_reason(run, options, said):
    code, out, err = run(*options, "task", "list")
    assert (code, out) == (ExitCode.CONFIGURATION, "") == (7, "")
    assert said in err


def test_without_tables_the_exit_code_is_3(capsys, tmp_path):
    assert one_command.run(["--data", str(tmp_path), "task", "list"]) == 3
    assert "init" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["task", "enqueue", "h"], ["task", "cancel", str(KEYS[0])], ["task", "wait", str(KEYS[0])], ["init"]]
)
def test_without_broker_the_exit_code_is_5(run, arguments):
    code, _, err = run(*arguments)
    assert code == 5
    assert "up --data" in err


def test_a_bulk_change_needs_yes_where_nobody_can_be_asked(run, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    code, _, err = run("task", "cancel", "--ordering-id", "lane-0")
    assert code == 2
    assert "cancel 2 tasks" in err
    assert "--yes" in err


def test_a_dry_run_shows_the_keys_and_changes_nothing(run):
    code, out, _ = run("task", "cancel", "--ordering-id", "lane-0", "--dry-run", "-o", "jsonl")
    assert code == 0
    assert [json.loads(line)["key"] for line in out.splitlines()] == [str(KEYS[0]), str(KEYS[2])]
    code, out, _ = run("task", "cancel", str(KEYS[1]), "--dry-run", "-o", "jsonl")
    assert (code, [json.loads(line)["key"] for line in out.splitlines()]) == (0, [str(KEYS[1])])
    code, out, _ = run("task", "retry", "--ordering-id", "lane-1", "--dry-run", "-o", "jsonl")
    assert [json.loads(line)["key"] for line in out.splitlines()] == [str(KEYS[3])]


def test_init_prints_topics_as_it_would_make_them(run):
    code, out, _ = run("init", "--print-topics", "-o", "json")
    rows = {row["topic"]: row for row in json.loads(out)}
    planned = plan_topics(Settings(_env_file=None))
    assert code == 0
    assert {name: row["partitions"] for name, row in rows.items()} == {
        name: plan["num_partitions"] for name, plan in planned.items()
    }
    for name, row in rows.items():
        assert dict(one.split("=") for one in row["settings"].split()) == planned[name]["configs"]


def test_init_dry_run_names_topics_and_tables(run):
    code, out, _ = run("init", "--dry-run", "-o", "json")
    assert code == 0
    assert {"kind": "topic", "name": "outcomes", "detail": "9 partitions"} in json.loads(out)


def test_rejected_records_are_shown_without_their_control_characters(run):
    code, out, _ = run("rejected", "list", "--columns", "place,reason,value")
    assert code == 0
    assert r"tasks/0/5  not_json  \x1b[31m" in out
    assert "\x1b" not in out


def test_table_stats_counts_rows(run):
    _, out, _ = run("table", "stats", "-o", "json")
    assert {row["table"]: row["rows"] for row in json.loads(out)}["tasks"] == 4


def test_config_show_tells_where_a_value_comes_from(run, monkeypatch):
    monkeypatch.setenv("SCYLLASPARK_DISPATCH__LOOK_AHEAD", "7m")
    _, out, _ = run("config", "show", "--origin", "-o", "json", "--set", "dispatch.drain=3s")
    rows = {row["setting"]: (row["value"], row["origin"]) for row in json.loads(out)}
    assert rows["dispatch.look_ahead"] == ("7m", "environment")
    assert rows["dispatch.drain"] == ("3s", "flag")
    assert rows["partitions"] == (8, "default")


def test_debug_lets_the_error_through(data):
    with pytest.raises(ArgumentError):
        one_command._run(["--data", data, "--debug", "task", "list", "--limit", "0"])


def test_a_defect_is_two_lines_and_exit_code_70(run, monkeypatch):
    monkeypatch.setattr("scylla_spark.cli.commands.task_list.check_limit", lambda names: 1 / 0)
    code, _, err = run("task", "list")
    assert code == ExitCode.DEFECT == 70
    assert err.splitlines()[0] == "error: ZeroDivisionError: division by zero"
    assert len(err.splitlines()) == 2


def test_ctrl_c_is_exit_code_130(run, monkeypatch):
    def interrupted(names):
        raise KeyboardInterrupt

    monkeypatch.setattr("scylla_spark.cli.commands.task_list.check_limit", interrupted)
    assert run("task", "list")[0] == 130


def test_ctrl_c_while_modules_are_imported_is_exit_code_130_without_a_stack(monkeypatch, capsys):
    def interrupted(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(one_command, "run", interrupted)
    with pytest.raises(SystemExit) as ended:
        cli.main(["up"])
    assert (ended.value.code, capsys.readouterr().err) == (130, "interrupted\n")


def test_nothing_is_imported_before_ctrl_c_is_caught():
    program = "import sys; before = set(sys.modules); from scylla_spark.cli import main; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["scylla_spark", "scylla_spark.cli"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "group", [[], ["task"], ["lane"], ["rejected"], ["table"], ["config"], ["task", "import"], ["up"], ["bench"]]
)
def test_every_level_has_help(group):
    result = CliRunner().invoke(app, [*group, "--help"])
    assert result.exit_code == 0
    assert "Usage" in result.output


@pytest.mark.parametrize(
    "words",
    [
        ["task", "list", "--ordering-id", "\udcff"],
        ["task", "show", "\udcff"],
        ["--set", "kafka.group=\udcff", "task", "list"],
        ["-o", "\udcff", "task", "list"],
    ],
)
def test_a_text_that_is_no_utf_8_is_wrong_usage(run, words):
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert "not UTF-8" in err
    assert "defect" not in err


def callbacks(group):
    """The functions of all commands of a typer application, and of its groups."""
    yield from (one.callback for one in (group.registered_callback, *group.registered_commands) if one)
    for one in group.registered_groups:
        yield from callbacks(one.typer_instance)


def test_all_commands_refuse_texts_that_are_not_utf_8():
    assert one_command._command()
    found = list(callbacks(app))
    assert len(found) > 50
    for callback in found:
        for name in inspect.signature(callback).parameters:
            with pytest.raises(typer.BadParameter, match="not UTF-8"):
                callback(**{name: ["\udcff"]})


def test_the_version_is_shown_without_a_command(run):
    assert run("--version") == (0, f"{scylla_spark.__version__}\n", "")


def test_hoisting_stops_where_somebody_else_begins():
    assert one_command.hoist(["task", "list", "-q", "--data", "d"]) == ["-q", "--data", "d", "task", "list"]
    assert one_command.hoist(["task", "show", "--", "-q"]) == ["task", "show", "--", "-q"]
    assert one_command.hoist(["-q", "bench", "enqueue", "-o", "x"]) == ["-q", "bench", "enqueue", "-o", "x"]


def test_instants_are_absolute_or_from_now():
    assert instant("now", 5) == 5
    assert instant("+1h30m", 0) == 5_400_000_000
    assert instant("-10s", 10_000_000) == 0
    assert instant("2099-01-02T11:00:00+01:00") == at(10)


def test_rows_of_files_become_tasks(tmp_path):
    (tmp_path / "a.jsonl").write_text(
        '{"handler":"h","orderingId":"o","scheduledTime":"2099-01-02T10:00:00Z","taskData":{"x":1}}\n\n'
    )
    (tmp_path / "a.csv").write_text('handler,ordering_id,payload,priority,delay\nh,"o,1","{""x"": 1}",5,\n')
    assert read_tasks(str(tmp_path / "a.jsonl"), None, None) == [
        {"handler": "h", "ordering_id": "o", "at": KEYS[0].scheduled_time, "payload": {"x": 1}}
    ]
    assert read_tasks(str(tmp_path / "a.csv"), None, None) == [
        {"handler": "h", "ordering_id": "o,1", "payload": {"x": 1}, "priority": 5}
    ]


def test_lines_end_where_json_says_so_and_all_columns_are_known(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(
        '\ufeff{"type":"enqueue","handler":"h","taskData":{"x":"a\u2028b\x85"},"tags":["a"],"expires":"5m"}\r\n'.encode()
    )
    assert read_tasks(str(tmp_path / "a.jsonl"), None, None) == [
        {"handler": "h", "payload": {"x": "a\u2028b\x85"}, "tags": ["a"], "expires": "5m"}
    ]
    (tmp_path / "a.csv").write_text('handler,tags,traceparent\nh,"a, b",00-1\n')
    assert read_tasks(str(tmp_path / "a.csv"), None, None) == [
        {"handler": "h", "tags": ["a", "b"], "traceparent": "00-1"}
    ]
    (tmp_path / "a.csv").write_bytes(b"handler\n\xff\n")
    with pytest.raises(ArgumentError, match="not UTF-8"):
        read_tasks(str(tmp_path / "a.csv"), None, None)


@pytest.mark.parametrize(("answer", "code"), [("cancelled", 0), ("running", 4)])
def test_a_lane_is_got_past_its_head(run, monkeypatch, answer, code):
    asked = []
    monkeypatch.setattr(TaskHandle, "cancel", lambda self, timeout: asked.append((self.key, timeout)) or answer)
    monkeypatch.setattr(Connection, "owner_address", lambda self, partition: "")
    done, out, err = run("lane", "skip", str(KEYS[1]), "--timeout", "3s")
    assert (done, asked) == (code, [(KEYS[1], "3s")])
    assert str(KEYS[1]) in out + err
    assert run("lane", "skip", "2026-01-01T00:00:00Z,nobody's,u")[0] == 3
    assert (run("lane", "skip", str(KEYS[3]))[0], asked[1:]) == (4, []), "another is the head"


def test_every_condition_of_a_start_is_a_row_for_people_and_one_record_for_programs(run, monkeypatch):
    told = {
        "key": str(KEYS[0]), "state": "ready", "why": "It is due and waits.", "conditions": [
            {"name": "it is due", "met": True, "detail": "since 10:00"},
            {"name": "its queue has room", "met": False, "detail": "5 of 5 run"},
        ],
    }  # fmt: skip
    monkeypatch.setattr(TaskHandle, "explain", lambda self: told)
    code, out, _ = run("task", "explain", str(KEYS[0]))
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert code == 0
    assert "{" not in out
    assert lines[-4].split() == ["name", "holds", "detail"]
    assert lines[-2:] == ["it is due yes since 10:00", "its queue has room no 5 of 5 run"]
    assert json.loads(run("-o", "json", "task", "explain", str(KEYS[0]))[1]) == told


@pytest.mark.parametrize("retry", [None, WireRetry(None, 20_000, 120_000), WireRetry(3, 1_000, 2_000)])
@pytest.mark.parametrize("handler", [None, "h"])
def test_a_record_of_the_wire_is_imported_as_the_task_that_it_is(tmp_path, handler, retry):
    command = Command(
        "enqueue", KEYS[0], 0, handler, "q", '{"x":1}', 5, 1_000, retry, at(9), request_id="r", expires_ms=2_000, tags=("a",),
        unique=True,
    )  # fmt: skip
    (tmp_path / "a.jsonl").write_bytes(encode(command))
    (row,) = read_tasks(str(tmp_path / "a.jsonl"), None, None)
    assert enqueue_arguments.command(at(9), **enqueue_arguments.keywords(row)) == command._replace(request_id=None)


def test_a_retry_policy_of_a_row_leaves_out_what_others_may_leave_out(tmp_path):
    (tmp_path / "a.csv").write_text('retry\n"{""base"": ""5s""}"\n')
    assert read_tasks(str(tmp_path / "a.csv"), None, "h") == [{"handler": "h", "retry": Retry(base="5s")}]


def test_parquet_rows_become_tasks(tmp_path):
    import polars as pl

    pl.DataFrame({"uniqueness_key": ["u"], "at": [KEYS[0].scheduled_time], "payload": [{"x": 1}]}).write_parquet(
        tmp_path / "a.parquet"
    )
    assert read_tasks(str(tmp_path / "a.parquet"), None, "h") == [
        {"handler": "h", "uniqueness_key": "u", "at": KEYS[0].scheduled_time, "payload": {"x": 1}}
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("\xff", "Line 2"),
        ('{"handler":"h","type":"cancel"}', "row 2.*no task"),
        ("{", "Line 2"),
        ('{"handler":"h","x":1}', "row 2.*no field x"),
        ('{"retry":5}', "row 2.*retry is no object"),
        ('{"retry":{"max":5}}', "row 2.*retry has no field max"),
        ('{"retry":{"maxRetries":-1}}', "row 2.*max_retries"),
        ("1", "row 2"),
    ],
)
def test_a_bad_row_is_named(tmp_path, line, said):
    (tmp_path / "a.jsonl").write_bytes(b'{"handler":"h"}\n' + line.encode("latin-1"))
    with pytest.raises(ArgumentError, match=said):
        read_tasks(str(tmp_path / "a.jsonl"), None, None)


def test_a_misplaced_record_is_repaired_and_a_hopeless_one_is_not():
    rules, now = Rules(partitions=4), at(9)
    value = (
        b'{"orderingId":"o","scheduledTime":"2020-01-01T00:00:00Z","uniquenessKey":"u","taskData":{"a":1},"tenant":"t"}'
    )
    assert "before the enqueueing" in repaired(value, rules, now, reschedule=False)
    record = repaired(value, rules, now, reschedule=True)
    command = validate(record.partition, 0, now, record.key, record.value, rules)
    assert (command.key, command.payload, command.extra) == (TaskKey(now, "o", "u"), '{"a":1}', '{"tenant":"t"}')
    for hopeless in (b"{", b"[]", b'{"orderingId":1}', None):
        assert isinstance(repaired(hopeless, rules, now, reschedule=True), str)


@pytest.fixture
def terminal(monkeypatch):
    """100 columns."""
    monkeypatch.setattr("scylla_spark.cli.output._width", lambda: 100)


@pytest.mark.usefixtures("terminal")
def test_sentences_of_a_table_are_wrapped_between_words(capsys):
    row = {
        "at_time": "2099-01-02T10:00:00.123456Z",
        "a": "word " * 30,
        "b": "漢字 " * 40,
        "state": "retry_wait",
        "n": 5,
    }
    Output().rows([row], tuple(row))
    header, _, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == list(row)
    assert "2099-01-02 10:00:00.123 " in lines[0]
    assert {*" ".join(lines).split()} >= {"word", "漢字", "retry_wait", "5"}
    assert sum(line.count("word") for line in lines) == 30
    assert max(len(line) + len(re.findall(r"[漢字]", line)) for line in lines) <= 100


def test_cells_of_a_table_stand_below_each_other_whatever_their_letters_and_colours_are(capsys):
    rows = [{"name": "日本語 and more of it", "state": "failed", "n": 7}, {"name": "é", "state": "new", "n": 1234}]
    Output().rows(rows, ("name", "state", "n"))
    assert capsys.readouterr().out.splitlines() == [
        "name                   state      n",
        "───────────────────────────────────",
        "日本語 and more of it  failed     7",
        "é                      new     1234",
    ]


@pytest.mark.usefixtures("terminal")
def test_a_row_that_is_too_wide_for_a_table_is_a_record_with_its_values_whole(capsys):
    row = {
        "key": "2099-01-02T10:00:00Z," + "x" * 80,
        "state": "failed",
        "none": None,
        "why": "word " * 30,
        "path": "y" * 60,
    }
    Output().rows([row, row], tuple(row))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == row["key"]
    assert lines[1] == "  state: failed"
    assert lines[: len(lines) // 2] == lines[len(lines) // 2 :]
    assert f"  path: {'y' * 60}" in lines
    assert " ".join(lines).count("word") == 60
    assert max(map(len, lines[1:])) <= max(100, len(row["key"]))


@pytest.mark.usefixtures("terminal")
def test_a_long_value_of_a_record_is_folded_between_words_only(capsys):
    Output().record({"key": "x" * 120, "said": "word " * 40, "flag": False})
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == f"key   {'x' * 120}"
    assert max(map(len, lines)) <= 100
    assert sum(line.count("word") for line in lines) == 40
    assert lines[-1] == "flag  no"


def test_a_task_is_shown_with_its_last_traceback(run, monkeypatch):
    stack = "Traceback (most recent call last):\n  File x.py, line 3\nValueError: broke"
    failures = [Failure("ValueError", "broke", text) for text in ("older", stack)]
    attempts = tuple(
        Attempt(number, "failed", None, None, None, None, error) for number, error in enumerate(failures, 1)
    )
    status = TaskStatus(
        KEYS[3], "failed", "h", "default", 0, {}, None, 2, None, cancel_requested=False, attempt_details=attempts
    )
    monkeypatch.setattr(TaskHandle, "status", lambda self: status)
    _, out, _ = run("task", "show", str(KEYS[3]))
    assert out.endswith("\n" + stack.replace("\n", "\n  ") + "\n")
    assert "older" not in out


def test_a_task_is_shown_with_its_own_timeout_retry_policy_and_unique_name(run, monkeypatch):
    status = TaskStatus(
        KEYS[3], "ready", "h", "default", 0, {}, None, 0, None, cancel_requested=False,
        timeout=timedelta(seconds=90), expires=timedelta(minutes=10), retry=Retry(max_retries=4), unique=True,
    )  # fmt: skip
    monkeypatch.setattr(TaskHandle, "status", lambda self: status)
    _, out, _ = run("task", "show", str(KEYS[3]), "-o", "json")
    shown = json.loads(out)
    assert (shown["timeout"], shown["expires"], shown["unique"]) == ("1m30s", "10m", "open")
    assert shown["retry"]["max_retries"] == 4


# -- fresh processes ----------------------------------------------------------------------------------------------------

COMMAND = [str(Path(sys.executable).with_name("scylla-spark"))]


def loaded_by(code: str) -> set[str]:
    """Names of the modules that a fresh interpreter has loaded after some code."""
    script = f"import sys\n{code}\nprint('MODULES', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(next(line for line in done.stdout.splitlines() if line.startswith("MODULES")).split())


def test_importing_the_package_loads_neither_pyspark_nor_anything_heavy():
    heavy = {"pyspark", "kafka", "polars", "pyarrow", "deltalake", "pandas", "numpy", "py4j", "typer", "rich"}
    assert heavy & loaded_by("import scylla_spark") == set()


@pytest.mark.slow
def test_every_public_name_is_there_and_none_loads_pyspark():
    modules = loaded_by(
        "import scylla_spark\nfor name in scylla_spark.__all__: getattr(scylla_spark, name)\nassert len(scylla_spark.__all__) <= 24"
    )
    assert "scylla_spark.client.scheduler" in modules
    assert {"pyspark", "py4j", "pandas", "polars"} & modules == set()


@pytest.mark.slow
def test_listing_tasks_loads_neither_pyspark_nor_pandas(data):
    modules = loaded_by(
        f"from scylla_spark.cli.one_command import run\nassert run(['--data', {data!r}, 'task', 'list']) == 0"
    )
    assert "polars" in modules
    assert {"pyspark", "py4j", "pandas", "pyarrow", "fastapi"} & modules == set()


@pytest.mark.slow
def test_help_loads_nothing_that_only_commands_need():
    modules = loaded_by("from scylla_spark.cli.one_command import run\nassert run(['--help']) == 0")
    assert {"pyspark", "polars", "deltalake", "kafka", "scylla_spark.client.scheduler", "rich.table"} & modules == set()


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_error(data):
    listing = subprocess.Popen(
        [*COMMAND, "--data", data, "task", "list", "-o", "jsonl"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    listing.stdout.close()
    _, err = listing.communicate(timeout=60)
    assert (listing.returncode, err) == (0, "")


@pytest.mark.slow
def test_a_command_of_a_fresh_process_has_the_exit_code_of_its_error(tmp_path):
    done = subprocess.run([*COMMAND, "task", "list"], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 3
    assert done.stderr.startswith("error: There are no tables")


@pytest.mark.slow
def test_a_filter_chooses_tasks_to_list_and_to_cancel_and_stands_alone(tmp_path, capsys):
    path = f"{tmp_path}/tables"
    make(path)
    append(
        path, TASKS, [task(TaskKey(at(10), "o", unique), n, queue=unique) for n, unique in enumerate(("mail", "gpu"))]
    )
    ours = ["--data", str(tmp_path), "-o", "jsonl"]
    assert one_command.run([*ours, "task", "list", "--filter", "queue:gpu state:open", "--columns", "queue"]) == 0
    assert capsys.readouterr().out == '{"queue": "gpu"}\n'
    assert one_command.run([*ours, "task", "cancel", "--filter", "queue:mail", "--dry-run"]) == 0
    assert capsys.readouterr().out == '{"key": "2099-01-02T10:00:00Z,o,mail"}\n'
    assert one_command.run([*ours, "task", "retry", "--filter", "queue:mail", "--dry-run"]) == 0
    assert capsys.readouterr().out == "", "nothing of it has ended"
    for words in (
        ["list", "--filter", "stat:x"],
        ["list", "--filter", "state:open", "--queue", "q"],
        ["cancel", "--filter", " "],
    ):
        assert one_command.run([*ours, "task", *words]) == 2


def _variables(command):
    for parameter in command.params:
        yield from [parameter.envvar] if isinstance(parameter.envvar, str) else parameter.envvar or ()
    for part in getattr(command, "commands", {}).values():
        yield from _variables(part)


def test_variables_of_commands_are_none_of_the_settings_and_no_error_there(monkeypatch):
    found = set(_variables(get_command(app)))
    assert "SCYLLASPARK_URL" in found
    for name in found:
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert Settings.load()


def test_an_import_takes_large_payloads_of_csv_and_tells_of_rows_that_it_cannot_read(tmp_path):
    payload = json.dumps({"text": "x" * 200_000}).replace('"', '""')
    (tmp_path / "large.csv").write_text(f'ordering_id,payload\na,"{payload}"\n')
    (row,) = read_tasks(str(tmp_path / "large.csv"), None, "h")
    assert len(row["payload"]["text"]) == 200_000
    (tmp_path / "deep.jsonl").write_text('{"payload": ' + "[" * 100_000 + "\n")
    with pytest.raises(ArgumentError, match="row 1"):
        read_tasks(str(tmp_path / "deep.jsonl"), None, "h")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["up", "demo", "run"])
def test_a_python_that_leaves_out_assertions_is_refused(tmp_path, command):
    words = [sys.executable, "-O", "-m", "scylla_spark.cli", "--data", str(tmp_path), *command.split()]
    words += ["--set", "kafka.bootstrap_servers=127.0.0.1:1"]
    ran = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60, cwd=tmp_path)
    assert (ran.returncode, ran.stderr.splitlines()[-1]) == (7, "  unset PYTHONOPTIMIZE")
