"""How far the tables are, against what the logs hold."""

import pytest

from scylla_spark.core.tables.progress import Mark
from scylla_spark.errors import ConfigError
from scylla_spark.services.ingest.progress import Progress, check_position


@pytest.mark.parametrize("position", [3, 5, 9, 0])
def test_a_position_within_the_log_is_fine_and_so_is_a_beginning(position):
    check_position("tasks", 1, position, (3, 9))


def test_a_log_that_ends_before_the_tables_stops_everything():
    with pytest.raises(ConfigError, match=r"ends at offset 9, but the tables hold its records up to 10"):
        check_position("tasks", 1, 10, (3, 9))


def test_records_that_went_before_they_were_read_are_told():
    with pytest.raises(ConfigError, match=r"begins at offset 3, but the tables end at 1: 2 records are gone"):
        check_position("tasks", 1, 1, (3, 9))


class Written:
    """What would be written of marks."""

    def __init__(self):
        self.marks = {}

    def write_marks(self, marks):
        self.marks = dict(marks)


def of_open_hours(closed_hour, *open_hours):
    written = Written()
    progress = Progress(written)
    progress.begin({("tasks", 0): Mark(closed_hour=closed_hour, open_hours=open_hours, folded_until_us=1)}, 1, 1)
    return progress, written


def test_hours_stay_open_that_a_round_by_an_earlier_time_does_not_look_at():
    progress, written = of_open_hours(100, 3, 40, 90)
    progress.closed(50, {0: [40]})
    assert written.marks["tasks", 0].closed_hour == 100
    assert written.marks["tasks", 0].open_hours == (40, 90)


def test_a_round_by_a_later_time_closes_all_that_it_does_not_name():
    progress, written = of_open_hours(100, 3, 40, 90)
    progress.closed(120, {0: [90, 110]})
    assert (written.marks["tasks", 0].closed_hour, written.marks["tasks", 0].open_hours) == (120, (90, 110))
