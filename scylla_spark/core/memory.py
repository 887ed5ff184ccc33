"""Which keys have ended lately: enough to answer "has this key already run?" without asking the tables."""

from __future__ import annotations

from scylla_spark.core.key import TaskKey

GENERATION_US = 10_000_000


class Ended:
    """Keys completed since a moment, as 64-bit hashes in generations; the oldest are forgotten once the tables hold them.

    Args:
        since_us: a key scheduled at or after this that is not in here has not completed (cancelled ones apart).
    """

    __slots__ = ("_generations", "since_us")

    def __init__(self, since_us: int) -> None:
        self.since_us = since_us
        self._generations: list[_Generation] = []

    def add(self, key: TaskKey, offset: int, now: int) -> None:
        """Notes a completion that stands at `offset` of the `outcomes` partition."""
        if not self._generations or now - self._generations[-1].born_us >= GENERATION_US:
            self._generations.append(_Generation(now))
        generation = self._generations[-1]
        generation.hashes.add(hash(key))
        generation.offset = max(generation.offset, offset)
        generation.last_us = now

    def __contains__(self, key: TaskKey) -> bool:
        number = hash(key)
        return any(number in generation.hashes for generation in self._generations)

    def __len__(self) -> int:
        return sum(len(generation.hashes) for generation in self._generations)

    def forget(self, recorded_offset: int, before_us: int) -> None:
        """Drops generations that the tables hold in full (facts below `recorded_offset`) and that ended before `before_us`."""
        while (
            self._generations
            and self._generations[0].offset < recorded_offset
            and self._generations[0].last_us < before_us
        ):
            self.since_us = max(self.since_us, self._generations.pop(0).last_us)


class _Generation:
    __slots__ = ("born_us", "hashes", "last_us", "offset")

    def __init__(self, now: int) -> None:
        self.born_us = now
        self.last_us = now
        self.offset = -1
        self.hashes: set[int] = set()
