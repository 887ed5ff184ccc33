"""The record format of the `outcomes` topic: fences, resignations and groups of facts, and the rule that says which count.

A fence *holds* if its epoch exceeds that of all fences before it in the log, and is no leap. A fact *counts* if its
(epoch, nonce) is that of the last holding fence. Log order alone decides, so every reader (owner, ingest, waiting client) comes to
the same answer.

Every record has an envelope that all versions keep: `v`, `kind`, `epoch` and `nonce`. So an older reader knows of a newer
record whether it counts, and a fence or a resignation acts whatever else it says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, Protocol

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from scylla_spark import failpoint
from scylla_spark.core.records import fact_fields, rejection_reason
from scylla_spark.core.records.bounded_text import clean, cut
from scylla_spark.core.tasks.attempt_note import MAX_CHECKPOINT_BYTES, MAX_METRICS_BYTES, WorkNote, fitted_note
from scylla_spark.core.tasks.key import LATEST_US, TaskKey
from scylla_spark.core.tasks.output import MAX_OUTPUTS_BYTES
from scylla_spark.core.tasks.tags import MOST_TAGS, is_tag
from scylla_spark.core.tasks.task import (
    DUPLICATE,
    EXPIRED,
    MAX_RESULT_BYTES,
    TERMINAL,
    TIMED_OUT,
    YIELDED,
    Failure,
    LastError,
)
from scylla_spark.name import is_name

VERSION: Final = 4
"""The newest version of records. 3: a task has expired. 4: a task was a duplicate. A record has the lowest that says what it means."""
FENCE: Final = "fence"
FACTS: Final = "facts"
RESIGN: Final = "resign"
NEWER: Final = "newer"
TOO_LATE: Final = "too_late"  # the answer to a cancel that came after the end or while an attempt runs
MAX_GROUP_BYTES: Final = 512 * 1024  # a record of several facts is no larger than this …
MAX_RECORD_BYTES: Final = 1024 * 1024  # … and none, whatever its one fact holds, larger than this
MAX_READ_BYTES: Final = 4 * 1024 * 1024  # version 1 bounded its records less well
MOST_MARKS: Final = 64 * 1024
"""Commas and opening brackets that a record may have outside of its texts. A group of facts has half as many; parsing holds the
interpreter's lock, and takes as long as there are values."""
_MARKS: Final = (b",", b"[", b"{")
_LOOKED_AT_ONCE: Final = 64 * 1024
MAX_EPOCH_STEP: Final = 2**32  # owners go up by one; a fence that leaps would leave no epoch for the next
_ONLY_WORKER: Final = WorkNote()[1:]
_FACT_CHARS: Final = 250  # of a fact without result and failure
_MAX_KIND_BYTES: Final = 2 * 1024
_MAX_TEXT_BYTES: Final = 64 * 1024
_GO_ON: Final = frozenset({TIMED_OUT, YIELDED})
_COMMON: Final = 2
_WITH_EXPIRED: Final = 3
_FACTS_BEGIN: Final = tuple(
    f'{{"v":{version},"kind":"{FACTS}",'.encode() for version in (_COMMON, _WITH_EXPIRED, VERSION)
)


class Fence(NamedTuple):
    """The mark of one take of a partition: a growing number, and a random text that tells two takers apart."""

    epoch: int
    nonce: str


NO_FENCE: Final = Fence(0, "")


class _Named(Protocol):
    """What is known of a task by who ends it."""

    @property
    def queue(self) -> str: ...
    @property
    def handler(self) -> str | None: ...
    @property
    def tags(self) -> tuple[str, ...]: ...


