"""What is known of the work on an attempt besides how it ended: who has it until when, how far it is, where it can go on."""

from __future__ import annotations

from typing import Final, NamedTuple

MAX_CHECKPOINT_BYTES: Final = 64 * 1024
MAX_METRICS_BYTES: Final = 16 * 1024


class WorkNote(NamedTuple):
    """A note on an attempt; stands in facts, in tables, and in memory while the task is open.

    Attributes:
        worker: name of the worker that leased the task.
        lease: digest of the lease's token; None: not a lease.
        lease_ms: how long the lease lasts after each sign of life.
        since_us: when it was given, microseconds since the epoch.
        until_us: how long it can be kept at most, microseconds since the epoch.
        progress: from 0 to 1.
        checkpoint: JSON text from which the next attempt can go on.
        metrics: JSON text that the worker reported.
        isolation: level at which the attempt ran, where its handler asks for one; None: it asks for none.
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

    def going_on(self) -> WorkNote | None:
        """What the next attempt is to know; None: nothing."""
        return WorkNote(checkpoint=self.checkpoint) if self.checkpoint is not None else None
