"""The overview of the deployment. It is made once for all readers, and its frequency follows its cost."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Collection
from contextlib import ExitStack
from typing import Annotated, Any, Final, Literal, NamedTuple

from fastapi import Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from scylla_spark.api.context import JSON, Api, Asked, Own, Routes
from scylla_spark.api.follow.activity import STEP_US, STEPS, Activity, ActivityStep
from scylla_spark.api.http.event_stream import MEDIA_TYPE, STREAM, EventStream
from scylla_spark.api.tasks.views import KeyView
from scylla_spark.client.tasks.explain import StatusAnswer, ask_status
from scylla_spark.clock import boot_us, iso, now_us
from scylla_spark.core.access.scopes import ALL_QUEUES, QueueBounds
from scylla_spark.core.tasks.filter import read_filter
from scylla_spark.core.tasks.key import TaskKey, key_view
from scylla_spark.core.tasks.state import READY, could_start_us, lateness_us
from scylla_spark.io.kafka.topics import announced
from scylla_spark.task_states import STATES, State

routes = Routes()

_LEAST_US: Final = 2_000_000  # between two overviews
_MOST_US: Final = 5_000_000
_PRICE: Final = (
    100  # between two of them, and two counts of the tables, so many times as long as one took: a hundredth of a core …
)
_SELDOM_US: Final = 15_000_000  # … but no longer than this
_QUIET_S: Final = 10.0
_MOST_KEPT: Final = 32  # overviews of different sets of queues
_AHEAD_US: Final = 2_000_000
_BLIND_US: Final = 10_000_000
_SILENT_US: Final = 30_000_000
_RESTARTED_US: Final = 900_000_000  # so long it is shown that the broker was started again
_LOOK_US: Final = 10_000_000  # between two looks at whether owners of partitions answer
_LATELY_S: Final = 60
_NAMED: Final = 5
_WANTED_S: Final = 10  # for so long a Spark worker may take to start
_RUNS_WITH: Final = "`scylla-spark up`, or `scylla-spark run {}`, starts it."


_AWAY: Final = {
    "kind": "broker_away",
    "text": "Kafka did not answer in time: this is what the tables say.",
    "hint": "`scylla-spark doctor kafka` says why.",
}


class ActivityStepView(BaseModel):
    """The counts of a span of time."""

    at: str
    started: Annotated[int, Field(description="Attempts")]
    ended: Annotated[int, Field(description="Tasks")]
    failed: int
    p50_ms: Annotated[float | None, Field(description="Start lateness; null: nothing started")]
    p99_ms: float | None


class QueueCountsView(BaseModel):
    """How many tasks a queue has in each state."""

    name: str
    states: dict[State, int]


class StatesAtView(BaseModel):
    """The number of tasks by state at one time."""

    at: str
    states: dict[State, int]


class OverdueView(BaseModel):
    """The tasks that are due and have not started."""

    count: int
    oldest: KeyView | None
    late_ms: Annotated[float | None, Field(description="Of the oldest")]
    drain_s: Annotated[
        float | None, Field(description="How long they would take as things go; null: nothing ended lately")
    ]


class BannerView(BaseModel):
    """Something that somebody should look at."""

    kind: Literal[
        "broker_away",
        "broker_restarted",
        "ingest_silent",
        "partition_without_owner",
        "clock_ahead",
        "no_handler",
        "no_worker",
        "queue_holds_children",
    ]
    text: str
    hint: str


class OverviewView(BaseModel):
    """The overview of the deployment; also the data of events of type `overview`."""

    at: str
    states: dict[State, int]
    queues: list[QueueCountsView]
    lately: Annotated[ActivityStepView, Field(description="The last minute")]
    history: Annotated[
        list[ActivityStepView],
        Field(description="The last quarter of an hour, in steps of 15 s, as far as it was watched"),
    ]
    states_history: list[StatesAtView]
    overdue: OverdueView
    banners: list[BannerView]


class _Counts(NamedTuple):
    """The counts from the tables.

    Attributes:
        states: state → how many tasks.
        queues: queue → state → how many.
        oldest: row of the oldest task that is due and has not started; None: there is none.
    """

    states: dict[str, int]
    queues: dict[str, dict[str, int]]
    oldest: dict[str, Any] | None


class Overviews:
    """Makes overviews; its users are one event loop.

    Args:
        api: to ask through.
        own: of which queues they tell.
    """

    def __init__(self, api: Api, own: QueueBounds = ALL_QUEUES) -> None:
        self._api = api
        self._own = own
        self._pulse = api.pulse if own == ALL_QUEUES else Activity(api.tail, own)
        self._others: OrderedDict[QueueBounds, Overviews] = OrderedDict()
        self._lock = asyncio.Lock()
        self._text = b""
        self._until = 0
        self._counts: tuple[_Counts, int] | None = None  # and until when they will do
        self._states: deque[tuple[int, dict[str, int]]] = deque(maxlen=STEPS)
        self._blind_since = 0
        self._stood: tuple[dict[int, int], int] = ({}, 0)
        self._dead: frozenset[int] = frozenset()
        self._told: list[StatusAnswer] = []  # by owners of partitions, when they were asked last
        self._looked_until = 0

    def of(self, own: QueueBounds) -> Overviews:
        """Those that tell of some queues only: made once for all who see the same, and kept for a number of such."""
        if own == self._own:
            return self
        found = self._others.pop(own, None) or Overviews(self._api, own)
        self._others[own] = found
        if len(self._others) > _MOST_KEPT:
            self._others.popitem(last=False)
        return found

    async def now(self) -> bytes:
        """The JSON text of the newest overview."""
        async with self._lock:
            if boot_us() >= self._until:
                begun = boot_us()
                self._text = await self._api.slowly(lambda: _text(self._made(now_us())))
                took = boot_us() - begun
                self._until = begun + took + min(max(_PRICE * took, _LEAST_US), _MOST_US)
            return self._text

    def _made(self, now: int) -> dict[str, Any]:
        counts = self._counted(now)
        beats, lately = self._pulse.beats(now), self._pulse.lately(now, _LATELY_S * 1_000_000 // STEP_US)
        self.remember(counts.states, now)
        return {
            "at": iso(now),
            "states": counts.states,
            "queues": [{"name": name, "states": found} for name, found in sorted(counts.queues.items())],
            "lately": _beat(lately),
            "history": [_beat(one) for one in beats],
            "states_history": [{"at": iso(at), "states": found} for at, found in self._states],
            "overdue": _overdue(counts, lately, now),
            "banners": self._banners(now),
        }

    def _counted(self, now: int) -> _Counts:
        """Counts of a moment ago: where it takes long to count, that is done less often, but never more seldom than a bound."""
        begun = boot_us()
        if self._counts is not None and begun < self._counts[1]:
            return self._counts[0]
        states = dict.fromkeys(STATES, 0)
        queues: dict[str, dict[str, int]] = {}
        for row in self._api.pages.totals(read_filter("", now)._replace(queues=self._own), now=now):
            states[row["state"]] += row["count"]
            queues.setdefault(row["queue"], {})[row["state"]] = row["count"]
        due = read_filter(f"state:{READY}", now)._replace(queues=self._own)
        ready = self._api.pages.page(due, 1, now=now) if states[READY] else []
        found = _Counts(states, queues, ready[0] if ready else None)
        took = boot_us() - begun
        self._counts = (found, begun + took + min(_PRICE * took, _SELDOM_US))
        return found

    def remember(self, states: dict[str, int], now: int) -> None:
        """Keeps counts for the history, one for each step of time.

        Args:
            states: state → how many.
            now: microseconds since the epoch.
        """
        if not self._states or self._states[-1][0] // STEP_US != now // STEP_US:
            self._states.append((now, states))

    def _banners(self, now: int) -> list[dict[str, str]]:
        standing = self._api.tail.standing()
        if not standing:
            self._blind_since = self._blind_since or boot_us()
            return [_AWAY] if boot_us() - self._blind_since > _BLIND_US else []
        self._blind_since = 0
        dead = self._unattended(standing)
        ownerless = sorted(number for number, one in standing.items() if one.resigned or number in dead)
        found = self._restarted(now)
        if ownerless:
            words = f"{len(ownerless)} of {len(standing)} partitions have no dispatcher: their tasks do not start."
            found.append(_banner("partition_without_owner", words, _RUNS_WITH.format("dispatch")))
        if self._silent({number: one.behind for number, one in standing.items() if one.behind}, standing):
            found.append(
                _banner(
                    "ingest_silent", "Records wait for ingest, and the tables do not move.", _RUNS_WITH.format("ingest")
                )
            )
        ahead = self._api.pulse.ahead_us(now)
        if ahead > _AHEAD_US:
            words = f"The clock of a dispatcher or worker is {ahead / 1e6:.1f} s ahead of this one."
            found.append(_banner("clock_ahead", words, "Let a time service set the clocks of all machines."))
        return found + self._waits()

    def _waits(self) -> list[dict[str, str]]:
        """Banners of lanes that wait for handlers or Spark workers, and of queues that hold all children that they may."""
        found = []
        missing = [row for told in self._told for row in told.no_handler if self._own.has(row[0])]
        if missing:
            names = sorted({handler for _, handler, _ in missing})
            lanes = sum(lanes for _, _, lanes in missing)
            words = f"{lanes} lanes wait for handlers that no dispatcher of theirs can run: {', '.join(map(repr, names[:_NAMED]))}."
            hint = "Deploy them, turn their executor on, or cancel the tasks. `scylla-spark task explain` says more."
            found.append(_banner("no_handler", words, hint))
        lacking = [
            row for told in self._told for row in told.no_worker if self._own.has(row[0]) and row[3] >= _WANTED_S
        ]
        if lacking:
            lanes, seconds = sum(row[2] for row in lacking), max(row[3] for row in lacking)
            words = f"{lanes} lanes wait for Spark workers, which have been wanted for {seconds} s."
            hint = "Spark is starting, or it has no free core: give it more executors or cores. `scylla-spark task explain` says which."
            found.append(_banner("no_worker", words, hint))
        for queue, held, children, lanes in [
            row for told in self._told for row in told.holding if self._own.has(row[0])
        ]:
            words = f"Queue {queue!r} holds {held} of the {children} children of a dispatcher, and {lanes} lanes wait."
            hint = "Give the dispatchers more children (dispatch.max_children), or that queue a lower concurrency."
            found.append(_banner("queue_holds_children", words, hint))
        return found

    def _restarted(self, now: int) -> list[dict[str, str]]:
        """Says for a while that the embedded broker of this deployment died and was started again."""
        facts = announced(self._api.settings.data_dir)
        told = facts.get("broker_restarts")
        ours = facts.get("kafka") == self._api.settings.kafka.bootstrap_servers
        if not (ours and isinstance(told, dict) and now - told.get("last_us", 0) < _RESTARTED_US):
            return []
        words = f"The embedded broker ended and was started again: {told['times']} times in this run, last at {iso(told['last_us'])}."
        return [_banner("broker_restarted", words, "Its log says why, or the kernel's log if memory was short: dmesg.")]

    def _unattended(self, standing: Collection[int]) -> frozenset[int]:
        """Partitions whose owner does not answer, as far as a look of a moment ago tells: one that was killed has not resigned."""
        if boot_us() >= self._looked_until:
            owner = self._api.scheduler.connection.owner_address
            addresses = {number: owner(number) for number in standing}
            answers = {address: ask_status(address) for address in {*addresses.values()} - {""}}
            self._told = list(answers.values())
            silent = {address for address, told in answers.items() if not told.partitions}
            self._dead = frozenset(number for number, address in addresses.items() if address in silent)
            self._looked_until = boot_us() + _LOOK_US
        return self._dead

    def _silent(self, behind: dict[int, int], standing: dict[int, Any]) -> bool:
        """Returns whether records have waited longer than ingest should take while no partition moves."""
        marks = {number: standing[number].mark for number in standing}
        known, since = self._stood
        if not behind or marks != known:
            self._stood = (marks, boot_us())
            return False
        trigger_us = int(self._api.settings.ingest.trigger.total_seconds() * 1e6)
        return boot_us() - since > _SILENT_US + 3 * trigger_us


def _text(found: dict[str, Any]) -> bytes:
    return json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def _overdue(counts: _Counts, lately: ActivityStep, now: int) -> dict[str, Any]:
    """Returns the overdue tasks, and how long they would take at the current rate."""
    count, row = counts.states[READY], counts.oldest
    since = could_start_us(row["next_attempt_at"] or row["scheduled_time"], row["enqueued_at"] or 0) if row else now
    return {
        "count": count,
        "oldest": key_view(TaskKey(row["scheduled_time"], row["ordering_id"], row["uniqueness_key"])) if row else None,
        "late_ms": lateness_us(now, since) / 1000 if row else None,
        "drain_s": round(count * _LATELY_S / lately.ended, 1) if lately.ended and count else 0.0 if not count else None,
    }


def _banner(kind: str, text: str, hint: str) -> dict[str, str]:
    return {"kind": kind, "text": text, "hint": hint}


def _beat(beat: ActivityStep) -> dict[str, Any]:
    return {"at": iso(beat.at_us)} | {name: value for name, value in beat._asdict().items() if name != "at_us"}


_ANSWER: Final = {
    "description": "OK; if the request accepts them, server-sent events of type `overview`, whose data is an OverviewView",
    "content": STREAM,
}


@routes.get("/v1/overview", OverviewView, shown=_ANSWER)
async def get_overview(api: Asked, own: Own, request: Request) -> Response:
    """Return counts, start lateness, overdue tasks and problems. With `Accept: text/event-stream` the answer is a stream of updates."""
    everything: Overviews = request.app.state.overviews
    overviews = everything.of(own)
    if MEDIA_TYPE not in request.headers.get("accept", ""):
        return Response(await overviews.now(), media_type=JSON)
    room = ExitStack()
    room.enter_context(api.waits.room())
    return EventStream(_events(overviews), room.close)


async def _events(overviews: Overviews) -> AsyncIterator[bytes]:
    """An event for each overview that tells something new, and a comment where there was none for a while."""
    loop, known, said = asyncio.get_running_loop(), b"", 0.0
    yield b": welcome\nretry: 3000\n\n"
    while True:
        text = await overviews.now()
        news = text.partition(b",")[2]  # all but the moment at which it was made
        if news != known:
            known, said = news, loop.time()
            yield b"event: overview\ndata: " + text + b"\n\n"
        elif loop.time() - said > _QUIET_S:
            said = loop.time()
            yield b": still here\n\n"
        await asyncio.sleep(_LEAST_US / 1e6)
