"""Routes about the deployment: its partitions and who owns them, its tables and what was written to them, and its tokens."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from scylla_spark.api.context import Asked, Routes, answer, iso_us
from scylla_spark.client.partition_status import partition_rows
from scylla_spark.client.tokens import statuses
from scylla_spark.clock import now_us
from scylla_spark.io.delta.newest_commits import newest_commits

routes = Routes()


class PartitionView(BaseModel):
    """A partition of both topics."""

    partition: int
    tasks_behind: Annotated[int | None, Field(description="Records of `tasks` that the tables lack; null: not known")]
    outcomes_behind: Annotated[int | None, Field(description="Of `outcomes`, likewise")]
    folded_until: Annotated[str | None, Field(description="What is due before stands in `tasks` alone")]
    closed_until: Annotated[str | None, Field(description="In all hours before, every task has ended …")]
    open_hours: Annotated[int, Field(description="… except in so many")]
    owner: Annotated[str | None, Field(description="Address of its dispatcher; null: none is known")]
    state: Annotated[str | None, Field(description="As its owner says; null: it does not answer, as the rest")]
    epoch: int | None
    lanes: int | None
    loaded: Annotated[int | None, Field(description="Tasks in memory")]
    in_flight: Annotated[int | None, Field(description="Tasks that run")]


class PartitionsView(BaseModel):
    """All partitions."""

    partitions: list[PartitionView]
    unreachable: Annotated[str, Field(description="Why Kafka could not be asked; empty: it could")]


class TableView(BaseModel):
    """The size of a table, by its log."""

    table: str
    rows: int
    files: int
    bytes: int
    version: int


class TablesView(BaseModel):
    """All tables."""

    tables: list[TableView]


class CommitView(BaseModel):
    """Something that was written to a table; null is what its log does not say."""

    table: str
    version: int
    at: str | None
    operation: Annotated[str, Field(description="MERGE, WRITE, DELETE, OPTIMIZE and so on")]
    rows: Annotated[int | None, Field(description="That were written; of a MERGE those that came")]
    files_added: int | None
    files_removed: int | None
    ms: int | None
    phases: Annotated[dict[str, int], Field(description="Milliseconds of materialize, scan and rewrite of a MERGE")]


class CommitsView(BaseModel):
    """Commits of all tables, the newest first."""

    commits: list[CommitView]


class StoredTokenView(BaseModel):
    """A token; nothing of its secret."""

    id: str
    name: str
    state: Literal["active", "expired", "revoked"]
    scopes: list[str]
    namespaces: list[str]
    expires_at: datetime | None
    author: str
    changed_at: datetime | None


class TokensView(BaseModel):
    """All tokens that are stored, by name."""

    tokens: list[StoredTokenView]


@routes.get("/v1/system/partitions", PartitionsView)
async def list_partitions(api: Asked) -> Response:
    """List partitions with their owners and with how far the tables lag behind both logs."""
    rows, why = await api.slowly(lambda: partition_rows(api.scheduler.connection))
    return answer({"partitions": rows, "unreachable": why})


@routes.get("/v1/system/tables", TablesView)
def list_tables(api: Asked) -> Response:
    """List rows, files and bytes of all tables."""
    return answer({"tables": api.scheduler.connection.readers.sizes()})


@routes.get("/v1/system/commits", CommitsView)
async def list_commits(api: Asked, limit: Annotated[int, Query(ge=1, le=200)] = 50) -> Response:
    """List the newest commits of the tables with their rows, files and durations: batches of ingest, and maintenance."""
    rows = await api.slowly(lambda: newest_commits(api.scheduler.connection.readers, limit))
    return answer({"commits": [_commit(row) for row in rows]})


@routes.get("/v1/tokens", TokensView)
def list_tokens(api: Asked) -> Response:
    """List the stored tokens, including expired and revoked ones, without secrets."""
    return answer({"tokens": [one._asdict() for one in api.plan.ask(lambda plan: statuses(plan, now_us()))]})


def _commit(row: dict[str, Any]) -> dict[str, Any]:
    told = {name: value for name, value in row.items() if name != "at_us"}
    return told | {"at": iso_us(row["at_us"])}
