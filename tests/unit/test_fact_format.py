"""Records of `outcomes`: what is written reads back, whatever is read gets an answer, and formats grow."""

import json
import random
import time
from pathlib import Path

import pytest

from scylla_spark import failpoint
from scylla_spark.core.records import fact
from scylla_spark.core.records.fact import (
    MAX_GROUP_BYTES,
    MAX_READ_BYTES,
    MAX_RECORD_BYTES,
    Fact,
    Fence,
    OutcomeRecord,
    Unreadable,
    decode,
    encode_facts,
    encode_fence,
    encode_resign,
)
from scylla_spark.core.tasks.attempt_note import WorkNote
from scylla_spark.core.tasks.key import LATEST_US, TaskKey
from scylla_spark.core.tasks.task import MAX_RESULT_BYTES, Failure

KEY = TaskKey(1, "a", "b")
FENCE = Fence(4, "n")
FROZEN = Path(__file__).parents[1] / "formats" / "outcomes_v1"
T = 1_790_000_000_000_000


def frozen_facts():
    """What version 1 was made from."""
    key = TaskKey(T, "cust-9", "inv-17")
    trace = "Traceback (most recent call last):\n  …\nValueError"
    return (
        Fact(key, 1, "started", T + 5, 0, T, 0),
        Fact(key, 1, "failed", T + 5, T + 2_000_000, T, 1, T + 22_000_000, None, Failure("ValueError", 'no such invoice: "é"\n', trace)),
        Fact(key, 2, "timed_out", T + 22_000_001, T + 52_000_000, T + 22_000_000, 2, T + 90_000_000, None,
             Failure("timed_out", "It had not ended after 30 s and was killed.")),
        Fact(key, 3, "yielded", T + 90_000_001, T + 90_000_100, T + 90_000_000, 2, T + 91_000_000),
        Fact(key, 4, "succeeded", T + 91_000_001, T + 91_000_200, T + 91_000_000, 3, None, '{"sent":true,"to":["ä","\\u0001"]}'),
        Fact(TaskKey(T, "cust-9", "inv-18"), 1, "aborted", T + 1, T + 2, T, 1, None, None, Failure("Abort", "gone")),
        Fact(TaskKey(T, "cust-9", "inv-19"), 2, "failed", T + 1, T + 2, T, 2, None, None, Failure("KeyError", "'x'", "stack")),
        Fact(TaskKey(T, "cust-10", "inv-20"), 0, "cancelled", 0, T + 3, 0, 0, None, None, None, "req-1"),
        Fact(key, 4, "too_late", request_id="req-2"),
    )  # fmt: skip


def test_what_version_1_wrote_is_read():
    fence = Fence(3, "0198c0de-aaaa")
    read = {path.stem: decode(path.read_bytes()) for path in FROZEN.iterdir()}
    assert read == {
        "fence": OutcomeRecord(fence, "fence", address="http://127.0.0.1:8123"),
        "resign": OutcomeRecord(fence, "resign"),
        "facts": OutcomeRecord(fence, "facts", frozen_facts()),
    }


def newer_facts():
    """What versions 2 to 4 were made from: leases, notes, files; from version 3 on tasks that expire, in version 4 duplicates."""
    key, trace = TaskKey(T, "cust-9", "inv-17"), WorkNote(checkpoint='{"row":7}', progress=0.5, isolation="sandbox")
    lease = WorkNote("w-1", "d1g3st", 30_000, T, T + 60_000_000, 1.0, None, '{"cpu":1}', None, '[{"name":"a.csv"}]')
    return (
        Fact(key, 1, "started", T + 5, 0, T, 0, work=lease),
        Fact(key, 1, "succeeded", T + 5, T + 9, T, 1, result="null", work=lease, queue="mail", handler="remind"),
        Fact(key._replace(uniqueness_key="inv-18"), 2, "yielded", T + 5, T + 9, T, 1, T + 99, work=trace),
    )


@pytest.mark.parametrize("version", [2, 3, 4])
def test_what_newer_versions_wrote_is_read(version):
    expired = Fact(TaskKey(T, "cust-9", "inv-19"), 0, "expired", finished_us=T + 9, queue="mail")
    duplicate = Fact(
        expired.key, 0, "duplicate", finished_us=T + 9, failure=Failure("duplicate", "Another has its name.")
    )
    facts = (*newer_facts(), *(expired, duplicate)[: version - 2])
    (value,) = encode_facts(Fence(3, "0198c0de-aaaa"), facts)
    frozen = (FROZEN.parent / f"outcomes_v{version}" / "facts.json").read_bytes()
    assert json.loads(frozen)["v"] == version
    assert decode(frozen) == decode(value) == OutcomeRecord(Fence(3, "0198c0de-aaaa"), "facts", facts)


