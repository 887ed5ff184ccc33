"""Files that attempts leave behind: names, links, how they are stored, and what is told of them."""

from __future__ import annotations

import hashlib
import os
from io import BytesIO
from pathlib import Path

import pytest

from scylla_spark.client.tasks.outputs import outputs_of
from scylla_spark.core.records.fact import Fact, Fence, decode, encode_facts
from scylla_spark.core.tasks.attempt_note import WorkNote
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.output import (
    MAX_OUTPUTS,
    OutputLink,
    OutputTerms,
    is_output_name,
    links_text,
    outputs_place,
    read_link,
    read_links,
)
from scylla_spark.core.tasks.status import attempt_of
from scylla_spark.errors import ArgumentError, ConflictError, NotFoundError
from scylla_spark.executors.local.received_notes import Heard
from scylla_spark.executors.local.report import Report
from scylla_spark.handlers.call_notes import CallNotes
from scylla_spark.handlers.framing import ProtocolError
from scylla_spark.handlers.messages import OUTPUT
from scylla_spark.handlers.outputs import AttemptOutputs
from scylla_spark.io.host.output_files import OutputFiles
from tests.support.invocations import invocation

KEY = TaskKey(1_800_000_000_000_000, "lane/../x", "u")
ROW = invocation(*KEY, attempt=2, timeout_ms=30_000)
DIGEST = "0" * 64
LINK = OutputLink("report.csv", 3, DIGEST, "text/csv")


@pytest.fixture
def outputs(tmp_path):
    return AttemptOutputs(OutputTerms(str(tmp_path), 8, 1_000), ROW)


def stored(tmp_path: Path) -> dict[str, bytes]:
    return {str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_a_folder_is_told_from_another_one_of_its_path(tmp_path):
    folder = OutputFiles(tmp_path / "outputs")
    assert not folder.is_identified("")
    identities = {OutputFiles(folder.root).identity() for _ in range(3)}
    assert identities == {folder.identity()}
    assert folder.is_identified(folder.identity())
    assert OutputFiles(tmp_path / "other").identity() != folder.identity()
    assert [path.name for path in folder.root.iterdir()] == [".identity"]
    assert list(folder.hours()) == []


def test_a_file_is_kept_only_in_the_folder_that_is_meant(tmp_path):
    terms = OutputTerms(str(tmp_path / "outputs"), 8, 1_000, OutputFiles(tmp_path / "outputs").identity())
    assert AttemptOutputs(terms, ROW).write("a.txt", "text", None).bytes == 4
    for elsewhere in (tmp_path / "not_mounted", tmp_path):
        with pytest.raises(ArgumentError, match="not in reach of this machine"):
            AttemptOutputs(terms._replace(folder=str(elsewhere)), ROW).write("a.txt", "text", None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["outputs"]


@pytest.mark.parametrize(
    "name", ["report.csv", "Übersicht 1.pdf", "报告.txt", "a" * 200, "ä" * 100, "%2e%2e", "a;b\"c'd"]
)
def test_names_of_files_may_be_of_any_alphabet(name):
    assert is_output_name(name)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", ".profile", "../x", "a/b", "a\\b", "/etc/passwd", "a\0b", "a\nb", "a" * 201, "ä" * 101, "\ud800", "  ",
     "x\u202egpj.exe", 7, None, b"a"],
)  # fmt: skip
def test_names_that_lead_elsewhere_or_hide_something_are_refused(name, outputs, tmp_path):
    assert not is_output_name(name)
    with pytest.raises(ArgumentError, match="is no name of an output"):
        outputs.write(name, b"x", None)
    assert stored(tmp_path) == {}


def test_a_file_lies_below_partition_and_hour_of_its_task_and_its_link_tells_size_digest_and_type(outputs, tmp_path):
    link = outputs.write("Ü.csv", "a;ü\n", None)
    content = "a;ü\n".encode()
    assert link == OutputLink("Ü.csv", len(content), hashlib.sha256(content).hexdigest(), "text/csv")
    place = outputs_place(KEY, 2, 8)
    assert stored(tmp_path) == {f"{place}/Ü.csv": content}
    partition, hour, digest, attempt = place.split("/")
    assert (int(hour), len(digest), attempt) == (KEY.hour, 32, "2")
    assert list(OutputFiles(tmp_path).hours()) == [(int(partition), KEY.hour)]


