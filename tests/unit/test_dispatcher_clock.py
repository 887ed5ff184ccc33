"""The time that a dispatcher uses is the one whose steps it looks for."""

from types import SimpleNamespace

from scylla_spark.services.dispatch.dispatcher import Dispatcher

HOUR = 3_600_000_000


class Clocks:
    """Wall and boot clock, of which the wall clock may be set between any two readings."""

    def __init__(self) -> None:
        self.boot, self.ahead = 1_000_000, 10 * HOUR
        self.set_by: list[int] = []  # at each reading of the wall clock from now on

    def wall_us(self) -> int:
        self.ahead += self.set_by.pop(0) if self.set_by else 0
        return self.boot + self.ahead

    def boot_us(self) -> int:
        return self.boot


def reading(clocks: Clocks) -> tuple[SimpleNamespace, list[int]]:
    doubted: list[int] = []
    shell = SimpleNamespace(_around=clocks, _now=0, _offset=clocks.ahead, engine=SimpleNamespace(doubt=doubted.append))
    return shell, doubted


def test_a_clock_that_is_set_between_two_readings_of_one_step_is_seen_in_the_reading_that_is_used():
    clocks = Clocks()
    shell, doubted = reading(clocks)
    clocks.set_by = [0, HOUR]
    assert Dispatcher._clock(shell) == 10 * HOUR + 1_000_000
    assert doubted == []
    used = Dispatcher._clock(shell)
    assert doubted == [used] == [11 * HOUR + 1_000_000]


def test_time_never_falls_and_a_clock_that_is_set_back_is_doubted_once():
    clocks = Clocks()
    shell, doubted = reading(clocks)
    before = Dispatcher._clock(shell)
    clocks.set_by = [-HOUR]
    assert [Dispatcher._clock(shell) for _ in range(3)] == [before] * 3
    assert len(doubted) == 1
