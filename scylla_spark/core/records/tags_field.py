"""The tags of one record, as they are read."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from scylla_spark.core.tasks.tags import MAX_TAG_CHARS, MOST_TAGS, is_tag


def _tag(text: str) -> str:
    if not is_tag(text):
        raise ValueError(f"a tag has 1 to {MAX_TAG_CHARS} printable characters, without spaces around them")
    return text


Tags = Annotated[list[Annotated[str, AfterValidator(_tag)]], Field(max_length=MOST_TAGS)]
