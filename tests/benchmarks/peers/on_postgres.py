"""What the peers on PostgreSQL have in common."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import ClassVar

from tests.benchmarks.peers.program import Program
from tests.benchmarks.peers.servers import Postgres, postgres, postgres_programs


class OnPostgres(Program):
    """A peer on PostgreSQL.

    Attributes:
        unfinished: the query that counts tasks that are not done.
    """

    unfinished: ClassVar[str]

    def install(self) -> None:
        postgres_programs()

    def server(self) -> AbstractContextManager[Postgres]:
        return postgres()

    def left(self) -> int:
        return int(self.store.ask(self.address, self.unfinished))

    def settle(self) -> None:
        self.store.ask(self.address, "vacuum analyze")
