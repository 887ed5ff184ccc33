"""What handlers and workers say in words of their progress: on one line, bounded, without secrets, the last word of each."""

import json
from itertools import count

import pytest

from scylla_spark.api.leases.views import SignBody, SyncBody
from scylla_spark.core.access.redaction import Redaction
from scylla_spark.core.leases.messages import Call, Sign
from scylla_spark.core.records.desk_messages import CALL, line, read_request
from scylla_spark.core.tasks.attempt_note import (
    MAX_SAID_NOTE_CHARS,
    WorkNote,
    checked_note,
    fitted_note,
    said_last,
)
from scylla_spark.core.tasks.task import FAILED, Outcome
from scylla_spark.errors import ArgumentError
from scylla_spark.executors.local.received_notes import Heard
from scylla_spark.executors.remote.worker_end import notes_of
from scylla_spark.handlers import call_notes
from scylla_spark.handlers.call_notes import CallNotes
from scylla_spark.handlers.framing import FrameReader
from scylla_spark.services.dispatch.describe import explain
from scylla_spark.services.dispatch.note_redaction import NoteRedaction
from scylla_spark.worker.lease import Lease
from tests.support.http_script import lease_view
from tests.support.invocations import invocation
from tests.support.worker_harness import PullWorld


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("page 3 of 7", "page 3 of 7"),
        ("  a\n\tb\x1b[31m\u202ec\ud800 ", "a b [31m c"),
        ("é" * 500, "é" * 199 + "…"),
        (" " * 1_000_000 + "x", ""),
        ("", ""),
    ],
)
def test_a_note_is_one_line_of_what_can_be_printed_and_fitted_once_stays_as_it_is(said, kept):
    assert fitted_note(said) == kept == fitted_note(kept)


def test_what_is_no_text_is_refused_where_it_is_said():
    for wrong in (7, b"page", ["page"]):
        with pytest.raises(ArgumentError, match="is a text, not"):
            checked_note(wrong)


@pytest.mark.parametrize(
    ("progress", "note", "words"),
    [(0.4, "page 3", "40 %, page 3"), (0.4, None, "40 %"), (None, "page 3", "page 3"), (None, None, "")],
)
def test_progress_in_words(progress, note, words):
    said = said_last(WorkNote(progress=progress, progress_note=note))
    assert said == (f" It said last: {words}." if words else "")


def heard_by_a_pool(said, monkeypatch):
    """The words that a dispatcher is told by a pool of children."""
    return heard_of(lambda notes: notes.progress(0.1, said), monkeypatch)


def told_over_http(said, _monkeypatch):
    """The words that a dispatcher is told by the API, which was told by a leased worker, or a container's."""

    class Told:
        def sign(self, lease, **fields):
            self.fields = {name: json.loads(text) for name, text in fields.items()}

    told = Told()
    Lease(lease_view(1), told).progress(0.1, said)
    body = SyncBody(seq=1, session="s", progress=[SignBody(lease="0.a", **told.fields)])
    (sign,) = read_request(line(CALL, body.call("w")))[1][0].signs
    return sign.note


def told_by_spark(said, monkeypatch):
    """The words that a dispatcher is told by a Spark worker."""
    heard = Heard()
    for record in json.loads(json.dumps(notes_of(1, heard_by_a_pool(said, monkeypatch)))):
        heard.take(record, {1})
    return heard.of(1)


SECRET = "hunter2-S3cr3t-0123456789abcdefghijklmnopqrstuv"


@pytest.mark.parametrize("told", [heard_by_a_pool, told_over_http, told_by_spark])
@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("x" * 155 + " " + SECRET, "x" * 155 + " ***"),
        ("a two  blanks\nsecret", "a ***"),
        ("a two blanks\n\nsecret", "a *** ***"),
        ("a\x1bb " + "padded\tout", "a b ***"),
        ("token =" + " " * 9 + SECRET[:20], "token = ***"),
        ("a " + " " * (MAX_SAID_NOTE_CHARS - 22) + SECRET, "a …"),
        ("a " + " " * (MAX_SAID_NOTE_CHARS - 15) + "two  blanks\nsecret", "a …"),
        ("a " + " " * (MAX_SAID_NOTE_CHARS - 22) + "https://me:pass-word@host", "a …"),
        ("é" * MAX_SAID_NOTE_CHARS, "é" * 199 + "…"),
        (" \n", None),
    ],
)
def test_no_cut_and_no_fold_takes_a_known_secret_past_the_dispatcher(told, said, kept, monkeypatch):
    notes = NoteRedaction()
    notes.redaction = Redaction([SECRET, "two  blanks\nsecret", "padded\tout\n"])
    assert notes.note(told(said, monkeypatch)).progress_note == kept


