"""A dispatcher and a planner that share one virtual clock, and what passes between them; all in one thread."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from scylla_spark.clock import iso
from scylla_spark.config.settings import Settings
from scylla_spark.core.engine import action
from scylla_spark.core.engine.outbox import NEVER
from scylla_spark.core.records.command import Command, Rejection, Rules, validate
from scylla_spark.core.tasks.enqueue_options import command_of
from scylla_spark.core.tasks.follow_up import EVENT, TASK
from scylla_spark.core.tasks.task import Failure
from scylla_spark.duration import duration_ms
from scylla_spark.errors import ConflictError, SchedulerError
from scylla_spark.handlers.registry import Handler
from scylla_spark.io.kafka.command_sender import record_of
from scylla_spark.services.dispatch.follow_ups import REFUSED, event_record
from scylla_spark.testing.virtual_dispatcher import VirtualDispatcher, Watcher
from scylla_spark.testing.virtual_planner import VirtualPlanner

_MOST_TURNS: Final = 20_000  # at one instant
_LOOK_AGAIN_US: Final = 1_000


class VirtualDeployment:
    """Plays all that a deployment does, in the order of time.

    Args:
        settings: of the deployment.
        handlers: what tasks may name.
        now: what time it is at first, microseconds since the epoch.
        noted: is told of calls of handlers, and how they end.

    Attributes:
        now: what time it is.
        rejected: records of the planner that no deployment would take.
    """

    def __init__(self, settings: Settings, handlers: Mapping[str, Handler], now: int, noted: Watcher) -> None:
        ingest = settings.ingest
        self.now = now
        self.rejected: list[Rejection] = []
        self._rules = Rules(1, duration_ms(ingest.grace), duration_ms(ingest.retention), ingest.default_handler)
        self._playing = False
        self.planner = VirtualPlanner(
            settings, lambda: self.now, send=self._launch,
            put_queues=lambda changes: self.dispatcher.put_queues(changes, self.now), settle=self.settle_quietly,
            load=lambda: self.dispatcher.load(self.now),
        )  # fmt: skip
        self.dispatcher = VirtualDispatcher(
            settings, handlers, now, counted=self.planner.counted, noted=noted, follow_up=self._follow_up
        )

    # -- time -----------------------------------------------------------------------------------------------------------

    def play(self, until: int) -> None:
        """Lets time pass, and everything that is due until then happen in its moment.

        Args:
            until: microseconds since the epoch, not before now.

        Raises:
            ConflictError: a handler asks for it, or something runs on and on without any time passing.
        """
        with self._time_passes():
            self._settle()
            while (at := self._following()) <= until:
                self.now = at
                self._settle()
            self.now = until

    def play_until_idle(self, limit: int) -> bool:
        """Lets time pass until the dispatcher has nothing more to do; False: it still has, at the limit.

        Args:
            limit: microseconds since the epoch.

        Raises:
            ConflictError: as `play`.
        """
        with self._time_passes():
            self._settle()
            while self.dispatcher.next_us < NEVER:
                if self._following() > limit:
                    self.now = limit
                    return False
                self.now = self._following()
                self._settle()
        return True

    def settle_quietly(self) -> None:
        """Lets everything happen that can happen at this instant, but calls no handler; within one, nothing happens."""
        if not self._playing:
            self._settle(may_start=False)

    @contextmanager
    def _time_passes(self) -> Iterator[None]:
        if self._playing:
            raise ConflictError("A handler lets time pass.", hint="Only the test itself may do that.")
        self._playing = True
        try:
            yield
        finally:
            self._playing = False

    def _settle(self, *, may_start: bool = True) -> None:
        for _ in range(_MOST_TURNS):
            decided = self.planner.turn()
            if not self.dispatcher.turn(self.now, may_start=may_start) and not decided:
                return
        raise ConflictError(
            f"The world does not come to rest at {iso(self.now)}; {self.dispatcher.last_called!r} was called last.",
            hint="Something starts itself again and again without any delay.",
        )

    def _following(self) -> int:
        """The next instant at which something happens; NEVER if nothing will."""
        following = min(self.dispatcher.next_us, self.planner.next_us)
        if following > self.now:
            return following
        return self.now + _LOOK_AGAIN_US  # its time has come, but not its turn

    # -- the log of tasks -----------------------------------------------------------------------------------------------

    def send(self, command: Command) -> None:
        """A client sends a command.

        Raises:
            ArgumentError: it is refused, as by every deployment; nothing was sent.
        """
        self._append(command.key.ordering_id, record_of(command, self._rules, self.now).value)

    def check(self, command: Command) -> None:
        """Whether a client could send a command.

        Raises:
            ArgumentError: it would be refused.
        """
        record_of(command, self._rules, self.now)

    def _follow_up(self, asked: action.SendFollowUps) -> Failure | None:
        """The dispatcher sends what a handler asked for, or nothing of it, and says why."""
        try:
            commands = [command_of(one, asked.key, asked.decided_us) for one in asked.follow_ups if one.kind == TASK]
            records = [(command.key.ordering_id, record_of(command, self._rules, self.now)) for command in commands]
            events = [event_record(one) for one in asked.follow_ups if one.kind == EVENT]
        except SchedulerError as error:
            return Failure(REFUSED, f"What the handler asked for is refused: {error.message}")
        for lane, record in records:
            self._append(lane, record.value)
        for event in events:
            self.planner.take(event)
        return None

    def _launch(self, text: str) -> None:
        """The planner sends a command."""
        self._append(json.loads(text)["orderingId"], text.encode())

    def _append(self, lane: str, value: bytes) -> None:
        """A record stands in the log, and is judged as every record is."""
        judged = validate(0, 0, self.now, lane.encode(), value, self._rules)
        if isinstance(judged, Rejection):
            self.rejected.append(judged)
        else:
            self.dispatcher.offer(judged, self.now)