class Fact(NamedTuple):
    """Something that happened to a task.

    Attributes:
        attempt: number of the attempt it concerns; 0 for a cancel before any.
        outcome: an outcome, "started", or "too_late" (an answer to a cancel).
        started_us: start of the attempt, microseconds since the epoch; 0 if it never began.
        finished_us: its end; 0 for "started".
        planned_us: when the attempt could start at the earliest.
        used: attempts that count against the retry policy, this one included.
        next_us: earliest next start; None where the task ended (or for "started").
        result: JSON text.
        failure: why it failed.
        request_id: the request this answers.
        work: who had it, and what it left behind.
        queue: of the task, where a lease begins, or its end was decided by who had the task; null: not said.
        handler: of the task, likewise.
        tags: of the task, likewise; null also where it has none.
    """

    key: TaskKey
    attempt: int
    outcome: str
    started_us: int = 0
    finished_us: int = 0
    planned_us: int = 0
    used: int = 0
    next_us: int | None = None
    result: str | None = None
    failure: Failure | None = None
    request_id: str | None = None
    work: WorkNote | None = None
    queue: str | None = None
    handler: str | None = None
    tags: tuple[str, ...] | None = None

    def of(self, task: _Named) -> Fact:
        """This fact with what those who are told of ends go by.

        Args:
            task: that it concerns; an empty queue is not known.
        """
        return self._replace(queue=task.queue or None, handler=task.handler, tags=task.tags or None)

    @property
    def brief_error(self) -> LastError | None:
        """Returns why it did not succeed, as the next attempt is told."""
        return self.failure.brief if self.failure is not None else None

    @property
    def terminal(self) -> bool:
        """Returns True if this is the completion of the task."""
        return self.next_us is None and self.outcome in TERMINAL


_NAMES: Final = (
    "time_us",
    "ordering_id",
    "uniqueness_key",
    *Fact._fields[1:],
)  # of the columns of a group, in the order of its facts


class OutcomeRecord(NamedTuple):
    """One decoded record of the `outcomes` topic.

    Attributes:
        fence: who wrote it.
        kind: "fence", "facts", "resign", or "newer" for what only a later version of this program can read.
        facts: for "facts".
        address: for "fence": where the owner serves its state.
        version: for "newer": of its format.
    """

    fence: Fence
    kind: str
    facts: tuple[Fact, ...] = ()
    address: str = ""
    version: int = VERSION


class Unreadable(NamedTuple):
    """Why a record of `outcomes` is none: a short stable code, and a sentence for people."""

    reason: str
    detail: str


class FenceLog:
    """The fence rule, applied in log order to one partition.

    Args:
        fence: the last holding fence before the position from which records will be given.
    """

    __slots__ = ("fence", "resigned")

    def __init__(self, fence: Fence = NO_FENCE) -> None:
        self.fence = fence
        self.resigned = fence == NO_FENCE

    def admit(self, record: OutcomeRecord | Unreadable) -> bool:
        """Takes the next record; says whether it holds (a fence) or counts (facts, resignation, what a newer version wrote)."""
        if isinstance(record, Unreadable):
            return False
        if record.kind == FENCE:
            if not self.fence.epoch < record.fence.epoch <= self.fence.epoch + MAX_EPOCH_STEP:
                return False
            self.fence, self.resigned = record.fence, False
            return True
        counts = record.fence == self.fence != NO_FENCE
        if counts and record.kind == RESIGN:
            self.resigned = True
        return counts


def encode_fence(fence: Fence, address: str, at_us: int) -> bytes:
    """A fence record.

    Args:
        fence: which one.
        address: where the owner serves its state over HTTP; left out if it is too long.
        at_us: when it was written, microseconds since the epoch.
    """
    kept = address if len(address) <= fact_fields.MAX_ADDRESS_CHARS else ""
    return to_json(_envelope(fence, FENCE) | {"address": clean(kept), "at_us": at_us})


def encode_resign(fence: Fence) -> bytes:
    """Says that the owner stopped cleanly: nothing of it runs any more."""
    return to_json(_envelope(fence, RESIGN))


def encode_facts(fence: Fence, facts: Sequence[Fact]) -> list[bytes]:
    """Groups facts into records, in order.

    Returns:
        Records of at most MAX_GROUP_BYTES, or of one fact and at most MAX_RECORD_BYTES: texts of failures are cut to fit.
    """
    return [record for group in _groups(facts) for record in _records(fence, group)]


