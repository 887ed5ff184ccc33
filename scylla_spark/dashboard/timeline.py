"""The attempts of a task on one line of time: how long each waited, and how long it ran."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from scylla_spark.dashboard.value_texts import instant_of

WIDTH: Final = 1000
_LEAST: Final = 3.0  # of a piece, so that it is seen


class Piece(NamedTuple):
    """A piece of the line.

    Attributes:
        attempt: its number.
        outcome: of the attempt.
        waits_at: where its wait begins, of WIDTH.
        waits: how long that is, of WIDTH.
        runs_at: where its run begins.
        runs: how long that is.
        waited_us: from when it was to start until it did; None: it has not, or nobody knows.
        ran_us: until it ended, or now.
    """

    attempt: int
    outcome: str
    waits_at: float
    waits: float
    runs_at: float
    runs: float
    waited_us: int | None
    ran_us: int | None


def timeline(task: dict[str, Any], attempts: list[dict[str, Any]], now: int) -> list[Piece]:
    """One piece for each attempt, from the first time that one was to start until the last end, or now where one runs.

    Args:
        task: as the API shows it.
        attempts: likewise.
        now: microseconds since the epoch.
    """
    spans = [_span(one, instant_of(task["scheduled_time"]) or now, now) for one in attempts]
    if not spans:
        return []
    begin, end = min(planned for planned, _, _ in spans), max(max(span) for span in spans)
    step = WIDTH / max(end - begin, 1)
    return [_piece(one, span, begin, step) for one, span in zip(attempts, spans, strict=True)]


def _span(attempt: dict[str, Any], scheduled: int, now: int) -> tuple[int, int, int]:
    """Returns the planned time, the start and the end, in this order, even if clocks disagree."""
    started = instant_of(attempt["started_at"] or "")
    planned = instant_of(attempt["planned_at"] or "") or started or scheduled
    started = max(started or planned, planned) if attempt["started_at"] else planned
    finished = instant_of(attempt["finished_at"] or "") or (now if attempt["started_at"] else started)
    return planned, started, max(finished, started)


def _piece(attempt: dict[str, Any], span: tuple[int, int, int], begin: int, step: float) -> Piece:
    planned, started, finished = span
    ran = attempt["started_at"] is not None
    return Piece(
        attempt["attempt"],
        attempt["outcome"],
        round((planned - begin) * step, 1),
        round((started - planned) * step, 1),
        round(min((started - begin) * step, WIDTH - _LEAST), 1),
        round(max((finished - started) * step, _LEAST), 1),
        started - planned if ran else None,
        finished - started if ran else None,
    )
