"""A few hundred extremes that are accepted, through the real batches into Delta, and read back by everything that reads the tables."""

from hypothesis import HealthCheck, given, settings

from scylla_spark.clock import from_us
from scylla_spark.core.records.command import Command, Rules, WireRetry, encode, validate, with_extra
from scylla_spark.core.records.fact import Fact, Fence, decode, encode_facts, encode_fence
from scylla_spark.core.tasks.key import EARLIEST_US, LATEST_US, TaskKey, partition_of
from scylla_spark.core.tasks.task import MAX_RESULT_BYTES, Failure
from scylla_spark.defaults import MOST_RETRIES
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.schemas import ATTEMPTS, COMPLETIONS, REJECTED, TASKS
from tests.fuzz import strategies
from tests.fuzz.strategies import NOW
from tests.spark.batches import PARTITIONS, raw

RULES = Rules(PARTITIONS)
CENTURY_MS = 36_525 * 86_400_000
WORDS = ["a", "\x00", "\x01" * 1024, "😀" * 1024, "é,`'\"\\/%{}\n\t", "\u202e\x1b[31m", " ", "\ufeffx", "../..", "null"]
PAYLOADS = ["1e308", "-0.0", "5e-324", "9" * 4300, '"\\ud83d\\ude00"', "[" * 150 + "]" * 150, '"' + "x" * 200_000 + '"']
TIMES = [NOW, NOW + 1, NOW + 86_400_000_000, LATEST_US - 1]


def extremes():
    """Commands at the limits of every field."""
    for n, word in enumerate(WORDS):
        for at in TIMES:
            key = TaskKey(at, word, WORDS[-n])
            yield Command("enqueue", key, 0, "h", "q", '{"x":"\\u0000"}', 255, CENTURY_MS, WireRetry(MOST_RETRIES, 0, CENTURY_MS), NOW,
                          '{"\\u0000":"é"}', word)  # fmt: skip
            yield Command("cancel", key._replace(uniqueness_key=f"cancelled {n}"), 0, enqueued_us=NOW)
    for number, text in enumerate(PAYLOADS):
        yield Command("enqueue", TaskKey(NOW, "payloads", str(number)), 0, payload=f'{{"x":{text}}}', enqueued_us=NOW)
    yield Command("cancel", TaskKey(EARLIEST_US, "old", "u"), 0, enqueued_us=NOW)


def found_by_fuzzing(wanted):
    """That many further commands, of records as anybody might send them."""
    found = {}

    @settings(
        max_examples=4 * wanted, database=None, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck)
    )
    @given(strategies.task_records)
    def look(value):
        for place in range(PARTITIONS):
            verdict = validate(place, 0, NOW, None, value, RULES)
            if isinstance(verdict, Command) and len(found) < wanted:
                found[verdict.key] = value

    look()
    return found


def shown(command):
    """What a row of `tasks` must say."""
    data = command.kind == "enqueue"
    retry = command.retry._asdict() if command.retry and data else None
    return {
        "scheduled_time": from_us(command.key.time_us), "ordering_id": command.key.ordering_id,
        "uniqueness_key": command.key.uniqueness_key, "payload": command.payload if data else None,
        "timeout_ms": command.timeout_ms if data else None, "retry": retry, "priority": command.priority if data else None,
        "enqueued_at": from_us(command.enqueued_us) if data else None, "extra": command.extra if data else None,
    }  # fmt: skip


def in_order(rows):
    return sorted(rows, key=lambda row: (row["scheduled_time"], row["ordering_id"], row["uniqueness_key"]))


