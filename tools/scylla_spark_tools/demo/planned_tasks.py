"""What the demo enqueues: tasks, troubles included, and what must become of each. Pure: same arguments, same plan."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, NamedTuple

from scylla_spark.clock import iso
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.task import ABORTED, CANCELLED, FAILED, SUCCEEDED
from scylla_spark_tools.demo import handlers

LANES: Final = 300
HANDLERS: Final = handlers.__name__
DEFAULT_HANDLER: Final = handlers.POST
WINDOW_S: Final = 33
PER_LANE: Final = 17
BATCH_LANES: Final = range(250, 280)
SPARK_LANES: Final = range(280, 300)
PER_SPARK_LANE: Final = 7
LOCAL_LANES: Final = range(250)
FRAME, FOREIGN, CLIENT = "DataFrame", "foreign client", "Python client"
RESENT_AT_S: Final = 20.0
OVERWRITE_RUNNING_AFTER_S: Final = 0.6
SAFE_S: Final = (
    15.0  # changes are made to tasks that are due this long after the first, so that they surely come in time
)
_S: Final = 1_000_000


class Row(NamedTuple):
    """One enqueue: what a row of the frame or a foreign record holds."""

    key: TaskKey
    handler: str | None
    queue: str
    payload: dict[str, Any]
    extra: dict[str, Any] = {}  # noqa: RUF012 - never changed

    def wire(self, kind: str = "enqueue") -> dict[str, Any]:
        """As somebody else's program would write it."""
        record = {
            "orderingId": self.key.ordering_id,
            "scheduledTime": iso(self.key.time_us),
            "uniquenessKey": self.key.uniqueness_key,
        }
        if kind == "cancel":
            return record | {"version": 1, "type": "cancel"}
        handler = {"handler": self.handler} if self.handler is not None else {}
        return record | {"version": 1, "taskData": self.payload, "queue": self.queue} | handler | self.extra


class Expected(NamedTuple):
    """What must become of a task.

    Attributes:
        row: how it was first enqueued.
        via: by what means.
        trouble: what is special about it, in a word; "" for most.
        outcome: how it must end.
        attempts: how many attempts must begin; 0 for a cancelled task.
        value: what the attempt that delivers must carry; None where none does.
        reported: whether its attempts reach the receiver.
    """

    row: Row
    via: str
    trouble: str = ""
    outcome: str = SUCCEEDED
    attempts: int = 1
    value: str | None = "v1"
    reported: bool = True


@dataclass(slots=True)
class Plan:
    """Everything to be sent, by means and time, and what is expected.

    Attributes:
        start_us: when the first task is due; the last is due `WINDOW_S` later.
        tasks: key → what must become of it.
        first: frame rows of the first batch, some of them twice.
        second: frame rows of a later batch: the same keys again, some with a new value.
        foreign: records of the foreign client, in order.
        client: rows for the Python client.
        cancels: frame, foreign and client cancels.
        resent: records of tasks that are done by the time they are sent again.
        while_running: a record that overwrites a task while it runs.
    """

    start_us: int
    tasks: dict[TaskKey, Expected] = field(default_factory=dict)
    first: list[Row] = field(default_factory=list)
    second: list[Row] = field(default_factory=list)
    foreign: list[Row] = field(default_factory=list)
    client: list[Row] = field(default_factory=list)
    cancels: dict[str, list[Row]] = field(default_factory=dict)
    resent: list[Row] = field(default_factory=list)
    while_running: list[Row] = field(default_factory=list)

    @property
    def last_us(self) -> int:
        """Returns when the last task is due."""
        return max(key.time_us for key in self.tasks)

    def shown(self) -> dict[str, int]:
        """Returns how many tasks show each trouble."""
        counts: dict[str, int] = {}
        for task in self.tasks.values():
            if task.trouble:
                counts[task.trouble] = counts.get(task.trouble, 0) + 1
        return counts


def make(start_us: int, to: str, seed: int = 11) -> Plan:
    """The plan.

    Args:
        start_us: when the first task is due, microseconds since the epoch.
        to: host:port of the receiver.
        seed: of the due times.
    """
    plan = Plan(start_us)
    builder = _Builder(plan, to, random.Random(seed))
    builder.ordinary()
    builder.pools()
    builder.troubles()
    builder.odd_records()
    builder.changes()
    return plan