def test_bytes_texts_and_files_are_taken_and_nothing_else(outputs, tmp_path):
    source = tmp_path / "source"
    source.write_bytes(b"from a file")
    assert outputs.write("a", source, "x/y").bytes == 11
    assert outputs.write("b", memoryview(b"12"), None).media_type == "application/octet-stream"
    os.mkfifo(tmp_path / "pipe")
    for wrong in (7, None, tmp_path / "pipe", "\ud800"):
        with pytest.raises(ArgumentError):
            outputs.write("c", wrong, None)
    for missing in (tmp_path / "nothing", tmp_path):
        with pytest.raises(OSError, match=r"No such file|directory"):
            outputs.write("c", missing, None)
    with pytest.raises(ArgumentError, match="is no media type"):
        outputs.write("c", b"", "text/html\r\nX: y")
    assert {Path(name).name for name in stored(tmp_path / outputs_place(KEY, 2, 8))} == {"a", "b"}


def test_files_of_an_attempt_are_bounded_together_and_what_is_too_much_leaves_nothing_behind(outputs, tmp_path):
    outputs.write("a", bytes(600), None)
    with pytest.raises(ArgumentError, match="400 are left"):
        outputs.write("b", bytes(401), None)
    assert outputs.write("b", bytes(400), None).bytes == 400
    assert outputs.write("a", bytes(500), None).bytes == 500, "what is replaced does not count"
    assert sorted(map(len, stored(tmp_path).values())) == [400, 500]


@pytest.mark.slow
def test_an_attempt_leaves_no_more_than_some_files_behind(outputs):
    for number in range(MAX_OUTPUTS):
        outputs.write(f"{number}", b"", None)
    outputs.write("7", b"again", None)
    with pytest.raises(ArgumentError, match="more than 50 files"):
        outputs.write("one more", b"", None)


def test_a_thread_that_outlives_its_handler_replaces_nothing(outputs, tmp_path):
    told = []
    notes = CallNotes(1, ROW, told.append, outputs=outputs)
    notes.output("report.txt", b"first", None)
    notes.end()
    with pytest.raises(ArgumentError, match="The attempt is over"):
        notes.output("report.txt", b"second, longer", None)
    assert len(told) == 1
    assert list(stored(tmp_path).values()) == [b"first"]


def test_what_is_written_while_its_handler_ends_replaces_nothing(outputs, tmp_path):
    told = []
    notes = CallNotes(1, ROW, told.append, outputs=outputs)
    notes.output("report.txt", b"first", None)
    with pytest.raises(ArgumentError, match="The attempt is over"):
        notes.output("report.txt", Ending(b"second, longer", notes), None)
    assert len(told) == 1
    assert list(stored(tmp_path).values()) == [b"first"]


class Ending(BytesIO):
    """A content during whose reading the call ends."""

    def __init__(self, content, notes):
        super().__init__(content)
        self._notes = notes

    def read(self, size=-1):
        self._notes.end()
        return super().read(size)


def test_a_draft_replaces_nothing_until_it_is_kept_and_one_that_was_left_goes_with_its_hour(outputs, tmp_path):
    outputs.write("a", b"first", None)
    files, place = OutputFiles(tmp_path), outputs_place(KEY, 2, 8)
    drafts = [files.draft(place, content, 9) for content in (b"second", b"third", b"left")]
    files.drop(drafts[0])
    assert (tmp_path / place / "a").read_bytes() == b"first"
    files.keep(drafts[1], "a")
    files.drop(drafts[1])
    assert sorted(stored(tmp_path).values()) == [b"left", b"third"]
    for hour in files.hours():
        files.remove_hour(*hour)
    assert stored(tmp_path) == {}


def test_a_file_that_was_changed_or_is_gone_or_is_a_link_is_not_read(outputs, tmp_path):
    link = outputs.write("a", b"abc", None)
    files, place = OutputFiles(tmp_path), outputs_place(KEY, 2, 8)
    with files.open(place, "a", link.bytes) as file:
        assert file.read() == b"abc"
    (tmp_path / place / "a").write_bytes(b"abcd")
    with pytest.raises(NotFoundError, match="not the one"):
        files.open(place, "a", 3)
    (tmp_path / place / "a").unlink()
    with pytest.raises(NotFoundError, match="cannot be read here"):
        files.open(place, "a", 3)
    (tmp_path / "secret").write_bytes(b"abc")
    (tmp_path / place / "a").symlink_to(tmp_path / "secret")
    with pytest.raises(NotFoundError, match="cannot be read here"):
        files.open(place, "a", 3)


