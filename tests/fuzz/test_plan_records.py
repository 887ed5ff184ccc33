"""For any bytes the readers of the planner's topics return; what they accept is obeyed, written, read back, and held by all tables."""

from __future__ import annotations

import json
from base64 import b64decode
from datetime import date, datetime
from math import isfinite

from hypothesis import given
from hypothesis import strategies as st

from scylla_spark.clock import to_us
from scylla_spark.core.plan.commands.plan_command import PlanCommand, Refused, read_command
from scylla_spark.core.plan.state import plan_log
from scylla_spark.core.plan.state.plan_state import PlanState
from scylla_spark.core.records.fact import Unreadable
from scylla_spark.core.tasks.key import is_storable
from scylla_spark.transforms.plan_rows import KINDS, plan_rows
from tests.fuzz import plan_strategies as plans
from tests.fuzz import strategies as our
from tests.fuzz.test_readers import inputs, several
from tests.support.planner_harness import PlannerHarness

MISSED = 600 * 1_000_000


@inputs(0.4)
@given(several(plans.command_records | our.plain_bytes | st.binary(max_size=200)))
def test_no_bytes_make_the_reader_of_commands_raise(values):
    for value in values:
        found = read_command(value)
        assert isinstance(found, PlanCommand) or found.reason != "defect"


@inputs(0.2)
@given(several(plans.log_records | our.plain_bytes.map(lambda value: value or b"")))
def test_no_bytes_make_the_reader_of_the_log_or_its_fold_raise(values):
    state = PlanState()
    for value in values:
        group = plan_log.decode(value)
        if isinstance(group, Unreadable):
            assert group.reason != "defect"
        else:
            state.fold(group)


def test_commands_of_a_group_that_has_no_number_are_no_change():
    """Found by two hundred thousand inputs: the next group compared its number with a text."""
    head = b'{"v":2,"kind":"plan","epoch":1,"nonce":"n","number":1,"at_us":0,"sent":0,"snapshot":0,"changes":['
    state = PlanState()
    for changes in (b'["unsent","put",["a"]]', b'["unsent",7,"text"]', b'["unsent",7,[1]]', b'["unsent",true,[]]', b""):
        group = plan_log.decode(head + changes + b"]}")
        assert not isinstance(group, Unreadable)
        state.fold(group)
    assert (state.unsent, state.unreadable) == ({}, 4)


@inputs(0.4)
@given(plans.stories, st.sampled_from([0, 10_000_000]))
def test_what_is_read_is_obeyed_and_its_log_gives_the_same_state_and_rows_that_fit(values, ahead_us):
    plan = PlannerHarness(ahead_us=ahead_us)
    for value in values:
        plan.raw(value)
        assert not [refusal for refusal in plan.refused if refusal[2] == "defect"], value
        readable = read_command(value)
        assert not isinstance(readable, Refused) or plan.refused, "what is refused is told"
    live(plan, 3)
    end_all(plan)
    plan.restart(after_us=MISSED)
    live(plan, 2)
    assert not [entry.note for entry in plan.planner.state.entries.values() if "defect" in entry.note]
    assert not [one.text for one in plan.planner.state.notices.rules.values() if one.author == "planner"], "a defect"
    check_log(plan)


def live(plan, seconds):
    """Lets seconds go by, but not more often than a few hundred timers."""
    until = plan.now + seconds * 1_000_000
    for _ in range(300):
        wake = plan.planner.next_wake_us
        if wake is None or wake > until:
            break
        plan.now = max(plan.now, wake)
        plan.planner.tick(plan.now)
        plan.turn()
    plan.now = max(plan.now, until)


def end_all(plan):
    for number, key in enumerate(list(plan.planner.state.runs)):
        if number < 20:
            plan.end_key(
                key,
                ("succeeded", "failed", "cancelled", "aborted")[number % 4],
                '"' + '\\"' * (30_000 * (number % 2)) + '"',
            )


def check_log(plan):
    """Checks that every record is small enough, can be read by its readers, and gives rows of the types that the tables have."""
    for offset, value in enumerate(plan.log):
        assert len(value) <= plan_log.MAX_GROUP_BYTES
        group = plan_log.decode(value)
        assert not isinstance(group, Unreadable), group
        for row in plan_rows(group, offset):
            row.text.encode()
            columns = {column.name: column.type for column in KINDS[row.kind].columns}
            for name, cell in json.loads(row.text).items():
                assert fits(cell, columns[name] if name != "plan_offset" else "bigint"), (row.kind, name, cell)


def fits(cell, kind):
    """Checks if a JSON value can be a cell of a Spark type."""
    match kind:
        case "string":
            return isinstance(cell, str)
        case "boolean":
            return isinstance(cell, bool)
        case "int" | "bigint":
            return type(cell) is int and abs(cell) < 2 ** (31 if kind == "int" else 63)
        case "double":
            return isinstance(cell, float) and isfinite(cell)
        case "timestamp":
            return is_storable(to_us(datetime.fromisoformat(cell)))
        case "date":
            return date.fromisoformat(cell).year > 0
        case "binary":
            return b64decode(cell, validate=True) is not None
    raise AssertionError(kind)