def _envelope(fence: Fence, kind: str, version: int = _COMMON) -> dict[str, Any]:
    return {"v": version, "kind": kind, "epoch": fence.epoch, "nonce": fence.nonce}


def _groups(facts: Sequence[Fact]) -> Iterator[list[Fact]]:
    """Facts of about as many characters as a record may have bytes."""
    group: list[Fact] = []
    size = 0
    for fact in facts:
        length = _FACT_CHARS if fact.tags is None else _FACT_CHARS + sum(map(len, fact.tags))
        result, failure, work = fact.result, fact.failure, fact.work
        if result is not None or failure is not None or work is not None:
            plain = failure is None and (work is None or (work[1:] == _ONLY_WORKER and _is_fitted_name(work.worker)))
            if not (plain and (result is None or (len(result) <= MAX_RESULT_BYTES and result.isascii()))):
                fact = _fitted(fact)
            length += len(fact.result or "") + sum(map(len, fact.failure or ())) + _note_chars(fact.work)
        if group and size + length > MAX_GROUP_BYTES:
            yield group
            group, size = [], 0
        group.append(fact)
        size += length
    if group:
        yield group


@lru_cache(maxsize=1024)
def _is_fitted_name(worker: str | None) -> bool:
    """Checks that a record can hold this name of a worker unchanged; the facts of Spark workers have few different names."""
    return worker is not None and 0 < len(worker) <= fact_fields.MAX_WORKER_CHARS and clean(worker) == worker


def _note_chars(work: WorkNote | None) -> int:
    return 0 if work is None else 200 + sum(map(len, work.texts))


def _records(fence: Fence, facts: list[Fact]) -> Iterator[bytes]:
    """One record, or more if it has too many bytes: only the encoded text tells how many they are."""
    record = _dump(fence, facts)
    if len(record) <= MAX_GROUP_BYTES or len(facts) == 1:
        yield record
        return
    middle = len(facts) // 2
    yield from _records(fence, facts[:middle])
    yield from _records(fence, facts[middle:])


def _dump(fence: Fence, facts: list[Fact]) -> bytes:
    keys, *others = zip(*facts, strict=True)
    columns: dict[str, Sequence[Any]] = dict(zip(_NAMES, (*zip(*keys, strict=True), *others), strict=True))
    for name in fact_fields.NULLABLE:
        if columns[name].count(None) == len(facts):
            del columns[name]
    for name, most in fact_fields.NUMBERS.items():
        if not any(columns[name]):
            del columns[name]
        elif max(columns[name]) > most or min(columns[name]) < 0:
            columns[name] = [min(max(number, 0), most) for number in columns[name]]
    if "next_us" in columns:
        columns["next_us"] = [at if at is None else min(max(at, 0), LATEST_US - 1) for at in columns["next_us"]]
    if "failure" in columns:
        columns["failure"] = [each and each._asdict() for each in columns["failure"]]
    if "work" in columns:
        fields = {id(each): each and _note_fields(each) for each in columns["work"]}  # many share one note
        columns["work"] = [fields[id(each)] for each in columns["work"]]
    for name in ("queue", "handler"):
        if any(each is not None and not is_name(each) for each in set(columns.get(name, ()))):
            columns[name] = [each if is_name(each) else None for each in columns[name]]
    if "tags" in columns:
        columns["tags"] = [each and [tag for tag in each if is_tag(tag)][:MOST_TAGS] for each in columns["tags"]]
    return to_json(_envelope(fence, FACTS, _version_for(columns["outcome"])) | {"facts": columns})


def _note_fields(work: WorkNote) -> dict[str, Any]:
    """The fields of a note; what came to the format later is left out where it says nothing."""
    fields = work._asdict()
    if work.progress_note is None:
        del fields["progress_note"]
    return fields


def _version_for(outcomes: Sequence[str]) -> int:
    if DUPLICATE in outcomes:
        return VERSION
    return _WITH_EXPIRED if EXPIRED in outcomes else _COMMON


