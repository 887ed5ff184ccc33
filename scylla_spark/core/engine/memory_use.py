"""How much is held in memory: counted in bytes, about, where it is taken and let go of."""

from __future__ import annotations

from typing import Final

from scylla_spark.core.records.command import Command
from scylla_spark.core.records.fact import Fact
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.stored_records import Known

_ENTRY_BYTES: Final = 1024  # of a task without its texts, with its place in lanes, heaps and indexes
_NOTE_BYTES: Final = 300  # of a remembered key or fact without its texts


def size_of(text: str | None) -> int:
    """About how many bytes a text takes."""
    return 0 if text is None else len(text) if text.isascii() else 4 * len(text)


def cost_of(command: Command) -> int:
    """About how many bytes a loaded task takes; the engine asks it of every task."""
    _, ordering_id, uniqueness_key = command.key
    payload, extra = command.payload, command.extra
    chars = len(payload) + len(ordering_id) + len(uniqueness_key) + (len(extra) if extra is not None else 0)
    if command.tags:
        chars += sum(map(len, command.tags))
    if command.about is not None:
        chars += sum(len(text) for text in command.about if text is not None)
    plain = payload.isascii() and ordering_id.isascii() and uniqueness_key.isascii()
    return _ENTRY_BYTES + (chars if plain else 4 * chars)


class Meter:
    """How many bytes all partitions of an engine hold together, about."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0


class Holding:
    """What one partition holds: how many tasks, and how many bytes, which also count in the engine's meter.

    Args:
        meter: of the engine.
    """

    __slots__ = ("_meter", "bytes", "tasks")

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self.tasks = 0
        self.bytes = 0

    def add(self, size: int) -> None:
        """So many bytes more are held, or less."""
        self.bytes += size
        self._meter.bytes += size

    def clear(self) -> None:
        """The partition is left: what it held no longer counts."""
        self.add(-self.bytes)
        self._meter = Meter()


def note_bytes(key: TaskKey) -> int:
    """About how many bytes a remembered key takes."""
    return _NOTE_BYTES + size_of(key.ordering_id) + size_of(key.uniqueness_key)


def fact_bytes(fact: Fact) -> int:
    """About how many bytes the texts of a fact take."""
    return size_of(fact.result) + (sum(map(size_of, fact.failure)) if fact.failure is not None else 0)


def attempt_bytes(known: Known) -> int:
    """About how many bytes the texts take that are known of an attempt."""
    work, size = known.work, 0 if known.error is None else sum(map(size_of, known.error))
    if work is not None:
        size += _NOTE_BYTES + sum(map(size_of, work.texts))
    return size
