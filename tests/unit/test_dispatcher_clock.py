"""The time that a dispatcher uses is the one whose steps it looks for."""

from types import SimpleNamespace

import pytest

from scylla_spark.core.records.fact import Fence
from scylla_spark.core.tables.progress import Tenure
from scylla_spark.errors import ClockError
from scylla_spark.services.dispatch.dispatcher import Dispatcher

HOUR = 3_600_000_000
SECOND = 1_000_000
TENURE, FENCE = Tenure(0, 1), Fence(3, "n")


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
    clocks.set_by = [-9 * SECOND]
    assert [Dispatcher._clock(shell) for _ in range(3)] == [before] * 3
    assert len(doubted) == 1


def test_a_clock_that_was_an_hour_ahead_and_is_right_again_ends_the_dispatcher():
    clocks = Clocks()
    shell, _ = reading(clocks)
    Dispatcher._clock(shell)
    clocks.set_by = [HOUR]
    Dispatcher._clock(shell)
    clocks.set_by = [-HOUR]
    with pytest.raises(ClockError, match=r"clock was set back by 3600\.0 s"):
        Dispatcher._clock(shell)


@pytest.mark.parametrize(("ahead_s", "append_s", "heard_s", "again"), [
    (0, 0.1, 0.3, False), (0, 3.5, 3.6, False), (0, 0.1, 2.5, True),
    (0.5, 0.1, 0.3, False), (3, 3.5, 3.6, True), (3, 3.5, 9, True), (-3, 0.1, 4, False),
])  # fmt: skip
def test_a_fence_that_is_heard_of_late_is_sent_again_where_the_clock_may_be_ahead(ahead_s, append_s, heard_s, again):
    messages, asked = [], []
    wall = int((ahead_s + heard_s) * SECOND) + HOUR
    shell = SimpleNamespace(
        _fences={TENURE: (FENCE, int(ahead_s * SECOND) + HOUR)}, _around=SimpleNamespace(wall_us=lambda: wall),
        mailbox=SimpleNamespace(post=messages.append), engine=SimpleNamespace(fence_again=lambda *which: asked.append(which)),
    )  # fmt: skip
    Dispatcher._hold_clock_against(shell, TENURE, FENCE, (int(append_s * SECOND) + HOUR) // 1000)
    Dispatcher._hold_clock_against(shell, TENURE, Fence(2, "old"), 0)
    for message in messages:
        message(wall)
    assert asked == [(TENURE, FENCE, wall)] * again


@pytest.mark.parametrize("ahead_s", [3, -3])
def test_a_clock_that_is_wrong_ends_the_dispatcher(ahead_s):
    sent = ahead_s * SECOND + HOUR
    shell = SimpleNamespace(_fences={TENURE: (FENCE, sent)}, _around=SimpleNamespace(wall_us=lambda: sent + 200_000))
    with pytest.raises(ClockError, match=rf"clock is \{ahead_s:+}\.0 s off"):
        Dispatcher._hold_clock_against(shell, TENURE, FENCE, HOUR // 1000 + (0 if ahead_s > 0 else 200))
