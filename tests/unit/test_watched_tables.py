"""What the planner makes of a watched table, as its watcher sees the log: tables that are still to come, or become others."""

import os
from typing import Any

import pytest

from scylla_spark.core.plan.tables import handing_over
from scylla_spark.io.delta.watched import commit_follower
from tests.support.watched_log import WatchedLog, WatchedPlan


@pytest.fixture
def log(tmp_path):
    return WatchedLog(tmp_path / "orders")


@pytest.fixture
def plan(tmp_path, monkeypatch):
    return WatchedPlan(tmp_path / "data", monkeypatch)


def watching(log: WatchedLog, **more: Any) -> dict[str, Any]:
    return {"kind": "table", "table": str(log.table), **more}


SITE = [{"column": "site", "comparison": "=", "value": 3}]


def stands(plan: WatchedPlan) -> tuple[str, int]:
    return plan.planner.state.entries["s"].tables[0][:2]


# -- a table that is still to come ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"per": "p"}, {"minRows": 1}, {"where": SITE}], ids=str)
def test_a_table_that_is_written_after_its_schedule_counts_from_its_first_version_on(plan, log, more):
    plan.put("s", watching(log, **more), overlap="allow_all")
    plan.looks(2)
    assert plan.troubles() == ["missing"]
    log.commit(0, "a", table_id="T")
    plan.looks(3)
    log.commit(1, "a")
    plan.another_planner()
    plan.looks(3)
    assert plan.spans() == [(-1, 0), (0, 1)]
    assert stands(plan)[0] == "T"


def test_a_tree_holds_once_the_table_has_come_that_was_missing(plan, log):
    event = {"kind": "event", "name": "e"}
    plan.put("s", {"kind": "all", "of": [watching(log), event]}, overlap="allow_all")
    plan.put("or", {"kind": "any", "of": [event, watching(log)]}, overlap="allow_all")
    plan.looks(2)
    log.commit(0, "a", table_id="T")
    plan.looks(2)
    log.commit(1, "a")
    plan.looks(2)
    assert plan.spans() == []
    assert plan.spans("or") == [(-1, 0), (0, 1)]
    plan.event("e")
    assert plan.spans() == [(-1, 1)]


def test_what_has_come_to_a_table_that_was_missing_is_not_absent(plan, log):
    plan.put("s", {"kind": "absent", "of": watching(log), "within": "60s"}, overlap="allow_all")
    plan.looks(2)
    for version in range(5):
        log.commit(version, "a", table_id="T" if version == 0 else "")
        plan.looks(2)
        plan.pass_s(40)
    assert plan.verdicts() == ["trouble"]
    assert stands(plan) == ("T", 4)
    plan.pass_s(61)
    assert plan.verdicts() == ["trouble", "launched"]


def test_a_table_that_was_missing_and_is_another_after_its_first_versions_were_seen_begins_anew(plan, log):
    plan.put("s", watching(log), overlap="allow_all", constraints=[{"kind": "delay", "delay": "10s"}])
    plan.looks(2)
    log.commit(0, "a", table_id="T")
    log.commit(1, "a")
    plan.looks(1)
    log.file(1).unlink()
    log.commit(0, "a", table_id="U")
    plan.another_planner()
    plan.looks(20)
    assert plan.spans() == [(-1, 0)]
    assert stands(plan) == ("U", 0)


# -- a table that is replaced in place -----------------------------------------------------------------------------------


@pytest.mark.parametrize("per", ["", "p"])
@pytest.mark.parametrize("again", [False, True], ids=["the same planner", "another planner after each commit"])
def test_a_table_that_is_replaced_in_place_goes_on_with_ranges_that_touch(plan, log, again, per):
    log.commit(0, "a", table_id="T")
    plan.put("s", watching(log, **({"per": per} if per else {})), overlap="allow_all")
    plan.looks()
    for version, table_id in enumerate(["", "U", "", "V", "W", ""], start=1):
        log.commit(version, "a", table_id=table_id)
        plan.looks(3)
        if again:
            plan.another_planner()
    plan.looks(10)
    assert plan.spans() == [(version, version + 1) for version in range(6)]
    assert plan.troubles() == []
    assert per or stands(plan) == ("W", 6)


