"""The model of a notification rule: who is notified of what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Annotated, ClassVar, Final, Literal, get_args

from pydantic import AfterValidator, Field, model_validator

from scylla_spark.defaults import DIGEST
from scylla_spark.definitions.definition import Definition, Name, Span
from scylla_spark.duration import duration, duration_us
from scylla_spark.errors import ArgumentError

When = Literal[
    "failed", "succeeded", "expired", "cancelled", "duplicate", "missed", "skipped", "paused", "late", "overdue", "silent", "absent",
    "alive",
]  # fmt: skip
OCCASIONS: Final[tuple[str, ...]] = get_args(When)
"""The events that a rule may be about; `docs/notifications.md` explains each."""
FAILED: Final = "failed"
SUCCEEDED: Final = "succeeded"
EXPIRED: Final = "expired"
CANCELLED: Final = "cancelled"
DUPLICATE: Final = "duplicate"
SILENT: Final = "silent"
ABSENT: Final = "absent"
ALIVE: Final = "alive"
ANY: Final = "*"
_MOST_PATTERNS: Final = 50
_LEAST: Final = timedelta(seconds=1)
_LONGEST: Final = timedelta(days=366)

_Pattern = Annotated[str, Field(min_length=1, max_length=1_024)]
_Patterns = Annotated[
    Sequence[_Pattern], Field(max_length=_MOST_PATTERNS), AfterValidator(lambda value: tuple(dict.fromkeys(value)))
]
_Wait = Annotated[Span, Field(ge=_LEAST, le=_LONGEST)]


class NotificationRule(Definition):
    """A rule that sends notifications of some events to a channel. Omitted fields have their defaults.

    It is about work that `queues`, `handlers`, `schedules` or `tags` name, or about all work if none of the four is given. They hold
    names, or beginnings that end in `*`.
    """

    noun: ClassVar[str] = "notification rule"
    word: ClassVar[str] = "rule"
    example: ClassVar[str] = '{"name": "broken", "when": ["failed"], "channel": "ops"}'
    most_bytes: ClassVar[int] = 16 * 1024
    left_out: ClassVar[Mapping[str, object]] = {"within": None, "every": None}

    when: Annotated[
        Sequence[When], Field(min_length=1, max_length=len(OCCASIONS)), AfterValidator(lambda value: tuple(dict.fromkeys(value)))
    ] = Field(description=f"what it notifies of: {', '.join(OCCASIONS)}")  # fmt: skip
    channel: Name = Field(description="name of the channel of the settings that is notified")
    queues: _Patterns = Field((), description="only of work in these queues")
    handlers: _Patterns = Field((), description="or of these handlers")
    schedules: _Patterns = Field((), description="or of runs of these schedules")
    tags: _Patterns = Field((), description="or of tasks or schedules that have one of these tags")
    digest: Annotated[Span, Field(le=timedelta(days=1))] = Field(
        duration(DIGEST), description="how long what repeats is gathered; 0s: each has a message of its own"
    )
    within: _Wait | None = Field(None, description="for absent: how long no success may be missing")
    every: _Wait | None = Field(None, description="for alive: how often a sign of life is sent")
    paused: bool = Field(False, description="it notifies of nothing")
    description: str = Field("", max_length=1_024, description="for people; part of each message")

    @model_validator(mode="after")
    def _check(self) -> NotificationRule:
        for occasion, field in ((ABSENT, "within"), (ALIVE, "every")):
            if (occasion in self.when) != (getattr(self, field) is not None):
                hint = f'Such as when ["{occasion}"] {field} "25h".'
                raise ArgumentError(f'{field}: it belongs to "{occasion}", and to nothing else.', hint=hint)
        if ALIVE in self.when and len(self.when) > 1:
            raise ArgumentError(
                f'when: a rule that tells "{ALIVE}" tells nothing else.', hint="Put another rule for the others."
            )
        return self

    @property
    def digest_us(self) -> int:
        """The span in which repetitions are gathered, in microseconds; 0: each occurrence is sent alone."""
        return duration_us(self.digest)

    @property
    def within_us(self) -> int:
        """The longest span without a success, in microseconds; 0: the rule is not about that."""
        return 0 if self.within is None else duration_us(self.within)

    @property
    def every_us(self) -> int:
        """The span between two signs of life, in microseconds; 0: none is sent."""
        return 0 if self.every is None else duration_us(self.every)

    def concerns(self, queue: str, handler: str, schedule: str, tags: Iterable[str]) -> bool:
        """Returns True if work is in the scope of the rule: a pattern names it, or the rule has no patterns.

        Args:
            queue: of the work; empty: unknown.
            handler: of the work; empty: unknown.
            schedule: whose run it is; empty: of none.
            tags: of the task and of that schedule.
        """
        if not (self.queues or self.handlers or self.schedules or self.tags):
            return True
        named = ((self.queues, queue), (self.handlers, handler), (self.schedules, schedule))
        return any(matches(patterns, name) for patterns, name in named) or any(matches(self.tags, tag) for tag in tags)


def matches(patterns: Iterable[str], name: str) -> bool:
    """Returns True if a pattern is the name, or a beginning of it and `*`. An empty name is unknown and matches nothing."""
    if not name:
        return False
    return any(name.startswith(one[:-1]) if one.endswith(ANY) else name == one for one in patterns)
