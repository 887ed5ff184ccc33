"""Look-ups and listings on small tables."""

from datetime import UTC, datetime, timedelta

import pytest

from scylla_spark.clock import from_us
from scylla_spark.config.settings import Settings
from scylla_spark.core.engine.lane import BEFORE_ALL
from scylla_spark.core.records.command import WireRetry
from scylla_spark.core.tables.progress import Mark
from scylla_spark.core.tasks.filter import OneOf, Range, TaskFilter
from scylla_spark.core.tasks.key import Name, TaskKey, partition_of
from scylla_spark.core.tasks.stored_records import Bearer
from scylla_spark.core.tasks.task import Failure, LastError
from scylla_spark.errors import ConfigError, ConflictError, NotFoundError, UnreachableError
from scylla_spark.io.delta.new_tables import ensure_tables
from scylla_spark.io.delta.open_tasks import Bound, OpenTasksReader
from scylla_spark.io.delta.rejected_records import RejectedRecords
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.io.delta.task_pages import TaskPages
from scylla_spark.schemas import ATTEMPTS, COMPLETIONS, DEFERRED, PROGRESS, REJECTED, TASKS
from scylla_spark.task_states import OPEN
from tests.support.delta_tables import append, at, fact, key_columns, make, rejected, task

HOSTILE = ["a' OR '1'='1", 'b"; --', "c,d", "ünï漢字", "x\ny", "%", "*", "`tick`", "\\", "e\u2028"]


@pytest.fixture
def path(tmp_path):
    folder = tmp_path / "my tables é # ?"
    make(folder)
    return str(folder)


@pytest.fixture
def readers(path):
    return TableReader(path)


def test_without_tables_every_question_says_what_to_do(tmp_path):
    for question in (
        TableReader.rules,
        TableReader.marks,
        lambda r: r.task(TaskKey(0, "o", "u")),
        lambda r: r.completed([TaskKey(0, "o", "u")]),
    ):
        with pytest.raises(NotFoundError, match="init"):
            question(TableReader(str(tmp_path / "none")))


class PanicException(BaseException):
    """What delta-rs and polars raise for a panic: no Exception, and by this name only."""


@pytest.mark.parametrize("message", ["index out of bounds: the len is 0", "Forked process detected - current PID is 2"])
def test_a_panic_of_the_library_becomes_an_error_that_loops_and_callers_catch(tmp_path, readers, monkeypatch, message):
    def panic(*_: object, **__: object) -> None:
        raise PanicException(message)

    monkeypatch.setattr("scylla_spark.io.delta.open_table.OpenTable.newest", panic)
    monkeypatch.setattr("deltalake.write_deltalake", panic)
    expected = ConflictError if "Forked" in message else UnreachableError
    for act in (
        readers.rules,
        lambda: readers.files(TASKS),
        lambda: readers.columns(TASKS),
        lambda: ensure_tables(Settings(data_dir=tmp_path / "new"), {}, now=0),
    ):
        with pytest.raises(expected):
            act()


@pytest.mark.parametrize("name", ["[1]", "a%20b", "a|b", "a^b", "a\\b", "a\nb", "a\x7fb", "\udcff"])
@pytest.mark.parametrize("scheme", ["", "file://", "file:"])
def test_a_path_that_delta_rs_cannot_open_is_refused(tmp_path, name, scheme):
    with pytest.raises(ConfigError, match="delta-rs cannot open") as error:
        TableReader(f"{scheme}{tmp_path}/{name}")
    assert error.value.message.isprintable()


@pytest.mark.parametrize(
    "name", ["a?b", "a#b", "a b", "ü-客", "a+b&c=d", "a'b`c\"", "a{b}*", "a:b;c,<d>", "~x", "..x", "trail "]
)
@pytest.mark.parametrize("scheme", ["", "file://"])
def test_other_paths_are_opened_or_refused(tmp_path, name, scheme):
    make(tmp_path / name)
    if scheme and set("?#") & set(name):
        with pytest.raises(ConfigError, match="delta-rs cannot open"):
            TableReader(f"{scheme}{tmp_path}/{name}")
    else:
        assert TableReader(f"{scheme}{tmp_path}/{name}").rules().partitions == 4