class _Builder:
    def __init__(self, plan: Plan, to: str, rng: random.Random) -> None:
        self.plan = plan
        self.to = to
        self.rng = rng
        self.count = 0
        self.unknown: list[Row] = []

    def row(
        self, lane: int, at_s: float, handler: str | None = handlers.POST, queue: str = "default", **payload: Any
    ) -> Row:
        self.count += 1
        key = TaskKey(self.plan.start_us + round(at_s * 1e3) * 1000, f"lane-{lane:03d}", f"t{self.count:05d}")
        return Row(key, handler, queue, {"to": self.to, "value": "v1"} | payload)

    def expect(self, row: Row, via: str = FRAME, **expected: Any) -> Row:
        self.plan.tasks[row.key] = Expected(row, via, **expected)
        {FRAME: self.plan.first, FOREIGN: self.plan.foreign, CLIENT: self.plan.client}[via].append(row)
        return row

    def ordinary(self) -> None:
        """Plain tasks at random moments; a part comes by the foreign and the Python client."""
        for lane in LOCAL_LANES:
            for number in range(PER_LANE):
                via = FOREIGN if number < 2 else CLIENT if number == 2 and lane % 3 == 0 else FRAME
                self.expect(self.row(lane, self.rng.uniform(0, WINDOW_S)), via)

    def pools(self) -> None:
        """The queue of the batch handler: a task of every lane at the same moments. The queue on Spark: at random moments."""
        for at_s in range(1, WINDOW_S - 1, 2):
            for lane in BATCH_LANES:
                self.expect(self.row(lane, at_s, handlers.BATCH, "batch"))
        for lane in SPARK_LANES:
            for number in range(PER_SPARK_LANE):
                dies = number == 1 and lane == SPARK_LANES[3]
                row = self.row(lane, self.rng.uniform(2, WINDOW_S - 4), handlers.ON_SPARK, "spark", crash=dies)
                trouble: dict[str, Any] = {"trouble": "kills its process", "attempts": 2} if dies else {}
                self.expect(row, **trouble)

    def troubles(self) -> None:
        """Tasks that misbehave, at the head of ordinary lanes, and bursts of one lane."""
        self.some(range(10, 50), handlers.FLAKY, "fails, then succeeds", attempts=handlers.FLAKY_FAILURES + 1)
        self.some(range(50, 56), handlers.CRASH, "kills its process", attempts=2)
        self.some(range(56, 60), handlers.HANG, "hangs, then succeeds", attempts=2, hang=1)
        never: dict[str, Any] = {"outcome": FAILED, "value": None}
        self.some(range(60, 63), handlers.HANG, "hangs for ever", attempts=handlers.HANG_RETRIES + 1, hang=9, **never)
        self.some(range(70, 75), handlers.DOOMED, "exhausts its retries", attempts=handlers.DOOMED_RETRIES + 1, **never)
        self.some(range(80, 83), handlers.ABORT, "aborts", outcome=ABORTED, value=None)
        for lane in range(90, 100):
            for _ in range(12):
                self.expect(self.row(lane, 3 * (lane - 89)), trouble="12 at one instant")
        for head in [row for row in self.plan.first if row.handler == handlers.HANG]:
            for after_s in (0.3, 0.6, 0.9):
                row = self.row(int(head.key.ordering_id[-3:]), (head.key.time_us - self.plan.start_us) / _S + after_s)
                self.expect(row, trouble="due while its head hangs")
        hanging = self.row(63, 12.0, handlers.HANG, hang=1)
        self.expect(hanging, trouble="overwritten while it runs", attempts=2, value="v2")
        self.plan.while_running.append(_with_value(hanging, "v2"))

    def some(self, lanes: Iterable[int], handler: str, trouble: str, hang: int = 0, **expected: Any) -> None:
        for lane in lanes:
            row = self.row(lane, self.rng.uniform(3, 0.6 * WINDOW_S), handler, hang=hang)
            self.expect(row, trouble=trouble, **expected)

    def odd_records(self) -> None:
        """Foreign records that are odd but valid: no handler, an unknown one, which is cancelled, unknown fields."""
        for lane in range(100, 110):
            self.expect(self.row(lane, self.rng.uniform(2, WINDOW_S), None), FOREIGN, trouble="names no handler")
        for lane in range(110, 114):
            # it would wait until a dispatcher has that handler
            row = self.row(lane, self.rng.uniform(SAFE_S + 1, WINDOW_S), "nobody.knows.me")
            self.unknown.append(row)
            self.expect(
                row, FOREIGN, trouble="unknown handler", outcome=CANCELLED, attempts=0, value=None, reported=False
            )
        for lane in range(114, 119):
            row = self.row(lane, self.rng.uniform(2, WINDOW_S))
            row = row._replace(extra={"colour": "blue", "origin": {"page": lane}})
            self.expect(row, FOREIGN, trouble="unknown fields")

    def changes(self) -> None:
        """Duplicates, overwrites and cancels of ordinary tasks."""
        plan = self.plan
        late = plan.start_us + int(SAFE_S * _S)
        plain = [row for row in plan.first if not plan.tasks[row.key].trouble and row.handler == handlers.POST]
        done_by = plan.start_us + int((RESENT_AT_S - 1.5) * _S)
        again = [row for row in plain if done_by - 2 * _S <= row.key.time_us <= done_by]
        plan.resent = self.mark(self.take(again, 40), "sent again when done")
        chosen = iter(
            self.take([row for row in plain if row.key.time_us > late and not plan.tasks[row.key].trouble], 440)
        )
        plan.first += self.mark(_next(chosen, 120), "twice in one frame")
        plan.second += self.mark(_next(chosen, 80), "again in a later frame")
        plan.foreign += self.mark(_next(chosen, 40), "again by another client")
        for means, count in ((FRAME, 60), (FOREIGN, 20), (CLIENT, 8)):
            plan.cancels[means] = self.mark(
                _next(chosen, count), "cancelled", outcome=CANCELLED, attempts=0, value=None, reported=False
            )
        plan.cancels[FOREIGN] += self.unknown
        newer = self.mark(_next(chosen, 60), "overwritten later", value="v2")
        plan.second += [_with_value(row, "v2") for row in newer]
        foreign = [row for row in plan.foreign if row.key.time_us > late and not plan.tasks[row.key].trouble]
        newer = self.mark(self.take(foreign, 30), "overwritten at once", value="v2")
        plan.foreign += [_with_value(row, "v2") for row in newer]

    def take(self, rows: list[Row], count: int) -> list[Row]:
        return self.rng.sample(rows, min(count, len(rows)))

    def mark(self, rows: list[Row], trouble: str, **expected: Any) -> list[Row]:
        for row in rows:
            self.plan.tasks[row.key] = self.plan.tasks[row.key]._replace(trouble=trouble, **expected)
        return rows


def _next(rows: Iterator[Row], count: int) -> list[Row]:
    return list(islice(rows, count))


def _with_value(row: Row, value: str) -> Row:
    return row._replace(payload=row.payload | {"value": value})
