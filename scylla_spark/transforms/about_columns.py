"""Name, description and author of tasks, as columns of frames: judged and masked by the code that does so for one task."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf

from scylla_spark.core.tasks.about import MAX_DESCRIPTION_CHARS, About, is_label

ABOUT: Final = {"name": "name", "description": "description", "enqueued_by": "enqueuedBy"}
"""Parts of what people read of a task, and their names in records."""
_ARROW: Final = pa.struct([(name, pa.string()) for name in ABOUT])
_SPARK: Final = ", ".join(f"{name}: string" for name in ABOUT)


def about_column(*, checked: bool) -> Column:
    """The columns of `ABOUT` as one object of a record, with secrets masked; null where all of them are null.

    Args:
        checked: True: a text that no reader would accept becomes empty. False: it stays as it is, and the reader refuses it.
    """
    texts = {part: F.col(part).cast("string") for part in ABOUT}
    readable = (F.when(text.isNull() | F.is_valid_utf8(text), text).otherwise(F.lit("")) for text in texts.values())
    masked: Column = arrow_udf(_masked, f"struct<{_SPARK}>")(*readable)  # type: ignore[call-overload]
    fields = []
    for part, text in texts.items():
        said = masked[part]
        fields.append((said if checked else F.when(said == "", text).otherwise(said)).alias(ABOUT[part]))
    return F.when(F.coalesce(*texts.values()).isNotNull(), F.struct(*fields))


def wrong_about(part: str) -> Column:
    """Returns whether `about_column` found that no reader would accept a part.

    Args:
        part: a key of `ABOUT`.
    """
    return F.col("about")[ABOUT[part]] == ""


def _masked(names: pa.Array, descriptions: pa.Array, authors: pa.Array) -> pa.Array:
    rows = zip(names.to_pylist(), descriptions.to_pylist(), authors.to_pylist(), strict=True)
    return pa.array([About.masked(*_fit(*row))._asdict() for row in rows], _ARROW)


def _fit(name: str | None, description: str | None, author: str | None) -> tuple[str | None, str | None, str | None]:
    """The same texts; empty in place of each that breaks the rules of records."""
    is_fit = description is None or len(description) <= MAX_DESCRIPTION_CHARS
    return _label(name), description if is_fit else "", _label(author)


def _label(text: str | None) -> str | None:
    return text if text is None or is_label(text) else ""
