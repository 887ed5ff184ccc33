"""How commands name tasks: by ids, by their three parts, by beginnings of ids; and what a listing says is missing."""

from __future__ import annotations

import json
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from scylla_spark.cli import one_command as cli
from scylla_spark.cli.context import Context
from scylla_spark.cli.output import Output
from scylla_spark.cli.task_ids import task_key
from scylla_spark.client.connection import Connection
from scylla_spark.core.records.command import ENQUEUE, Command
from scylla_spark.core.tasks.key import TaskKey, id_of
from scylla_spark.errors import ArgumentError, ConflictError, NotFoundError, UnreachableError
from scylla_spark.schemas import TASKS
from tests.support.delta_tables import append, at, make, task

KEYS = [
    TaskKey(at(10), "cust 9", "u"),
    TaskKey(at(10), "cust 9", "u2"),
    TaskKey(at(10, 1) + 500_000, "cust-1", "v"),
    TaskKey(at(11), "a,b", "w"),
]
NEW = TaskKey(at(12), "cust-1", "new")
LATER_V = TaskKey(at(13), "cust-1", "v")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Tables with four tasks; nothing serves them."""
    folder = tmp_path_factory.mktemp("data")
    make(f"{folder}/tables")
    append(f"{folder}/tables", TASKS, [task(key) for key in KEYS])
    return folder


@pytest.fixture
def context(folder, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return Context(Output(), overrides={"data_dir": folder})


@pytest.fixture
def beyond_tables(monkeypatch):
    """Keys in the log that the tables do not have."""
    found = {NEW}
    monkeypatch.setattr(Connection, "keys_beyond_tables", lambda self, most=0: found)
    return found


@pytest.fixture
def names_in_the_log(monkeypatch):
    """Two tasks that only the log has."""
    logged = [Command(ENQUEUE, NEW, 1), Command(ENQUEUE, LATER_V, 2)]
    log = SimpleNamespace(
        commands_of_lanes=lambda partition, lanes: [one for one in logged if one.key.ordering_id.encode() in lanes],
        commands=lambda partition, key: [one for one in logged if one.key == key],
        facts=lambda partition, key: [], catch_up=lambda partition, deadline: None, watching=lambda key: nullcontext(),
    )  # fmt: skip
    monkeypatch.setattr(Connection, "log_reader", log)


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ([str(KEYS[0])], KEYS[0]),
        ([id_of(KEYS[0])], KEYS[0]),
        (["2099-01-02T10:00:00Z", "cust 9", "u"], KEYS[0]),
        (["2099-01-02T11:00:00+01:00,cust 9,u"], KEYS[0]),
        (["2099-01-02T10:00:00Z,cust 9,u2"], KEYS[1]),
        (["2099-01-02T10:01"], KEYS[2]),
        (["2099-01-02T10:01:00.5"], KEYS[2]),
        (["2099-01-02T11:00:00Z,a"], KEYS[3]),
        (["2099-01-02T11:00:00Z,a%2Cb,"], KEYS[3]),
        ([id_of(KEYS[3])[:-3]], KEYS[3]),
        ([id_of(KEYS[2])[:26]], KEYS[2]),
        (["2099-01-02T12"], NEW),
        (["2099-01-02T12:00:00Z,cust-1,nothing"], TaskKey(at(12), "cust-1", "nothing")),
    ],
)
@pytest.mark.usefixtures("beyond_tables")
def test_a_task_is_named_by_an_id_its_parts_or_a_beginning_that_no_other_id_has(context, words, key):
    assert task_key(context, words) == key


@pytest.mark.parametrize(
    ("word", "key"), [("name:cust%209,u2", KEYS[1]), ("name:a%2Cb,w", KEYS[3]), ("name:cust-1,new", NEW)]
)
@pytest.mark.usefixtures("names_in_the_log")
def test_a_task_is_named_by_its_lane_and_uniqueness_key(context, word, key):
    assert task_key(context, [word]) == key


@pytest.mark.usefixtures("names_in_the_log")
def test_a_name_that_no_task_or_more_than_one_has_is_refused(context):
    with pytest.raises(NotFoundError, match="No task has the name name:nothing"):
        task_key(context, ["name:nothing"])
    with pytest.raises(ConflictError, match="Several tasks have the name name:cust-1,v") as refused:
        task_key(context, ["name:cust-1,v"])
    assert refused.value.fields["tasks"] == [str(LATER_V), str(KEYS[2])]


def test_a_whole_id_names_its_own_task_even_if_another_id_begins_so(context, beyond_tables):
    new = KEYS[1]._replace(uniqueness_key="u2x")
    beyond_tables |= {new, new._replace(uniqueness_key="u2xy")}
    assert task_key(context, [str(new)]) == new
    shorter = KEYS[3]._replace(ordering_id="a")
    beyond_tables.add(shorter)
    assert task_key(context, [str(shorter)]) == shorter


@pytest.mark.parametrize("words", [["2099-01-02"], ["2099-01-02T10:00:00Z,cust 9"], [id_of(KEYS[0])[:30]]])
@pytest.mark.usefixtures("beyond_tables")
def test_a_beginning_of_several_ids_is_refused_with_some_of_them(context, words):
    with pytest.raises(ArgumentError, match="Several ids begin with") as caught:
        task_key(context, words)
    assert str(KEYS[0]) in caught.value.message


@pytest.mark.usefixtures("beyond_tables")
def test_what_begins_no_id_is_not_found(context):
    with pytest.raises(NotFoundError, match="No task has an id that begins with"):
        task_key(context, ["2099-01-03T10"])


@pytest.mark.parametrize("words", [["u"], ["2099"], ["TaskKey(2099-01-02T10:00:00Z,a,b)"], ["WyI"], [""]])
def test_other_words_are_refused(context, words):
    with pytest.raises(ArgumentError, match="not the id of a task"):
        task_key(context, words)


@pytest.mark.parametrize(
    ("beyond", "said"),
    [
        (set(), ""),
        ({NEW}, "1 task is not in the tables yet; `task show ID` finds it.\n"),
        ({NEW, *KEYS[:2]}, "3 tasks are not in the tables yet; `task show ID` finds them.\n"),
        (None, "More than 10000 tasks are not in the tables yet; `task show ID` finds them.\n"),
        (UnreachableError("x"), "Kafka did not answer in time: the newest tasks may be missing.\n"),
    ],
)
def test_a_listing_says_how_many_tasks_the_tables_do_not_have_yet(context, folder, monkeypatch, capsys, beyond, said):
    def keys(self, most):
        if isinstance(beyond, Exception):
            raise beyond
        return beyond

    monkeypatch.setattr(Connection, "keys_beyond_tables", keys)
    words = ["--data", str(folder), "--set", "kafka.bootstrap_servers=127.0.0.1:1", "task", "list", "-o", "json"]
    assert cli.run(words) == 0
    out, err = capsys.readouterr()
    assert err == said
    assert [row["key"] for row in json.loads(out)] == [str(key) for key in reversed(KEYS)]
    assert cli.run([*words, "-q"]) == 0
    assert capsys.readouterr().err == ""