def test_accepted_extremes_of_tasks_are_stored_and_read_by_all(ingest):
    values = [with_extra(encode(command), command.extra) for command in extremes()] + [*found_by_fuzzing(60).values()]
    batch, wanted = [], {}
    for offset, value in enumerate(values):
        commands = [validate(place, offset, NOW, None, value, RULES) for place in range(PARTITIONS)]
        (command,) = [one for one in commands if isinstance(one, Command)]
        batch.append((partition_of(command.key.ordering_id, PARTITIONS), offset, None, value))
        wanted[command.key] = command
    assert len(wanted) > 120
    ingest.progress.folded(LATEST_US)  # all of them are near: each goes through the MERGE
    ingest.write_tasks(raw(ingest.spark, batch, NOW), 0)
    rows = in_order(shown(command) for command in wanted.values())
    names = list(rows[0])
    assert ingest.tables.read(REJECTED).count() == 0
    assert in_order(in_utc(ingest, TASKS, names)) == rows
    assert in_order(TableReader(ingest.tables.path).frame(TASKS, []).select(names).collect().to_dicts()) == rows
    assert in_order(by_pandas(ingest, TASKS, names)) == rows


def in_utc(ingest, table, names):
    """Rows by Spark, instants aware."""
    return ingest.tables.read(table).select(names).toArrow().to_pylist()


def by_pandas(ingest, table, names):
    """Rows by delta-rs and pandas, whose clocks count nanoseconds."""
    from deltalake import DeltaTable

    frame = DeltaTable(f"{ingest.tables.path}/{table.name}").to_pandas(columns=names)
    for name in ("scheduled_time", "enqueued_at", "next_at"):
        if name in frame:
            frame[name] = frame[name].astype("datetime64[ns, UTC]")
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return [{name: plain(value) for name, value in row.items()} for row in rows]


def plain(value):
    return value.to_pydatetime() if hasattr(value, "to_pydatetime") else value


def facts():
    """Facts at the limits of every field."""
    for n, word in enumerate(WORDS):
        failure = Failure(word, "\x01" * 300_000, "é" * 300_000)
        key = TaskKey(TIMES[n % len(TIMES)], word, WORDS[-n])
        yield Fact(
            key, 2**31 - 1, "failed", 0, LATEST_US - 1, LATEST_US - 1, 2**31 - 1, LATEST_US - 1, None, failure, word
        )
        yield Fact(key, 0, "cancelled", finished_us=1)
        yield Fact(
            key._replace(uniqueness_key="r"), 1, "succeeded", NOW, NOW, NOW, 1, None, "é" * (MAX_RESULT_BYTES // 2)
        )


def test_accepted_extremes_of_outcomes_are_stored_and_read_by_all(ingest):
    fence, batch, ends, waits = Fence(2**32, "n" * 200), [], [], []
    for number in range(PARTITIONS):
        mine = [fact for fact in facts() if partition_of(fact.key.ordering_id, PARTITIONS) == number]
        values = [encode_fence(fence, "http://x", NOW), *encode_facts(fence, mine)]
        batch += [(number, offset, None, value) for offset, value in enumerate(values)]
        kept = [fact for value in values for fact in decode(value).facts]
        ends += [row_of(fact) for fact in kept if fact.terminal]
        waits += [row_of(fact) for fact in kept if not fact.terminal]
    ingest.write_outcomes(raw(ingest.spark, batch, NOW), 0)
    for table, rows in ((COMPLETIONS, in_order(ends)), (ATTEMPTS, in_order(waits))):
        names = list(rows[0])
        assert in_order(in_utc(ingest, table, names)) == rows
        assert in_order(TableReader(ingest.tables.path).frame(table, []).select(names).collect().to_dicts()) == rows
        assert in_order(by_pandas(ingest, table, names)) == rows


def row_of(fact):
    failure = fact.failure or (None, None, None)
    return {
        "scheduled_time": from_us(fact.key.time_us), "ordering_id": fact.key.ordering_id, "uniqueness_key": fact.key.uniqueness_key,
        "attempt": fact.attempt, "outcome": fact.outcome, "used": fact.used, "result": fact.result,
        "finished_at": from_us(fact.finished_us), "error_class": failure[0], "error_message": failure[1], "error_stack": failure[2],
    }  # fmt: skip
