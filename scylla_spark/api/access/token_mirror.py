"""The stored tokens, as this process knows them. They are never older than five seconds when they admit a request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import anyio
import anyio.to_thread

from scylla_spark.core.plan.state.stored_token import StoredToken
from scylla_spark.errors import SchedulerError, UnreachableError
from scylla_spark.log import get_logger

log = get_logger("api")

FRESH_S: Final = 1.0  # so old, it is looked at again, beside the answer …
OLDEST_S: Final = 5.0  # … and so old, nobody is let in by it
_ONCE_MORE_S: Final = 0.2
_LONGEST_S: Final = 1.5  # that a request waits for a look, once there was one
Tokens = Mapping[str, StoredToken]


class TokenView:
    """The tokens that the planner's log has; of one event loop.

    Args:
        read: tells all tokens as they are now; it may wait for a broker.
    """

    def __init__(self, read: Callable[[], Tokens]) -> None:
        self._read = read
        self._tokens: Tokens | None = None
        self._read_at = self._failed_at = float("-inf")
        self._failure: SchedulerError | None = None
        self._reading: asyncio.Task[None] | None = None

    async def now(self, unknown: str = "") -> Tokens:
        """The tokens as they were at most five seconds ago.

        Args:
            unknown: id of a token that should be among them: where it is missing, it is looked for.

        Raises:
            UnreachableError: the log cannot be read, and there are tokens, or nobody knows.
        """
        age = self._age(self._read_at)
        if age > OLDEST_S:
            await self._look(wait=not self._is_down())
        elif age > FRESH_S:
            await self._look(wait=False)
        if unknown and self._tokens and unknown not in self._tokens:
            await self._look_for(unknown)
        if self._tokens is None or (self._tokens and self._age(self._read_at) > OLDEST_S):
            why = self._failure.message if self._failure is not None else "Kafka does not answer."
            hint = self._failure.hint if self._failure is not None else ""
            raise UnreachableError(
                f"Tokens cannot be checked at the moment: {why}", hint=hint or "Try again in a moment."
            )
        return self._tokens

    def _is_down(self) -> bool:
        """Returns whether the log could not be read a moment ago. Requests are then answered without another attempt."""
        return self._tokens is not None and self._age(self._failed_at) < OLDEST_S

    def _age(self, moment: float) -> float:
        return _time() - moment

    async def _look(self, *, wait: bool) -> None:
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._renew())
        if wait:
            await asyncio.wait([self._reading], timeout=_LONGEST_S if self._tokens is not None else None)
            if not self._reading.done():
                self._failed_at = _time()  # nobody else waits for it for a while

    async def _look_for(self, unknown: str) -> None:
        """Reads what may have been written until now; those who ask at the same time share it, so that strangers cost little."""
        asked = _time()
        await asyncio.sleep(max(0.0, _ONCE_MORE_S - self._age(self._read_at)))
        await self._look(wait=True)
        if self._read_at < asked and self._age(self._failed_at) > OLDEST_S and unknown not in (self._tokens or ()):
            await self._look(wait=True)  # what was under way had begun before

    async def _renew(self) -> None:
        begun = _time()  # what it tells may be as old as this
        try:
            self._tokens = await anyio.to_thread.run_sync(self._read, limiter=anyio.CapacityLimiter(1))
            self._read_at = begun
        except SchedulerError as error:
            self._failed_at, self._failure = _time(), error
            log.warning("the tokens cannot be read", why=str(error)[:300])


def _time() -> float:
    """Seconds of the loop's clock."""
    return asyncio.get_running_loop().time()