def test_the_rules_are_the_stored_ones(readers):
    rules = readers.rules()
    assert (rules.partitions, rules.grace_ms, rules.retention_ms, rules.default_handler) == (
        4,
        10_000,
        86_400_000,
        None,
    )


def test_marks_tell_both_topics_apart(path, readers):
    assert readers.marks() == {}
    append(path, PROGRESS, [
        {"topic": "tasks", "partition_id": 1, "next_offset": 7},
        {"topic": "outcomes", "partition_id": 1, "next_offset": 9, "epoch": 3, "nonce": "n", "resigned": False},
    ])  # fmt: skip
    tasks, outcomes = readers.marks()[("tasks", 1)], readers.marks()[("outcomes", 1)]
    assert (tasks.tasks_offset, tasks.outcomes_offset) == (7, 0)
    assert (outcomes.outcomes_offset, outcomes.fence.epoch, outcomes.fence.nonce, outcomes.resigned) == (
        9,
        3,
        "n",
        False,
    )


def test_a_task_is_found_by_its_whole_key_only(path, readers):
    key = TaskKey(at(10, us=1), "o", "u")
    append(
        path,
        TASKS,
        [
            task(
                key,
                4,
                payload='{"a":1}',
                retry={"max_retries": None, "base_ms": 1, "cap_ms": 2},
                timeout_ms=5,
                extra='{"e":1}',
            )
        ],
    )
    row = readers.task(key)
    assert row.command.key == key
    assert (row.command.payload, row.command.retry, row.command.timeout_ms, row.command.extra) == (
        '{"a":1}',
        WireRetry(None, 1, 2),
        5,
        '{"e":1}',
    )
    assert not row.cancelled
    for other in (
        key._replace(time_us=key.time_us + 1),
        key._replace(ordering_id="p"),
        key._replace(uniqueness_key="v"),
    ):
        assert readers.task(other) is None


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_are_values_not_code(path, readers, text):
    key = TaskKey(at(10), text, text)
    append(path, TASKS, [task(key)])
    append(path, COMPLETIONS, [fact(key, 1, "succeeded")])
    assert readers.task(key).command.key == key
    assert readers.task(key._replace(uniqueness_key="other")) is None
    assert readers.completed([key, key._replace(uniqueness_key="other")]) == {key}
    wanted = TaskFilter((OneOf("lane", (text,)), OneOf("queue", ("default",))))
    assert [row["uniqueness_key"] for row in TaskPages(readers).page(wanted, 10, now=at(9))] == [text]
    assert TaskPages(readers).page(TaskFilter((OneOf("queue", (text,)),)), 10, now=at(9)) == []


def test_only_a_cancel_is_a_task_without_data(path, readers):
    key = TaskKey(at(10), "o", "u")
    append(path, TASKS, [key_columns(key) | {"cancel_offset": 3}])
    row = readers.task(key)
    assert (row.command.kind, row.command.offset, row.cancelled) == ("cancel", 3, True)


def test_a_repeated_completion_is_told_once_and_the_first_counts(path, readers):
    key = TaskKey(at(10), "o", "u")
    append(path, COMPLETIONS, [fact(key, 2, "failed", 9, error_class="E", error_message="m", error_stack="s")])
    append(
        path,
        COMPLETIONS,
        [fact(key, 2, "failed", 9, error_class="E", error_message="m", error_stack="s"), fact(key, 3, "succeeded", 12)],
    )
    ended = readers.completion(key)
    assert (ended.attempt, ended.outcome, ended.failure, ended.terminal) == (2, "failed", Failure("E", "m", "s"), True)
    assert readers.completion(key._replace(uniqueness_key="v")) is None


