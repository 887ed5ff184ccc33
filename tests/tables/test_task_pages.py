"""Pages and counts from memory say the same as the tables, before and after each change of the tables."""

from __future__ import annotations

from datetime import timedelta

import pytest

from scylla_spark.clock import from_us
from scylla_spark.core.notifications.error_fingerprint import fingerprint_of
from scylla_spark.core.tables.progress import Mark
from scylla_spark.core.tasks.about import About
from scylla_spark.core.tasks.filter import TaskFilter, read_filter
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.io.delta import task_pages
from scylla_spark.io.delta.rows import progress_row
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.io.delta.task_commands import stored_commands
from scylla_spark.io.delta.task_pages import TaskPages, Urgency
from scylla_spark.schemas import ATTEMPTS, COMPLETIONS, DEFERRED, PROGRESS, TASKS
from tests.support.delta_tables import append, at, fact, make, task

ALL = TaskFilter()
NOW = at(10, 30)


@pytest.fixture
def path(tmp_path):
    make(tmp_path)
    return str(tmp_path)


def key(hour: int, minute: int = 0, lane: str = "o", unique: str = "u") -> TaskKey:
    return TaskKey(at(hour, minute), lane, unique)


def fill(path: str) -> None:
    """Tasks of four hours, in every state."""
    keys = [
        key(hour, minute, f"lane-{minute % 3}", f"u{minute}") for hour in (8, 9, 10, 11) for minute in range(0, 60, 10)
    ]
    rows = [
        task(one, n, queue=("mail", None)[n % 2], priority=n % 5, handler=f"h{n % 2}") for n, one in enumerate(keys)
    ]
    append(path, TASKS, rows)
    append(
        path, COMPLETIONS, [fact(keys[0], 1, "succeeded", 1), fact(keys[1], 2, "failed", 2, error_class="TimeoutError")]
    )
    append(path, COMPLETIONS, [fact(keys[7], 1, "cancelled", 3), fact(keys[0], 1, "failed", 9)])
    later = from_us(NOW) + timedelta(minutes=5)
    append(
        path,
        ATTEMPTS,
        [fact(keys[8], 1, "started", 4), fact(keys[9], 1, "failed", 5, error_class="KeyError", next_at=later)],
    )


def test_tags_choose_tasks_and_are_shown(path):
    rows = {"a": ["billing", "eu"], "b": ["billing"], "c": None, "d": [], "e": ["bill"]}
    append(path, TASKS, [task(key(8, lane=lane), tags=tags) for lane, tags in rows.items()])
    pages = TaskPages(TableReader(path))

    def found(text):
        return {row["ordering_id"]: row["tags"] for row in pages.page(read_filter(text, NOW), 100, now=NOW)}

    assert found("tag:billing") == {"a": ["billing", "eu"], "b": ["billing"]}
    assert found("tag:eu,bill") == {"a": ["billing", "eu"], "e": ["bill"]}
    assert found("tag:eu tag:billing") == {"a": ["billing", "eu"]}
    assert found("tag:nobody") == {}


def test_name_description_and_who_enqueued_them_choose_tasks(path):
    said = {"a": ("Invoices", "of May, for ACME", "ann"), "b": ("Invoices", None, "bob"), "c": (None, "of june", "ann")}
    names = ("name", "description", "enqueued_by", "proof")
    rows = [task(key(8, lane=lane), about=dict(zip(names, (*one, None), strict=True))) for lane, one in said.items()]
    append(path, TASKS, [*rows, task(key(8, lane="d"))])
    pages = TaskPages(TableReader(path))

    def found(text):
        rows = pages.page(read_filter(text, NOW), 100, now=NOW)
        return {row["ordering_id"]: (row["name"], row["enqueued_by"]) for row in rows}

    assert found("") == {lane: (one[0], one[2]) for lane, one in said.items()} | {"d": (None, None)}
    assert found("name:Invoices").keys() == {"a", "b"}
    assert found("enqueued_by:ann,carl").keys() == {"a", "c"}
    assert found("description:acme,June").keys() == {"a", "c"}
    assert found('name:Invoices description:"of may"').keys() == {"a"}
    keys = sorted(key(8, lane=lane) for lane in "abcd")
    stored = {one.key.ordering_id: one.about for one in stored_commands(TableReader(path), keys)}
    assert stored == {lane: About(*one) for lane, one in said.items()} | {"d": None}


def test_pages_say_what_the_tables_say(path):
    fill(path)
    expected = TaskPages(TableReader(path)).page(ALL, 100, now=NOW)
    assert {row["state"] for row in expected} >= {
        "succeeded",
        "failed",
        "cancelled",
        "running",
        "retry_wait",
        "ready",
        "scheduled",
    }


