"""What clients do: enqueue, send a key again, cancel, perhaps twice at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scylla_spark.core.records.command import CANCEL, ENQUEUE, Command, encode
from scylla_spark.core.tasks.key import TaskKey
from tests.simulation.profiles import HOUR_S, MINUTE_S, RATE_KEYS
from tests.simulation.records import SECOND

if TYPE_CHECKING:
    from tests.simulation.world import World

_FAR_S = (HOUR_S, 3 * HOUR_S, 6 * HOUR_S, 30 * HOUR_S)
_EXPIRE_AFTER_MS = (1, 500, 2_000, 6_000, 6_000, 15_000, 40_000)
_NAMES = 3  # of a lane, where they are to be unique
_OLDEST_STAMP_US = 50 * MINUTE_S * SECOND  # stamps of clients may be an hour old


class Clients:
    """All clients of a world.

    Args:
        world: whose log of `tasks` they append to.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._load = world.profile.load
        self._sent: list[TaskKey] = []
        self._over: list[TaskKey] = []  # cancelled at some time

    def act(self) -> None:
        """A client does something, or many things at once."""
        for _ in range(self._load.bulk):
            self._world.after(self._world.jitter(0, 300), self._act)

    def _act(self) -> None:
        rng, load = self._world.rng, self._load
        dice = rng.random()
        if self._sent and dice < load.cancel:
            self._cancel(rng.choice(self._sent[-20:]))
        elif self._sent and dice < load.cancel + load.resend:
            self._send(ENQUEUE, self._known())
        else:
            key = self._new_key()
            self._send(CANCEL if rng.random() < 0.02 else ENQUEUE, key)

    def _cancel(self, key: TaskKey) -> None:
        self._send(CANCEL, key)
        self._over.append(key)
        if self._world.rng.random() < self._load.twice:
            self._send(CANCEL, key)

    def _known(self) -> TaskKey:
        """A key that was sent before."""
        rng, ended = self._world.rng, self._world.judge.ended
        if rng.random() < self._load.again:
            over = [*self._over[-8:], *list(ended)[-24:]]
            if over:
                return rng.choice(over)
        return rng.choice(self._sent)

    def _new_key(self) -> TaskKey:
        world, load = self._world, self._load
        rng = world.rng
        due_s = rng.choice(load.dues)
        if rng.random() < load.far:
            due_s = rng.choice(_FAR_S)
        elif rng.random() < load.late:
            due_s = -rng.randint(MINUTE_S, 40 * MINUTE_S)
        lane = rng.choice([*world.lanes, *world.stuck_lanes])
        name = rng.randrange(_NAMES if load.unique else 10**6)
        return TaskKey(world.now + int(due_s * SECOND), lane, f"u{name}")

    def _unique(self, kind: str) -> bool:
        rng, chance = self._world.rng, self._load.unique
        return bool(chance) and kind == ENQUEUE and rng.random() < chance

    def _tags(self) -> tuple[str, ...]:
        rng, chance = self._world.rng, self._load.limited
        return (rng.choice(RATE_KEYS),) if chance and rng.random() < chance else ()

    def _expires_ms(self, kind: str) -> int | None:
        rng, chance = self._world.rng, self._load.expires
        return rng.choice(_EXPIRE_AFTER_MS) if chance and kind == ENQUEUE and rng.random() < chance else None

    def _send(self, kind: str, key: TaskKey) -> None:
        """A record arrives; what is refused is never heard of again."""
        world = self._world
        number = world.place(key)
        log, request = world.tasks[number], f"r{len(world.judge.requests)}"
        stamp = max(min(world.now, key.time_us + 5 * SECOND), world.now - _OLDEST_STAMP_US)
        lane = key.ordering_id
        command = Command(
            kind, key, len(log), world.handler_of[lane] or None, world.queue_of[lane], f'{{"at":{len(log)}}}',
            enqueued_us=stamp, request_id=request if kind == CANCEL else None, expires_ms=self._expires_ms(kind),
            unique=self._unique(kind), tags=self._tags(),
        )  # fmt: skip
        if world.append_task(number, lane.encode(), encode(command)) and kind == ENQUEUE:
            self._sent.append(key)