def test_a_job_that_waits_takes_the_commit_that_replaces_its_table_in_place_with_it(plan, log):
    log.commit(0, "a", table_id="T")
    plan.put("s", watching(log), overlap="allow_all", constraints=[{"kind": "delay", "delay": "20s"}])
    plan.looks()
    for version, table_id in enumerate(["", "U", ""], start=1):
        log.commit(version, "a", table_id=table_id)
        plan.looks(2)
        plan.another_planner()
    plan.looks(20)
    log.commit(4, "a")
    plan.looks(25)
    assert plan.spans() == [(0, 3), (3, 4)]
    assert (plan.troubles(), stands(plan)) == ([], ("U", 4))


def test_where_the_log_begins_with_a_checkpoint_of_before_the_table_is_the_same(plan, log):
    log.commit(0, "a", table_id="T")
    plan.put("s", watching(log), overlap="allow_all")
    plan.looks()
    log.commit(1, "a")
    plan.looks(2)
    for version in range(2, 6):
        log.commit(version, "a", table_id="U" if version == 4 else "")
    log.checkpoint(1, "T")
    for version in range(2):
        log.file(version).unlink()
    plan.another_planner()
    plan.looks(4)
    assert (plan.spans(), plan.troubles()) == ([(0, 1), (1, 5)], [])


def test_what_an_older_planner_has_stored_under_the_id_of_before_goes_on(plan, log):
    for version in range(4):
        log.commit(version, "a", table_id={0: "T", 2: "U"}.get(version, ""))
    plan.put("s", watching(log), overlap="allow_all")
    place = next(iter(plan.planner.watched()))
    plan.planner.looked("s", lambda tables: tables.begins(place, "T", 2), plan.now)
    plan.turn()
    plan.looks(4)
    assert (plan.spans(), plan.troubles(), stands(plan)) == ([(2, 3)], [], ("U", 3))


def test_another_table_at_its_place_that_was_itself_replaced_is_told_of_once_and_fires_once(plan, log):
    log.commit(0, "a", table_id="T")
    plan.put("s", watching(log), overlap="allow_all")
    plan.looks()
    for version in range(3):
        log.commit(version, "a", table_id=["U", "", "V"][version])
    plan.looks(10)
    plan.another_planner()
    plan.looks(5)
    log.commit(3, "a")
    plan.looks(5)
    assert plan.spans() == [(-1, 2), (2, 3)]
    assert plan.troubles() == ["replaced"]


# -- what cannot be read any more ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "words"), [({}, "deleted before"), ({"deletionVector": {"cardinality": 1}}, "deletion vectors")]
)
@pytest.mark.parametrize("least", [1, 1_000])
@pytest.mark.parametrize("per", [{}, {"per": "p"}], ids=str)
def test_rows_that_nobody_can_count_any_more_are_enough_and_told_of_once(plan, log, more, words, least, per):
    log.commit(0, table_id="T")
    plan.put("s", watching(log, where=SITE, minRows=least, **per), overlap="allow_all")
    plan.looks()
    log.commit(1, "a", **more)
    plan.looks(5)
    assert plan.troubles() == ["uncounted"]
    assert words in plan.fires[0]["why"]
    log.commit(2)
    log.commit(3, "a", **more)
    log.commit(4, "a", **more)
    plan.looks(5)
    assert plan.spans() == [(0, 1), (1, 4)]
    assert plan.troubles() == ["uncounted", "uncounted"]
    assert "2 versions between 3 and 4" in plan.fires[-2]["why"]


def test_commits_that_a_clean_up_took_from_the_midst_are_told_of_and_passed_over(plan, log):
    log.commit(0, "a", table_id="T")
    plan.put("s", watching(log), overlap="allow_all")
    plan.looks()
    log.commit(1, "a")
    plan.looks(2)
    for version in range(2, 9):
        log.commit(version, "a")
    log.checkpoint(6, "T")
    for version in (2, 3, 6):
        log.file(version).unlink()
    plan.looks(20)
    assert plan.spans() == [(0, 1), (1, 5), (5, 8)]
    assert plan.troubles() == ["truncated", "truncated"]
    assert "Versions 2 to 3 " in plan.fires[1]["why"]
    log.commit(9, "a")
    plan.looks(2)
    assert plan.spans()[-1] == (8, 9)


