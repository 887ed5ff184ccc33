"""Why a task is not running: asked of the dispatcher that owns its partition, else read from tables and logs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from scylla_spark.clock import iso, to_us
from scylla_spark.core.tasks.attempt_note import read_said, said_last
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.state import READY, RETRY_WAIT, RUNNING, SCHEDULED, Condition, first_reason
from scylla_spark.core.tasks.status import Attempt, TaskStatus
from scylla_spark.core.tasks.task import STARTED
from scylla_spark.errors import ArgumentError, UnreachableError
from scylla_spark.io.host.http_get import AnswerError, fetch

_TIMEOUT_S: Final = 5.0
_LARGEST: Final = 4 * 1024 * 1024
_ADDRESS: Final = re.compile(r"http://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:\d{1,5})?", re.ASCII)
_TOLD: Final = {"state": str, "why": str, "attempts": int, "reason": str}
_MOST_CONDITIONS: Final = 30
_MOST_TOLD: Final = 100
_HELD: Final = ("state", "epoch", "lanes", "loaded", "in_flight")


def explain(status: TaskStatus, address: str) -> dict[str, Any]:
    """The owner's answer where it holds the task, else a sentence drawn from its status.

    Args:
        status: how the task stands.
        address: where its owner serves its state; "" if none is known.
    """
    answer = {"key": str(status.key), "state": status.state, "attempts": status.attempts, "source": "tables and logs"}
    answer |= {"reason": "", "holders": [], "conditions": []}
    if not status.open:
        return answer | {
            "why": f"It has ended: {status.state}"
            + (f", {status.error.kind}: {status.error.message}." if status.error else ".")
        }
    time_us, ordering_id, uniqueness_key = status.key
    asked = ask(address, "explain", scheduled_time=iso(time_us), ordering_id=ordering_id, uniqueness_key=uniqueness_key)
    if asked is not None and asked.get("known") is True:
        told = {name: asked[name] for name, kind in _TOLD.items() if type(asked.get(name)) is kind}
        if isinstance(told.get("why"), str):
            told["why"] += _how_far(status)
        holders = [one for one in asked.get("holders") or () if isinstance(one, str)][:_MOST_TOLD]
        source = f"the dispatcher at {address}"
        found = _told_conditions(asked)
        return answer | told | {"holders": holders, "source": source, "conditions": [one.view for one in found]}
    found, told_why = _known_conditions(status, address, asked), (asked or {}).get("why")
    loads = "Its dispatcher loads it when it comes within the look-ahead."
    reason = first_reason(found) or (told_why if isinstance(told_why, str) and told_why else loads)
    return answer | {
        "why": f"{_state_text(status)} {reason}{_how_far(status)}",
        "conditions": [one.view for one in found],
    }


def _how_far(status: TaskStatus) -> str:
    """Returns what a handler under way has said of its work, as a sentence; of what a worker leased its dispatcher tells."""
    last = status.attempt_details[-1] if status.attempt_details else None
    if last is None or last.outcome != STARTED or last.leased:
        return ""
    return said_last(last)


def ask(address: str, path: str, *, timeout_s: float = _TIMEOUT_S, **query: str) -> dict[str, Any] | None:
    """One read-only question to a dispatcher; None if nobody answers.

    The address stands in a fence, and whoever may write to `outcomes` may write any: so only plain http is asked, no
    redirect is followed, time and size are bounded, and what comes back is data that may say anything.

    Args:
        address: of the dispatcher; "" if none is known.
        path: of the question.
        timeout_s: how long to wait for the answer, seconds.
        **query: what is asked about.
    """
    if not _ADDRESS.fullmatch(address):
        return None
    try:
        answer = json.loads(fetch(f"{address}/{path}?{urlencode(query)}", timeout_s=timeout_s, largest=_LARGEST))
    except (AnswerError, ValueError, RecursionError):
        return None
    return answer if isinstance(answer, dict) else None


def ask_partitions(address: str) -> dict[int, dict[str, Any]]:
    """Returns what a dispatcher says of the partitions it holds: number → its numbers and words; empty if nobody answers."""
    return ask_status(address).partitions


class StatusAnswer(NamedTuple):
    """A dispatcher's word on itself; any program may have said so.

    Attributes:
        partitions: that it holds: number → its numbers and words; empty: nobody answers.
        no_handler: queue and handler of lanes that wait for a handler which it does not have, and how many.
        no_worker: queue, handler, how many lanes wait for a Spark worker, and for how many seconds one has been wanted in vain.
        holding: queue, children that it holds, children in all and lanes that wait, of queues that hold their share.
    """

    partitions: dict[int, dict[str, Any]]
    no_handler: list[tuple[str, str, int]]
    no_worker: list[tuple[str, str, int, int]]
    holding: list[tuple[str, int, int, int]]


def ask_status(address: str) -> StatusAnswer:
    """Returns what a dispatcher says of itself."""
    told = ask(address, "status") or {}
    partitions = {
        one["partition"]: {name: one.get(name) for name in _HELD if type(one.get(name)) in (int, str)}
        for one in _dicts(told.get("partitions"))
        if type(one.get("partition")) is int
    }
    return StatusAnswer(
        partitions,
        told_rows(told.get("no_handler"), {"queue": str, "handler": str, "lanes": int}),
        told_rows(told.get("no_worker"), {"queue": str, "handler": str, "lanes": int, "seconds": int}),
        told_rows(told.get("holding"), {"queue": str, "held": int, "children": int, "lanes": int}),
    )


def told_rows(value: object, kinds: dict[str, type]) -> list[Any]:
    """Rows that a dispatcher tells of, as tuples of these fields; those of another form are left out."""
    rows = [tuple(one.get(name) for name in kinds) for one in _dicts(value)[:_MOST_TOLD]]
    return [row for row in rows if tuple(map(type, row)) == tuple(kinds.values())]


def ask_lane(address: str, ordering_id: str) -> LaneAnswer | None:
    """Returns what a dispatcher says of a lane; None if nobody answers or it holds nothing of it."""
    asked = ask(address, "lane", ordering_id=ordering_id)
    if asked is None:
        return None
    told = [_lane_task(one, ordering_id) for one in _dicts(asked.get("tasks"))]
    tasks = [task for task in told if task is not None]
    unread = len(told) - len(tasks)
    loaded = asked.get("loaded") is True and not unread
    return LaneAnswer(loaded, str(asked.get("state")), str(asked.get("why")), tasks if loaded else [], unread)


def _lane_task(one: dict[str, Any], ordering_id: str) -> LaneTask | None:
    """A task of that lane as a dispatcher tells of it: any program may have said so, and of no other lane."""
    attempts, start = one.get("attempts"), one.get("next_start")
    try:
        key = TaskKey.of(datetime.fromisoformat(str(one.get("scheduled_time"))), ordering_id, one["uniqueness_key"])
        key.uniqueness_key.encode()
    except (ArgumentError, ValueError, OverflowError, KeyError, AttributeError):
        return None
    return LaneTask(
        key,
        attempts if type(attempts) is int else None,
        start if type(start) is str else None,
        one.get("cancelled") is True,
    )


class LaneTask(NamedTuple):
    """A dispatcher's word on an open task of a lane.

    Attributes:
        key: of the task.
        attempts: that it has had; None: not told.
        next_start: when the next one may start, RFC 3339; None: not told.
        cancelled: somebody has asked for its end.
    """

    key: TaskKey
    attempts: int | None
    next_start: str | None
    cancelled: bool


class LaneAnswer(NamedTuple):
    """A dispatcher's word on one lane.

    Attributes:
        loaded: whether it holds tasks of it, and all that it tells of is known here.
        state: of the lane.
        why: it does not run, as a sentence.
        tasks: the next ones, in key order; none where some are unread, since one of those may be the head.
        unread: how many more it tells of in words that are not known here, as a dispatcher of another version does.
    """

    loaded: bool
    state: str
    why: str
    tasks: list[LaneTask]
    unread: int = 0

    def check_known(self) -> None:
        """Of a lane of which the tables hold nothing: whether that means that nothing is open.

        Raises:
            UnreachableError: its dispatcher knows more.
        """
        if self.unread:
            raise UnreachableError(
                "What is open in the lane is not known: its dispatcher tells of it in the words of another version.",
                hint="Upgrade it, or ask again when its tasks have reached the tables, within seconds.",
            )


def _dicts(value: object) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _told_conditions(asked: dict[str, Any]) -> list[Condition]:
    """The conditions in the answer of a dispatcher, which any program may have written."""
    return [
        Condition(one["name"], one["met"], one["detail"])
        for one in _dicts(asked.get("conditions"))[:_MOST_CONDITIONS]
        if [type(one.get(name)) for name in ("name", "met", "detail")] == [str, bool, str]
    ]


def _known_conditions(status: TaskStatus, address: str, asked: dict[str, Any] | None) -> list[Condition]:
    """The conditions of a task that its dispatcher does not hold: without the dispatcher, and then those of its answer."""
    loaded = Condition("its dispatcher has loaded it", False, "it does when it comes within the look-ahead")
    found = [
        Condition("Kafka answers", status.fresh, "", "Kafka did not answer in time, so this is what the tables say."),
        Condition(
            "a dispatcher owns its partition",
            bool(address),
            address,
            "No dispatcher owns its partition: start `scylla-spark up` or `scylla-spark run dispatch`.",
        ),
        Condition(
            "that dispatcher answers",
            asked is not None,
            "",
            f"The dispatcher at {address} owns its partition but does not answer; it may be gone.",
        ),
        Condition("it is due", status.state not in (SCHEDULED, RETRY_WAIT), iso(to_us(_due(status)))),
    ]
    return [*found, *(_told_conditions(asked or {}) or [loaded])]


def _due(status: TaskStatus) -> datetime:
    return status.next_attempt_at or status.key.scheduled_time


def _state_text(status: TaskStatus) -> str:
    when = f"{_due(status):%Y-%m-%d %H:%M:%S} UTC."
    return {
        SCHEDULED: f"It is scheduled for {when}",
        READY: "It is due.",
        RUNNING: f"Attempt {status.attempts} was started and has not ended.",
        RETRY_WAIT: f"Attempt {status.attempts} did not succeed; the next may start at {when}",
    }[status.state]


_PATIENCE_S: Final = 1.0  # a look at a task is not to hang on a dispatcher that does


def with_word_of_owner(status: TaskStatus, address: Callable[[], str]) -> TaskStatus:
    """Returns how a task stands, its attempt under way by the word of its dispatcher.

    Args:
        status: as the facts tell it.
        address: where its owner serves its state; "" if none is known.
    """
    if not status.open:
        return status
    return replace(status, attempt_details=tuple(told_by_owner(status.attempt_details, status.key, address)))


def told_by_owner(
    attempts: list[Attempt] | tuple[Attempt, ...], key: TaskKey, address: Callable[[], str]
) -> list[Attempt]:
    """The attempts of a task, the last of them by the word of its dispatcher where it is under way and that one answers.

    Args:
        attempts: in order, as the facts tell them.
        key: of the task.
        address: where its owner serves its state; "" if none is known.
    """
    last = attempts[-1] if attempts else None
    if last is None or last.outcome != STARTED:
        return list(attempts)
    time_us, ordering_id, uniqueness_key = key
    asked = ask(
        address(),
        "attempt",
        timeout_s=_PATIENCE_S,
        scheduled_time=iso(time_us),
        ordering_id=ordering_id,
        uniqueness_key=uniqueness_key,
    )
    return [*attempts[:-1], _told(last, asked) if asked is not None else last]


def _told(attempt: Attempt, asked: dict[str, Any]) -> Attempt:
    """An attempt with what is said of it: any program may have said so."""
    if asked.get("known") is not True or asked.get("attempt") != attempt.number:
        return attempt
    return replace(
        attempt,
        **read_said(asked),
        heard_at=_instant(asked.get("heard_at")),
        lease_until=_instant(asked.get("lease_until")),
        deadline=_instant(asked.get("deadline")) or attempt.deadline,
    )


def _instant(text: object) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text) if isinstance(text, str) else None
        return moment.astimezone(UTC) if moment is not None and moment.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None
