"""Follow-ups of children are read strictly; the result can be sent, or is refused with a reason."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from scylla_spark.core.records.command import Rules
from scylla_spark.core.tasks.enqueue_options import command_of
from scylla_spark.core.tasks.follow_up import EVENT, KINDS, TASK, FollowUp
from scylla_spark.core.tasks.key import LATEST_US, TaskKey
from scylla_spark.errors import ArgumentError
from scylla_spark.executors.local.report import read_follow_up
from scylla_spark.handlers.framing import ProtocolError
from scylla_spark.io.kafka.command_sender import record_of
from scylla_spark.services.dispatch.follow_ups import event_record
from tests.fuzz import strategies as our
from tests.fuzz.test_readers import inputs

PARENT = TaskKey(our.NOW, "lane", "parent")
scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=20)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)
texts = our.wild_text | st.text(max_size=50)
numbers = st.integers(0, LATEST_US - 1) | st.sampled_from([-1, 2**63, True])
likely = st.tuples(
    st.just("follow_up"), st.sampled_from([1, 0, "1"]), st.sampled_from([*sorted(KINDS), "x"]), texts, texts, numbers, numbers
).map(list)  # fmt: skip
records = st.fixed_dictionaries(
    {},
    optional={
        "orderingId": texts | values, "scheduledTime": st.just("1970-01-01T00:00:00Z") | values, "uniquenessKey": texts | values,
        "taskData": st.dictionaries(st.text(max_size=5), values, max_size=3) | values, "handler": st.just("h") | values, "parent": values,
        "queue": st.just("mail") | values, "type": st.sampled_from(["enqueue", "cancel"]), "retry": values, "enqueuedAt": texts,
    },
)  # fmt: skip


@inputs(0.1)
@given(st.lists(values, min_size=2, max_size=8) | likely)
def test_follow_up_is_one_or_is_refused(record):
    try:
        number, one = read_follow_up(record)
    except ProtocolError:
        return
    assert number >= 1
    assert one.kind in KINDS


@inputs(0.1)
@given(texts | records.map(json.dumps), numbers, numbers)
def test_task_of_a_follow_up_can_be_sent_or_is_refused(record, delay_us, at_us):
    one = FollowUp(TASK, "x", record, abs(delay_us) % LATEST_US, abs(at_us) % LATEST_US)
    try:
        command = command_of(one, PARENT, our.NOW)
        sent = record_of(command, Rules(8), our.NOW)
    except ArgumentError:
        return
    assert json.loads(sent.value)["parent"] == str(PARENT)


@inputs(0.1)
@given(texts | values.map(json.dumps) | st.fixed_dictionaries({"name": values, "fields": values}).map(json.dumps))
def test_event_of_a_follow_up_can_be_sent_or_is_refused(record):
    try:
        event_record(FollowUp(EVENT, "x", record))
    except ArgumentError:
        return
