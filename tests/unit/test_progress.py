"""How far the tables are, against what the logs hold."""

import pytest

from scylla_spark.errors import ConfigError
from scylla_spark.services.ingest.progress import check_position


@pytest.mark.parametrize("position", [3, 5, 9, 0])
def test_a_position_within_the_log_is_fine_and_so_is_a_beginning(position):
    check_position("tasks", 1, position, (3, 9))


def test_a_log_that_ends_before_the_tables_stops_everything():
    with pytest.raises(ConfigError, match=r"ends at offset 9, but the tables hold its records up to 10"):
        check_position("tasks", 1, 10, (3, 9))


def test_records_that_went_before_they_were_read_are_told():
    with pytest.raises(ConfigError, match=r"begins at offset 3, but the tables end at 1: 2 records are gone"):
        check_position("tasks", 1, 1, (3, 9))
