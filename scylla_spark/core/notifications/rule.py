"""A notification rule as a JSON value, read strictly: whoever puts one, by whatever face, is judged by this reader."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Final, Literal, Required, get_args

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict  # pydantic refuses that of Python 3.11

from scylla_spark.defaults import DIGEST
from scylla_spark.duration import duration_text, duration_us
from scylla_spark.errors import ArgumentError, shown
from scylla_spark.name import PATTERN

When = Literal[
    "failed", "succeeded", "expired", "cancelled", "duplicate", "missed", "skipped", "paused", "late", "overdue", "silent", "absent",
    "alive",
]  # fmt: skip
OCCASIONS: Final[tuple[str, ...]] = get_args(When)
"""What a rule may tell of; `docs/notifications.md` says what each means."""
FAILED: Final = "failed"
SUCCEEDED: Final = "succeeded"
EXPIRED: Final = "expired"
CANCELLED: Final = "cancelled"
DUPLICATE: Final = "duplicate"
SILENT: Final = "silent"
ABSENT: Final = "absent"
ALIVE: Final = "alive"
ANY: Final = "*"
MAX_RULE_BYTES: Final = 16 * 1024
LONGEST_DIGEST_US: Final = 86_400_000_000
LONGEST_WITHIN_US: Final = 366 * 86_400_000_000
LEAST_WITHIN_US: Final = 1_000_000
_MOST_PATTERNS: Final = 50
_SPANS: Final = ("digest", "within", "every")
_BELONGS: Final = {ABSENT: "within", ALIVE: "every"}


@dataclass(frozen=True, slots=True)
class RuleDefinition:
    """Who is told of what.

    Attributes:
        name: of the rule.
        when: what it tells of.
        channel: name of the channel of the settings that is told.
        queues: names of queues, or beginnings that end in `*`; see `concerns`.
        handlers: likewise of handlers.
        schedules: likewise of schedules.
        tags: likewise of tags of schedules.
        digest_us: how long what repeats is gathered, in microseconds; 0: each is told at once, and alone.
        within_us: for "absent": how long no success may be missing, in microseconds; 0: it does not tell of that.
        every_us: for "alive": how often that is told, in microseconds; 0: it is not.
        paused: it tells nothing.
        description: for people.
    """

    name: str
    when: tuple[str, ...]
    channel: str
    queues: tuple[str, ...] = ()
    handlers: tuple[str, ...] = ()
    schedules: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    digest_us: int = duration_us(DIGEST)
    within_us: int = 0
    every_us: int = 0
    paused: bool = False
    description: str = ""

    def concerns(self, queue: str, handler: str, schedule: str, tags: Iterable[str]) -> bool:
        """Whether work is in its scope: one of its patterns names it, or it has none.

        Args:
            queue: of the work; empty: unknown.
            handler: of the work; empty: unknown.
            schedule: whose run it is; empty: of none.
            tags: of that schedule.
        """
        if not (self.queues or self.handlers or self.schedules or self.tags):
            return True
        named = ((self.queues, queue), (self.handlers, handler), (self.schedules, schedule))
        return any(matches(patterns, name) for patterns, name in named) or any(matches(self.tags, tag) for tag in tags)


def matches(patterns: Iterable[str], name: str) -> bool:
    """Whether one of some patterns is a name, or a beginning of it and `*`; an empty name is unknown, and matches nothing."""
    if not name:
        return False
    return any(name.startswith(one[:-1]) if one.endswith(ANY) else name == one for one in patterns)


# -- reading ------------------------------------------------------------------------------------------------------------

_Name = Annotated[str, Field(pattern=f"^{PATTERN}$")]
_Pattern = Annotated[str, Field(min_length=1, max_length=1_024)]
_Patterns = Annotated[list[_Pattern], Field(max_length=_MOST_PATTERNS)]
_Micros = Annotated[int, BeforeValidator(duration_us)]


@with_config(ConfigDict(strict=True, extra="forbid", allow_inf_nan=False))
class _Fields(TypedDict, total=False):
    name: Required[_Name]
    when: Required[Annotated[list[When], Field(min_length=1, max_length=len(OCCASIONS))]]
    channel: Required[_Name]
    queues: _Patterns
    handlers: _Patterns
    schedules: _Patterns
    tags: _Patterns
    digest: Annotated[_Micros, Field(ge=0, le=LONGEST_DIGEST_US)]
    within: Annotated[_Micros, Field(ge=LEAST_WITHIN_US, le=LONGEST_WITHIN_US)]
    every: Annotated[_Micros, Field(ge=LEAST_WITHIN_US, le=LONGEST_WITHIN_US)]
    paused: bool
    description: Annotated[str, Field(max_length=1_024)]


_read: Final = TypeAdapter(_Fields).validate_json
FIELDS: Final = tuple(_Fields.__annotations__)
"""Names of all fields, as they travel and as files and commands have them."""


def read_rule(value: Any) -> RuleDefinition:
    """The rule that a JSON value defines.

    Args:
        value: as `json.loads` gives it.

    Raises:
        ArgumentError: it defines none; the message names the field and what is wrong with it.
    """
    if not isinstance(value, Mapping):
        raise ArgumentError(
            f"A notification rule is an object with fields, not {shown(value)}.",
            hint='Such as {"name": "broken", "when": ["failed"], "channel": "ops"}.',
        )
    for name in value:
        _check_field(name)
    found: dict[str, Any] = dict(_validated(value))
    _check_spans(found)
    spans = {f"{name}_us": found.pop(name) for name in _SPANS if name in found}
    lists = {name: tuple(dict.fromkeys(item)) for name, item in found.items() if isinstance(item, list)}
    return RuleDefinition(**{**found, **lists, **spans})


def rule_text(value: Mapping[str, Any]) -> str:
    """The one text by which a JSON value that `read_rule` takes is stored."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, sort_keys=True)