def test_attempts_come_in_log_order_with_the_time_of_the_next(path, readers):
    key = TaskKey(at(10), "o", "u")
    later = key.scheduled_time + timedelta(seconds=20)
    append(path, ATTEMPTS, [fact(key, 2, "started", 7), fact(key, 1, "failed", 5, next_at=later)])
    append(path, ATTEMPTS, [fact(key, 1, "started", 5)])
    assert [(one.attempt, one.outcome) for one in readers.attempts(key)] == [
        (1, "started"),
        (1, "failed"),
        (2, "started"),
    ]
    assert readers.attempts(key)[1].next_us == key.time_us + 20_000_000


def test_of_very_many_attempts_the_newest_are_read_and_those_before_a_number(path, readers):
    key = TaskKey(at(10), "o", "u")
    append(path, ATTEMPTS, [fact(key, number, how, number) for number in range(1, 9) for how in ("started", "failed")])
    append(path, ATTEMPTS, [fact(key._replace(ordering_id="p"), 9, "failed", 9)])

    def numbers(*chosen):
        return [one.attempt for one in readers.attempts(key, *chosen) if one.outcome == "failed"]

    assert numbers() == list(range(1, 9))
    assert (numbers(3), numbers(3, 4), numbers(3, 1), numbers(None, 3)) == ([6, 7, 8], [1, 2, 3], [], [1, 2])
    assert len(readers.attempts(key, 1)) == 2, "its start and its end"


def test_completed_finds_many_keys_over_partitions_and_hours(path, readers):
    keys = [TaskKey(at(hour, us=number), f"lane-{number}", "u") for hour in (0, 5, 23) for number in range(20)]
    append(path, COMPLETIONS, [fact(key, 1, "succeeded") for key in keys[::2]])
    assert readers.completed(keys) == set(keys[::2])
    assert readers.completed([]) == set()


def test_what_was_appended_since_is_seen(path, readers):
    keys = [TaskKey(at(10, us=number), "o", "u") for number in range(3)]
    for key in keys:
        assert readers.completed([key]) == set()
        append(path, COMPLETIONS, [fact(key, 1, "succeeded")])
        assert readers.completed([key]) == {key}


def test_the_last_microsecond_of_an_hour_and_the_first_of_the_next_lie_in_different_hours(path, readers):
    last, first = TaskKey(at(11) - 1, "o", "u"), TaskKey(at(11), "o", "u")
    append(path, COMPLETIONS, [fact(last, 1, "succeeded"), fact(first, 1, "succeeded")])
    assert last.hour + 1 == first.hour
    assert readers.completed([last, first]) == {last, first}


def test_a_lane_gives_open_tasks_in_key_order_with_their_newest_attempt(path, readers):
    keys = [TaskKey(at(10, minute), "o", f"u{minute}") for minute in range(6)]
    other = TaskKey(at(10), "other", "u")
    append(path, TASKS, [task(key, number) for number, key in enumerate(reversed(keys))] + [task(other)])
    append(path, COMPLETIONS, [fact(keys[1], 1, "succeeded")])
    later = keys[2].scheduled_time + timedelta(hours=1)
    append(
        path,
        ATTEMPTS,
        [
            fact(keys[2], 1, "failed", 3, next_at=later, error_class="Busy", error_message="m" * 1_200),
            fact(keys[2], 1, "started", 2),
            fact(keys[3], 1, "failed", 4),
        ],
    )
    append(path, ATTEMPTS, [fact(keys[3], 2, "started", 6)])
    partition = partition_of("o", 4)
    rows = readers.lane(partition, "o", None, 10)
    assert [row.command.key for row in rows] == [keys[0], *keys[2:]]
    assert (rows[1].attempt, rows[1].used, rows[1].next_us) == (1, 1, keys[2].time_us + 3_600_000_000)
    assert (rows[2].attempt, rows[2].next_us) == (2, 0)
    assert [row.error for row in rows[:3]] == [None, LastError("Busy", "m" * 1_000), None]
    assert readers.known(keys[2:3])[keys[2]].error == LastError("Busy", "m" * 1_000)
    assert [row.command.key for row in readers.lane(partition, "o", keys[2], 2)] == keys[3:5]
    assert readers.lane(partition, "o", keys[5], 2) == []