def test_hours_are_deleted_whole_and_foreign_folders_stay(outputs, tmp_path):
    outputs.write("a", b"abc", None)
    for name in ("notes", "01", "1/x"):
        (tmp_path / name).mkdir(parents=True)
    files = OutputFiles(tmp_path)
    (hour,) = files.hours()
    files.remove_hour(*hour)
    assert list(files.hours()) == []
    assert (tmp_path / "notes").is_dir()
    assert (tmp_path / "1" / "x").is_dir()
    assert list(OutputFiles(tmp_path / "nowhere").hours()) == []


def test_a_copy_is_checked_against_its_digest_and_never_replaces_a_file(outputs, tmp_path):
    note = WorkNote(outputs=links_text([outputs.write("a", b"abc", None)]))
    attempt = attempt_of(Fact(KEY, 2, "failed", work=note))
    (found,) = outputs_of([attempt], KEY, OutputFiles(tmp_path), 8)
    assert (found.attempt, found.name, found.read()) == (2, "a", b"abc")
    copy = found.save(tmp_path / "copies")
    assert copy.read_bytes() == b"abc"
    with pytest.raises(ConflictError, match="is there already"):
        found.save(tmp_path / "copies")
    (tmp_path / outputs_place(KEY, 2, 8) / "a").write_bytes(b"xyz")
    with pytest.raises(ConflictError, match="not what was recorded"):
        found.save(tmp_path / "others")
    assert list((tmp_path / "others").iterdir()) == []


def test_links_stand_in_facts_and_come_back():
    links = [LINK, LINK._replace(name='"ü')]
    fact = Fact(KEY, 1, "succeeded", work=WorkNote(outputs=links_text(links)))
    (record,) = encode_facts(Fence(1, "n"), [fact])
    (found,) = decode(record).facts
    assert attempt_of(found).outputs == tuple(links)


@pytest.mark.parametrize(
    "fields",
    [None, [], ["a", 1, DIGEST], ["../a", 1, DIGEST, "a/b"], ["a", -1, DIGEST, "a/b"], ["a", True, DIGEST, "a/b"],
     ["a", 1, "0" * 63, "a/b"], ["a", 1, DIGEST, "a/b\r\n"], ["a", 1, DIGEST, "text"], ["a", 1.0, DIGEST, "a/b"]],
)  # fmt: skip
def test_what_is_no_link_is_refused_by_the_pool_and_passed_over_by_readers(fields):
    assert read_link(fields) is None
    with pytest.raises(ProtocolError):
        Heard().take([OUTPUT, 1, *(fields or [])], {1})


@pytest.mark.parametrize("text", [None, "", "{", "7", '[7,{"name":"../x"},null]', "[" * 10_000, "x" * 100_000])
def test_texts_that_hold_no_links_give_none(text):
    assert read_links(text) == ()


def test_a_pool_keeps_the_last_link_of_each_name_and_hands_it_on_once():
    heard = Heard()
    for link in (LINK, LINK._replace(name="b"), LINK._replace(bytes=9)):
        heard.take([OUTPUT, 1, *link], {1})
        heard.take([OUTPUT, 2, *link], {1})
    assert set(heard.take_news()) == {1}
    heard.take(["note", 1, 0.5, None, None], {1})
    report = heard.with_report(Report(1, ()))
    assert report.work.progress == 0.5
    assert read_links(report.work.outputs) == (LINK._replace(bytes=9), LINK._replace(name="b"))
    assert heard.with_report(Report(1, ())).work is None


def test_a_child_that_tells_of_too_many_files_is_at_fault():
    heard = Heard()
    for number in range(MAX_OUTPUTS):
        heard.take([OUTPUT, 1, *LINK._replace(name=str(number))], {1})
    with pytest.raises(ProtocolError, match="more outputs"):
        heard.take([OUTPUT, 1, *LINK], {1})