def rule_fields(rule: RuleDefinition) -> dict[str, Any]:
    """All fields of a rule as they travel, defaults included, durations as texts; `within` and `every` where they say something."""
    found: dict[str, Any] = {}
    for name in FIELDS:
        value = getattr(rule, f"{name}_us" if name in _SPANS else name)
        found[name] = list(value) if isinstance(value, tuple) else value
    for name in _SPANS:
        found[name] = duration_text(timedelta(microseconds=found[name]))
    for name in _BELONGS.values():
        if not getattr(rule, f"{name}_us"):
            del found[name]
    return found


def _check_spans(found: Mapping[str, Any]) -> None:
    for occasion, field in _BELONGS.items():
        if (occasion in found["when"]) != (field in found):
            hint = f'Such as when ["{occasion}"] {field} "25h".'
            raise ArgumentError(f'{field}: it belongs to "{occasion}", and to nothing else.', hint=hint)
    if ALIVE in found["when"] and len(set(found["when"])) > 1:
        raise ArgumentError(
            f'when: a rule that tells "{ALIVE}" tells nothing else.', hint="Put another rule for the others."
        )


def _check_field(name: object) -> None:
    if name not in FIELDS:
        near = difflib.get_close_matches(str(name)[:100], FIELDS, 1)
        hint = f"Did you mean {near[0]}?" if near else f"Fields: {', '.join(FIELDS)}."
        raise ArgumentError(f"{shown(name)}: a notification rule has no such field.", hint=hint)


def _validated(value: Mapping[str, Any]) -> _Fields:
    named = value.get("name")
    what = f"the rule {shown(named)}" if isinstance(named, str) else "the rule"
    try:
        text = json.dumps(value)
        if len(text) > MAX_RULE_BYTES:
            raise ArgumentError(f"{what} has more than {MAX_RULE_BYTES} bytes.", hint="Name less, by prefixes.")
        return _read(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = str(first["loc"][0]) if first["loc"] else "its texts"
        said = first["msg"].removeprefix("Value error, ").removesuffix(".")
        raise ArgumentError(f"{where}: {said}.", hint=f"Look at {where} of {what}.") from error
    except (RecursionError, OverflowError, TypeError) as error:
        raise ArgumentError(f"{what} is no JSON value, or nested too deep.") from error