def test_a_lane_goes_on_after_a_key_of_the_same_time(path, readers):
    keys = sorted(TaskKey(at(10), "o", unique) for unique in "abc")
    append(path, TASKS, [task(key) for key in keys])
    assert [row.command.key for row in readers.lane(partition_of("o", 4), "o", keys[0], 5)] == keys[1:]


def test_several_lanes_are_read_at_once_each_after_its_own_key(path, readers):
    partition = partition_of("o", 4)
    other = next(f"x{n}" for n in range(99) if partition_of(f"x{n}", 4) == partition)
    keys = [TaskKey(at(10 + n), lane, "u") for lane in ("o", other) for n in range(4)]
    append(path, TASKS, [task(key, number) for number, key in enumerate(keys)])
    append(path, COMPLETIONS, [fact(keys[1], 1, "succeeded")])
    append(path, ATTEMPTS, [fact(keys[3], 2, "failed", 4, next_at=keys[3].scheduled_time)])
    found = OpenTasksReader(readers).lanes(
        partition, {"o": (keys[0], 5), other: (BEFORE_ALL, 2), "none": (BEFORE_ALL, 2)}, keys[3].time_us, Mark()
    )
    rows, more = found["o"]
    assert ([row.command.key for row in rows], more) == (keys[2:4], False)
    assert rows[1].attempt == 2
    assert ([row.command.key for row in found[other][0]], found[other][1]) == (keys[4:6], True)
    assert found["none"] == ([], False)
    assert (
        OpenTasksReader(readers)
        .lanes(partition, {"o": (BEFORE_ALL, 9)}, keys[0].time_us, Mark())["o"][0][0]
        .command.key
        == keys[0]
    )


def test_a_cancelled_open_task_of_a_lane_is_marked(path, readers):
    key = TaskKey(at(10), "o", "u")
    append(path, TASKS, [task(key, 1, cancel_offset=2)])
    assert [row.cancelled for row in readers.lane(partition_of("o", 4), "o", None, 5)] == [True]


def test_a_window_includes_its_start_and_excludes_its_end(path, readers):
    keys = [TaskKey(us, "o", "u") for us in (at(10) - 1, at(10), at(11) - 1000, at(11))]
    append(path, TASKS, [task(key) for key in keys])
    rows = TaskPages(readers).page(TaskFilter((Range("scheduled", at(10), at(11)),)), 10, now=at(9))
    assert [row["scheduled_time"] for row in rows] == [at(10), at(11) - 1000]


def test_a_window_is_sorted_by_key_and_continues_after_one(path, readers):
    keys = sorted(TaskKey(at(10, minute), f"lane-{lane}", "u") for minute in range(3) for lane in range(7))
    append(path, TASKS, [task(key) for key in keys])
    append(path, COMPLETIONS, [fact(keys[4], 1, "succeeded")])
    wanted = TaskFilter((Range("scheduled", at(10), at(18)), OneOf("state", OPEN)))
    pages, found, after = TaskPages(readers), [], None
    while rows := pages.page(wanted, 4, now=at(9), after=after):
        found += [TaskKey(row["scheduled_time"], row["ordering_id"], row["uniqueness_key"]) for row in rows]
        after = found[-1]
    assert found == keys[:4] + keys[5:]


