"""How a micro-batch is written: from progress on, in portions, around what cannot be written. The tables are a list here."""

import pytest

from scylla_spark.errors import ConfigError, ConflictError
from scylla_spark.io.kafka.batch_guard import Poison, Unread
from scylla_spark.io.kafka.stream_offsets import Batch, Range, offsets_in
from scylla_spark.services.ingest.micro_batch import (
    Defective,
    Portions,
    Written,
    beyond,
    gaps,
    out_of_step,
    same_append,
)


class Log:
    """A writer whose tables are sets of offsets, and which takes so many records of a partition at once."""

    topic = "tasks"

    def __init__(self, most=1000, bad=(), positions=None):
        self.most, self.bad = most, set(bad)
        self.at = dict(positions or {})
        self.wrote, self.aside, self.passes = [], [], []
        self.error = None

    def positions(self):
        return self.at

    def write(self, frame, ranges):
        self.passes.append((frame, ranges))
        if self.error is not None:
            raise self.error
        reached = {n: min(wide.end, wide.begin + self.most) for n, wide in ranges.items()}
        taken = [(n, offset) for n, wide in ranges.items() for offset in range(wide.begin, reached[n])]
        if self.bad & set(taken):
            raise Defective("Traceback: planted")
        assert all(wide.begin == self.at.get(n, 0) for n, wide in ranges.items()), "nothing is left out"
        self.wrote += taken
        self.at |= reached
        return Written(len(taken), 0, reached)

    def set_aside(self, refusal, unread):
        assert refusal.offsets.begin == self.at.get(refusal.partition, 0)
        self.aside.append((refusal.partition, *refusal.offsets, refusal.reason, unread is not None))
        self.at[refusal.partition] = refusal.offsets.end


def batch(**planned):
    reads = []

    def again(ranges, unpacked):
        reads.append((ranges, unpacked))
        return "again"

    return Batch("whole", {int(name[1:]): Range(*wide) for name, wide in planned.items()}, again), reads


def run(log, given, poison=None):
    portions = Portions(log, given, poison) if poison else Portions(log, given)
    portions.run()
    return portions


def test_what_is_in_the_tables_is_skipped():
    planned = {0: Range(0, 10), 1: Range(5, 7), 2: Range(3, 3)}
    assert beyond(planned, {0: 4, 1: 9}) == {0: Range(4, 10)}


def test_a_gap_is_found_only_where_a_batch_begins_beyond_progress():
    planned = {0: Range(5, 10), 1: Range(5, 7), 2: Range(3, 8)}
    assert gaps(planned, {0: 4, 1: 5, 2: 9}) == {0: Range(4, 5)}
    assert gaps({3: Range(0, 9)}, {}) == {}
    with pytest.raises(ConfigError, match=r"partition 0: 4 to 5.*Delete the folder /c "):
        raise out_of_step("tasks", {0: Range(4, 5)}, "/c")


def test_a_batch_that_fits_is_written_in_one_pass_from_the_frame_itself():
    log, (given, reads) = Log(), batch(p0=(0, 10), p1=(0, 5))
    assert run(log, given).rows == 15
    assert log.passes == [("whole", {0: Range(0, 10), 1: Range(0, 5)})]
    assert reads == []


@pytest.mark.parametrize("most", [1, 7, 64, 999])
def test_a_large_batch_is_written_in_portions_in_order_and_each_record_once(most):
    log, (given, reads) = Log(most), batch(p0=(0, 1000), p1=(0, 5))
    assert run(log, given).rows == 1005
    assert [offset for n, offset in log.wrote if n == 0] == list(range(1000))
    assert all(wide.end - wide.begin <= max(64, 2 * most) for ranges, _ in reads for wide in ranges.values())


def test_nothing_of_a_batch_below_progress_is_written():
    log, (given, _) = Log(positions={0: 12}), batch(p0=(0, 10))
    run(log, given)
    assert log.passes == []


def test_records_that_make_our_code_fail_are_found_and_set_aside_and_the_rest_is_written():
    bad = {(0, 3), (0, 999), (1, 0)}
    log, (given, _) = Log(bad=bad), batch(p0=(0, 1000), p1=(0, 5), p2=(0, 9))
    portions = run(log, given)
    assert set(log.wrote) == {(n, o) for n, end in ((0, 1000), (1, 5), (2, 9)) for o in range(end)} - bad
    assert sorted(log.aside) == [(0, 3, 4, "defect", True), (0, 999, 1000, "defect", True), (1, 0, 1, "defect", True)]
    assert (portions.set_aside, log.at) == (3, {0: 1000, 1: 5, 2: 9})


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ConflictError("another"), RuntimeError("x")])
def test_what_is_no_records_fault_ends_the_batch_and_sets_nothing_aside(error):
    log, (given, _) = Log(), batch(p0=(0, 10))
    log.error = error
    with pytest.raises(type(error)):
        run(log, given)
    assert len(log.passes) == 1
    assert log.aside == []


def test_what_must_not_be_read_is_read_around_and_set_aside():
    log, (given, reads) = Log(), batch(p0=(0, 2000), p1=(0, 5))
    found = [Unread(Range(1000, 1003), "too_large", "900 MB"), Unread(Range(5000, 5001), "too_large", "later")]
    run(log, given, Poison({0: found, 1: [Unread(Range(4, 9), "unreadable", "odd")]}))
    assert log.aside == [(0, 1000, 1003, "too_large", False), (1, 4, 5, "unreadable", False)]
    assert set(log.wrote) == {(0, o) for o in range(2000) if not 1000 <= o < 1003} | {(1, o) for o in range(4)}
    near = [(wide, unpacked) for ranges, unpacked in reads for n, wide in ranges.items() if n == 0]
    assert near == [(Range(0, 500), None), (Range(500, 1000), 1), (Range(1003, 2000), None)]
    assert all(frame != "whole" for frame, _ in log.passes), "Spark's own frame would unpack it"


def test_an_append_is_named_by_what_it_holds():
    assert same_append("tasks", [(0, 0, 5)], 3) == same_append("tasks", [(0, 0, 5)], 3)
    assert len({same_append("tasks", [(0, 0, end)], 3) for end in range(100)}) == 100


def test_offsets_are_read_from_files_of_a_checkpoint():
    log = 'v1\n{"batchWatermarkMs":0,"conf":{"a":"{b}"}}\n{"tasks":{"0":12,"10":3}}'
    assert offsets_in(log, "tasks") == {0: 12, 10: 3}
    assert offsets_in('\0v1\n{"tasks":{"0":0}}\n', "tasks") == {0: 0}
