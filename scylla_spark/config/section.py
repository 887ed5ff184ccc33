"""What every section of the settings is made of: strict records, durations, and options that may be secret."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, Secret

from scylla_spark.duration import duration, duration_text

Duration = Annotated[
    timedelta, BeforeValidator(duration), PlainSerializer(duration_text, return_type=str, when_used="json")
]
"""A duration: "30s", "1h30m", a timedelta, or a number of seconds."""

Option = Secret[bool | int | float | str]
"""The value of an option that we pass on without knowing it: it may be a password, so it is never shown."""


class Section(BaseModel):
    """A group of settings. Unknown names are refused, and pydantic's own messages never repeat what was given."""

    model_config = ConfigDict(extra="forbid", validate_default=True, frozen=True, hide_input_in_errors=True)