@pytest.mark.parametrize(
    ("text", "keep"),
    [
        ("state:failed,running", lambda row: row["state"] in ("failed", "running")),
        ("state:open queue:mail", lambda row: row["ended_at"] is None and row["queue"] == "mail"),
        ("queue:default", lambda row: row["queue"] == "default"),
        (
            "handler:h1 lane:lane-0,lane-2",
            lambda row: row["handler"] == "h1" and row["ordering_id"] in ("lane-0", "lane-2"),
        ),
        ("key:u10", lambda row: row["uniqueness_key"] == "u10"),
        ("error:timeout,KEYerr", lambda row: row["error_class"] in ("TimeoutError", "KeyError")),
        ("late:>20m", lambda row: row["state"] == "ready" and row["next_attempt_at"] < NOW - 20 * 60_000_000),
        ("late:<20m", lambda row: row["state"] == "ready" and row["next_attempt_at"] > NOW - 20 * 60_000_000),
        ("attempts:>=1 attempts:<2", lambda row: row["attempts"] == 1),
        ("priority:3", lambda row: row["priority"] == 3),
        (
            "scheduled:>=2099-01-02T09:00:00Z scheduled:<2099-01-02T10:00:00Z",
            lambda row: at(9) <= row["scheduled_time"] < at(10),
        ),
        ("scheduled:<2099-01-02", lambda row: False),
        ("ended:2099-01-02", lambda row: row["ended_at"] is not None),
        ("enqueued:<2099-01-02T08:00:00Z", lambda row: row["enqueued_at"] < at(8)),
        ("lane:nobody", lambda row: False),
    ],
)
def test_each_term_lets_pass_what_it_says(path, text, keep):
    fill(path)
    pages, wanted = TaskPages(TableReader(path)), read_filter(text, NOW)
    expected = [row for row in pages.page(ALL, 100, now=NOW) if keep(row)]
    assert pages.page(wanted, 100, now=NOW) == expected
    assert pages.count(wanted, now=NOW) == len(expected)
    assert [one for some in pages.keys(wanted, now=NOW) for one in some] == [
        TaskKey(row["scheduled_time"], row["ordering_id"], row["uniqueness_key"]) for row in expected
    ]


@pytest.mark.parametrize("limit", [1, 3, 7, 100])
@pytest.mark.slow
def test_pages_put_together_are_everything_once(path, limit):
    fill(path)
    pages, found, after = TaskPages(TableReader(path)), [], None
    while rows := pages.page(ALL, limit, now=NOW, after=after):
        found += rows
        after = TaskKey(rows[-1]["scheduled_time"], rows[-1]["ordering_id"], rows[-1]["uniqueness_key"])
    assert found == pages.page(ALL, 100, now=NOW)
    assert len(found) == 24


def test_what_is_remembered_follows_the_tables(path):
    fill(path)
    readers = TableReader(path)
    pages = TaskPages(readers)
    first = pages.page(ALL, 100, now=NOW)
    late = key(10, 10, "lane-1", "u10")
    append(path, COMPLETIONS, [fact(late, 1, "succeeded", 20)])
    append(path, TASKS, [task(key(8, 5, "new"), 99)])
    changed = pages.page(ALL, 100, now=NOW)
    assert changed == TaskPages(readers).page(ALL, 100, now=NOW)
    assert len(changed) == len(first) + 1
    assert pages.count(read_filter("state:succeeded", NOW), now=NOW) == 2


