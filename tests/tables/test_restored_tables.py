"""Tables that are restored from a copy, or made anew, under readers that stay: those read what lies there now, and never a mix of both."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from scylla_spark.core.tasks.filter import TaskFilter
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.errors import NotFoundError, UnreachableError
from scylla_spark.io.delta import open_table
from scylla_spark.io.delta.lateness import Lateness
from scylla_spark.io.delta.open_table import OpenTable
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.io.delta.task_pages import TaskPages
from scylla_spark.schemas import TASKS
from tests.support.delta_tables import append, at, make, task

NOW = at(2)


class Site:
    """Tables with tasks, a copy of which was taken when they had fewer, and a reader that stays."""

    def __init__(self, folder: Path) -> None:
        self.path, self._copy = folder / "tables", folder / "copy"
        make(self.path)
        self.add("ab")
        shutil.copytree(self.path, self._copy)
        self.add("cd")
        self.reader = TableReader(str(self.path))
        self.pages = TaskPages(self.reader)

    def add(self, names: str) -> None:
        for name in names:
            append(self.path, TASKS, [task(TaskKey(at(1), "lane", name), 1)])

    def restore(self, part: str = "") -> None:
        """Brings back the copy, or a part of it."""
        shutil.rmtree(self.path / part)
        shutil.copytree(self._copy / part, self.path / part)

    def names(self) -> str:
        return "".join(sorted(self.reader.frame(TASKS).collect()["uniqueness_key"]))

    def told(self) -> tuple[str, int, int]:
        return self.names(), self.pages.count(TaskFilter(), now=NOW), self.reader.size(TASKS)["version"]


@pytest.fixture
def site(tmp_path):
    site = Site(tmp_path)
    assert site.told() == ("abcd", 4, 4)
    return site


@pytest.mark.parametrize("part", ["", "tasks/_delta_log"])
@pytest.mark.parametrize("more", ["", "e", "ef", "efg", "efghijklmno"])
def test_a_reader_that_stays_reads_what_was_restored_and_what_came_after_it(site, part, more):
    site.restore(part)
    site.add(more)
    expected = "".join(sorted("ab" + more))
    assert site.told() == (expected, len(expected), len(expected))
    site.add("z")
    assert site.told() == (expected + "z", len(expected) + 1, len(expected) + 1)


def test_what_is_remembered_by_files_is_read_anew_where_another_table_has_as_many_versions(site):
    heat = Lateness(site.reader)
    assert heat._hours() == [at(1) // 3_600_000_000]
    site.restore()
    for name in "ef":
        append(site.path, TASKS, [task(TaskKey(at(3), "lane", name), 1)])
    assert heat._hours() == [at(1) // 3_600_000_000, at(3) // 3_600_000_000]
    assert site.told() == ("abef", 4, 4)


def test_tables_that_are_gone_for_a_while_cannot_be_reached_and_then_are_read_again(site):
    shutil.rmtree(site.path)
    for _ in range(2):
        with pytest.raises(UnreachableError, match="were there"):
            site.names()
    with pytest.raises(NotFoundError):
        TableReader(str(site.path)).marks()
    make(site.path)
    site.add("x")
    assert site.names() == "x"


def test_a_log_that_is_replaced_in_the_midst_of_a_look_is_opened_anew(site, monkeypatch):
    ours = OpenTable._commit

    def slow(table, version):
        monkeypatch.setattr(OpenTable, "_commit", ours)
        site.restore("tasks/_delta_log")
        site.add("ef")
        return ours(table, version)

    monkeypatch.setattr(OpenTable, "_commit", slow)
    assert site.told() == ("abef", 4, 4)


def test_a_quiet_table_is_opened_once_also_where_its_last_commit_is_cleaned_up(site):
    opened = site.reader._open["tasks"].state
    for _ in range(3):
        site.names()
    assert site.reader._open["tasks"].state == opened
    open_table_of = site.reader._open["tasks"]._table
    open_table_of.create_checkpoint()
    (site.path / "tasks/_delta_log/00000000000000000004.json").unlink()
    for _ in range(3):
        assert site.names() == "abcd"
    assert site.reader._open["tasks"].state == opened._replace(opened=opened.opened + 1)


def test_in_a_store_the_commit_of_a_quiet_table_is_looked_at_every_few_seconds_and_any_new_one_at_once(
    site, monkeypatch
):
    now, looked, ours = [0], [], OpenTable._commit
    monkeypatch.setattr(open_table, "boot_us", lambda: now[0])
    one = site.reader._open["tasks"]
    one._pause_us, one._next_look_us = 5_000_000, 5_000_000
    monkeypatch.setattr(OpenTable, "_commit", lambda table, version: looked.append(version) or ours(table, version))
    for now[0] in range(0, 10_000_001, 1_000_000):
        assert site.names() == "abcd"
    assert looked == [4, 4], "after five and after ten seconds"
    site.restore("tasks/_delta_log")
    site.add("efg")
    assert site.names() == "abefg", "a new version"
    site.restore("tasks/_delta_log")
    site.add("xyz")
    assert site.names() == "abefg", "as many versions: as it was read last"
    now[0] += 5_000_000
    assert site.names() == "abxyz"
