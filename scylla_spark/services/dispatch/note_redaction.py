"""What handlers and workers say in words of their progress, without secrets, as lines of logs are.

It comes as it was said, and is fitted only when the secrets are out of it: one that was cut or folded would not be known.
"""

from __future__ import annotations

from collections.abc import Sequence

from scylla_spark.core.access.redaction import Redaction
from scylla_spark.core.leases.messages import Call
from scylla_spark.core.tasks.attempt_note import MAX_SAID_NOTE_CHARS, WorkNote, fitted_note
from scylla_spark.core.tasks.task import Outcome


class NoteRedaction:
    """Takes secrets out of notes of progress before the engine is told of them; what has no such note costs a look.

    Attributes:
        redaction: knows the secrets.
    """

    def __init__(self) -> None:
        self.redaction = Redaction()

    def note(self, note: WorkNote) -> WorkNote:
        """Returns what a handler says while it runs."""
        return note.reworded(self._text)

    def outcomes(self, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        """Returns how invocations ended."""
        if not any(one.work is not None for one in outcomes):
            return outcomes
        return [one if one.work is None else one._replace(work=self.note(one.work)) for one in outcomes]

    def call(self, call: Call) -> Call:
        """Returns what a worker says."""
        if not call.signs:
            return call
        return call._replace(signs=tuple(sign._replace(note=sign.note.reworded(self._text, "")) for sign in call.signs))

    def _text(self, text: str) -> str:
        is_cut = len(text) >= MAX_SAID_NOTE_CHARS
        line = self.redaction.line(text, is_cut=is_cut)
        return fitted_note(f"{line} …" if is_cut else line)