def test_only_hours_that_changed_are_read_again(path, monkeypatch):
    fill(path)
    pages, read = TaskPages(TableReader(path)), []
    kept = TaskPages._hours
    monkeypatch.setattr(
        TaskPages,
        "_hours",
        lambda self, view, hours, *more: read.append(list(hours)) or kept(self, view, hours, *more),
    )
    pages.count(ALL, now=NOW)
    append(path, COMPLETIONS, [fact(key(10, 10, "lane-1", "u10"), 1, "succeeded", 20)])
    pages.count(ALL, now=NOW)
    pages.count(ALL, now=NOW)
    assert read == [[at(hour) // 3_600_000_000 for hour in (8, 9, 10, 11)], [at(10) // 3_600_000_000]]


def test_a_small_memory_gives_the_same_answers(path):
    fill(path)
    readers = TableReader(path)
    small = TaskPages(readers, most_bytes=1)
    assert small.page(ALL, 100, now=NOW) == TaskPages(readers).page(ALL, 100, now=NOW)
    assert small.count(ALL, now=NOW) == 24


@pytest.mark.parametrize("minute", [0, 25])
def test_far_tasks_are_folded_in_wherever_near_ends(path, minute):
    """Near ends within an hour or between two: tasks stand in `tasks`, in `deferred`, or in both."""
    fill(path)
    edge = at(10, minute)
    append(path, PROGRESS, [progress_row("tasks", number, Mark(folded_until_us=edge)) for number in range(4)])
    moved = key(11, 0, "lane-0", "u0")
    append(
        path,
        DEFERRED,
        [task(key(12, 1, "far"), 50), task(key(12, 1, "far"), 51, queue="mail"), task(moved, 60, priority=9)],
    )
    append(path, DEFERRED, [task(key(9, 1, "old"), 52)])  # what is folded already says nothing
    append(path, COMPLETIONS, [fact(key(12, 1, "far"), 1, "cancelled", 53)])
    readers = TableReader(path)
    pages = TaskPages(readers)
    rows = pages.page(ALL, 100, now=NOW)
    assert rows == TaskPages(readers).page(ALL, 100, now=NOW)
    assert len(rows) == 25
    assert (rows[-1]["ordering_id"], rows[-1]["queue"], rows[-1]["state"]) == ("far", "mail", "cancelled")
    assert pages.count(read_filter("priority:9", NOW), now=NOW) == 1
    assert pages.count(read_filter("scheduled:>=2099-01-02T11:00:00Z", NOW), now=NOW) == 7


def test_the_past_is_what_rows_date_until_then(path):
    fill(path)
    pages = TaskPages(TableReader(path))
    then = pages.page(ALL, 100, now=NOW, as_of_us=at(8, 5))
    assert [(row["uniqueness_key"], row["state"]) for row in then] == [("u0", "succeeded")]
    assert pages.count(ALL, now=NOW, as_of_us=at(9)) == 7
    assert pages.count(read_filter("state:open", NOW), now=NOW, as_of_us=at(8, 15)) == 0


def test_totals_add_up(path):
    fill(path)
    pages = TaskPages(TableReader(path))
    totals = pages.totals(ALL, now=NOW)
    assert sum(row["count"] for row in totals) == 24
    assert {"queue": "default", "state": "failed", "count": 1} in totals


def test_nothing_stored_is_an_empty_page(path):
    pages = TaskPages(TableReader(path))
    assert pages.page(ALL, 10, now=NOW) == []
    assert (pages.count(ALL, now=NOW), pages.totals(ALL, now=NOW), list(pages.keys(ALL, now=NOW))) == (0, [], [])


def test_tasks_are_found_by_the_fingerprint_of_their_last_error(path):
    """Of ended tasks by their end, of others by their newest attempt; also as it was, and of what is not folded yet."""
    keys = [key(9, minute) for minute in range(5)]
    append(path, TASKS, [task(one, number) for number, one in enumerate(keys)])
    same = [
        {"error_class": "TimeoutError", "error_message": f"server {number} at 0xab{number} is away"}
        for number in range(3)
    ]
    later = from_us(NOW) + timedelta(minutes=5)
    append(
        path,
        COMPLETIONS,
        [fact(keys[0], 2, "failed", 5, **same[0]), fact(keys[1], 1, "failed", 6, error_class="TimeoutError")],
    )
    append(path, COMPLETIONS, [fact(keys[4], 2, "succeeded", 8, error_class=None, error_message=None)])
    append(path, ATTEMPTS, [
        fact(keys[0], 1, "failed", 1, error_class="KeyError", error_message="x", next_at=later),
        fact(keys[2], 1, "failed", 2, next_at=later, **same[2]), fact(keys[4], 1, "failed", 3, next_at=later, **same[1]),
    ])  # fmt: skip
    pages, print_ = TaskPages(TableReader(path)), fingerprint_of("TimeoutError", "server 7 at 0xab is away")

    def found(text, **more):
        return [
            row["uniqueness_key"] + str(row["scheduled_time"] - at(9))
            for row in pages.page(read_filter(text, NOW), 9, now=NOW, **more)
        ]

    assert found(f"fingerprint:{print_}") == found(f"fingerprint:{print_[:8]}") == ["u0", "u120000000"]
    assert found(f"fingerprint:{print_[:4]} state:failed") == ["u0"]
    assert pages.count(read_filter(f"fingerprint:{print_},{fingerprint_of('TimeoutError', '')}", NOW), now=NOW) == 3
    assert found("fingerprint:0000") == []
    assert len(pages.page(ALL, 9, now=NOW)) == 5
    assert found(f"fingerprint:{print_}", as_of_us=at(8)) == []
    append(path, COMPLETIONS, [fact(keys[3], 1, "failed", 7, **same[1])])
    assert found(f"fingerprint:{print_}") == ["u0", "u120000000", "u180000000"], "what changed is read again"


def test_runs_of_a_schedule_are_found_whatever_launched_them(path):
    names = [
        "n/2026-01-01T08:00:00Z/1",
        "n/2026-01-01T08:00:00.250Z/2",
        "n/m/2026-01-01T08:00:00Z/1",
        "n/x",
        "n",
        "nn/2026-01-01T08:00:00Z/1",
    ]
    append(path, TASKS, [task(key(8, lane=f"l{number}", unique=name)) for number, name in enumerate(names)])
    pages = TaskPages(TableReader(path))

    def found(text: str) -> list[str]:
        return sorted(row["uniqueness_key"] for row in pages.page(read_filter(text, NOW), 100, now=NOW))

    assert found("schedule:n") == sorted(names[:2])
    assert found("schedule:n/m") == names[2:3]
    assert found("schedule:nn,n/m state:open") == sorted([names[2], names[5]])
    assert found("schedule:.") == []


def test_tasks_are_found_by_the_worker_of_their_newest_attempt(path):
    work = {"worker": "w1", "lease": "d", "lease_ms": 1, "since_us": 1, "until_us": 2}
    keys = {name: key(8, unique=name) for name in ("runs", "done", "other", "nobody", "cancelled")}
    append(path, TASKS, [task(one) for one in keys.values()])
    started = [fact(keys[name], 1, "started", 1, work=work) for name in ("runs", "cancelled")]
    append(path, ATTEMPTS, [*started, fact(keys["done"], 1, "failed", 1, work=work | {"worker": "w0"})])
    ends = [
        fact(keys["done"], 2, "succeeded", 2, work=work),
        fact(keys["other"], 1, "failed", 2, work=work | {"worker": "w2"}),
    ]
    append(
        path, COMPLETIONS, [*ends, fact(keys["nobody"], 1, "succeeded", 2), fact(keys["cancelled"], 1, "cancelled", 3)]
    )
    pages = TaskPages(TableReader(path))

    def found(text: str) -> set[str]:
        return {row["uniqueness_key"] for row in pages.page(read_filter(text, NOW), 100, now=NOW)}

    assert found("worker:w1") == {"runs", "done", "cancelled"}
    assert found("worker:w1 state:running") == {"runs"}
    assert found("worker:w2,w0") == {"other"}
    moment = at(8, 0) - 1
    assert pages.count(read_filter("worker:w1", NOW), now=NOW, as_of_us=moment) == 0


@pytest.mark.parametrize("limit", [1, 5, 100])
def test_pages_by_urgency_have_the_highest_priority_first_and_of_equals_the_newest(path, limit):
    fill(path)
    append(path, TASKS, [task(key(9, 5, unique="old"), priority=None, enqueued_at=None)])
    pages, whole = TaskPages(TableReader(path)), []
    after = None
    while rows := pages.urgent_page(ALL, limit, now=NOW, after=after):
        whole += rows
        last = rows[-1]
        name = TaskKey(last["scheduled_time"], last["ordering_id"], last["uniqueness_key"])
        after = Urgency(last["priority"] or 0, last["enqueued_at"] or 0, name)
    everything = pages.page(ALL, 1_000, now=NOW)
    assert whole == sorted(
        everything, key=lambda row: (-(row["priority"] or 0), -(row["enqueued_at"] or 0), row["scheduled_time"])
    )
    assert len(whole) == 25
    assert pages.urgent_page(read_filter("queue:nobody", NOW), 5, now=NOW) == []


@pytest.mark.parametrize("limit", [1, 5, 100])
@pytest.mark.parametrize("as_of_us", [None, NOW])
def test_newest_pages_are_the_others_backwards(path, limit, as_of_us, monkeypatch):
    monkeypatch.setattr("scylla_spark.io.delta.task_pages._FIRST_ROWS", 3)
    fill(path)
    pages, whole, before = TaskPages(TableReader(path)), [], None
    while rows := pages.newest_page(ALL, limit, now=NOW, before=before, as_of_us=as_of_us):
        whole += rows
        before = TaskKey(*(rows[-1][name] for name in ("scheduled_time", "ordering_id", "uniqueness_key")))
    assert whole == pages.page(ALL, 1_000, now=NOW, as_of_us=as_of_us)[::-1]
    assert pages.newest_page(read_filter("queue:nobody", NOW), 5, now=NOW) == []


def test_many_hours_with_few_tasks_are_added_up_once():
    asked = []
    groups = list(task_pages._grouped(range(5_000), lambda share: asked.append(share) or 1, 1_000, 1_500))
    assert [len(group) for group in groups] == [1_000, 1_500, 1_500, 1_000]
    assert asked == list(range(5_000))