def test_words_on_progress_are_a_field_that_only_notes_with_words_have_and_older_readers_leave_out():
    facts = [
        Fact(KEY, 1, "started", T, work=WorkNote(progress=0.5, progress_note=words))
        for words in (None, "page 3", "a\n" * 500)
    ]
    (value,) = encode_facts(FENCE, facts)
    notes = json.loads(value)["facts"]["work"]
    assert [one.get("progress_note", ...) for one in notes] == [..., "page 3", "a " * 99 + "a…"]
    assert [one.work.progress_note for one in decode(value).facts] == [None, "page 3", "a " * 99 + "a…"]
    assert json.loads(value)["v"] == 2, "readers of that version ignore fields that they do not know"


def test_what_is_written_reads_back_as_it_was():
    (value,) = encode_facts(FENCE, frozen_facts())
    assert decode(value) == OutcomeRecord(FENCE, "facts", frozen_facts())
    assert decode(encode_fence(FENCE, "http://x", 5)) == OutcomeRecord(FENCE, "fence", address="http://x")
    assert decode(encode_resign(FENCE)) == OutcomeRecord(FENCE, "resign")
    assert encode_facts(FENCE, []) == []


def test_the_first_fact_of_all_reads_back():
    (value,) = encode_facts(FENCE, [Fact(TaskKey(0, "a", "b"), 0, "cancelled")])
    assert decode(value).facts == (Fact(TaskKey(0, "a", "b"), 0, "cancelled"),)


def test_every_record_names_its_version_kind_and_fence():
    values = [*encode_facts(FENCE, frozen_facts()), encode_fence(FENCE, "", 5), encode_resign(FENCE)]
    envelopes = [{name: json.loads(value)[name] for name in ("v", "kind", "epoch", "nonce")} for value in values]
    assert envelopes == [{"v": 2, "kind": kind, "epoch": 4, "nonce": "n"} for kind in ("facts", "fence", "resign")]


def changed(**fields):
    """A record of one fact with some fields of its envelope changed, or left out (...), in another order than ours."""
    (value,) = encode_facts(FENCE, [Fact(KEY, 1, "succeeded", 2, 3, 1, 1)])
    record = dict(reversed(json.loads(value).items())) | fields
    return json.dumps({name: field for name, field in record.items() if field is not ...}).encode()


def facts_with(**columns):
    """The same with other columns, or without (...)."""
    return changed(facts={name: c for name, c in (json.loads(changed())["facts"] | columns).items() if c is not ...})


def test_unknown_fields_are_ignored():
    assert decode(facts_with(colour=["blue"], weight=7)) == decode(changed(mood="good")) == decode(changed())
    assert decode(changed()).facts == (Fact(KEY, 1, "succeeded", 2, 3, 1, 1),)


@pytest.mark.parametrize(
    "value",
    [changed(v=5), changed(v=10**300, facts=5), changed(kind="lease"), changed(v=5, kind="lease", facts=...)],
)
def test_a_record_of_a_newer_version_is_told_from_nonsense(value):
    record = decode(value)
    assert (record.fence, record.kind, record.facts) == (FENCE, "newer", ())
    assert record.version == json.loads(value)["v"]


@pytest.mark.parametrize("address", ["http://x", 5, ..., {"host": "x"}])
def test_a_fence_of_a_newer_version_is_one(address):
    known = address if isinstance(address, str) else ""
    assert decode(changed(v=5, kind="fence", address=address)) == OutcomeRecord(FENCE, "fence", address=known)
    assert decode(changed(v=5, kind="resign")) == OutcomeRecord(FENCE, "resign")