def test_after_a_restart_a_hole_in_the_log_is_seen_at_once(plan, log):
    for version in range(4):
        log.commit(version, "a", table_id="T" if version == 0 else "")
    plan.put("s", watching(log, start=0), overlap="allow_all")
    log.file(1).unlink()
    plan.looks(3)
    assert (plan.spans(), plan.troubles()) == ([(0, 3)], ["truncated"])


def test_a_commit_that_is_written_while_names_are_listed_is_no_hole(plan, log, monkeypatch):
    log.commit(0, "a", table_id="T")
    plan.put("s", watching(log), overlap="allow_all")
    plan.looks()
    log.commit(1, "a")
    log.commit(2, "a")
    monkeypatch.setattr(
        os, "listdir", lambda folder, found=os.listdir: [one for one in found(folder) if one != log.file(1).name]
    )
    plan.another_planner()
    plan.looks(3)
    assert (plan.spans(), plan.troubles()) == ([(0, 2)], [])


# -- partitions that fire for themselves ---------------------------------------------------------------------------------


@pytest.fixture
def reads(monkeypatch):
    """Versions that were read, in order."""
    read, found = commit_follower.read_commit, []

    def noted(version, *more):
        found.append(version)
        return read(version, *more)

    monkeypatch.setattr(commit_follower, "read_commit", noted)
    return found


def test_no_commit_of_a_table_is_read_twice_while_its_partitions_fire(plan, log, reads):
    log.commit(0, table_id="T")
    plan.put("s", watching(log, per="p", minCommits=2), overlap="allow_all")
    plan.looks()
    for version in range(1, 25):
        log.commit(version, "a", "b", *(["slow"] if version == 3 else []))
        plan.looks(2)
    assert reads == list(range(1, 25))
    assert len(plan.sent) == 24
    assert plan.planner.state.entries["s"].tables[0][:2] == ("T", 2), "one commit of the slow one waits"
    log.commit(25, "slow")
    plan.looks(4)
    assert stands(plan) == ("T", 25)
    assert plan.planner.state.entries["s"].tables[0].parts == {}


def test_a_log_that_was_cleaned_up_long_after_its_versions_were_handed_over_lacks_nothing(plan, log):
    log.commit(0, table_id="T")
    plan.put("s", watching(log, per="p"), overlap="allow_all")
    plan.looks()
    for version in range(1, 10):
        log.commit(version, "a", "b")
        plan.looks(2)
    log.checkpoint(9, "T")
    for version in range(9):
        log.file(version).unlink()
    plan.another_planner()
    log.commit(10, "a")
    plan.looks(3)
    assert (plan.troubles(), len(plan.sent)) == ([], 19)


@pytest.mark.parametrize("others", [[], ["b"]], ids=["the only partition", "one of two"])
def test_a_partition_is_throttled_whatever_becomes_of_those_beside_it(plan, log, others):
    log.commit(0, table_id="T")
    plan.put(
        "s", watching(log, per="p", atMostEvery="100s"), overlap="allow_all", payload={"p": "{{ table.partition }}"}
    )
    plan.looks()
    for version in range(1, 4):
        log.commit(version, "a", *others)
        plan.looks(3)
    plan.another_planner()
    plan.looks(80)
    assert sorted(one["taskData"]["p"] for one in plan.sent) == ["a", *others]
    plan.looks(20)
    assert sorted(one["taskData"]["p"] for one in plan.sent) == sorted(2 * ["a", *others])
    plan.pass_s(200)
    plan.looks(3)
    log.commit(4, "a")
    plan.looks(3)
    assert list(plan.planner.state.entries["s"].tables[0].parts) == ["a"], "what has fired long ago is forgotten"


def parts_of(plan: WatchedPlan) -> list[str]:
    return [one["taskData"]["p"] for one in plan.sent]


