"""What a child says of a finished call, read strictly: a child runs user code, which may write what it likes."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from pydantic_core import from_json

from scylla_spark.core.tasks.attempt_note import MAX_CHECKPOINT_BYTES, WorkNote, bounded_note
from scylla_spark.core.tasks.follow_up import KINDS, MAX_FOLLOW_UP_CHARS, MAX_NAME_CHARS, FollowUp
from scylla_spark.core.tasks.kept_json import check_levels, size_of
from scylla_spark.core.tasks.key import LATEST_US
from scylla_spark.core.tasks.output import OutputLink, read_link
from scylla_spark.core.tasks.task import (
    ABORTED,
    FAILED,
    MAX_ERROR_CHARS,
    MAX_RESULT_BYTES,
    SUCCEEDED,
    TIMED_OUT,
    YIELDED,
    Failure,
)
from scylla_spark.handlers.call import clean, failed
from scylla_spark.handlers.framing import ProtocolError
from scylla_spark.handlers.messages import BATCH, EXTEND, FOLLOW_UP, NOTE, OUTPUT, RETURNED, CallRecord

_FIELDS: Final = len(CallRecord._fields)
_MAX_US: Final = 1 << 62
_MAX_WAIT_MS: Final = 36_525 * 86_400_000  # as for any duration: a century
_SAYS: Final = frozenset({NOTE, FOLLOW_UP, EXTEND, OUTPUT})
_OUTCOMES: Final = frozenset({SUCCEEDED, YIELDED, FAILED, ABORTED})


class TaskEnd(NamedTuple):
    """How one task of a call ended: a verdict, checked."""

    outcome: str
    result: str | None
    failure: Failure | None
    after_ms: int


class Report(NamedTuple):
    """A record of a child, checked.

    Attributes:
        number: of the call, from 1.
        verdicts: one per task of the call; none if the child hands the call back unrun.
        started_us: wall clock.
        duration_us: from start to end.
        work: how far it was, and what it left behind; told before, and put in by whoever kept it.
        follow_ups: what it asked to be sent; likewise.
    """

    number: int
    verdicts: tuple[TaskEnd, ...]
    started_us: int = 0
    duration_us: int = 0
    work: WorkNote | None = None
    follow_ups: tuple[FollowUp, ...] = ()


PLAIN_SUCCESS: Final = (TaskEnd(SUCCEEDED, None, None, 0),)
"""Verdicts of a call of one task that succeeded without a result."""


def read(record: object, *, timed_out: bool = False) -> Report:
    """The report that a `CallRecord` stands for.

    Results and texts of errors that are too long are cut or replaced here, as the child should have done.

    Args:
        record: from the wire.
        timed_out: whether it comes from a worker, which kills what takes too long; a child cannot say that of itself.

    Raises:
        ProtocolError: it is not of the form that our children send.
    """
    if type(record) is not list or len(record) != _FIELDS:
        raise ProtocolError(f"a record that is no list of {_FIELDS} fields")
    number, outcome, started, duration, result, failure, after_ms = record
    if type(number) is not int or not 1 <= number <= _MAX_US:
        raise ProtocolError("a call number that is no number from 1")
    if outcome == RETURNED:
        return Report(number, ())
    if (
        type(started) is not int
        or type(duration) is not int
        or not (0 <= started <= _MAX_US and 0 <= duration <= _MAX_US)
    ):
        raise ProtocolError("a start or a duration that is no number from 0")
    if outcome == SUCCEEDED and result is None and failure is None and after_ms == 0:
        return Report(number, PLAIN_SUCCESS, started, duration)  # nearly all are like this: no time to lose
    if outcome != BATCH:
        return Report(number, (_verdict([outcome, result, failure, after_ms], timed_out=timed_out),), started, duration)
    if type(result) is not list:
        raise ProtocolError("a batch without a list of outcomes")
    return Report(number, tuple(map(_verdict, result)), started, duration)


def is_note(record: object) -> bool:
    """Returns True if a child says something of a call that runs, and not that it has ended."""
    return type(record) is list and len(record) > 0 and type(record[0]) is str and record[0] in _SAYS


def is_follow_up(record: list[Any]) -> bool:
    """Returns True if what a child says of a call that runs is a follow-up."""
    return bool(record[0] == FOLLOW_UP)


def is_output(record: list[Any]) -> bool:
    """Returns True if what a child says of a call that runs is that it has stored a file."""
    return bool(record[0] == OUTPUT)


def read_output(record: list[Any]) -> tuple[int, OutputLink]:
    """The number of a call that runs, and the link to a file that it has stored.

    Raises:
        ProtocolError: it is not of the form that our children send.
    """
    number, link = record[1] if len(record) > 1 else None, read_link(record[2:])
    if type(number) is not int or not 1 <= number <= _MAX_US:
        raise ProtocolError("a call number that is no number from 1")
    if link is None:
        raise ProtocolError("a link to no output")
    return number, link


def is_extension(record: list[Any]) -> bool:
    """Returns True if what a child says of a call that runs is that it needs longer."""
    return bool(record[0] == EXTEND)


def read_extension(record: list[Any]) -> tuple[int, int]:
    """The number of a call that runs, and until when it wants to, in milliseconds from its start.

    Raises:
        ProtocolError: it is not of the form that our children send.
    """
    if len(record) != 3:
        raise ProtocolError("an extension that is no list of 3 fields")
    _, number, asked_ms = record
    if type(number) is not int or not 1 <= number <= _MAX_US:
        raise ProtocolError("a call number that is no number from 1")
    if type(asked_ms) is not int or not 0 <= asked_ms <= _MAX_US:
        raise ProtocolError("an extension that is no number of milliseconds")
    return number, asked_ms


def read_follow_up(record: list[Any]) -> tuple[int, FollowUp]:
    """The number of a call that runs, and what it asks to be sent; its record is judged by whoever sends it.

    Raises:
        ProtocolError: it is not of the form that our children send.
    """
    if len(record) != 2 + len(FollowUp._fields):
        raise ProtocolError("a follow-up that has not the right number of fields")
    _, number, kind, name, text, delay_us, at_us = record
    if type(number) is not int or not 1 <= number <= _MAX_US:
        raise ProtocolError("a call number that is no number from 1")
    if type(kind) is not str or kind not in KINDS:
        raise ProtocolError("a follow-up of no kind")
    if type(name) is not str or not 0 < len(name) <= MAX_NAME_CHARS:
        raise ProtocolError("a follow-up without a name")
    if type(text) is not str or len(text) > MAX_FOLLOW_UP_CHARS:
        raise ProtocolError("a follow-up without a record")
    if not all(type(us) is int and 0 <= us < LATEST_US for us in (delay_us, at_us)):
        raise ProtocolError("a follow-up at no time")
    return number, FollowUp(kind, name, text, delay_us, at_us)


def read_note(record: list[Any]) -> tuple[int, WorkNote]:
    """The number of a call that runs, and what it says of its work.

    Raises:
        ProtocolError: it is not of the form that our children send.
    """
    if len(record) != 5:
        raise ProtocolError("a note that is no list of 5 fields")
    _, number, progress, checkpoint, words = record
    if type(number) is not int or not 1 <= number <= _MAX_US:
        raise ProtocolError("a call number that is no number from 1")
    if progress is not None and not (type(progress) in (int, float) and 0 <= progress <= 1):
        raise ProtocolError("a progress that is no number from 0 to 1")
    if checkpoint is not None and not (type(checkpoint) is str and _is_checkpoint(checkpoint)):
        raise ProtocolError("a checkpoint that is no JSON object of 64 KiB")
    if words is not None and type(words) is not str:
        raise ProtocolError("a note of progress that is no text")
    progress = None if progress is None else float(progress)
    return number, WorkNote.heard(progress, checkpoint, None if words is None else bounded_note(words))


def _is_checkpoint(text: str) -> bool:
    try:
        if len(text) > MAX_CHECKPOINT_BYTES or len(text.encode()) > MAX_CHECKPOINT_BYTES or text[:1] != "{":
            return False
        _check_json(text)
    except ValueError:
        return False
    return True


def _verdict(row: Any, *, timed_out: bool = False) -> TaskEnd:
    if type(row) is not list or len(row) != 4:
        raise ProtocolError("an outcome that is no list of four fields")
    outcome, result, failure, after_ms = row
    if type(outcome) is not str or not (outcome in _OUTCOMES or (timed_out and outcome == TIMED_OUT)):
        raise ProtocolError("an outcome that does not exist")
    if type(after_ms) is not int or not 0 <= after_ms <= _MAX_WAIT_MS:
        raise ProtocolError("a wait that is no number of milliseconds")
    if outcome != YIELDED and (failure is None) is not (outcome == SUCCEEDED):
        raise ProtocolError("a failure of what did not fail, or none of what did")
    if result is not None:
        return _with_result(result, outcome)
    return TaskEnd(outcome, None, None if failure is None else _failure(failure), after_ms)


def _with_result(text: object, outcome: str) -> TaskEnd:
    if type(text) is not str or outcome != SUCCEEDED:
        raise ProtocolError("a result that is no text, or of what did not succeed")
    wrong = _flaw(text)
    if wrong is None:
        return TaskEnd(SUCCEEDED, text, None, 0)
    why = failed(*wrong).failure
    assert why is not None
    return TaskEnd(FAILED, None, Failure(*why), 0)


def _flaw(text: str) -> tuple[str, str] | None:
    """Returns why a result cannot be kept, as kind and message; None if it can."""
    try:
        size = size_of(text)
        if size > MAX_RESULT_BYTES:
            return "result_too_large", f"The result has {size} bytes; at most {MAX_RESULT_BYTES} are kept."
        _check_json(text)
    except ValueError:
        return "result_not_serialisable", "The child process handed over a result that is not JSON."
    return None


def _check_json(text: str) -> None:
    from_json(text, allow_inf_nan=False)
    check_levels(text)


def _failure(texts: Any) -> Failure:
    if type(texts) is not list or len(texts) != 3 or not all(type(text) is str for text in texts):
        raise ProtocolError("a failure that is not three texts")
    kind, message, stack = texts
    return Failure(clean(kind[:200]), clean(message[:MAX_ERROR_CHARS]), clean(stack[:MAX_ERROR_CHARS]))
