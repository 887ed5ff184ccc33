"""Frames whose check takes long: with which stamp their records are written."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from scylla_spark.client.tasks.frames import Checked, Columns, stamp_of_write
from scylla_spark.core.records.command import STAMP_TRUST_US, Rules
from scylla_spark.errors import ArgumentError

RULES = Rules(4)
ASKED = 1_800_000_000_000_000
MINUTE = 60_000_000
TIMED = Columns("h", None, "u", "t")


def test_rows_that_are_not_due_for_long_carry_the_moment_of_the_write():
    far = Checked(9, ASKED + 600 * MINUTE)
    assert stamp_of_write(far, TIMED, RULES, ASKED, ASKED + 120 * MINUTE) == ASKED + 120 * MINUTE


def test_rows_that_were_due_when_they_were_checked_carry_the_last_moment_at_which_they_were_in_time():
    due = Checked(9, ASKED - 1_000_000)
    stamp = stamp_of_write(due, TIMED, RULES, ASKED, ASKED + 10 * MINUTE)
    assert RULES.late_before_us(stamp) == due.first_us
    assert ASKED + 10 * MINUTE - stamp < STAMP_TRUST_US // 2, "half an hour is left for the write"


def test_rows_that_were_due_long_before_their_write_are_refused_as_a_whole():
    with pytest.raises(ArgumentError, match="took 70 minutes") as told:
        stamp_of_write(Checked(9, ASKED), TIMED, RULES, ASKED, ASKED + 70 * MINUTE)
    assert told.value.fields["reason"] == "too_late"


def test_rows_without_a_time_are_due_when_they_are_written():
    now = ASKED + 70 * MINUTE
    assert stamp_of_write(Checked(9, ASKED), TIMED._replace(scheduled_time=None), RULES, ASKED, now) == now