@pytest.fixture
def few(monkeypatch):
    """It can be known of three partitions how far they have come."""
    monkeypatch.setattr(handing_over, "MOST_PARTS", 3)


PARTS = {"overlap": "allow_all", "payload": {"p": "{{ table.partition }}"}}


@pytest.mark.usefixtures("few")
def test_of_too_many_partitions_none_fires_twice_and_new_ones_wait_for_the_slowest(plan, log):
    log.commit(0, table_id="T")
    plan.put("s", watching(log, per="p", minCommits=2), **PARTS)
    plan.looks()
    log.commit(1, "slow")
    for version in (2, 3):
        log.commit(version, "a", "b", "c")
    plan.looks(3)
    for version in (4, 5):
        log.commit(version, "d", "e", "a")
    plan.looks(5)
    assert parts_of(plan) == ["a", "b", "c", "a"]
    assert plan.troubles() == ["too_many_partitions"], "told of once"
    plan.another_planner()
    plan.looks(3)
    assert parts_of(plan) == ["a", "b", "c", "a"]
    log.commit(6, "slow")
    plan.looks(5)
    assert sorted(parts_of(plan)) == sorted(["a", "b", "c", "a", "slow", "d", "e"])
    assert stands(plan) == ("T", 6)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("more", [{}, {"constraints": [{"kind": "delay", "delay": "5s"}]}], ids=str)
def test_one_commit_to_more_partitions_than_are_known_fires_each_of_them_once(plan, log, more):
    log.commit(0, table_id="T")
    plan.put("s", watching(log, per="p"), **PARTS, **more)
    plan.looks()
    many = [f"p{number}" for number in range(8)]
    log.commit(1, *many)
    plan.looks(20)
    assert sorted(parts_of(plan)) == many
    assert (plan.troubles(), stands(plan)) == ([], ("T", 1))


@pytest.mark.usefixtures("few")
def test_jobs_that_wait_have_their_place_among_the_partitions_that_are_known(plan, log):
    log.commit(0, table_id="T")
    plan.put("s", watching(log, per="p", minCommits=2), **PARTS, constraints=[{"kind": "delay", "delay": "5s"}])
    plan.looks()
    log.commit(1, "slow")
    for version in (2, 3):
        log.commit(version, "a", "b", "c", "d", "e")
    plan.looks(20)
    assert len(parts_of(plan)) == len(plan.planner.state.entries["s"].tables[0].parts) == 3
    assert plan.troubles() == ["too_many_partitions"]


def test_a_template_knows_the_partition_of_nulls_as_null(plan, log):
    log.commit(0, table_id="T")
    payload = {"p": "{{ table.partition }}", "or": 'p={{ table.partition | default("none") }}', "all": "{{ table }}"}
    plan.put("s", watching(log, per="p"), overlap="allow_all", payload=payload)
    plan.put("text", watching(log, per="p"), overlap="allow_all", payload={"p": "p={{ table.partition }}"})
    plan.looks()
    log.commit(1, None)
    plan.looks(2)
    log.commit(2, None)
    plan.another_planner()
    plan.looks(2)
    found = [one["taskData"] for one in plan.sent]
    assert [(one["p"], one["or"], one["all"]["partition"]) for one in found] == 2 * [(None, "p=none", None)]
    assert plan.spans() == [(0, 1), (1, 2)]
    failed = [one["why"] for one in plan.fires if one["name"] == "text"]
    assert failed
    assert all("This fire has no table.partition." in why for why in failed)


def test_a_job_of_a_partition_goes_on_while_its_table_is_replaced_in_place_twice(plan, log):
    log.commit(0, table_id="T")
    plan.put("s", watching(log, per="p"), constraints=[{"kind": "delay", "delay": "10s"}], **PARTS)
    plan.looks()
    log.commit(1, "a")
    plan.looks(13)
    log.commit(2, "a", table_id="U")
    log.commit(3)
    log.commit(4, "b", table_id="V")
    plan.looks(13)
    log.commit(5, "b", table_id="W")
    plan.looks(13)
    assert parts_of(plan) == ["a", "a", "b", "b"]
    assert plan.spans()[-1] == (4, 5)
    assert stands(plan) == ("W", 5)