def _fitted(fact: Fact) -> Fact:
    """The fact with texts that fit into one record and into UTF-8, whatever an executor handed over."""
    failure = fact.failure
    if failure is not None:
        kind, message, stack = failure
        failure = Failure(cut(kind, _MAX_KIND_BYTES), cut(message, _MAX_TEXT_BYTES), cut(stack, _MAX_TEXT_BYTES))
    result = fact.result
    if result is not None and len(result) > MAX_RESULT_BYTES:
        failure = failure or Failure("result_too_large", f"A result of {len(result)} characters was not kept.")
        result = None
    elif result is not None:
        result = clean(result)
    return fact._replace(result=result, failure=failure, work=_fitted_note(fact.work))


def _fitted_note(work: WorkNote | None) -> WorkNote | None:
    """The note as it can be stored; whoever takes it from a worker refuses what is too large before."""
    if work is None:
        return None
    lease, progress = work.lease, work.progress
    return WorkNote(
        clean(work.worker)[: fact_fields.MAX_WORKER_CHARS] if work.worker else None,
        clean(lease) if lease and len(lease) <= fact_fields.MAX_LEASE_CHARS else None,
        min(max(work.lease_ms, 0), LATEST_US // 1000),
        min(max(work.since_us, 0), LATEST_US - 1),
        min(max(work.until_us, 0), LATEST_US - 1),
        min(max(progress, 0.0), 1.0) if progress is not None and progress == progress else None,
        _bounded_text(work.checkpoint, MAX_CHECKPOINT_BYTES),
        _bounded_text(work.metrics, MAX_METRICS_BYTES),
        clean(work.isolation)[: fact_fields.MAX_ISOLATION_CHARS] if work.isolation else None,
        _bounded_text(work.outputs, MAX_OUTPUTS_BYTES),
        fitted_note(work.progress_note) or None if work.progress_note else None,
    )


def _bounded_text(text: str | None, most: int) -> str | None:
    return clean(text) if text is not None and len(text) <= most else None


def decode(value: bytes | None) -> OutcomeRecord | Unreadable:
    """Reads a record; never raises, whatever the bytes are: a defect of ours is a reason of its own."""
    try:
        failpoint.reach("judge.fact")
        return _decoded(value)
    except ValidationError as error:
        return Unreadable(*rejection_reason.of_form(error))
    except _Contradiction as error:
        return Unreadable(*rejection_reason.said("wrong_value", str(error)))
    except MemoryError:
        raise  # it says nothing of this record
    except Exception as error:
        return Unreadable(*rejection_reason.of_defect(error))


def is_facts(value: bytes | None) -> bool:
    """Returns True if a record is a group of facts, told without reading it; of what was written by older versions this is not seen."""
    return value is not None and value.startswith(_FACTS_BEGIN)


def readable(record: OutcomeRecord | Unreadable) -> OutcomeRecord | None:
    """None for what cannot be read, where ingest keeps it and nobody else can do anything about it."""
    return None if isinstance(record, Unreadable) else record


class _Contradiction(Exception):
    """Fields that are right one by one do not fit each other."""


def _decoded(value: bytes | None) -> OutcomeRecord | Unreadable:
    if not value:
        return Unreadable("empty", "The record has no value.")
    if len(value) > MAX_READ_BYTES:
        return Unreadable("too_large", f"The record has {len(value)} bytes; {MAX_READ_BYTES} are read.")
    if _has_too_many_marks(value):
        return Unreadable("too_large", f"The record has more than {MOST_MARKS} values.")
    try:  # validators are given objects: of JSON, they copy all of it into their errors
        said = from_json(value, allow_inf_nan=False)
    except ValueError as error:
        return Unreadable(*rejection_reason.said("not_json", f"Invalid JSON: {error}."))
    if value.startswith(_FACTS_BEGIN):  # nearly all
        return _facts(said)
    envelope = fact_fields.read_envelope(said)
    fence, version, kind = Fence(envelope["epoch"], envelope["nonce"]), envelope["v"], envelope.get("kind")
    if version == 1:
        return _version_1(fence, fact_fields.read_version_1(said))
    if kind is None:
        return Unreadable("missing_field", "kind: Field required.")
    if kind == FENCE:
        return OutcomeRecord(fence, FENCE, address=_address(envelope, version))
    if kind == RESIGN:
        return OutcomeRecord(fence, RESIGN)
    if kind == FACTS and version <= VERSION:
        return _facts(said)
    return OutcomeRecord(fence, NEWER, version=version)


def _address(envelope: Any, version: int) -> str:
    """Returns where the owner serves its state; a newer version may say it in another way."""
    try:
        address: str = fact_fields.read_address(envelope.get("address"))
        return address
    except ValidationError:
        if version > VERSION:
            return ""
        raise


def _has_too_many_marks(value: bytes) -> bool:
    """Returns True if a record has more values than any of ours; commas and brackets in texts are counted apart, a piece at a time."""
    if sum(map(value.count, _MARKS)) <= MOST_MARKS:
        return False
    begin = outside = 0
    in_text = False
    while begin < len(value) and outside <= MOST_MARKS:
        piece = value[begin : begin + _LOOKED_AT_ONCE]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:  # what it escapes belongs to it
            piece = value[begin : begin + _LOOKED_AT_ONCE + 1]
        begin += len(piece)
        parts = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        plain = b"".join(parts[in_text::2])
        outside += sum(map(plain.count, _MARKS))
        in_text ^= len(parts) % 2 == 0
    return outside > MOST_MARKS


def _facts(said: Any) -> OutcomeRecord:
    record = fact_fields.read_facts(said)
    columns = record["facts"]
    count = len(columns["time_us"])
    if any(len(column) != count for column in columns.values()):
        raise _Contradiction("facts: The columns differ in length.")
    zeros, nulls = [0] * count, [None] * count
    if "failure" in columns:
        columns["failure"] = [each and Failure(**each) for each in columns["failure"]]
    if "work" in columns:
        columns["work"] = [each and WorkNote(**each) for each in columns["work"]]
    if "tags" in columns:
        columns["tags"] = [tuple(each) if each else None for each in columns["tags"]]
    get = columns.get
    keys = map(TaskKey, columns["time_us"], columns["ordering_id"], columns["uniqueness_key"])
    if not _GO_ON.isdisjoint(columns["outcome"]):
        _check_going_on(columns["outcome"], get("next_us", nulls))
    facts = map(
        Fact,
        keys,
        get("attempt", zeros),
        columns["outcome"],
        get("started_us", zeros),
        get("finished_us", zeros),
        get("planned_us", zeros),
        get("used", zeros),
        get("next_us", nulls),
        get("result", nulls),
        get("failure", nulls),
        get("request_id", nulls),
        get("work", nulls),
        get("queue", nulls),
        get("handler", nulls),
        get("tags", nulls),
    )
    return OutcomeRecord(Fence(record["epoch"], record["nonce"]), FACTS, tuple(facts))


def _version_1(fence: Fence, record: Any) -> OutcomeRecord | Unreadable:
    if "fence" in record:
        return OutcomeRecord(fence, FENCE, address=record["fence"]["address"])
    if "facts" in record:
        facts = [Fact(TaskKey(*row[:3]), *row[3:]) for row in record["facts"]]
        facts = [fact._replace(failure=Failure(*fact.failure)) if fact.failure is not None else fact for fact in facts]
        _check_going_on([fact.outcome for fact in facts], [fact.next_us for fact in facts])
        return OutcomeRecord(fence, FACTS, tuple(facts))
    if "resign" in record:
        return OutcomeRecord(fence, RESIGN)
    return Unreadable("missing_field", "fence, facts or resign: Field required.")


def _check_going_on(outcomes: Sequence[str], nexts: Sequence[int | None]) -> None:
    """What did not end its task says when it goes on, or it would be neither an attempt nor an end."""
    for outcome, next_us in zip(outcomes, nexts, strict=True):
        if outcome in _GO_ON and next_us is None:
            raise _Contradiction(f"facts: {outcome!r} without next_us.")
