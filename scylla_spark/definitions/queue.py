"""The model of a queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from scylla_spark.defaults import (
    GROUP_SEPARATOR,
    LEASE,
    LEAST_RATE,
    MAX_RUN,
    MOST_AT_ONCE,
    MOST_GROUP_CHARS,
    MOST_RATE,
    MOST_RETRIES,
    MOST_WEIGHT,
    MOST_WEIGHTED,
)
from scylla_spark.definitions.definition import Definition, Name, Span
from scylla_spark.duration import duration, duration_ms
from scylla_spark.errors import ArgumentError, shown

_AtOnce = Annotated[int, Field(ge=1, le=MOST_AT_ONCE)]
_Rate = Annotated[float, Field(ge=LEAST_RATE, le=MOST_RATE)]
_Group = Annotated[str, Field(min_length=1, max_length=MOST_GROUP_CHARS)]
_Weight = Annotated[int, Field(ge=1, le=MOST_WEIGHT)]
_Retries = Annotated[
    Annotated[int, Field(ge=0, le=MOST_RETRIES)] | Literal["deployment"] | None,
    BeforeValidator(lambda value: None if value == "forever" else value),
]


class Queue(Definition):
    """A queue: how its tasks are run or leased, and how many of them. Omitted fields have their defaults."""

    noun: ClassVar[str] = "queue"
    word: ClassVar[str] = "queue"
    example: ClassVar[str] = '{"name": "mail"}'
    most_bytes: ClassVar[int] = 64 * 1024
    left_out: ClassVar[Mapping[str, object]] = {"maxRetries": "deployment"}

    mode: Literal["push", "pull"] = Field(
        "push", description="push: handlers of the dispatcher run its tasks; pull: workers lease them"
    )
    order: Literal["durable", "replay"] = Field(
        "durable",
        description="when the next task of a lane starts: once the completion before it is recorded, or at once (faster; "
        "after a crash the lane runs again from its last recorded completion)",
    )
    concurrency: _AtOnce | None = Field(
        None, description="most tasks at once, shared out by partitions; at least one per dispatcher"
    )
    rate: _Rate | None = Field(None, description="most starts per second")
    paused: bool = Field(False, description="nothing of it starts")
    group_concurrency: _AtOnce | None = Field(
        None, description="most tasks at once of one group of lanes, per dispatcher"
    )
    group_separator: _Group = Field(
        GROUP_SEPARATOR, description="lanes whose ordering ids agree up to the first of these are a group"
    )
    weights: dict[_Group, _Weight] = Field(
        {}, max_length=MOST_WEIGHTED, description="share of each group where several wait; of others 1"
    )
    ageing: bool = Field(False, description="tasks become more urgent while they wait")
    lease: Span = Field(
        duration(LEASE),
        description="how long a lease lasts without a sign of life; 0s: a task is delivered once, and gone when handed out",
    )
    max_run: Span = Field(
        duration(MAX_RUN), description="longest that a lease may be extended to; a task's own timeout goes before"
    )
    max_retries: _Retries = Field(
        "deployment", description='attempts after the first; "forever": no end; left out: as handler or deployment say'
    )
    retry_base: Span | None = Field(
        None, description="wait before the second attempt; left out: as handler or deployment say"
    )
    retry_cap: Span | None = Field(
        None, description="longest wait before an attempt; left out: as handler or deployment say"
    )
    on_exception: Literal["retry", "fail"] = Field(
        "retry", description="what an exception of a handler does: the task is tried again, or has failed for good"
    )
    on_false: Literal["succeed", "redeliver"] = Field(
        "succeed",
        description="what a handler that returns False does: the task has ended, or comes again after `lease`",
    )
    key_reuse: Literal["never", "when_done"] = Field(
        "never", description="whether a key may be used again once its task has ended"
    )
    retention: Span | None = Field(
        None, description="how long its history is kept, at most ingest.retention; left out: as long"
    )
    default_handler: Name | None = Field(
        None, description="handler of its tasks that name none; left out: they wait for a lease"
    )
    description: str = Field("", max_length=1_024, description="for people")
    isolation: Literal["handler", "sandbox"] = Field(
        "handler",
        description="handler: its tasks are kept apart as their handlers say; sandbox: they run in a sandbox or not at all",
    )

    @model_validator(mode="after")
    def _check(self) -> Queue:
        if self.isolation == "sandbox" and self.mode == "pull":
            raise ArgumentError(
                f"isolation: the queue {shown(self.name)} asks for a sandbox, and its tasks are leased.",
                hint="Workers run tasks wherever they are; only tasks of a queue with mode push are kept in a sandbox.",
            )
        return self

    @property
    def redelivers(self) -> bool:
        """True if a task whose result is false is delivered again. A queue that delivers each task once never does."""
        return self.on_false == "redeliver" and duration_ms(self.lease) > 0
