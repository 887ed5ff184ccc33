"""The forecast: the engine that dispatches, driven by a virtual clock over tasks that ran, under other limits.

No Kafka, no Spark, no handler: tasks come when they came, the modelled executor has so many slots, an attempt takes as long as it
took, a retry waits as long as it waited, and a fact counts a fixed delay after it was decided. Deterministic for a seed.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from scylla_spark.config.settings import Settings
from scylla_spark.core.engine import action
from scylla_spark.core.engine.bounds import HandlerPolicy, Limits
from scylla_spark.core.engine.engine import Engine
from scylla_spark.core.engine.outbox import NEVER
from scylla_spark.core.engine.queue import QueueLimits
from scylla_spark.core.records.command import ENQUEUE, Command
from scylla_spark.core.records.fact import Fence, OutcomeRecord, Unreadable, decode
from scylla_spark.core.tables.progress import Basis, Mark, Tenure
from scylla_spark.core.tasks.key import LATEST_US, TaskKey, partition_of
from scylla_spark.core.tasks.stored_records import Known
from scylla_spark.core.tasks.task import SUCCEEDED, YIELDED, Invocation, Outcome, Retry
from scylla_spark.services.dispatch.engine_settings import engine_limits, queue_terms

if TYPE_CHECKING:
    import polars as pl

POOL: Final = "local"
NEVER_US: Final = -1  # stands for a start or an end that did not come
_AHEAD_US: Final = 10_000_000  # tasks reach the engine so long before they are due
_TIDY_US: Final = 30_000_000
_UNBOUNDED: Final = 1 << 60
_ALL_READ: Final = Basis(1 << 62, 1 << 62)
_ANY_TERMS: Final = HandlerPolicy(
    POOL, 1 << 40, Retry(None, "1s", "1s")
)  # recorded attempts say what comes next, not a policy


@dataclass(frozen=True, slots=True)
class Model:
    """Under which limits tasks are played.

    Attributes:
        partitions: of the deployment.
        slots: attempts that run at once.
        limits: of the engine.
        queues: limits of queues by name.
        fact_delay_us: from the decision of a fact until it counts.
        cost_us: how long the dispatcher itself is busy with a task, one after the other.
        seed: of the engine's chance.
    """

    partitions: int
    slots: int
    limits: Limits = field(default_factory=Limits)
    queues: Mapping[str, QueueLimits] = field(default_factory=dict)
    fact_delay_us: int = 5_000
    cost_us: int = 0
    seed: int = 0


@dataclass(slots=True)
class Played:
    """When each task would have started and ended, in the order of the rows given; NEVER_US where it would not."""

    started_us: array[int]
    finished_us: array[int]


def model_of(settings: Settings, partitions: int) -> Model:
    """The model that settings describe: limits of `dispatch` and `queues`, a slot for each child of the local pool.

    Args:
        settings: with the limits to play under.
        partitions: of the deployment.
    """
    limits = replace(
        engine_limits(settings), partitions=partitions, max_held_bytes=_UNBOUNDED
    )  # there is no table to leave tasks to
    return Model(partitions, settings.dispatch.max_children, limits, queue_terms(settings.queues))


def forecast(tasks: pl.DataFrame, model: Model) -> Played:
    """Plays the tasks of `io.delta.forecast_material` under a model.

    Args:
        tasks: rows of `TaskHistory.tasks`.
        model: what to play them under.
    """
    return _Play(tasks, model).run()


class _Play:
    """One run: events in virtual time around an engine."""

    def __init__(self, tasks: pl.DataFrame, model: Model) -> None:
        self._model = model
        self._engine = Engine(lambda _: _ANY_TERMS, model.limits, random.Random(model.seed), queues=model.queues)
        self._lasted = tasks["lasted_us"].to_list()
        self._earlier = _earlier(tasks)
        self._played = Played(array("q", [NEVER_US]) * len(tasks), array("q", [NEVER_US]) * len(tasks))
        self._offers = _offers(tasks)
        self._next: tuple[int, int, Command] | None = next(self._offers, None)
        self._events: list[tuple[int, int, Any]] = []
        self._sequence = 0
        self._busy = 0
        self._free_us = 0  # when the dispatcher is done with what it has released
        self._places: dict[str, int] = {}
        self._tenures: list[Tenure] = []
        self._offsets = [0] * model.partitions  # of the modelled outcomes
        self._tidy_us = 0

    def run(self) -> Played:
        if self._next is None:
            return self._played
        self._now = self._next[0] - _AHEAD_US
        self._take_partitions()
        while (now := self._later()) is not None:
            self._now = now
            self._offer()
            while self._events and self._events[0][0] <= now:
                heappop(self._events)[2]()
            self._tidy()
            self._engine.tick(now, {POOL: self._model.slots - self._busy}, start_by_us=NEVER)
            self._perform()
        return self._played

    def _later(self) -> int | None:
        """The next instant at which something happens; None when nothing will any more."""
        wake = self._engine.next_wake()
        instants = [wake] if self._now < wake < LATEST_US else []
        if self._events:
            instants.append(max(self._now, self._events[0][0]))
        if self._next is not None:
            instants.append(max(self._now, self._next[0]))
        return min(instants, default=None)

    def _after(self, delay_us: int, call: Any) -> None:
        self._sequence += 1
        heappush(self._events, (self._now + delay_us, self._sequence, call))

    def _take_partitions(self) -> None:
        """All partitions are ours at once, with empty tables and logs."""
        engine, now = self._engine, self._now
        for number in range(self._model.partitions):
            tenure = engine.assign(number, Mark(), now)
            self._tenures.append(tenure)
            engine.raise_horizon(tenure, LATEST_US)
            engine.noted_end(tenure, 0, now)
            engine.scanned(tenure, LATEST_US, {}, Mark(), now)
        self._perform()

    def _offer(self) -> None:
        while self._next is not None and self._next[0] <= self._now:
            _, offset, command = self._next
            lane = command.key.ordering_id
            number = self._places.get(lane)
            if number is None:
                number = self._places[lane] = partition_of(lane, self._model.partitions)
            self._engine.commands(self._tenures[number], [command], offset + 1, self._now)
            self._next = next(self._offers, None)

    def _tidy(self) -> None:
        """What ended is forgotten in time, as when ingest has recorded it."""
        if self._now >= self._tidy_us:
            self._tidy_us = self._now + _TIDY_US
            for number, offset in enumerate(self._offsets):
                self._engine.scanned(self._tenures[number], LATEST_US, {}, Mark(0, offset), self._now)

    def _perform(self) -> None:
        while actions := self._engine.take_actions():
            for item in actions:
                self._carry_out(item)

    def _carry_out(self, item: action.Action) -> None:
        engine, now = self._engine, self._now
        match item:
            case action.Release(_, invocations):
                # consecutive tasks of one lane are handed over together and share a slot
                for _, together in groupby(invocations, key=lambda invocation: invocation.key.ordering_id):
                    self._run(list(together))
            case action.Send(tenure, fence, records, content):
                read = [content] if content is not None else [decode(record) for record in records]
                self._after(self._model.fact_delay_us, lambda: self._count(tenure, fence, read))
            case action.SendFence(tenure, fence, record):
                self._count(tenure, fence, [decode(record)])
            case action.Confirm(tenure, fence):
                engine.confirmed(tenure, fence, 0, now)
            case action.Lookup(tenure, keys):
                known = dict.fromkeys(keys, Known())
                self._after(0, lambda: engine.looked_up(tenure, known, _ALL_READ, self._now))
            case action.AskNames(tenure, names):
                self._after(0, lambda: engine.named(tenure, names, (), _ALL_READ, self._now))
            case _:
                raise AssertionError(f"nothing is cut or lost in a forecast: {item}")

    def _count(self, tenure: Tenure, fence: Fence, records: Sequence[OutcomeRecord | Unreadable]) -> None:
        """The records stand in the log and are read back."""
        begin = self._offsets[tenure.partition]
        end = self._offsets[tenure.partition] = begin + len(records)
        self._engine.sent(tenure, fence, ok=True, now=self._now)
        self._engine.outcome_records(tenure, list(enumerate(records, begin)), end, self._now)

    def _run(self, together: list[Invocation]) -> None:
        """One slot runs these one after the other."""
        self._busy += 1
        self._free_us = max(self._free_us, self._now) + len(together) * self._model.cost_us
        begin = self._free_us
        for place, invocation in enumerate(together):
            index = int(invocation.payload)
            earlier = self._earlier.get(index, ())
            retried = invocation.attempt <= len(earlier)
            lasted_us, wait_us = earlier[invocation.attempt - 1] if retried else (self._lasted[index], 0)
            end = begin + lasted_us
            if self._played.started_us[index] == NEVER_US:
                self._played.started_us[index] = begin
            self._played.finished_us[index] = end
            outcome = Outcome(invocation.id, YIELDED if retried else SUCCEEDED, begin, end, after_ms=wait_us // 1000)
            self._finish_at(outcome, free=place == len(together) - 1)
            begin = end

    def _finish_at(self, outcome: Outcome, *, free: bool) -> None:
        def finish() -> None:
            self._busy -= free
            self._engine.finished([outcome], self._now)

        self._after(outcome.finished_us - self._now, finish)


def _earlier(tasks: pl.DataFrame) -> dict[int, tuple[tuple[int, int], ...]]:
    """Row → (how long it ran, how long the next waited) per attempt before the last."""
    import polars as pl

    retried = tasks.with_row_index("row").filter(pl.col("earlier").is_not_null()).select("row", "earlier")
    return {
        row: tuple((one["lasted_us"] or 0, one["wait_us"]) for one in attempts) for row, attempts in retried.iter_rows()
    }


def _offers(tasks: pl.DataFrame) -> Iterator[tuple[int, int, Command]]:
    """(when it reaches the engine, offset, command) per task, by time; the payload is the number of its row."""
    import polars as pl

    at = pl.when(pl.col("known_us") > pl.col("time_us")).then("known_us").otherwise(pl.col("time_us") - _AHEAD_US)
    rows = tasks.with_row_index("row").with_columns(at=at).sort("at", "row", maintain_order=True)
    columns = ("at", "row", "time_us", "ordering_id", "uniqueness_key", "handler", "queue", "priority")
    for offset, (when, row, time_us, lane, unique, handler, queue, priority) in enumerate(
        rows.select(columns).iter_rows()
    ):
        key = TaskKey(time_us, lane, unique)
        yield when, offset, Command(ENQUEUE, key, offset, handler, queue, str(row), priority)
