"""The readiness check of tables and Kafka. Concurrent requests share one check, and none waits longer than a bound."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import anyio
import anyio.to_thread

from scylla_spark.errors import UnreachableError

_MOST_S: Final = 1.5  # that anybody waits
_AT_ONCE: Final = 1


class Readiness:
    """Looks in a thread of its own, which a store or a broker that does not answer may hold for longer; of one event loop.

    Args:
        look: asks the tables and Kafka; it raises what is wrong.
    """

    def __init__(self, look: Callable[[], object]) -> None:
        self._look = look
        self._room = anyio.CapacityLimiter(_AT_ONCE)
        self._looking: asyncio.Task[object] | None = None

    async def check(self) -> None:
        """Returns if a look that is under way, or begins now, finds everything in order.

        Raises:
            UnreachableError: it does not, or it has not ended in time.
        """
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(anyio.to_thread.run_sync(self._look, limiter=self._room))
            self._looking.add_done_callback(asyncio.Task.exception)  # it may fail when nobody waits any more
        done, _ = await asyncio.wait([self._looking], timeout=_MOST_S)
        if not done:
            raise UnreachableError(
                f"The tables and Kafka have not answered within {_MOST_S:g} s.",
                hint="Check the store and the brokers, for example with `scylla-spark doctor`.",
            )
        self._looking.result()
