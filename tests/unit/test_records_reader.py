"""What a client keeps of the log: so many bytes and no more, and it knows when that is not everything."""

from __future__ import annotations

import pytest

from scylla_spark import Settings
from scylla_spark.client.connection import Connection
from scylla_spark.core.records.command import Rules
from scylla_spark.core.records.fact import TOO_LATE, Fact, Fence, encode_facts
from scylla_spark.core.tables.progress import Mark
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.errors import ConflictError
from scylla_spark.io.kafka.records_reader import LogReader, _ReadLog
from tests.support.delta_tables import at

FENCE = Fence(5, "n")
KEYS = [TaskKey(at(10), "lane", f"u{number}") for number in range(10)]
RESULT = '"' + "x" * 1_000 + '"'


@pytest.fixture
def followed():
    """Ten tasks have ended, in the records from 20 on."""
    found = _ReadLog(Mark(0, 20, FENCE))
    for offset, key in enumerate(KEYS, 20):
        (value,) = encode_facts(FENCE, [Fact(key, 1, "succeeded", result=RESULT)])
        found.read(offset, value)
    return found


def test_long_results_take_room_however_few_they_are(followed):
    assert followed.bytes > 10 * 1_500
    followed.trim(6_000, ())
    assert 3_000 < followed.bytes <= 6_000
    assert list(followed.facts) == KEYS[-len(followed.facts) :], "the oldest went first"


def test_what_somebody_watches_stays_and_takes_its_turn_later(followed):
    followed.trim(6_000, {KEYS[0]})
    assert next(iter(followed.facts)) == KEYS[0]
    followed.trim(2_000, ())
    assert list(followed.facts) == KEYS[-1:]
    followed.trim(0, ())
    assert (followed.facts, followed.bytes) == ({}, 0)


def test_answers_to_cancels_take_room_too(followed):
    (value,) = encode_facts(FENCE, [Fact(KEYS[0], 1, TOO_LATE, request_id="asked")])
    followed.read(30, value)
    assert followed.answers["asked"].outcome == TOO_LATE
    followed.trim(0, {KEYS[0]})
    assert (list(followed.answers), list(followed.facts)) == (["asked"], KEYS[:1])
    followed.trim(0, ())
    assert (followed.answers, followed.bytes) == ({}, 0)


def test_what_was_forgotten_is_missed_until_the_tables_hold_it(followed):
    assert not followed.has_holes
    followed.trim(6_000, ())
    floor = followed.floor
    assert floor == 30 - len(followed.facts)
    assert followed.has_holes
    assert not followed.goes_on_from(Mark(0, floor - 1, FENCE))
    assert followed.has_holes
    assert followed.goes_on_from(Mark(0, floor, FENCE)), "nothing is read twice"
    assert not followed.has_holes
    assert not followed.goes_on_from(Mark(0, 31, FENCE)), "the tables are ahead: what is between was never read"


def test_a_thread_that_still_reads_opens_no_connection_that_nobody_would_close(tmp_path):
    settings = Settings(_env_file=None, data_dir=tmp_path, kafka={"bootstrap_servers": "127.0.0.1:1"})
    reader = LogReader(settings, Rules(1), dict)
    reader.close()
    with pytest.raises(ConflictError, match="is closed"):
        reader.owner(0)
    connection = Connection(settings)
    connection.close()
    with pytest.raises(ConflictError, match="is closed"):
        connection.owner_address(0)
    with pytest.raises(ConflictError, match="is closed"):
        _ = connection.plan
