"""Types of fields that pydantic reads: instants, by the grammar of `clock.read_instant` without a call of Python, and tags."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from scylla_spark.clock import EXAMPLE, RFC_3339
from scylla_spark.core.tasks.tags import MAX_TAG_CHARS, MOST_TAGS, is_tag


class _Form:
    """Builds the schema: the form first, then the day and the zone."""

    @staticmethod
    def __get_pydantic_core_schema__(_source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        form = core_schema.custom_error_schema(
            core_schema.str_schema(pattern=f"^{RFC_3339}$", strict=True),
            custom_error_type="instant",
            custom_error_message=f"Input should be an instant such as {EXAMPLE}",
        )
        return core_schema.chain_schema([form, core_schema.datetime_schema(tz_constraint="aware", strict=False)])


Instant = Annotated[datetime, _Form]
"""An aware datetime, written as RFC 3339 says."""


def _tag(text: str) -> str:
    if not is_tag(text):
        raise ValueError(f"a tag has 1 to {MAX_TAG_CHARS} printable characters, without spaces around them")
    return text


Tags = Annotated[list[Annotated[str, AfterValidator(_tag)]], Field(max_length=MOST_TAGS)]
