"""Queues as people write them: in Python, in files and as options; and the examples of the page."""

import json
import re
import tomllib
from datetime import timedelta
from pathlib import Path

import pytest

from scylla_spark import Queue
from scylla_spark.cli import one_command as cli
from scylla_spark.cli.commands import queue as queue_commands
from scylla_spark.client.queues.handle import QueueHandle, statuses, warning_of_delete
from scylla_spark.client.stored_definitions import put as put_all
from scylla_spark.client.stored_definitions import read_file
from scylla_spark.config.settings import Settings
from scylla_spark.core.plan.commands.plan_answer import Answer
from scylla_spark.core.plan.state.plan_state import PlanState
from scylla_spark.core.plan.state.stored_definition import StoredDefinition
from scylla_spark.errors import ArgumentError, ConflictError, NotFoundError
from tests.support.planner_harness import PlannerHarness

PAGE = (Path(__file__).parents[2] / "docs" / "queues.md").read_text()


class Plan:
    """Stands for the planner; keeps what is asked."""

    def __init__(self, state=None):
        self.asked = []
        self._state = state or PlanState()

    def ask(self, kind, **fields):
        self.asked.append((kind, {name: value for name, value in fields.items() if value is not None}))
        names = [queue["name"] for queue in fields.get("queues", ())] + list(fields.get("names", ()))
        return Answer({name: {"became": "added", "revision": 7} for name in names}, 0)

    def state(self):
        return self._state


class Connection:
    def __init__(self, plan=None, **settings):
        self.plan = plan or Plan()
        self.settings = Settings(**settings)


def test_a_queue_in_python_is_the_definition_that_travels():
    queue = Queue(
        name="mail", concurrency=5, lease=timedelta(seconds=90), retry_base=0.5, max_retries=None, weights={"a": 2}
    )
    assert queue.definition == {
        "name": "mail", "concurrency": 5, "weights": {"a": 2}, "lease": "1m30s", "retryBase": "500ms", "maxRetries": None
    }  # fmt: skip
    assert Queue.of(queue.definition).definition == queue.definition
    assert Queue(name="mail").definition == {"name": "mail"}


def test_a_bad_queue_is_refused_when_it_is_made():
    with pytest.raises(ArgumentError, match="concurrency"):
        Queue(name="mail", concurrency=0)
    with pytest.raises(ArgumentError, match="name"):
        Queue(name="no name")


def test_many_queues_are_sent_in_parts_that_fit():
    plan = Plan()
    done = put_all(plan, [Queue(name=f"q{number}", description="x" * 1000) for number in range(1000)], "me")
    assert len(done) == 1000
    assert len(plan.asked) == 3
    with pytest.raises(ArgumentError, match="twice"):
        put_all(plan, [Queue(name="a"), Queue(name="a")], "")


def test_a_handle_asks_for_what_is_changed_only():
    plan = Plan()
    queue = QueueHandle(Connection(plan), "mail", "me")
    assert queue.update(rate=None, max_run=timedelta(minutes=1), unset=("lease", "retry_base"), expect=3) == 7
    queue.pause()
    queue.delete(expect=4)
    patch = {"queues": [{"name": "mail", "rate": None, "maxRun": "1m"}], "patch": True, "unset": ["lease", "retryBase"]}
    assert plan.asked == [
        ("put_queue", patch | {"expect": {"mail": 3}, "author": "me"}),
        ("put_queue", {"queues": [{"name": "mail", "paused": True}], "patch": True, "author": "me"}),
        ("delete_queue", {"names": ["mail"], "expect": {"mail": 4}, "author": "me"}),
    ]
    for fields in ({"rates": 1}, {"unset": ("rates",)}):
        with pytest.raises(ArgumentError, match="Did you mean rate"):
            queue.update(**fields)


def test_what_is_stored_comes_before_what_the_settings_say():
    state = PlanState(queues={"mail": StoredDefinition('{"name":"mail","paused":true}', 4, "me", 1_000_000)})
    connection = Connection(Plan(state), queues={"mail": {"rate": 3}, "gpu": {"rate": 5, "max_run": "2h"}})
    found = statuses(state, connection.settings)
    assert [(one.name, one.source, one.revision, one.fields["rate"]) for one in found.values()] == [
        ("gpu", "settings", 0, 5.0),
        ("mail", "stored", 4, None),
    ]
    assert QueueHandle(connection, "gpu").get().fields["max_run"] == "2h"
    with pytest.raises(NotFoundError, match="without limits"):
        QueueHandle(connection, "other").get()