def test_tasks_are_listed_by_state(path, readers):
    keys = {name: TaskKey(at(10), "o", name) for name in ("scheduled", "ready", "running", "retry_wait", "failed")}
    keys["scheduled"] = TaskKey(at(12), "o", "scheduled")
    append(path, TASKS, [task(key) for key in keys.values()])
    later = keys["retry_wait"].scheduled_time + timedelta(hours=1)
    append(path, ATTEMPTS, [fact(keys["running"], 1, "started"), fact(keys["retry_wait"], 3, "failed", next_at=later)])
    append(path, COMPLETIONS, [fact(keys["failed"], 2, "failed"), fact(keys["failed"], 2, "failed")])
    pages = TaskPages(readers)
    rows = pages.page(TaskFilter(), 100, now=at(10, 30))
    assert {row["uniqueness_key"]: row["state"] for row in rows} == {name: name for name in keys}
    assert {row["uniqueness_key"]: row["attempts"] for row in rows} == {
        "scheduled": 0,
        "ready": 0,
        "running": 1,
        "retry_wait": 3,
        "failed": 2,
    }
    for name in keys:
        found = pages.page(TaskFilter((OneOf("state", (name,)),)), 100, now=at(10, 30))
        assert [row["uniqueness_key"] for row in found] == [name]


def test_tasks_are_listed_by_queue_lane_handler_and_partition(path, readers):
    mail, other = TaskKey(at(10), "o", "mail"), TaskKey(at(10), "p", "other")
    append(path, TASKS, [task(mail, queue="mail", handler="send"), task(other)])
    pages, in_lane = TaskPages(readers), OneOf("lane", ("o",))
    for wanted in (
        TaskFilter((OneOf("queue", ("mail",)),)),
        TaskFilter((in_lane,)),
        TaskFilter((OneOf("handler", ("send",)),)),
        TaskFilter((in_lane,), partition=partition_of("o", 4)),
    ):
        assert [row["uniqueness_key"] for row in pages.page(wanted, 10, now=0)] == ["mail"]
    assert pages.page(TaskFilter((in_lane,), partition=partition_of("o", 4) ^ 1), 10, now=0) == []


def test_tasks_of_one_lane_are_read_from_the_files_of_its_partition_alone(path, readers):
    lanes = {partition_of(f"x{n}", 4): f"x{n}" for n in range(40)}
    append(path, TASKS, [task(TaskKey(at(10), lane, "u")) for lane in lanes.values()])
    frame, asked = readers.frame, []
    readers.frame = lambda table, pruning=None: asked.append((table.name, pruning)) or frame(table, pruning)
    pages = TaskPages(readers)
    assert pages.count(TaskFilter((OneOf("lane", (lanes[2],)),)), now=0) == 1
    of_tasks = [pruning for name, pruning in asked if name in ("tasks", "completions", "attempts")]
    assert [("partition_id", "=", 2) in conditions for (conditions,) in of_tasks] == [True] * 3
    assert pages.count(TaskFilter((OneOf("lane", (lanes[1], lanes[2])),)), now=0) == 2


def test_rejected_records_come_newest_first_and_once(path, readers):
    days = [datetime(2026, 1, day, 12, tzinfo=UTC) for day in (1, 2, 3)]
    append(
        path,
        REJECTED,
        [
            rejected(number, reason, b"\xff", day)
            for number, (day, reason) in enumerate(zip(days, ("a", "b", "a"), strict=True))
        ],
    )
    append(path, REJECTED, [rejected(2, "a", b"\xff", days[2])])
    records = RejectedRecords(readers)
    assert [row["offset"] for row in records.chosen(10)] == [2, 1, 0]
    assert [row["offset"] for row in records.chosen(1, reason="a")] == [2]
    since = int(days[1].timestamp() * 1e6)
    assert [row["offset"] for row in records.chosen(10, since_us=since)] == [2, 1]


def test_sizes_count_rows_and_files(path, readers):
    append(path, TASKS, [task(TaskKey(at(hour), "o", "u")) for hour in (1, 2)])
    sizes = {row["table"]: row for row in readers.sizes()}
    assert (sizes["tasks"]["rows"], sizes["tasks"]["files"]) == (2, 2)
    assert sizes["completions"]["rows"] == 0
    assert sizes["tasks"]["bytes"] > 0


# -- deferred tasks ----------------------------------------------------------------------------------------------------


def deferred(path, *operations, until):
    """Appends operations to `deferred`, each as a file of its own; progress says what is folded."""
    for row in operations:
        append(path, DEFERRED, [row])
    append(path, PROGRESS, [{"topic": "tasks", "partition_id": 0, "next_offset": 9, "folded_until": from_us(until)}])


