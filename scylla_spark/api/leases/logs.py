"""The route by which leased workers tell what their programs print and log, while they hold the lease."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Path
from pydantic import BaseModel, Field
from starlette.responses import Response

from scylla_spark.api import problems
from scylla_spark.api.context import Asked, Body, Instant, Routes, answer
from scylla_spark.api.leases.views import Token, bounded, not_held
from scylla_spark.clock import to_us
from scylla_spark.core.leases.messages import MOST_LINES, OK, LeasedLine

routes = Routes()
_MOST_FIELDS_BYTES = 4 * 1024


class LineBody(Body):
    """One line of an attempt."""

    seq: Annotated[
        int,
        Field(
            ge=1,
            lt=2**31,
            description="Its number within the attempt, from 1: those told before are passed over, gaps marked",
        ),
    ]
    at: Annotated[Instant, Field(description="When it was written")]
    stream: Literal["stdout", "stderr", "logging"] = "stdout"
    level: Literal["debug", "info", "warning", "error", "critical"] | None = None
    text: Annotated[str, Field(max_length=64 * 1024, description="Without its end; cut at `logs.line` bytes")]
    fields: Annotated[dict[str, Any] | None, Field(description="What the line holds besides, at most 4 KiB")] = None

    def line(self) -> LeasedLine:
        """As it travels on.

        Raises:
            ArgumentError: its fields are too large.
        """
        fields = bounded("fields", self.fields, _MOST_FIELDS_BYTES)
        return LeasedLine(self.seq, to_us(self.at), self.stream, self.level, self.text, fields)


class LinesBody(Body):
    """Lines of one attempt, in order."""

    lines: Annotated[list[LineBody], Field(min_length=1, max_length=MOST_LINES)]


class LinesAcceptedView(BaseModel):
    """The number of accepted lines."""

    taken: int


@routes.post("/v1/leases/{lease}/logs", LinesAcceptedView, problems.NOT_JSON, problems.CONFLICT)
async def send_logs(api: Asked, lease: Annotated[Token, Path()], told: LinesBody) -> Response:
    """Send lines that an attempt printed or logged, redacted as all logs. The answer is 409 after the lease has ended."""
    lines = [one.line() for one in told.lines]
    said = await api.lease_servers.lines(lease, lines)
    if said == OK:
        return answer({"taken": len(lines)})
    raise not_held(said)