def heard_of(say, monkeypatch):
    """What the pool knows after a handler has said something, at long intervals or all in one moment."""
    found = []
    for step_us in (1_000_000, 0):
        clock = count(1_000_000_000, step_us)
        monkeypatch.setattr(call_notes, "boot_us", lambda clock=clock: next(clock))
        frames = bytearray()
        notes = CallNotes(1, invocation(), frames.extend)
        say(notes)
        notes.end()
        heard = Heard()
        for records in FrameReader().feed(bytes(frames)):
            for record in records:
                heard.take(record, {1})
        found.append(heard.of(1))
    assert found[0] == found[1]
    return found[0]


def test_the_last_word_holds_until_another_is_said_or_it_is_taken_back(monkeypatch):
    def first(notes):
        notes.progress(0.1, "one")
        notes.progress(0.2)

    def second(notes):
        first(notes)
        notes.progress(0.3, "two")

    def third(notes):
        second(notes)
        notes.progress(0.4, "")

    assert heard_of(first, monkeypatch) == WorkNote(progress=0.2, progress_note="one")
    assert heard_of(second, monkeypatch) == WorkNote(progress=0.3, progress_note="two")
    assert heard_of(third, monkeypatch) == WorkNote(progress=0.4)


def test_secrets_are_taken_out_of_what_handlers_and_workers_say_before_the_engine_knows_it():
    notes = NoteRedaction()
    notes.redaction = Redaction(["hunter-22"])
    note = WorkNote(progress=0.5, progress_note="log in with hunter-22, password=abc")
    assert notes.note(note).progress_note == "log in with ***, password=***"
    plain, said = Outcome(1, FAILED), Outcome(2, FAILED, work=note)
    found = notes.outcomes([plain, said])
    assert (found[0], found[1].work.progress_note) == (plain, "log in with ***, password=***")
    call = notes.call(
        Call(1, "w", signs=(Sign("t", WorkNote.heard(0.5, None, "token: abcdef")), Sign("u", WorkNote())))
    )
    assert [sign.note.progress_note for sign in call.signs] == ["token: ***", None]
    assert notes.note(WorkNote(progress_note="token=a " * 25)).progress_note.endswith("…"), (
        "a mask may be longer than a secret"
    )


def test_what_a_worker_says_in_words_is_in_the_facts_of_its_task():
    world = PullWorld(lease_ms=30_000)
    world.put()
    (lease,) = world.leases(world.once(worker="w"))
    assert world.sign(lease.token, worker="w", progress=0.5, progress_note="page 3") == "ok"
    assert world.sign(lease.token, worker="w", progress=0.6) == "ok"
    assert world.report(lease.token, "yielded", worker="w") == "ok"
    assert (world.facts[-1].work.progress, world.facts[-1].work.progress_note) == (0.6, "page 3")
    (again,) = world.leases(world.once(worker="w"))
    for words in ("page 4", ""):
        assert world.sign(again.token, worker="w", progress_note=words) == "ok"
    assert world.report(again.token, worker="w") == "ok"
    assert (world.facts[-1].work.progress, world.facts[-1].work.progress_note) == (1.0, None)


def test_what_a_worker_says_in_words_over_http_goes_to_a_dispatcher_as_it_was_said():
    body = SyncBody(
        seq=1, session="s", progress=[SignBody(lease="0.a", value=0.5, note="a\n b" * 200), SignBody(lease="0.b")]
    )
    first, second = body.call("w").signs
    assert (first.note.progress_note, second.note.progress_note) == ("a\n b" * 200, None)
    (read,) = read_request(line(CALL, body.call("w")))[1]
    assert [sign.note.progress_note for sign in read.signs] == [first.note.progress_note, None]


def test_explain_says_how_far_a_leased_task_is():
    world = PullWorld(lease_ms=30_000)
    key = world.put()
    (lease,) = world.leases(world.once(worker="w"))
    assert "It said last" not in explain(world.engine, world.now, key)["why"]
    world.sign(lease.token, worker="w", progress=0.5, progress_note="page 3")
    assert explain(world.engine, world.now, key)["why"].endswith(" It said last: 50 %, page 3.")


def test_a_lease_tells_words_with_its_next_heartbeat_as_one_text():
    class Told:
        def __init__(self):
            self.signs = {}

        def sign(self, lease, **fields):
            self.signs |= fields

    told = Told()
    lease = Lease(lease_view(1), told)
    lease.progress(0.4, 'a "b"\n' + "\\" * 300)
    assert told.signs["value"] == "0.4"
    assert fitted_note(json.loads(told.signs["note"])) == 'a "b" ' + "\\" * 193 + "…"
    with pytest.raises(ArgumentError):
        lease.progress(0.4, 7)
