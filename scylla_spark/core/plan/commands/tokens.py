"""What is asked of tokens: put and delete. All of one record is done, or nothing, in steps as with schedules."""

from __future__ import annotations

from typing import Any, Final

from scylla_spark.core.plan.commands.definitions import Steps
from scylla_spark.core.plan.commands.plan_command import PlanCommand
from scylla_spark.core.plan.state.stored_token import StoredToken, read_stored_token, token_change
from scylla_spark.core.plan.state.unwritten_changes import Journal
from scylla_spark.errors import ArgumentError, ConflictError, NotFoundError

MOST_TOKENS: Final = 10_000


class TokenCommands:
    """Changes tokens.

    Args:
        journal: takes what is decided.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._state = journal.state

    def put(self, command: PlanCommand, now: int, last: str = "") -> Steps:
        """Stores tokens. A secret stays what it is, and what was revoked stays so.

        Args:
            command: with the tokens.
            now: microseconds since the epoch.
            last: the tokens up to this id are done; empty: none.

        Returns:
            By id what became of each; nothing is taken back.

        Raises:
            ArgumentError: one of them is none; nothing is changed.
            ConflictError: one of the ids belongs to another secret, or was revoked; nothing is changed.
        """
        wanted = dict(read_stored_token(given, command.author, now) for given in command.fields["tokens"])
        for id, token in wanted.items():
            if id > last:
                self._check(id, token)
        if len(self._state.tokens.keys() | wanted.keys()) > MOST_TOKENS:
            raise ArgumentError(f"More than {MOST_TOKENS} tokens would be stored.", hint="Delete revoked ones.")
        done: dict[str, Any] = {}
        for id, token in sorted(wanted.items()):
            done[id] = {"became": "stored"}
            if id > last:
                self._note(id, token, command, now)
                yield id
        return done, []

    def delete(self, command: PlanCommand, now: int, last: str = "") -> Steps:
        """Forgets tokens. See `put` for arguments and result.

        Raises:
            NotFoundError: one of the ids is not stored; nothing is changed.
        """
        ids = sorted(set(command.fields["names"]))
        missing = [id for id in ids if id not in self._state.tokens and id > last]
        if missing:
            raise NotFoundError(f"No token {missing[0]!r} is stored.", hint="`scylla-spark token list` shows them.")
        done: dict[str, Any] = {}
        for id in ids:
            done[id] = {"became": "removed"}
            if id > last:
                self._note(id, None, command, now)
                yield id
        return done, []

    def _note(self, id: str, token: StoredToken | None, command: PlanCommand, now: int) -> None:
        self._journal.note(*token_change(id, token, command.author, now, command.id or ""))

    def _check(self, id: str, token: StoredToken) -> None:
        old = self._state.tokens.get(id)
        if old is not None and old.digest != token.digest:
            raise ConflictError(f"The token {id!r} has another secret.", hint="Make a new one.")
        if old is not None and old.revoked and not token.revoked:
            raise ConflictError(f"The token {id!r} was revoked.", hint="Make a new one.")
