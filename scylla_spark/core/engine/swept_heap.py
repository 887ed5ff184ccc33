"""Heaps of marks that become void while they wait: those that are void are let go of before they are most of a heap."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappush
from typing import Any, Final, Generic, TypeVar

_SLACK: Final = 64  # void marks that a heap may hold

Mark = TypeVar("Mark", bound=tuple[Any, ...])


class SweptHeap(Generic[Mark]):
    """A heap that holds at most as many void marks as valid ones, and a few more.

    Args:
        is_valid: whether a mark may still mean something; what has become void never does again.

    Attributes:
        marks: the heap, void marks included.
        swept: void marks were let go of, though nobody had taken them; who cares sets it back.
    """

    def __init__(self, is_valid: Callable[[Mark], bool]) -> None:
        self.marks: list[Mark] = []
        self.swept = False
        self._is_valid = is_valid
        self._sweep_at = _SLACK

    def push(self, mark: Mark) -> None:
        """Takes a mark."""
        heappush(self.marks, mark)
        if len(self.marks) > self._sweep_at:
            self.sweep()

    def sweep(self) -> None:
        """Lets go of all void marks now, and of what they refer to."""
        before = len(self.marks)
        self.marks = [mark for mark in self.marks if self._is_valid(mark)]
        self.swept = self.swept or len(self.marks) < before
        heapify(self.marks)
        self._sweep_at = 2 * len(self.marks) + _SLACK
