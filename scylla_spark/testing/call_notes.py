"""What a handler says while it is called in this process, heard as a pool hears its children."""

from __future__ import annotations

from scylla_spark.core.records import fast_json
from scylla_spark.core.tasks.attempt_note import WorkNote, fitted_note
from scylla_spark.core.tasks.follow_up import FollowUp
from scylla_spark.core.tasks.task import Invocation
from scylla_spark.executors.local.received_notes import Heard
from scylla_spark.executors.local.report import Report, is_extension
from scylla_spark.handlers.call_notes import CallNotes
from scylla_spark.handlers.framing import FrameReader
from scylla_spark.handlers.outputs import WritesOutputs

_NUMBER = 1


class HeardCall:
    """One call, and what it says.

    Args:
        item: its invocation.
        outputs: stores its files; None: nobody does.

    Attributes:
        notes: where the handler says it.
    """

    def __init__(self, item: Invocation, outputs: WritesOutputs | None = None) -> None:
        self._heard = Heard()
        self._reader = FrameReader(fast_json.load)
        self.notes = CallNotes(_NUMBER, item, self._hear, outputs=outputs)

    def end(self) -> tuple[WorkNote | None, tuple[FollowUp, ...]]:
        """The handler has returned: how far it was and what it left behind, and what it asks to be sent."""
        self.notes.end()
        report = self._heard.with_report(Report(_NUMBER, ()))
        return _fitted(report.work), report.follow_ups

    def _hear(self, frame: bytes) -> None:
        for records in self._reader.feed(frame):
            for record in records:
                if not is_extension(
                    record
                ):  # time that is played is not extended: a call takes none, or as long as the test says
                    self._heard.take(record, {_NUMBER})


def _fitted(work: WorkNote | None) -> WorkNote | None:
    """A note as a dispatcher keeps it."""
    return None if work is None else work.reworded(fitted_note)