def test_a_deferred_task_is_folded_from_its_operations_and_what_was_merged_since(path, readers):
    key, other, merged = (TaskKey(at(10, us=123_456), "o", unique) for unique in ("a", "b", "c"))
    operations = [
        task(key, 7, payload='{"v":7}'),
        task(key, 4),
        key_columns(other) | {"cancel_offset": 5},
        task(other, 6),
        task(merged, 1),
    ]
    deferred(path, *operations, until=at(9))
    append(path, TASKS, [key_columns(merged) | {"cancel_offset": 8}])
    assert (readers.task(key).command.payload, readers.task(key).cancelled) == ('{"v":7}', False)
    assert (readers.task(other).command.offset, readers.task(other).cancelled) == (6, True)
    assert (readers.task(merged).command.offset, readers.task(merged).cancelled) == (1, True)
    assert readers.task(key._replace(time_us=key.time_us + 1)) is None
    assert [row.command.offset for row in readers.lane(partition_of("o", 4), "o", None, 9)] == [7, 6, 1]
    assert [row["uniqueness_key"] for row in TaskPages(readers).page(TaskFilter(), 9, now=at(1))] == ["a", "b", "c"]


def test_what_is_near_is_read_from_tasks_alone(path, readers):
    near, stale, far = (TaskKey(at(hour), "o", "u") for hour in (8, 7, 10))
    append(path, TASKS, [task(near, 2)])
    deferred(path, task(stale, 1), task(far, 3), until=at(9))
    readers.frame = spied(readers.frame, seen := [])
    pages, soon = TaskPages(readers), TaskFilter((Range("scheduled", None, at(9)),))
    assert [row["scheduled_time"] for row in pages.page(TaskFilter(), 1, now=0)] == [at(8)]
    assert [row["scheduled_time"] for row in pages.page(soon, 9, now=0)] == [at(8)]
    assert (
        len(readers.lane(partition_of("o", 4), "o", None, 9, at(9) - 1))
        == len(readers.lane(partition_of("o", 4), "o", None, 1))
        == 1
    )
    assert readers.task(stale) is None
    assert DEFERRED.name not in seen
    assert [row["scheduled_time"] for row in pages.page(TaskFilter(), 2, now=0)] == [at(8), at(10)]
    assert DEFERRED.name in seen


def test_deferred_tasks_are_read_for_their_own_partition_only(path, readers):
    lanes = {partition_of(f"x{n}", 4): f"x{n}" for n in range(40)}
    keys = {number: TaskKey(at(10), lane, "u") for number, lane in lanes.items()}
    deferred(path, *(task(key) for key in keys.values()), until=at(9))
    mark, openings = Mark(folded_until_us=at(9)), OpenTasksReader(readers)
    bound = Bound(100, 1 << 30)
    for number, key in keys.items():
        assert [row.command.key for row in openings.partition(number, mark, at(11), bound)] == [key]
        assert list(openings.cancelled(number, mark, at(9), at(11))) == []
        found = TaskPages(readers).page(TaskFilter(partition=number), 9, now=at(1))
        assert [row["ordering_id"] for row in found] == [key.ordering_id]


def test_open_tasks_are_read_within_a_bound_of_bytes_and_of_large_ones_fewer_at_a_time(path, readers, monkeypatch):
    partition, lane = partition_of("o", 4), "o"
    keys = [TaskKey(at(10 + n), lane, "u") for n in range(6)]
    append(path, TASKS, [task(key, n, payload='{"x":"' + "x" * 5000 + '"}') for n, key in enumerate(keys)])
    assert OpenTasksReader(readers).partition(partition, Mark(), at(20), Bound(100, 20_000)) is None
    assert len(OpenTasksReader(readers).partition(partition, Mark(), at(20), Bound(100, 50_000))) == 6
    monkeypatch.setattr("scylla_spark.io.delta.open_tasks.MOST_BYTES", 13_000)
    rows, more = OpenTasksReader(readers).lanes(partition, {lane: (BEFORE_ALL, 5)}, at(20), Mark())[lane]
    assert ([row.command.key for row in rows], more) == (keys[:2], True)
    rows, more = OpenTasksReader(readers).lanes(partition, {lane: (keys[3], 5)}, at(20), Mark())[lane]
    assert ([row.command.key for row in rows], more) == (keys[4:], False)


