"""Queues as people write them: in Python, in files and as options; and the examples of the page."""

import json
import re
import tomllib
from datetime import timedelta
from inspect import signature
from pathlib import Path

import pytest

from scylla_spark import Queue
from scylla_spark.cli import one_command as cli
from scylla_spark.cli.commands.queue import _value, _weights, put
from scylla_spark.client.queues.files import read_queue_file
from scylla_spark.client.queues.handle import QueueHandle, statuses, warning_of_delete
from scylla_spark.client.queues.queue import KEYWORDS
from scylla_spark.client.queues.queue import put as put_all
from scylla_spark.config.settings import Settings
from scylla_spark.core.plan.commands.plan_answer import Answer
from scylla_spark.core.plan.state.plan_state import PlanState
from scylla_spark.core.plan.state.stored_definition import StoredDefinition
from scylla_spark.core.queues.definition import FIELDS, read_queue
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
        "mail", concurrency=5, lease=timedelta(seconds=90), retry_base=0.5, max_retries=None, weights={"a": 2}
    )
    assert queue.definition == {
        "name": "mail", "concurrency": 5, "weights": {"a": 2}, "lease": "1m30s", "retryBase": 0.5, "maxRetries": None
    }  # fmt: skip
    assert Queue.of(queue.definition).definition == queue.definition
    assert Queue("mail").definition == {"name": "mail"}
    assert set(KEYWORDS) == {field for field in Queue.__dataclass_fields__ if field != "definition"}


def test_a_bad_queue_is_refused_when_it_is_made():
    with pytest.raises(ArgumentError, match="concurrency"):
        Queue("mail", concurrency=0)
    with pytest.raises(ArgumentError, match="name"):
        Queue("no name")


def test_many_queues_are_sent_in_parts_that_fit():
    plan = Plan()
    done = put_all(plan, [Queue(f"q{number}", description="x" * 1000) for number in range(1000)], "me")
    assert len(done) == 1000
    assert len(plan.asked) == 3
    with pytest.raises(ArgumentError, match="twice"):
        put_all(plan, [Queue("a"), Queue("a")], "")


def test_a_handle_asks_for_what_is_changed_only():
    plan = Plan()
    queue = QueueHandle(Connection(plan), "mail", "me")
    assert queue.update(rate=None, max_run=timedelta(minutes=1), unset=("lease",), expect=3) == 7
    queue.pause()
    queue.delete(expect=4)
    patch = {"queues": [{"name": "mail", "rate": None, "maxRun": "1m"}], "patch": True, "unset": ["lease"]}
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
    mail, other = read_queue_file(str(tmp_path / "a.toml"))
    assert (mail, other) == (Queue("mail", group_concurrency=2), Queue("a.b", max_retries=None))
    assert read_queue_file(str(tmp_path / "b.json")) == [mail]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "has no `queues`"),
        ("[queue.mail]\n", "has no `queues`"),
        ("other = 1\n[queues.mail]\n", "there is no 'other' beside"),
        ("[queues.mail]\nrate = 0\n", r"a.toml, queue 'mail': rate: "),
        ("[queues.mail]\nconcurency = 1\n", "Did you mean concurrency"),
        ("[queues.mail]\nmaxRun = 1\nmax_run = 2\n", "stands there twice"),
        ("[queues.mail]\nname = 'x'\n", "has its name already"),
        ("queues = [1]\n", "queue number 1: A queue is an object"),
        ("queues.mail = 1\n", "queue 'mail': A queue is an object"),
        ("[[queues]]\nrate = 1\n", "queue number 1: name"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_with_its_place(tmp_path, text, told):
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(ArgumentError, match=told):
        read_queue_file(str(tmp_path / "a.toml"))


def test_options_are_numbers_texts_or_none():
    assert (_value("concurrency", "5"), _value("rate", "0.5"), _value("rate", "none")) == (5, 0.5, None)
    assert (_value("max_retries", "forever"), _value("description", "none"), _value("paused", False)) == (
        None,
        "none",
        False,
    )
    assert _weights(["a=b=3", "c=1"]) == {"a=b": 3, "c": 1}
    for call in (lambda: _value("max_retries", "none"), lambda: _value("rate", "fast"), lambda: _weights(["gold"])):
        with pytest.raises(ArgumentError):
            call()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["put"], "Which queue?"),
        (["put", "mail", "--file", "x.toml"], "whole queues"),
        (["put", "--file", "none.toml"], "cannot be read"),
        (["put", "mail", "--concurrency", "x"], "is no number"),
        (["delete", "mail"], "--yes"),
    ],
)
def test_what_is_asked_wrongly_is_told_before_anybody_is_asked(words, told, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = cli.run(["--data", str(tmp_path), "queue", *words])
    assert (code, told in capsys.readouterr().err) == (2, True)


def test_the_command_line_has_an_option_for_every_field():
    options = {"weights" if name == "weight" else name for name in signature(put).parameters}
    assert options - {"ctx", "file", "unset", "expect"} == set(KEYWORDS)


def test_the_page_names_every_field_and_its_examples_are_good(tmp_path):
    table = PAGE.partition("| field | default")[2].partition("\n## ")[0]
    named = {
        name for cell in re.findall(r"^\| (`.+?`) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", cell)
    }
    assert named == set(KEYWORDS) - {"name"}
    (toml,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "page.toml").write_text(toml)
    assert [queue.name for queue in read_queue_file(str(tmp_path / "page.toml"))] == list(tomllib.loads(toml)["queues"])
    python, *_ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    queue = eval(re.search(r"put_queue\((.*)\)\n", python).group(1), {"Queue": Queue})
    assert set(read_queue(queue.definition).__slots__) >= {"concurrency", "rate"}
    assert len(FIELDS) == len(KEYWORDS)


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
