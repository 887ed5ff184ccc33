"""What somebody changed, or was not allowed to do, through the HTTP API: from a record of `schedules` to a row of `audit`.

The planner passes it on in its log, which ingest makes rows of; nothing is decided by it, and the state keeps nothing of it.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, NamedTuple, Required

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict  # pydantic refuses that of Python 3.11

from scylla_spark.core.plan.state.plan_log import Change
from scylla_spark.core.tasks.key import LATEST_US

AUDIT: Final = "audit"
MOST_ENTRIES: Final = 50  # of a record: whatever characters they have, they fit
MOST_CHARS: Final = 300

_Text = Annotated[str, Field(max_length=MOST_CHARS)]


@with_config(ConfigDict(strict=True, extra="ignore"))
class AuditFields(TypedDict, total=False):
    """An entry as it travels."""

    atUs: Required[Annotated[int, Field(ge=0, lt=LATEST_US)]]
    token: Required[_Text]
    name: Required[_Text]
    operation: Required[_Text]
    method: Required[_Text]
    path: Required[_Text]
    status: Required[Annotated[int, Field(ge=0, le=999)]]
    client: Required[_Text]


class AuditEntry(NamedTuple):
    """Who asked for what.

    Attributes:
        at_us: when it was answered, microseconds since the epoch.
        token: id of the token; empty: none was shown, or none that holds.
        name: of the token.
        operation: `operationId` of the description; empty: there is none at that path.
        method: of the request.
        path: of the request, decoded; its first 300 characters.
        status: of the answer; 0: there was none.
        client: network address.
    """

    at_us: int
    token: str
    name: str
    operation: str
    method: str
    path: str
    status: int
    client: str

    def to_wire(self) -> dict[str, Any]:
        """As it travels."""
        return {"atUs": self.at_us, **{name: value for name, value in self._asdict().items() if name != "at_us"}}


def read_audit_change(change: Change) -> AuditEntry:
    """The entry that a change of kind `AUDIT` holds.

    Raises:
        KeyError: a field is missing: no planner wrote it. TypeError, IndexError: likewise.
    """
    fields = change[2]
    return AuditEntry(fields["atUs"], *(fields[name] for name in AuditEntry._fields[1:]))
