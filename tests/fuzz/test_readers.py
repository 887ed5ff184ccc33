"""For any bytes the readers of both topics return; what they accept can be held by all who store or read it, and written again.

FUZZ says how many inputs to try in all; `make fuzz` tries many more than `make test`.
"""

from __future__ import annotations

import io
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scylla_spark.clock import from_us
from scylla_spark.core.records.command import CANCEL, Command, Rejection, Rules, encode, validate, with_extra
from scylla_spark.core.records.fact import (
    MAX_GROUP_BYTES,
    MAX_RECORD_BYTES,
    NEWER,
    FenceLog,
    OutcomeRecord,
    Unreadable,
    decode,
    encode_facts,
)
from scylla_spark.core.tables.progress import Mark
from scylla_spark.core.tasks.fold_commands import fold
from scylla_spark.transforms import records
from tests.fuzz import strategies as our

TOTAL = int(os.environ.get("FUZZ", "2000"))
TOGETHER = 10  # inputs per example, so that they share the conversions
RULES = Rules(1)
MARK = Mark(fence=our.FENCE, resigned=False)


def inputs(share):
    """Settings that spend so much of all inputs."""
    return settings(
        max_examples=max(1, round(TOTAL * share / TOGETHER)),
        deadline=None,
        derandomize=TOTAL <= 2000,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


def several(strategy):
    return st.lists(strategy, min_size=TOGETHER, max_size=TOGETHER)


def judge(value, offset=0):
    return validate(0, offset, our.NOW, None, value, RULES)


def raw(values):
    count = len(values)
    return pa.RecordBatch.from_pydict({
        "partition": pa.array([0] * count, pa.int32()), "offset": pa.array(range(count), pa.int64()),
        "timestamp": pa.array([our.NOW] * count, pa.timestamp("us")), "key": pa.array([None] * count, pa.binary()),
        "value": pa.array(values, pa.binary()),
    })  # fmt: skip


def rows(judged, values):
    """Kind → rows, as the tables would get them."""
    found = {}
    for batch in judged(iter([raw(values)])):
        for row in batch.to_pylist():
            found.setdefault(row["kind"], []).append(row)
    return found


def refusals(found):
    return [(row["offset"], row["reason"]) for row in found.get(records.REJECT, [])]


@inputs(0.1)
@given(several(our.plain_bytes | st.binary(max_size=400)))
def test_no_bytes_make_a_reader_raise(values):
    for value in values:
        verdict, record = judge(value), decode(value)
        assert isinstance(verdict, Rejection)
        assert isinstance(record, Unreadable)
        assert "defect" not in (verdict.reason, record.reason)


@inputs(0.25)
@given(several(our.task_records))
def test_ingest_stores_what_dispatch_runs_and_rejects_what_dispatch_refuses(values):
    verdicts = [judge(value, offset) for offset, value in enumerate(values)]
    found = rows(records.judge_commands(RULES, {}), values)
    refused = [(v.offset, v.reason) for v in verdicts if isinstance(v, Rejection)]
    assert refusals(found) == refused
    assert "defect" not in {reason for _, reason in refused}
    folded = fold(v for v in verdicts if isinstance(v, Command))
    stored = {
        (row["scheduled_time"], row["ordering_id"], row["uniqueness_key"]): row for row in found.get(records.ROW, [])
    }
    assert len(stored) == len(folded)
    for key, entry in folded.items():
        row = stored[key.scheduled_time, key.ordering_id, key.uniqueness_key]
        assert row["data_offset"] == (entry.data.offset if entry.data else None)
        assert row["cancel_offset"] == (entry.cancel.offset if entry.cancel else None)


@inputs(0.2)
@given(several(our.task_records))
def test_what_is_accepted_is_held_by_parquet_polars_and_pandas_and_can_be_written_again(values):
    verdicts = [judge(value, offset) for offset, value in enumerate(values)]
    commands = [verdict for verdict in verdicts if isinstance(verdict, Command)]
    for command in commands:
        assert judge(with_extra(encode(command), command.extra), command.offset) == as_written(command)
    batches = list(records.judge_commands(RULES, {})(iter([raw(values)])))
    check_held(pa.Table.from_batches(batches))


def as_written(command):
    """A cancel is written without data."""
    return command._replace(payload="{}") if command.kind == CANCEL else command


def check_held(table):
    """Checks that all readers of such files read the same rows."""
    import pandas as pd
    import polars as pl

    file = io.BytesIO()
    pq.write_table(table, file)
    data, wanted = file.getvalue(), table.to_pylist()
    assert pq.read_table(io.BytesIO(data)).to_pylist() == wanted
    frame = pl.read_parquet(data)
    names = [name for name in table.column_names if name != "retry"]
    assert frame.select(names).to_dicts() == [{name: row[name] for name in names} for row in wanted]
    pandas = pd.read_parquet(io.BytesIO(data))
    for name in ("scheduled_time", "enqueued_at", "next_at"):
        if name in pandas:
            read = pandas[name].astype("datetime64[ns, UTC]")
            assert [None if at is pd.NaT else at.to_pydatetime() for at in read] == [row[name] for row in wanted]


@inputs(0.3)
@given(several(our.outcome_records))
def test_ingest_and_dispatch_read_the_same_facts(values):
    log, expected, refused, newer = FenceLog(our.FENCE), [], [], []
    for offset, value in enumerate(values):
        record = decode(value)
        if isinstance(record, Unreadable):
            refused.append((offset, record.reason))
        elif log.admit(record):
            if record.kind == NEWER:
                newer.append(offset)
                break
            expected += [(offset, fact) for fact in record.facts if fact.outcome != "too_late"]
    assert "defect" not in {reason for _, reason in refused}
    batches = list(records.judge_facts({0: MARK})(iter([raw(values)])))
    found = {}
    for row in (row for batch in batches for row in batch.to_pylist()):
        found.setdefault(row["kind"], []).append(row)
    assert refusals(found) == refused
    assert [row["offset"] for row in found.get(records.NEWER, [])] == newer
    stored = sorted(
        found.get(records.COMPLETION, []) + found.get(records.ATTEMPT, []), key=lambda row: row["fact_offset"]
    )
    for row, (offset, fact) in zip(sorted(stored, key=place), sorted(expected, key=place_of), strict=True):
        assert (row["fact_offset"], row["attempt"], row["used"]) == (offset, fact.attempt, fact.used)
        assert (row["kind"] == records.COMPLETION) == fact.terminal
        assert row["next_at"] == (from_us(fact.next_us) if fact.next_us else None)
    ((end,),) = [found[records.END]]
    assert end["next_offset"] == (newer[0] if newer else len(values))
    assert (end["epoch"], end["nonce"], end["resigned"]) == (*log.fence, log.resigned)
    check_held(pa.Table.from_batches(batches))


def place(row):
    at = row["scheduled_time"]
    return (
        row["fact_offset"],
        at,
        row["ordering_id"],
        row["uniqueness_key"],
        row["attempt"],
        row["used"],
        row["outcome"],
    )


def place_of(pair):
    offset, fact = pair
    return offset, fact.key.scheduled_time, *fact.key[1:], fact.attempt, fact.used, fact.outcome


@inputs(0.1)
@given(several(our.facts))
def test_facts_read_back_as_they_were_in_records_that_every_broker_takes(facts):
    values = encode_facts(our.FENCE, facts)
    assert max(map(len, values)) <= MAX_GROUP_BYTES
    assert [fact for value in values for fact in decode(value).facts] == facts


@inputs(0.05)
@given(several(our.wild_facts))
def test_facts_with_wild_texts_are_cut_to_fit_and_lose_nothing_else(facts):
    values = encode_facts(our.FENCE, facts)
    assert max(map(len, values)) <= MAX_RECORD_BYTES
    read = [decode(value) for value in values]
    assert all(isinstance(record, OutcomeRecord) for record in read)
    assert all(
        len(record.facts) == 1 for record, value in zip(read, values, strict=True) if len(value) > MAX_GROUP_BYTES
    )
    cut = dict.fromkeys(("result", "failure", "work", "queue"))
    bare = [fact._replace(**cut) for record in read for fact in record.facts]
    assert bare == [fact._replace(**cut) for fact in facts]


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__, "-q"]))
