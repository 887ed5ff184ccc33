"""Definitions of queues that are put and deleted while all goes on; every dispatcher hears of each a moment later."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scylla_spark.definitions.queue import Queue

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

ORDERS = {"default": "durable", "replay": "replay", "narrow": "durable", "grouped": "replay"}
"""Queues whose definitions change, and their order, which the judge relies on."""


class Definitions:
    """What is stored of queues.

    Args:
        world: in which dispatchers obey it.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._stored: dict[str, Queue | None] = {}

    def change(self) -> None:
        """Somebody puts a definition, or deletes one."""
        rng = self._world.rng
        name = rng.choice(list(ORDERS))
        self._stored[name] = self._any(name) if rng.random() < 0.8 else None
        self._tell(name)

    def delete_all(self) -> None:
        """The settings are in force again, so that all can end."""
        for name in self._stored:
            self._stored[name] = None
            self._tell(name)

    def tell_all(self, process: Process) -> None:
        """A process that starts reads what is stored before anything starts in it."""
        if self._stored:
            process.dispatcher._put_queues(dict(self._stored))
            while process.mailbox._messages:
                for message in process.mailbox.drain():
                    message(self._world.now)

    def _tell(self, name: str) -> None:
        for process in self._world.processes.values():
            process.later(self._world.jitter(1, 800), lambda process=process: self._hear(process, name))

    def _hear(self, process: Process, name: str) -> None:
        process.dispatcher._put_queues({name: self._stored[name]})

    def _any(self, name: str) -> Queue:
        rng = self._world.rng
        return Queue(
            name=name, order=ORDERS[name], paused=rng.random() < 0.3, concurrency=rng.choice([None, 1, 2, 4]),
            rate=rng.choice([None, None, 2.0, 50.0]), group_concurrency=rng.choice([None, 1, 2]), group_separator="e",
        )  # fmt: skip
