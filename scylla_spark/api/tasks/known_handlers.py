"""The handlers that dispatchers reported last. They serve to warn of unknown handlers without a delay of the enqueue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

import anyio
import anyio.to_thread

from scylla_spark.client.handlers import Catalogue, warning_of, warnings_of
from scylla_spark.clock import boot_us
from scylla_spark.core.records.command import Command
from scylla_spark.core.tasks.tags import channels_in
from scylla_spark.errors import SchedulerError
from scylla_spark.log import get_logger

log = get_logger("api")

_AT_ONCE: Final = 2
_FRESH_US: Final = 10_000_000
_FIRST_S: Final = 0.25  # who enqueues waits so long where nobody has looked yet, and never again


class KnownHandlers:
    """The handlers of dispatchers as they were a moment ago; of one event loop.

    Args:
        look: asks all dispatchers; it may take long.
    """

    def __init__(self, look: Callable[[], Catalogue]) -> None:
        self._look = look
        self._room = anyio.CapacityLimiter(_AT_ONCE)
        self._known: Catalogue | None = None
        self._until = 0
        self._looking: asyncio.Task[None] | None = None

    async def now(self) -> Catalogue:
        """Asks all dispatchers for their handlers.

        Raises:
            SchedulerError: nobody can say who they are.
        """
        self._known = await anyio.to_thread.run_sync(self._look, limiter=self._room)
        self._until = boot_us() + _FRESH_US
        return self._known

    async def warning(self, command: Command) -> str | None:
        """Returns a warning if no dispatcher has the handler of a task, or no task may name its channel. None: nothing is known of that.

        Args:
            command: that was sent. Of a queue of workers it may be theirs: they tell nobody what they can run.
        """
        await self.fresh()
        return " ".join(self.all_unknown([command.handler], channels_in(command.tags))) or None

    async def fresh(self) -> None:
        """Looks again where the last look is long ago; see `_renew`."""
        if boot_us() >= self._until:
            await self._renew()

    def unknown(self, handler: str | None) -> str | None:
        """Returns a warning if no dispatcher had the handler when they were asked last. None: one had it, or that is not known."""
        return None if self._known is None else warning_of(self._known, handler)

    def reason(self, queue: str, handler: str | None) -> str | None:
        """Returns why due tasks of a queue and handler wait, as their dispatcher reported last (`Catalogue.waiting`). None: not known."""
        return None if self._known is None or handler is None else self._known.waiting.get((queue, handler))

    def all_unknown(self, handlers: Iterable[str | None], channels: Iterable[str] = ()) -> list[str]:
        """The same of several names of handlers and channels, each once."""
        return [] if self._known is None else warnings_of(self._known, handlers, channels)

    async def _renew(self) -> None:
        """Begins to look; waits for it only where nothing was ever seen."""
        if self._looking is None or self._looking.done():
            self._until = boot_us() + _FRESH_US
            self._looking = asyncio.create_task(self._looked())
        if self._known is None:
            await asyncio.wait({self._looking}, timeout=_FIRST_S)

    async def _looked(self) -> None:
        try:
            await self.now()
        except SchedulerError as error:
            log.warning("dispatchers cannot be asked for their handlers", why=str(error)[:300])
