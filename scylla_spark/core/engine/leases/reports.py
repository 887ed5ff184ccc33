"""What workers report of their leases: ends, signs of life, and all that they take for held; each is judged by what the book says."""

from __future__ import annotations

from typing import Any, Final

from scylla_spark.core.engine.leases.book import LeaseBook
from scylla_spark.core.engine.leases.worker_session import Lease, WorkerSession
from scylla_spark.core.engine.partition import ACTIVE
from scylla_spark.core.engine.state import EngineState
from scylla_spark.core.leases.messages import (
    CANCELLED,
    ENDED,
    FOREIGN,
    LOST,
    OK,
    OUTPUTS_FULL,
    UNAVAILABLE,
    Report,
    Sign,
    digest_of_token,
    partition_of_token,
)
from scylla_spark.core.tasks.output import MAX_OUTPUTS, OutputLink, links_text, read_links
from scylla_spark.core.tasks.task import ABORTED, FAILED, SUCCEEDED, YIELDED, Outcome
from scylla_spark.core.tasks.task import CANCELLED as TASK_CANCELLED

_ENDED_BY_REPORT: Final = frozenset({SUCCEEDED, FAILED, ABORTED, YIELDED})


class LeaseReports:
    """Judges what workers say of their leases.

    Args:
        state: of the engine.
        book: of leases.
    """

    def __init__(self, state: EngineState, book: LeaseBook) -> None:
        self._state = state
        self._book = book

    def report(self, session: WorkerSession, index: int, report: Report, now: int) -> str:
        """Ends a lease, or says why not; the answer is given once the fact of it counts."""
        lease = self._found(session, report.token)
        if isinstance(lease, str):
            return self._again(session, index, report, lease)
        note = lease.note
        lease.note = note._replace(
            progress=1.0 if report.outcome == SUCCEEDED else note.progress,
            checkpoint=report.checkpoint if report.checkpoint is not None else note.checkpoint,
            metrics=report.metrics if report.metrics is not None else note.metrics,
        )
        yielded = report.outcome == YIELDED
        outcome = Outcome(
            0,
            report.outcome,
            note.since_us,
            now,
            report.result,
            report.failure,
            after_ms=(report.after_ms or 0) if yielded else 0,
            wait_ms=report.after_ms,
        )
        self._book.report(lease, outcome, session, index, now)
        return OK

    def _again(self, session: WorkerSession, index: int, report: Report, refusal: str) -> str:
        """Returns what a report is told of a lease that is not held: the same that was reported before is right."""
        digest = digest_of_token(report.token)
        ended = self._book.how_ended(digest)
        if refusal == FOREIGN or ended is None:
            return refusal
        if ended == report.outcome:
            if self._book.is_being_reported(digest):
                self._book.wait_too(digest, session, index)
            return OK
        if ended in _ENDED_BY_REPORT:
            return ENDED
        return CANCELLED if ended == TASK_CANCELLED else refusal

    def _found(self, session: WorkerSession, token: str) -> Lease | str:
        """The lease, if the caller may speak for it; else why not."""
        lease = self._book.get(digest_of_token(token))
        if lease is None or not lease.held:
            return LOST if self._is_known(token) else UNAVAILABLE
        return FOREIGN if session.worker and lease.note.worker != session.worker else lease

    def _is_known(self, token: str) -> bool:
        """Returns True if all leases of the token's partition are known here; while it is taken they are still being read."""
        number = partition_of_token(token)
        if number is None or number >= self._state.limits.partitions:
            return True  # it never was a lease
        partition = self._state.partitions.get(number)
        return partition is not None and partition.state is ACTIVE

    def sign(self, session: WorkerSession, sign: Sign, now: int) -> str:
        """Keeps a lease alive, or says why not."""
        digest = digest_of_token(sign.token)
        lease = self._found(session, sign.token)
        if isinstance(lease, str):
            return CANCELLED if self._book.how_ended(digest) == TASK_CANCELLED else lease
        lease.token = sign.token
        self._keep(session, lease, now)
        before, lease.note = lease.note, lease.note.then(sign.note)
        if lease.note.checkpoint != before.checkpoint:
            if self._book.is_closing(lease):
                lease.note = lease.note._replace(checkpoint=before.checkpoint)
                return UNAVAILABLE  # the next owner is to be told
            self._book.noted(lease, now)
        return OK

    def output(self, token: str, link: OutputLink | None, now: int) -> dict[str, Any] | str:
        """A worker leaves a file behind, or asks whether it may.

        Args:
            token: of the lease.
            link: to the file, which is stored; None: it is to be stored.
            now: microseconds since the epoch.

        Returns:
            Key, attempt and epoch of the lease, and the sizes of its files by name; or why it is none, or cannot have that file. Only
            here are all files of an attempt known, however many come at once.
        """
        lease = self._book.get(digest_of_token(token))
        if lease is None or not lease.held:
            return LOST if self._is_known(token) else UNAVAILABLE
        links = {one.name: one for one in read_links(lease.note.outputs)}
        if link is not None:
            if self._book.is_closing(lease):
                return UNAVAILABLE
            links[link.name] = link
            if (
                len(links) > MAX_OUTPUTS
                or sum(one.bytes for one in links.values()) > self._state.limits.max_output_bytes
            ):
                return OUTPUTS_FULL
            lease.note = lease.note._replace(outputs=links_text(list(links.values())))
            self._book.noted(lease, now)
        sizes = {one.name: one.bytes for one in links.values()}
        run = lease.run.invocation
        return {"key": list(lease.run.entry.key), "attempt": run.attempt, "epoch": run.epoch, "sizes": sizes}

    def _keep(self, session: WorkerSession, lease: Lease, now: int) -> None:
        """A lease has shown a sign of life; one of an earlier owner, or of a replaced session, joins the session that shows it."""
        if session.name and lease.session is not session:
            self._book.join(lease, session)
        lease.confirmed = True  # who knows its token has got it
        lease.extend(now)

    def compare(self, session: WorkerSession, tokens: tuple[str, ...], now: int) -> None:
        """A session lists all that it takes for its own: what is not, is lost; what it does not know, goes to others."""
        said = {lease.digest for lease in session.fresh}  # what it has not heard of, or not when it wrote this call
        for token in tokens:
            digest = digest_of_token(token)
            said.add(digest)
            lease = self._found(session, token)
            if not isinstance(lease, str):
                lease.token = token
                self._keep(session, lease, now)
            elif self._book.how_ended(digest) == TASK_CANCELLED:
                session.cancelled.append(token)
            elif lease != UNAVAILABLE:
                session.lost.append(token)
        for lease in list(session.held.values()):
            if lease.digest not in said and lease.confirmed:
                self._book.give_back(
                    lease, now, "lease_forgotten", f"Worker {session.worker!r} did not know of its lease."
                )
