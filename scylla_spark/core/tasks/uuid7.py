"""Time-sortable unique texts (UUID version 7): tasks that are due at the same time keep the order they were enqueued in."""

from __future__ import annotations

import random
import threading
from uuid import UUID


class Uuid7:
    """A source of UUIDs that grow strictly, also within one microsecond and when the clock steps back.

    The 48-bit millisecond field is followed by 12 bits of the microseconds and 62 bits that begin at random and count up.
    Source of the layout: RFC 9562, section 5.7 and method 3 of section 6.2. Thread safe.

    Args:
        rng: source of the random bits; default: the operating system's.
    """

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.SystemRandom()
        self._lock = threading.Lock()
        self._last_us = -1
        self._tail = 0

    def next(self, now: int) -> str:
        """The next text.

        Args:
            now: microseconds since the epoch.
        """
        with self._lock:
            if now > self._last_us:
                self._last_us = now
                self._tail = self._rng.getrandbits(61)  # the top bit is left free to count into
            else:
                self._tail += 1 + self._rng.getrandbits(20)
            us, tail = self._last_us, self._tail
        ms, rest = divmod(us, 1000)
        number = ms << 80 | 0x7 << 76 | (rest * 4096 // 1000) << 64 | 0b10 << 62 | tail
        return str(UUID(int=number))
