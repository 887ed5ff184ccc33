"""What a pool asks of whoever decides about its children: one call at a time in each, or many on an event loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from scylla_spark.core.tasks.task import Invocation, Outcome
from scylla_spark.executors.local.child_handle import Call
from scylla_spark.executors.local.outcomes import Moment
from scylla_spark.executors.local.pool_sizes import Limits
from scylla_spark.handlers.description import HandlerInfo


class Supervision(Protocol):
    """The decisions of a pool; see `supervisor.Supervisor` for what each means.

    Attributes:
        done: outcomes to be handed on.
        outputs: what finished calls printed.
        forkserver_stuck: it should be replaced.
    """

    done: list[Outcome]
    outputs: list[tuple[Call, str]]
    forkserver_stuck: bool

    @property
    def children(self) -> Mapping[int, Any]:
        """By number; each is a `ChildEnd`."""

    @property
    def stopping(self) -> int:
        """Boot clock at which the last task is killed; 0: no stop was asked for."""

    @property
    def finished(self) -> bool:
        """Whether nothing runs or waits."""

    @property
    def wants_attention(self) -> bool:
        """Whether the pool's thread has something to do."""

    def room(self, handler: str | None = None) -> int:
        """How many more calls, of that handler if one is named."""

    def running(self, now: Moment) -> dict[int, int]:
        """Id → wall clock of its start."""

    def submit(self, batch: Sequence[Invocation]) -> None:
        """Takes invocations."""

    def kill(self, ids: Iterable[int], now: int, grace_ms: int = 0) -> None:
        """Ends invocations; see `supervisor.Supervisor.kill`."""

    def stop(self, until_us: int) -> None:
        """Hands back what has not started; what runs may go on until then."""

    def postpone(self, until_us: int) -> None:
        """Starts no children before."""

    def fill(self, now: int) -> bool:
        """Gives out calls; whether it did."""

    def grow(self, now: int) -> bool:
        """Starts children; whether it did."""

    def receive(self, child: Any, now: int) -> bool:
        """Takes what a child has sent; whether it may send more."""

    def expel(self, child: Any, now: int) -> None:
        """Kills a child that does what none of ours does."""

    def died(self, child: Any, status: int, now: int) -> None:
        """A child is dead; see `supervisor.Supervisor.died`."""

    def watch(self, now: int) -> int:
        """Acts on what is due; when to look again."""


class ChildKind(NamedTuple):
    """What kind of children a pool has.

    Attributes:
        module: its `run` is what a child does.
        supervise: makes who decides about them, from the pool's limits, the handlers, and the nursery of children.
        variables: what the module is told by its environment.
    """

    module: str
    supervise: Callable[[Limits, Mapping[str, HandlerInfo], Any], Supervision]
    variables: Mapping[str, str] = MappingProxyType({})
