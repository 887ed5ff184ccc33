"""History is deleted by a time that append times have shown, not by a clock that may be wrong."""

from scylla_spark.services.ingest.proven_clock import ProvenClock

SECOND, DAY = 1_000_000, 86_400_000_000
START = 20_000 * DAY


class Machine:
    def __init__(self):
        self.true_us, self.ahead_us = START, 0

    def both_us(self):
        return self.true_us + self.ahead_us, self.true_us - START


def test_a_clock_that_is_ahead_from_the_beginning_is_not_believed():
    machine = Machine()
    machine.ahead_us = 20 * DAY
    clock = ProvenClock(machine.both_us)
    assert clock.now() == 0, "nothing is known"
    clock.shown(START - 3 * SECOND)
    machine.true_us += 60 * SECOND
    assert clock.now() == START - 3 * SECOND
    machine.ahead_us = 0
    clock.shown(machine.true_us - SECOND)
    machine.true_us += DAY
    assert clock.now() == machine.true_us, "it was right, and a quiet day has passed"


def test_a_clock_that_was_right_and_is_set_ahead_is_not_believed():
    machine = Machine()
    clock = ProvenClock(machine.both_us)
    clock.shown(START)
    machine.true_us += DAY
    machine.ahead_us = 400 * DAY
    assert clock.now() == machine.true_us
    clock.shown(machine.true_us)
    assert clock.now() == machine.true_us


def test_a_clock_that_is_behind_deletes_later():
    machine = Machine()
    machine.ahead_us = -2 * DAY
    clock = ProvenClock(machine.both_us)
    clock.shown(START)
    assert clock.now() == START - 2 * DAY


def test_a_deployment_in_which_nothing_was_appended_for_long_waits_for_the_next_record():
    machine = Machine()
    clock = ProvenClock(machine.both_us)
    clock.shown(START - 30 * DAY)
    assert clock.now() == START - 30 * DAY
    clock.shown(START)
    assert clock.now() == START