BAD = {
    "nothing": (b"", "empty"),
    "a tombstone": (None, "empty"),
    "too large": (b" " * MAX_READ_BYTES + changed(), "too_large"),
    "junk": (b"junk", "not_json"),
    "bad UTF-8": (changed(nonce="XX").replace(b"XX", b"\xc3\x28"), "not_json"),
    "deep": (b"[" * 10_000, "not_json"),
    "too many values": (changed(junk="@").replace(b'"@"', b"[" + b"[1]," * 262_000 + b"1]"), "too_large"),
    "too many columns of too many values": (b'{"v":2,"kind":"facts","facts":{"time_us":[' + b"{}," * 340_000 + b"0]}}", "too_large"),
    "NaN": (changed(epoch="@").replace(b'"@"', b"NaN"), "not_json"),
    "an endless number": (changed(epoch="@").replace(b'"@"', b"9" * 5000), "not_json"),
    "a list": (b"[]", "wrong_value"),
    "no version": (changed(v=...), "missing_field"),
    "version 0": (changed(v=0), "wrong_value"),
    "a text as version": (changed(v="2"), "wrong_value"),
    "no kind": (changed(kind=...), "missing_field"),
    "no kind, newer": (changed(v=5, kind=...), "missing_field"),
    "epoch 0": (changed(epoch=0), "wrong_value"),
    "an epoch beyond all": (changed(epoch=2**63), "wrong_value"),
    "a fraction as epoch": (changed(epoch=1.5), "wrong_value"),
    "an empty nonce": (changed(nonce=""), "wrong_value"),
    "a long nonce": (changed(nonce="n" * 201), "wrong_value"),
    "an address that is none": (changed(kind="fence", address=5), "wrong_value"),
    "no facts": (changed(facts=...), "missing_field"),
    "facts in a list": (changed(facts=[]), "wrong_value"),
    "facts without outcomes": (facts_with(outcome=...), "missing_field"),
    "columns of two lengths": (facts_with(attempt=[1, 2]), "wrong_value"),
    "columns without rows": (facts_with(time_us=[]), "wrong_value"),
    "an instant before all": (facts_with(time_us=[-1]), "wrong_value"),
    "an instant after all": (facts_with(time_us=[LATEST_US]), "wrong_value"),
    "a fraction as instant": (facts_with(started_us=[1.5]), "wrong_value"),
    "a truth as instant": (facts_with(finished_us=[True]), "wrong_value"),
    "a next start after all": (facts_with(next_us=[2**63]), "wrong_value"),
    "an unknown outcome": (facts_with(outcome=["exploded"]), "wrong_value"),
    "an attempt that no table counts": (facts_with(attempt=[2**31]), "wrong_value"),
    "a negative count": (facts_with(used=[-1]), "wrong_value"),
    "a number as lane": (facts_with(ordering_id=[7]), "wrong_value"),
    "an empty lane": (facts_with(ordering_id=[""]), "wrong_value"),
    "a long key": (facts_with(uniqueness_key=["x" * 1025]), "wrong_value"),
    "a lone surrogate": (facts_with(uniqueness_key=["\ud800"]), "not_json"),
    "an object as result": (facts_with(result=[{}]), "wrong_value"),
    "a text as failure": (facts_with(failure=["bad"]), "wrong_value"),
    "half a failure": (facts_with(failure=[{"kind": "x"}]), "missing_field"),
    "neither end nor attempt": (facts_with(outcome=["yielded"]), "wrong_value"),
    "version 1 of no kind": (b'{"v":1,"epoch":1,"nonce":"n"}', "missing_field"),
    "version 1, epoch as text": (b'{"v":1,"epoch":"x","nonce":"n","facts":[]}', "wrong_value"),
    "version 1, half a fact": (b'{"v":1,"epoch":1,"nonce":"n","facts":[[1,"a","b"]]}', "missing_field"),
    "version 1, wrong types": (b'{"v":1,"epoch":1,"nonce":"n","facts":[[1,"a","b",1,"failed",0,0,0,0,"x",null,5,null]]}', "wrong_value"),
    "version 1, a fence that is none": (b'{"v":1,"epoch":1,"nonce":"n","fence":5}', "wrong_value"),
}  # fmt: skip


@pytest.mark.parametrize(("value", "reason"), BAD.values(), ids=BAD.keys())
def test_nonsense_is_unreadable_for_a_reason(value, reason):
    record = decode(value)
    assert isinstance(record, Unreadable)
    assert record.reason == reason
    assert 0 < len(record.detail) <= 500


def test_a_defect_of_ours_is_a_reason_with_its_stack(monkeypatch):
    monkeypatch.setattr(failpoint, "armed", failpoint.parse("judge.fact:raise"))
    record = decode(changed())
    assert record.reason == "defect"
    assert "InjectedFault" in record.detail


def test_tags_of_a_task_go_with_its_end_and_the_version_stays():
    """An older reader leaves out what it does not know, and nothing that it tells depends on tags."""
    ends = (Fact(KEY, 1, "succeeded", tags=("night", "eu")), Fact(KEY._replace(uniqueness_key="c"), 1, "failed"))
    (value,) = encode_facts(FENCE, ends)
    assert (json.loads(value)["v"], decode(value).facts) == (2, ends)
    (value,) = encode_facts(FENCE, [Fact(KEY, 1, "succeeded", tags=(" no tag", "a"))])
    assert decode(value).facts[0].tags == ("a",)


# -- sizes --------------------------------------------------------------------------------------------------------------

