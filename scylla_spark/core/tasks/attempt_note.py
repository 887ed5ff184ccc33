"""What is known of the work on an attempt besides how it ended: who has it until when, how far it is, where it can go on."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from scylla_spark.errors import ArgumentError, shown
from scylla_spark.visible import on_one_line

MAX_CHECKPOINT_BYTES: Final = 64 * 1024
MAX_METRICS_BYTES: Final = 16 * 1024
MAX_PROGRESS_NOTE_CHARS: Final = 200
MAX_SAID_NOTE_CHARS: Final = 10 * MAX_PROGRESS_NOTE_CHARS
"""So much of a note goes to the dispatcher, which takes secrets out before it fits the text; a longer one is cut."""
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def checked_progress(value: object) -> float:
    """Returns what a handler says of how far it is, wherever it runs, as a number from 0 to 1.

    Args:
        value: as the handler gives it.

    Raises:
        ArgumentError: it is no such number.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ArgumentError(f"Progress {shown(value)} is no number from 0 to 1.", hint="Pass 0.4 for 40 %.")
    return float(value)


def checked_note(text: object) -> str:
    """Returns what a handler says in words of what it is at, wherever it runs, as it goes to its dispatcher.

    Args:
        text: as the handler gives it.

    Raises:
        ArgumentError: it is no text.
    """
    if not isinstance(text, str):
        raise ArgumentError(
            f"A note of progress is a text, not a {type(text).__name__}.", hint='Such as "page 3 of 7".'
        )
    return bounded_note(text)


def bounded_note(text: str) -> str:
    """The beginning of a text, as it was written, but for halves of characters, which could not be sent.

    It is not fitted yet, because a secret that was cut or folded would no longer be known for one.

    Args:
        text: whatever foreign code says.

    Returns:
        At most `MAX_SAID_NOTE_CHARS` characters; the text was cut if there are so many.
    """
    said = text[:MAX_SAID_NOTE_CHARS]
    return said if said.isascii() else _SURROGATE.sub(" ", said)


def fitted_note(text: str) -> str:
    """The text on one line, of printable characters, at most 200 of them; what is fitted stays as it is.

    Args:
        text: whatever foreign code says.
    """
    words = on_one_line(text[:MAX_SAID_NOTE_CHARS])
    return words if len(words) <= MAX_PROGRESS_NOTE_CHARS else words[: MAX_PROGRESS_NOTE_CHARS - 1] + "…"


class _Progress(Protocol):
    """The progress of an attempt, as notes and attempts hold it."""

    @property
    def progress(self) -> float | None: ...
    @property
    def progress_note(self) -> str | None: ...


def said_last(one: _Progress) -> str:
    """Progress as a sentence that follows another, such as " It said last: 40 %, loading page 3."; empty: none is known."""
    percent = "" if one.progress is None else f"{one.progress * 100:.0f} %"
    told = ", ".join(part for part in (percent, one.progress_note or "") if part)
    return f" It said last: {told}." if told else ""


def read_said(value: Mapping[str, Any]) -> dict[str, Any]:
    """The fields `SAID` of an attempt, as any program may have sent them: those that are of the right form."""
    worker, progress, words = (value.get(name) for name in SAID)
    said: dict[str, Any] = {"worker": worker} if isinstance(worker, str) else {}
    if isinstance(progress, int | float) and 0 <= progress <= 1:
        said["progress"] = float(progress)
    return said | ({"progress_note": fitted_note(words) or None} if isinstance(words, str) else {})


SAID: Final = ("worker", "progress", "progress_note")
"""Fields of a note that a dispatcher reports of an attempt under way."""
COLUMNS: Final = ("isolation", "outputs", "progress_note")
"""Fields of a note that have columns of their own, because structs of tables do not grow; the others are in the column `work`."""


class WorkNote(NamedTuple):
    """A note on an attempt; stands in facts, in tables, and in memory while the task is open.

    Attributes:
        worker: name of the worker that leased the task, or executor and host of the Spark worker that ran it.
        lease: digest of the lease's token; None: not a lease.
        lease_ms: how long the lease lasts after each sign of life.
        since_us: when it was given, microseconds since the epoch. Without a lease: see `decided_us`.
        until_us: how long it can be kept at most, microseconds since the epoch.
        progress: from 0 to 1.
        checkpoint: JSON text from which the next attempt can go on.
        metrics: JSON text that the worker reported.
        isolation: level at which the attempt ran, where its handler asks for one; None: it asks for none.
        outputs: JSON text of links to the files that the attempt left behind (see `core.tasks.output`); None: there are none.
        progress_note: in words, what the work is at (see `fitted_note`); None: nobody has said. From an executor to its
            dispatcher it goes as it was said (see `bounded_note`).
    """

    worker: str | None = None
    lease: str | None = None
    lease_ms: int = 0
    since_us: int = 0
    until_us: int = 0
    progress: float | None = None
    checkpoint: str | None = None
    metrics: str | None = None
    isolation: str | None = None
    outputs: str | None = None
    progress_note: str | None = None

    @property
    def texts(self) -> list[str]:
        """All texts of the note, for its size."""
        return [value for value in self if isinstance(value, str)]

    @property
    def said(self) -> dict[str, Any]:
        """The fields `SAID`."""
        return {name: getattr(self, name) for name in SAID}

    @classmethod
    def heard(cls, progress: float | None, checkpoint: str | None, words: str | None) -> WorkNote:
        """A note with what an attempt says while it runs; None: it says nothing new.

        Args:
            progress: from 0 to 1.
            checkpoint: JSON text.
            words: what it is at; empty words take back earlier ones.
        """
        return cls(progress=progress, checkpoint=checkpoint, progress_note=words)

    @property
    def heard_fields(self) -> tuple[float | None, str | None, str | None]:
        """The arguments of `heard`."""
        return self.progress, self.checkpoint, self.progress_note

    def then(self, later: WorkNote) -> WorkNote:
        """This note with what the attempt has said since; see `heard`."""
        words = self.progress_note if later.progress_note is None else later.progress_note or None
        return self._replace(
            progress=self.progress if later.progress is None else later.progress,
            checkpoint=self.checkpoint if later.checkpoint is None else later.checkpoint,
            progress_note=words,
        )

    def reworded(self, change: Callable[[str], str], empty: str | None = None) -> WorkNote:
        """This note with other words for the progress, or `empty` if `change` leaves none; the note itself where it has none."""
        return self._replace(progress_note=change(self.progress_note) or empty) if self.progress_note else self

    @property
    def decided_us(self) -> int:
        """Returns when an attempt had succeeded whose follow-ups were to be sent then, microseconds since the epoch; 0: none had.

        It counts for all later attempts, so that these send the same follow-ups under the same keys.
        """
        return self.since_us if self.lease is None else 0

    def going_on(self) -> WorkNote | None:
        """Returns what the next attempt is to know; None: nothing."""
        if self.checkpoint is None and not self.decided_us:
            return None
        return WorkNote(since_us=self.decided_us, checkpoint=self.checkpoint)

    def after(self, before: WorkNote | None) -> WorkNote:
        """This note, with what an earlier attempt left behind where this one says nothing newer.

        Args:
            before: what `going_on` said of the earlier attempt.
        """
        if before is None:
            return self
        checkpoint = self.checkpoint if self.checkpoint is not None else before.checkpoint
        return self._replace(since_us=self.since_us or before.since_us, checkpoint=checkpoint)
