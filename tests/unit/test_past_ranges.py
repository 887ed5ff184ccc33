"""Ranges of past versions: the same as a trigger fires on that watches, and no more work than they are."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from scylla_spark.core.plan.tables import changes
from scylla_spark.core.plan.tables.changes import begun, counted, fired, ranges
from scylla_spark.core.plan.tables.commit import Commit, Count
from scylla_spark.core.plan.tables.past_ranges import past_ranges
from scylla_spark.core.plan.triggers.trigger import OnTable
from scylla_spark.errors import ArgumentError

SECOND = 1_000_000


def commit(version: int, days: list[str | None], at_us: int = 0) -> Commit:
    return Commit(
        version, at_us or version * SECOND, "append", Count(1, 0, 1), {"day": dict.fromkeys(days, Count(1, 0, 1))}
    )


def test_reading_stops_with_the_commit_that_makes_too_many_partitions_wait() -> None:
    read = []

    def commits() -> Iterator[Commit]:
        for version in range(100):
            read.append(version)
            yield commit(version, [f"{version}-{number}" for number in range(4)])

    with pytest.raises(ArgumentError, match="More than 10 runs"):
        past_ranges(OnTable("/t", min_rows=10**9, per="day"), -1, commits(), 10)
    assert read == [0, 1, 2]


def test_a_commit_is_as_much_work_as_it_has_partitions_however_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    original = changes.due_at
    monkeypatch.setattr(changes, "due_at", lambda *args: looked.append(1) or original(*args))
    commits = [commit(version, [f"{version}"]) for version in range(500)]
    assert len(past_ranges(OnTable("/t", settle_us=3_600 * SECOND, per="day"), -1, commits, 1_000)) == 500
    assert len(looked) == 500


@pytest.mark.parametrize("seed", range(30))
def test_the_ranges_are_those_that_a_trigger_fires_on_that_looks_with_each_commit(seed: int) -> None:
    chance = random.Random(seed)
    at, commits = 0, []
    for version in range(60):
        at += chance.randrange(-2, 8) * SECOND
        commits.append(commit(version, chance.sample(["a", "b", "c", None], chance.randrange(5)), max(at, 1)))
    trigger = OnTable(
        "/t", min_commits=chance.randrange(1, 4), settle_us=chance.randrange(3) * 4 * SECOND,
        throttle_us=chance.randrange(3) * 9 * SECOND, per=chance.choice(["", "day"]),
    )  # fmt: skip
    pending, wanted, now = begun(-1), [], 0
    for one in commits:
        now = max(now, one.timestamp_us)
        for due in ranges(trigger, pending):
            if due.due_us <= now:
                wanted.append((due.key, due.from_version, due.to_version, due.grown.rows))
                pending = fired(pending, due.key, due.due_us)
        pending = counted(trigger, pending, [one], now)
    found = [
        (None if one.part == "\0null" else one.part, one.from_version, one.to_version, one.rows)
        for one in past_ranges(trigger, -1, commits, 1_000)
    ]
    assert found[: len(wanted)] == wanted
    assert len(found) == len(wanted) + len(pending.grown)