def spied(frame, seen):
    def call(table, pruning=None):
        seen.append(table.name)
        return frame(table, pruning)

    return call


def test_a_deferred_overwrite_moves_a_task_to_another_queue(path, readers):
    key = TaskKey(at(10), "o", "u")
    deferred(path, task(key, 1, queue="old"), task(key, 2, queue="new"), until=at(9))
    for queue, count in (("old", 0), ("new", 1)):
        wanted = TaskFilter((OneOf("queue", (queue,)), OneOf("state", ("scheduled",))))
        assert TaskPages(readers).count(wanted, now=at(1)) == count


def test_files_tell_where_rows_lie(path, readers):
    append(path, TASKS, [task(TaskKey(at(hour), "o", "u")) for hour in (1, 2)])
    append(path, DEFERRED, [task(TaskKey(at(hour), "o", "u")) for hour in (4, 3)])
    assert sorted((file["hour"] * 3_600_000_000, file["rows"]) for file in readers.files(TASKS)) == [
        (at(1), 1),
        (at(2), 1),
    ]
    (file,) = readers.files(DEFERRED)
    assert (file["rows"], file["first_at"]) == (2, from_us(at(3)))
    assert readers.files(COMPLETIONS) == []


def bearers_of(openings, names=None):
    return sorted(openings.bearers(partition_of("o", 4), names, Mark(folded_until_us=at(9))))


def test_bearers_of_a_name_are_its_open_tasks_near_and_far(path, readers):
    near, far, ended, other = (
        TaskKey(at(hour), "o", unique) for hour, unique in ((8, "u"), (10, "u"), (7, "u"), (8, "v"))
    )
    append(path, TASKS, [task(near, 9, first_offset=2, unique_open=True), task(ended, 1), task(other, 3)])
    append(path, COMPLETIONS, [fact(ended, 1, "succeeded")])
    deferred(path, task(far, 5), task(TaskKey(at(10), "p", "u"), 6), until=at(9))
    openings = OpenTasksReader(readers)
    told = [Bearer(near, 2, True, "default", "h"), Bearer(far, 5, False, "default", "h")]
    assert bearers_of(openings, [Name("o", "u"), Name("o", "w")]) == told
    assert bearers_of(openings, [Name("o", "w")]) == []
    assert bearers_of(openings) == told


def test_names_that_are_asked_for_all_together_are_those_that_are_to_be_unique_and_have_two_open_tasks(path, readers):
    keys = [TaskKey(at(hour), "o", unique) for unique in ("plain", "alone") for hour in (8, 10)]
    append(path, TASKS, [task(keys[0], 1), task(keys[1], 2), task(keys[2], 3, first_offset=3, unique_open=True)])
    append(path, TASKS, [task(keys[3], 4)])
    append(path, COMPLETIONS, [fact(keys[3], 1, "succeeded")])
    assert bearers_of(OpenTasksReader(readers)) == []


def test_keys_that_ended_as_duplicates_are_told_with_those_that_were_cancelled(path, readers):
    cancelled, duplicate, later = (TaskKey(at(hour), "o", "u") for hour in (9, 10, 12))
    append(path, TASKS, [task(cancelled, 1, cancel_offset=2)])
    append(
        path, COMPLETIONS, [fact(duplicate, 0, "duplicate"), fact(later, 0, "duplicate"), fact(cancelled, 1, "failed")]
    )
    found = OpenTasksReader(readers).cancelled(partition_of("o", 4), Mark(), at(8), at(11))
    assert sorted(found) == [cancelled, duplicate]
