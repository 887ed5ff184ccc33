"""Which keys have ended lately: enough to answer "has this key already run?" without asking the tables."""

from __future__ import annotations

from typing import Final

from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.name_fingerprint import fingerprint

GENERATION_US: Final = 10_000_000
_GENERATIONS: Final = 32  # about; where the tables stand still for long, generations become longer instead of more


class RecentlyEnded:
    """Keys completed since a moment, as fingerprints in generations; the oldest are forgotten once the tables hold them.

    Args:
        since_us: a key scheduled at or after this that is not in here has not completed (cancelled ones apart).
    """

    __slots__ = ("_count", "_generations", "since_us")

    def __init__(self, since_us: int) -> None:
        self.since_us = since_us
        self._generations: list[_Generation] = []
        self._count = 0

    def add(self, key: TaskKey, offset: int, now: int, *, until_us: int = 0) -> None:
        """Notes a completion that stands at `offset` of the `outcomes` partition; it is remembered until `until_us` at least."""
        generation = self._generations[-1] if self._generations else None
        age_us = now - generation.born_us if generation is not None else 0
        if generation is None or (age_us >= GENERATION_US and age_us >= self._span_us(now)):
            generation = _Generation(now)
            self._generations.append(generation)
        number, hashes = fingerprint(key), generation.hashes
        if number not in hashes:
            hashes.add(number)
            self._count += 1
        if offset > generation.offset:
            generation.offset = offset
        generation.last_us = max(generation.last_us, now, until_us)

    def __contains__(self, key: TaskKey) -> bool:
        number = fingerprint(key)
        return any(number in generation.hashes for generation in self._generations)

    def __len__(self) -> int:
        return self._count

    def forget(self, recorded_offset: int, before_us: int) -> int:
        """Drops generations that the tables hold in full (facts below `recorded_offset`) and that ended before `before_us`.

        Returns:
            The offset after the last fact that was dropped; 0: none was.
        """
        floor = 0
        while (
            self._generations
            and self._generations[0].offset < recorded_offset
            and self._generations[0].last_us < before_us
        ):
            gone = self._generations.pop(0)
            self._count -= len(gone.hashes)
            self.since_us = max(self.since_us, gone.last_us + 1)
            floor = max(floor, gone.offset + 1)
        return floor

    def _span_us(self, now: int) -> int:
        """Returns how long a generation lasts: longer, where the oldest has been there for long."""
        return (now - self._generations[0].born_us) // _GENERATIONS


class _Generation:
    __slots__ = ("born_us", "hashes", "last_us", "offset")

    def __init__(self, now: int) -> None:
        self.born_us = now
        self.last_us = now
        self.offset = -1
        self.hashes: set[int] = set()
