"""The coordinator of the consumer group: who of the live members owns which partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.records import SECOND

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World


class Group:
    """Live members share the partitions; a partition is drained by its owner before another gets it.

    Args:
        world: whose processes are the members.
        partitions: how many there are.
    """

    def __init__(self, world: World, partitions: int) -> None:
        self._world = world
        self.owner: dict[int, int | None] = dict.fromkeys(range(partitions))
        self._revoking: set[int] = set()
        self._turn = 0  # differs with every member that joins
        self._looks_again = False

    def _owner_of(self, number: int) -> Process | None:
        """The member that owns a partition, if it lives and is one."""
        owner = self.owner[number]
        process = self._world.processes.get(owner) if owner is not None else None
        return process if process is not None and process.member else None

    def joined(self) -> None:
        """A member is there, or wants to go."""
        self._turn += 1
        self.rebalance()

    def rebalance(self) -> None:
        """Partitions go to the members that are to have them."""
        for number in self.owner:
            owner, target = self._owner_of(number), self._target(number)
            if number in self._revoking or (owner is target is not None):
                continue
            if owner is None:
                self._give(number)
            else:
                self._revoking.add(number)
                owner.revoke(number, lambda n=number, o=owner: self._handed_over(n, o))

    def _target(self, number: int) -> Process | None:
        members = [process for process in self._world.processes.values() if process.member and not process.leaving]
        return members[(number + self._turn) % len(members)] if members else None

    def _handed_over(self, number: int, owner: Process) -> None:
        """A revoked partition was let go of."""
        if self.owner[number] != owner.number:
            return
        self._revoking.discard(number)
        self._give(number)
        if owner.leaving and owner.number not in self.owner.values():
            self._world.stopped(owner)

    def _give(self, number: int) -> None:
        """Assigns a partition, as soon as somebody can have it."""
        target = self._target(number)
        self.owner[number] = target.number if target is not None else None
        if target is not None:
            target.assign(number)
        elif not self._looks_again:
            self._looks_again = True
            self._world.after(SECOND, self._look_again)

    def _look_again(self) -> None:
        self._looks_again = False
        self.rebalance()

    def expel(self, process: Process) -> None:
        """A member was not heard of for too long."""
        process.member = False
        process.expelled_at = self._world.now
        self._world.unclean.add(process.number)
        for number, owner in self.owner.items():
            if owner == process.number:
                self.owner[number] = None
                self._revoking.discard(number)
        self._world.after(0, self.rebalance)

    def replace(self, gone: int, by: Process) -> None:
        """A static member is back under its name: it gets at once what it had."""
        for number, owner in self.owner.items():
            if owner == gone:
                self.owner[number] = by.number
                self._revoking.discard(number)
                by.assign(number)