WORST = ("\x01", "😀", "\\", "é", "\ud800")


@pytest.mark.parametrize("letter", WORST)
def test_one_fact_always_fits(letter):
    name = "\x01" if letter == "\ud800" else letter  # a name cannot hold a lone surrogate
    key = TaskKey(LATEST_US - 1, name * 1024, name * 1024)
    failure = Failure(letter * 100_000, letter * 500_000, letter * 500_000)
    fact = Fact(key, 2**31 - 1, "failed", T, T, T, 7, T, letter * MAX_RESULT_BYTES, failure, name * 1024)
    fact = fact._replace(tags=tuple(f"{number:02}" + "😀" * 62 for number in range(16)))
    (value,) = encode_facts(Fence(2**62, "n" * 200), [fact])
    assert len(value) <= MAX_RECORD_BYTES
    (read,) = decode(value).facts
    assert (read.key, read.request_id, read.tags) == (fact.key, fact.request_id, fact.tags)
    assert read.failure.message.count("[...]") == read.failure.stack.count("[...]") == 1


def test_a_failure_keeps_both_ends():
    (value,) = encode_facts(FENCE, [Fact(KEY, 1, "failed", failure=Failure("E", "begin" + "\x01" * 20_000 + "end"))])
    message = decode(value).facts[0].failure.message
    assert message.startswith("begin\x01")
    assert message.endswith("\x01end")


def test_a_usual_failure_is_not_cut():
    fact = Fact(KEY, 1, "failed", failure=Failure("E", "m" * 16_384, 'File "x", line 1\n' * 900))
    assert decode(encode_facts(FENCE, [fact])[0]).facts == (fact,)


def test_a_result_that_no_executor_may_return_is_left_out_with_a_word():
    (value,) = encode_facts(FENCE, [Fact(KEY, 1, "succeeded", result="x" * (MAX_RESULT_BYTES + 1))])
    (read,) = decode(value).facts
    assert read.result is None
    assert read.failure.kind == "result_too_large"


@pytest.mark.slow
@pytest.mark.parametrize("letter", WORST)
def test_groups_are_split_by_encoded_bytes_in_order(letter):
    name = "\x01" if letter == "\ud800" else letter
    facts = [Fact(TaskKey(n, name * 1024, f"{n}"), 1, "succeeded", result=name * (n * 40)) for n in range(400)]
    values = encode_facts(FENCE, facts)
    assert len(values) > 1
    assert max(map(len, values)) <= MAX_GROUP_BYTES
    assert [fact for value in values for fact in decode(value).facts] == facts


@pytest.mark.parametrize("number", [-1, 2**31, LATEST_US, 2**63, 10**30])
def test_a_number_that_nobody_could_store_does_not_make_a_record_unreadable(number):
    fact = Fact(KEY, number, "failed", number, number, number, number, number)
    record = decode(encode_facts(FENCE, [fact, fact._replace(next_us=None)])[0])
    assert [each.key for each in record.facts] == [KEY, KEY]
    assert all(0 <= each.finished_us < LATEST_US for each in record.facts)
    assert record.facts[1].terminal


def test_texts_of_facts_may_hold_any_number_of_commas_and_brackets():
    facts = [Fact(KEY._replace(time_us=n), 1, "succeeded", result="[" + "1,[{" * 16_000 + '\\"') for n in range(7)]
    (value,) = encode_facts(FENCE, facts)
    assert value.count(b",") > fact.MOST_MARKS
    record = decode(value)
    assert isinstance(record, OutcomeRecord)
    assert [one.result for one in record.facts] == [one.result for one in facts]


def test_what_is_outside_of_texts_is_counted_whatever_the_pieces_are(monkeypatch):
    chance = random.Random(7)
    for _ in range(300):
        value = json.dumps(
            [chance.choice(("\\", '"', '\\"', ",[{", "a")) * chance.randrange(5) for _ in range(9)]
        ).encode()
        outside = 9  # an opening bracket and eight commas
        monkeypatch.setattr(fact, "_LOOKED_AT_ONCE", chance.randrange(1, 12))
        monkeypatch.setattr(fact, "MOST_MARKS", outside)
        assert not fact._has_too_many_marks(value), value
        monkeypatch.setattr(fact, "MOST_MARKS", outside - 1)
        assert fact._has_too_many_marks(value), value


def test_no_record_of_two_megabytes_holds_the_interpreter_for_long():
    for name, (value, _) in BAD.items():
        assert min(cpu_seconds(decode, value) for _ in range(3)) < 0.05, name


def cpu_seconds(work, value):
    begun = time.thread_time()
    work(value)
    return time.thread_time() - begun
