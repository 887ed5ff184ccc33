"""A planner on virtual time: the real one, with a log that is read back as soon as it is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, Final

from scylla_spark.clock import from_us
from scylla_spark.config.settings import Settings
from scylla_spark.core.engine.outbox import NEVER
from scylla_spark.core.plan.commands.plan_answer import Answer, checked_command, refusal
from scylla_spark.core.plan.load import Load, QueueLoad
from scylla_spark.core.plan.planner import Planner
from scylla_spark.core.plan.state.plan_log import Change
from scylla_spark.core.plan.state.plan_state import PlanState
from scylla_spark.core.plan.state.stored_definition import QUEUE, read_definition_change
from scylla_spark.core.queues.in_force import Changes
from scylla_spark.core.records.fact import Fact, Fence
from scylla_spark.definitions.queue import Queue
from scylla_spark.duration import duration_us
from scylla_spark.errors import WaitTimeoutError
from scylla_spark.testing.virtual_tables import VirtualTables
from scylla_spark.testing.world_runs_and_fires import Fire

_FENCE: Final = Fence(1, "world")


class VirtualPlanner:
    """Decides what schedules launch; a `PlannerLink`, as clients ask one.

    Args:
        settings: with start values of queues.
        clock: says what time it is, microseconds since the epoch.
        send: takes the commands that are launched, as the planner writes them.
        put_queues: is told of definitions of queues.
        settle: lets all that can happen at this instant happen.
        load: returns what a dispatcher shows of its queues.

    Attributes:
        fires: what was decided, in order.
        tables: that schedules watch.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Callable[[], int],
        *,
        send: Callable[[str], None],
        put_queues: Callable[[Changes], None],
        settle: Callable[[], None],
        load: Callable[[], Mapping[str, Any]],
    ) -> None:
        self.fires: list[Fire] = []
        self._clock = clock
        self._send = send
        self._put_queues = put_queues
        self._settle = settle
        self._load = load
        self._planner = Planner(PlanState(), _FENCE, duration_us(settings.plan.ahead), clock(), settings.queues)
        self.tables = VirtualTables(self._planner, clock)
        self._commands, self._outcomes, self._requests = count(), count(), count(1)
        self._answers: dict[str, Sequence[Any]] = {}

    # -- what clients ask -----------------------------------------------------------------------------------------------

    def ask(self, kind: str, **fields: Any) -> Answer:
        """Obeys a command.

        Raises:
            ArgumentError: it is refused; nothing was changed. ConflictError, NotFoundError: likewise.
            WaitTimeoutError: it is done, but what was launched ahead of its time is not known to be taken back.
        """
        name = f"r{next(self._requests)}"
        self.take(checked_command(kind, id=name, **fields))
        if name not in self._answers:
            self._settle()
        if name not in self._answers:
            raise WaitTimeoutError(
                "It is done, but some runs that were launched ahead of their time may still begin.",
                hint="Ask outside of a handler, and let time pass.",
            )
        code, message, hint, done = self._answers.pop(name)
        error = refusal(code, message, hint)
        if error is not None:
            raise error
        return Answer(done, 0)

    def tell(self, kind: str, **fields: Any) -> None:
        """Obeys a command that needs no answer.

        Raises:
            ArgumentError: it is refused; nothing was changed.
        """
        self.take(checked_command(kind, **fields))

    def state(self) -> PlanState:
        """All that the planner knows."""
        return self._planner.state

    def take(self, value: bytes) -> None:
        """Obeys the record of a command."""
        self._take_load()
        self._planner.command(next(self._commands), value, self._clock(), self._clock())
        self.tables.tell()  # a schedule that watches a table begins with what is there now
        self._write()

    # -- time -----------------------------------------------------------------------------------------------------------

    def counted(self, facts: Sequence[Fact]) -> None:
        """Facts stand in the log of outcomes."""
        offset = next(self._outcomes)
        self._planner.outcomes(0, offset, facts, (offset + 1, *_FENCE), self._clock())

    def turn(self) -> bool:
        """Decides what is due at this instant; whether there was anything."""
        self._take_load()
        self._planner.tick(self._clock())
        self.tables.tell()
        return self._write()

    @property
    def next_us(self) -> int:
        """Returns when something is to be decided next, microseconds since the epoch; NEVER: never, as things are."""
        planned = self._planner.next_wake_us
        return min(self.tables.next_us, NEVER if planned is None else planned)

    def _take_load(self) -> None:
        before, now = self._planner.load, self._clock()
        if before is not None:
            queues = {name: QueueLoad.of(found) for name, found in self._load()["queues"].items()}
            self._planner.take_load(Load(now, queues, before), now)

    def _write(self) -> bool:
        groups = self._planner.take(self._clock())
        for group in groups:
            for change in group.changes:
                self._carry_out(change)
            self._planner.sent(group.number)
        return bool(groups)

    def _carry_out(self, change: Change) -> None:
        kind = change[0]
        if kind == "send":
            self._send(change[1])
        elif kind == "answer":
            self._answers[change[1]] = change[2:]
        elif kind == QUEUE:
            read = read_definition_change(change)
            definition = Queue.of(json.loads(read.stored.text)) if read.stored is not None else None
            self._put_queues({read.name: definition})
        elif kind == "fire":
            fields = change[2]
            planned_us = fields.get("planned_us")
            planned_at = from_us(planned_us) if planned_us else None
            self.fires.append(
                Fire(change[1], planned_at, from_us(fields["at_us"]), fields["verdict"], fields.get("why") or "")
            )
