"""The check of `If-Match`: the version that a client wants to change against the stored one."""

from __future__ import annotations

from typing import Any, Final

from scylla_spark.api import problems
from scylla_spark.api.context import Api
from scylla_spark.api.problems import Problem
from scylla_spark.errors import ConflictError

ANY: Final = "*"
"""Any version, as long as there is one."""


def etag(revision: int) -> str:
    """The ETag of a revision; 0: nothing is stored."""
    return f'"{revision}"'


def check(what: str, tag: str, if_match: str | None, *, stored: bool, needs_match: bool) -> None:
    """Returns if the client means the version that is there.

    Args:
        what: is changed, for people, such as "queue 'mail'".
        tag: its ETag now.
        if_match: as the client sent it.
        stored: something is there at all.
        needs_match: then the client must say which version it means.

    Raises:
        Problem: another is stored, or which is meant is not said.
    """
    headers = {"ETag": tag}
    if if_match is None:
        if stored and needs_match:
            hint = "Send its ETag as If-Match, or If-Match: *."
            raise Problem(problems.IF_MATCH_NEEDED, f"A {what} is stored.", hint=hint, headers=headers)
        return
    tags = [part.strip() for part in if_match.split(",")]
    if not stored or (if_match != ANY and tag not in tags):
        raise Problem(problems.CHANGED, f"Another version of {what} is stored.", headers=headers)


def ask(api: Api, kind: str, **fields: Any) -> dict[str, Any]:
    """Sends a command to the planner and returns its result. A version that was changed meanwhile is a problem of its own kind.

    Args:
        api: asks the planner.
        kind: of the command.
        **fields: of the command.

    Raises:
        Problem: it was changed meanwhile.
        ConflictError: the state does not allow it, and no version was expected.
    """
    try:
        done: dict[str, Any] = api.scheduler.connection.plan.ask(kind, **fields).done
    except ConflictError as error:
        if not fields.get("expect"):
            raise
        raise Problem(problems.CHANGED, error.message, hint=error.hint) from error
    return done
