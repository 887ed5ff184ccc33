"""For any bytes the reader of `logs` returns, and what it accepts can be stored, and written again."""

from __future__ import annotations

import json

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from scylla_spark.core.access.redaction import Redaction
from scylla_spark.core.leases.messages import LEVELS
from scylla_spark.core.records.log_record import STREAMS, LogLine, LogRecord, decode, encode
from scylla_spark.core.records.rejection_reason import Reason
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.services.dispatch.attempt_lines import AttemptLines
from scylla_spark.transforms.log_rows import LogMessage, log_rows
from tests.fuzz import strategies as our
from tests.fuzz.test_readers import inputs, several

_texts = st.text(max_size=40)
_names = st.text(min_size=1, max_size=20)
_instants = st.integers(0, 9_214_646_399_999_999)
_lines = st.builds(
    LogLine, st.integers(1, 2**31 - 1), _instants, st.sampled_from(STREAMS), st.none() | st.sampled_from(LEVELS), _texts, st.none() | _texts
)  # fmt: skip
_records = st.builds(
    LogRecord,
    st.builds(TaskKey, _instants, _names, _names),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**62),
    st.lists(_lines, min_size=1, max_size=5).map(tuple),
)
_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | _texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=8,
)
_FIELDS = ("version", "time_us", "ordering_id", "uniqueness_key", "attempt", "epoch", "lines")


@st.composite
def damaged(draw):
    """A record with a field that was changed or is gone."""
    record = json.loads(encode(draw(_records)))
    name = draw(st.sampled_from(_FIELDS))
    if draw(st.booleans()):
        del record[name]
    else:
        record[name] = draw(_values)
    return json.dumps(record).encode()


@inputs(0.1)
@given(several(our.plain_bytes | st.binary(max_size=400) | damaged()))
def test_no_bytes_make_the_reader_raise_and_what_it_accepts_is_stored_and_written_again(values):
    accepted = 0
    for value in values:
        read = decode(value)
        if isinstance(read, Reason):
            assert read.code != "defect"
            assert read.detail
        else:
            assert decode(encode(read)) == read
            accepted += len(read.lines)
    made = list(log_rows([LogMessage(0, offset, value) for offset, value in enumerate(values)], 1))
    assert sum(rows.batch.num_rows for rows in made) == accepted
    for rows in made:
        pa.Table.from_batches([rows.batch]).validate(full=True)


@inputs(0.05)
@given(several(_records))
def test_what_is_written_is_read(records):
    for record in records:
        assert decode(encode(record)) == record


@inputs(0.1)
@given(several(our.plain_bytes | st.binary(max_size=200) | _values.map(lambda value: json.dumps(value).encode())))
def test_no_frame_makes_the_dispatcher_raise_and_what_it_makes_of_it_is_a_record(frames):
    reader = AttemptLines(Redaction(["secret-value"]), most_line=100, most_attempt=1000)
    reader.read(b'["begin",1,5,"lane","key",1,7,0]')
    for frame in frames:
        found = reader.read(frame or b"")
        if found and found[1]:
            name, lines = found
            assert isinstance(decode(encode(LogRecord(*name, tuple(lines)))), LogRecord)
