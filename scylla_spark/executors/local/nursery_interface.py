"""Where the children of a pool come from and end, whatever they do."""

from __future__ import annotations

import socket
from collections.abc import Hashable, Mapping, Sequence
from typing import Protocol

from scylla_spark.core.tasks.task import Invocation
from scylla_spark.executors.local.received_notes import Heard


class ChildEnd(Hashable, Protocol):
    """The pool's end of a child, whatever that does."""

    number: int
    pid: int
    deaf: bool
    ending: str
    fault: str
    heard: Heard
    sock: socket.socket

    @property
    def calls(self) -> Mapping[int, Sequence[Invocation]]:
        """Its unfinished calls by their number."""

    def hand_over(self) -> tuple[socket.socket, int]:
        """The child's ends of socket and memory."""

    def handed_over(self) -> None:
        """The child has its ends now."""

    @property
    def blocked(self) -> bool:
        """Whether bytes wait for the socket to become writable."""

    def flush(self) -> None:
        """Writes what the socket takes."""


class Nursery(Protocol):
    """Where children come from and end."""

    def spawn(self, child: ChildEnd) -> None:
        """Starts the child of `child`; if that fails, its death is reported like any other."""

    def kill_child(self, number: int, grace_ms: int) -> None:
        """Ends a child and its process group."""
