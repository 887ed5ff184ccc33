"""What the runner knows of a peer."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

from tests.benchmarks.peers.figures import Figure


class Peer(Protocol):
    """A scheduler that can be measured with no-op tasks.

    Attributes:
        name: as `--only` takes it and as the table shows it.
        settings: one line on what was set, with the version.
    """

    name: str
    settings: str

    def available(self) -> str | None:
        """Installs what is needed; None, or the reason why this machine cannot run it."""

    def site(self) -> AbstractContextManager[Any]:
        """Its servers, while it is measured."""

    def drain(self) -> Figure:
        """Waiting tasks, then workers start: tasks per second until the store says that all are done."""

    def drain_ordered(self) -> Figure:
        """The same with strict serial order in each of 1,000 keys."""

    def lateness(self, poll_ms: int | None) -> Figure:
        """Tasks due in the future, 100 a second: start less due time; with default polling or every `poll_ms`."""

    def immediate(self) -> Figure:
        """Tasks due now, 50 a second: start less time of sending."""

    def enqueue(self) -> Figure:
        """Tasks per second through the fastest call for many."""