def test_files_name_queues_by_tables_or_in_a_list(tmp_path):
    (tmp_path / "a.toml").write_text('[queues.mail]\ngroup_concurrency = 2\n[queues."a.b"]\nmaxRetries = "forever"\n')
    (tmp_path / "b.json").write_text(json.dumps({"queues": [{"name": "mail", "groupConcurrency": 2}]}))
    mail, other = read_file(str(tmp_path / "a.toml"), Queue)
    assert (mail, other) == (Queue(name="mail", group_concurrency=2), Queue(name="a.b", max_retries=None))
    assert read_file(str(tmp_path / "b.json"), Queue) == [mail]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "has no `queues`"),
        ("[queue.mail]\n", "has no `queues`"),
        ("other = 1\n[queues.mail]\n", "there is no 'other' beside"),
        ("[queues.mail]\nrate = 0\n", r"a.toml, queue 'mail': rate: "),
        ("[queues.mail]\nconcurency = 1\n", "Did you mean concurrency"),
        ("[queues.mail]\nmaxRun = 1\nmax_run = 2\n", "max_run: it is given twice"),
        ("[queues.mail]\nname = 'x'\n", "has its name already"),
        ("queues = [1]\n", "queue number 1: A queue is an object"),
        ("queues.mail = 1\n", "queue 'mail': A queue is an object"),
        ("[[queues]]\nrate = 1\n", "queue number 1: name"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_with_its_place(tmp_path, text, told):
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(ArgumentError, match=told):
        read_file(str(tmp_path / "a.toml"), Queue)


def test_a_text_of_the_command_line_is_a_number_a_text_or_null():
    for field, text, value in (
        ("concurrency", "5", 5), ("rate", "0.5", 0.5), ("rate", "none", None), ("max_retries", "forever", "forever"),
        ("max_retries", "none", "none"), ("description", "none", "none"), ("default_handler", "none", None),
        ("default_handler", "7", "7"), ("lease", "5", "5"), ("rate", "fast", "fast"),
    ):  # fmt: skip
        assert Queue.value_of(field, text) == value, field
    for fields in ({"max_retries": "none"}, {"rate": "fast"}, {"lease": "5"}):
        with pytest.raises(ArgumentError, match=next(iter(fields))):
            Queue(name="a", **fields)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["put"], "Which queue?"),
        (["put", "mail", "--file", "x.toml"], "whole queues"),
        (["put", "--file", "none.toml"], "cannot be read"),
        (["put", "mail", "--concurrency", "x"], "concurrency: Input should be a valid integer"),
        (["delete", "mail"], "--yes"),
    ],
)
def test_what_is_asked_wrongly_is_told_before_anybody_is_asked(words, told, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = cli.run(["--data", str(tmp_path), "queue", *words])
    assert (code, told in capsys.readouterr().err) == (2, True)


def test_the_command_line_has_an_option_for_every_field(capsys, monkeypatch):
    given = {}
    monkeypatch.setattr(
        queue_commands.stored_definitions, "put_file", lambda cli, file, model, others: given.update(others[1])
    )
    words = {
        "--mode": "pull", "--order": "replay", "--concurrency": "5", "--rate": "none", "--group-concurrency": "2",
        "--group-separator": "/", "--lease": "30s", "--max-run": "10m", "--max-retries": "forever", "--retry-base": "1s",
        "--retry-cap": "1m", "--on-exception": "fail", "--on-false": "redeliver", "--key-reuse": "when_done",
        "--retention": "1d", "--default-handler": "send", "--description": "letters", "--isolation": "handler",
    }  # fmt: skip
    flags = ["--paused", "--no-ageing", "--weight", "a=b=3", "--weight", "c=1"]
    code = cli.run(["queue", "put", "--file", "x", *flags, *(word for pair in words.items() for word in pair)])
    assert (code, capsys.readouterr().err) == (0, "")
    assert given.keys() == Queue.model_fields.keys() - {"name"}
    assert given["weights"] == {"a=b": 3, "c": 1}
    assert (given["paused"], given["ageing"], given["concurrency"], given["rate"]) == (True, False, 5, None)
    assert cli.run(["queue", "put", "a", "--weight", "gold"]) == 2
    assert "--weight gold=10" in capsys.readouterr().err
    assert cli.run(["queue", "put", "--help"]) == 0
    shown = capsys.readouterr().out
    assert [name for name in words if name not in shown] == []


def test_the_examples_of_the_page_are_good(tmp_path):
    (toml,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "page.toml").write_text(toml)
    assert [queue.name for queue in read_file(str(tmp_path / "page.toml"), Queue)] == list(
        tomllib.loads(toml)["queues"]
    )
    python, *_ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    queue = eval(re.search(r"put_queue\((.*)\)\n", python).group(1), {"Queue": Queue})
    assert queue.definition.keys() >= {"concurrency", "rate"}


@pytest.mark.parametrize(
    ("start", "warns"), [({}, True), ({"gpu": {"mode": "push"}}, True), ({"gpu": {"mode": "pull"}}, False)]
)
def test_who_deletes_a_pull_queue_is_told_what_becomes_of_its_tasks(start, warns):
    plan = PlannerHarness()
    plan.ask("put_queue", queues=[{"name": "gpu", "mode": "pull"}, {"name": "mail"}])
    settings = Settings.load(queues=start)
    assert (warning_of_delete(plan.shadow, settings, "gpu") is not None) == warns
    assert warning_of_delete(plan.shadow, settings, "mail") is warning_of_delete(plan.shadow, settings, "x") is None


def test_where_there_are_no_tables_a_queue_says_so():
    queue = QueueHandle(Connection(Plan()), "mail")
    for ask in (queue.stats, queue.clear):
        with pytest.raises(ConflictError, match="no tables"):
            ask()
