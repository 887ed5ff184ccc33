"""Texts of a task for people: its name, its description and who enqueued it. None of them changes how the task runs."""

from __future__ import annotations

from typing import Annotated, Any, Final, NamedTuple

from pydantic import AfterValidator, Field

from scylla_spark.core.access.redaction import MASK, Redaction
from scylla_spark.errors import ArgumentError, shown

MAX_LABEL_CHARS: Final = 200
MAX_DESCRIPTION_CHARS: Final = 2_000
_secrets: Final = Redaction()
_MOST_MASKED: Final = 8  # times; a mask or a cut may leave text that looks like another secret, mostly once


def is_label(text: str) -> bool:
    """Returns True if a text may be a name: 1 to 200 printable characters, without spaces around them."""
    return 0 < len(text) <= MAX_LABEL_CHARS and text.isprintable() and text == text.strip()


def _label(text: str) -> str:
    if not is_label(text):
        raise ValueError(f"it has 1 to {MAX_LABEL_CHARS} printable characters, without spaces around them")
    return text


Label = Annotated[str, AfterValidator(_label)]
"""A name of a task or of who enqueued it."""
Description = Annotated[str, Field(min_length=1, max_length=MAX_DESCRIPTION_CHARS)]
"""A description of a task."""


class About(NamedTuple):
    """Texts of a task for people.

    Attributes:
        name: a title; it need not be unique.
        description: what the task is for.
        enqueued_by: who enqueued the task, as its record says.
        proof: by which the API signs `enqueued_by`; None: the record only claims it.
    """

    name: str | None = None
    description: str | None = None
    enqueued_by: str | None = None
    proof: str | None = None

    @classmethod
    def masked(
        cls, name: str | None, description: str | None, enqueued_by: str | None, proof: str | None = None
    ) -> About:
        """These texts with a mask in place of each secret that `Redaction` finds; never longer than is allowed.

        What it returns is not changed by another call: the API signs it, and each reader masks it again.

        Args:
            name: a title.
            description: what the task is for.
            enqueued_by: who enqueued the task; it is not masked, since it is signed.
            proof: the signature.
        """
        return cls(
            name and _masked(name, MAX_LABEL_CHARS),
            description and _masked(description, MAX_DESCRIPTION_CHARS),
            enqueued_by,
            proof,
        )


def _masked(text: str, most_chars: int) -> str:
    """Masks a text until nothing changes; one that goes on changing is masked as a whole."""
    for _ in range(_MOST_MASKED):
        before, text = text, _secrets.text(text)[:most_chars]
        if text == before:
            return text
    return MASK


NOTHING_SAID: Final = About()


def about_of(name: Any, description: Any, enqueued_by: Any) -> About | None:
    """Returns what a caller says of a task; None: nothing. The bounds are judged with the record.

    Args:
        name: a title.
        description: what the task is for.
        enqueued_by: who enqueues it.

    Raises:
        ArgumentError: one of them is no text.
    """
    given = {"name": name, "description": description, "enqueued_by": enqueued_by}
    for what, value in given.items():
        if value is not None and not isinstance(value, str):
            raise ArgumentError(f"{what} is {shown(value)}.", hint="Pass text.", reason="wrong_value")
    return None if name is None and description is None and enqueued_by is None else About.masked(**given)
