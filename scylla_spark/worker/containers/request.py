"""What the payload of a task asks for, and whether this runner does it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from scylla_spark.errors import ArgumentError, shown

MOST_ARGUMENTS: Final = 1_000
MOST_ARGUMENT_CHARS: Final = 32_000  # the kernel takes 128 KiB of each, and a character has up to four bytes
MOST_VARIABLES: Final = 64
MOST_VARIABLE_CHARS: Final = 15_000  # podman reads lines of up to 64 KiB
_SHOWN_ERRORS: Final = 5
_REFERENCE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@+-]{0,499}")
_PINNED: Final = re.compile(r".+@sha256:[0-9a-f]{64}")

_Argument = Annotated[str, Field(max_length=MOST_ARGUMENT_CHARS, pattern=r"^[^\x00]*$")]
_Name = Annotated[str, Field(max_length=200, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
_Value = Annotated[str, Field(max_length=MOST_VARIABLE_CHARS, pattern=r"^[^\x00\r\n]*$")]


class ContainerPayload(BaseModel):
    """The payload of a task that is to run in a container.

    Attributes:
        image: one of those that the runner allows, written as there; None: the first of them.
        command: arguments of the image's entry point; None: those of the runner, else those of the image.
        env: variables of its environment; values have no line breaks.
        input: what the program is given, in /task.json and on its standard input.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    image: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    command: Annotated[list[_Argument], Field(max_length=MOST_ARGUMENTS)] | None = None
    env: Annotated[dict[_Name, _Value], Field(max_length=MOST_VARIABLES)] = Field(default_factory=dict)
    input: Any = None


@dataclass(frozen=True, slots=True)
class Offer:
    """What a runner runs.

    Attributes:
        images: references that a payload may name; the first is taken where it names none.
        command: arguments where a payload has none; None: those of the image.
    """

    images: tuple[str, ...]
    command: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Box:
    """What is to run in a container.

    Attributes:
        image: reference of it.
        command: arguments of its entry point; empty: those of the image.
        environment: variables by name.
        given: what the program is given.
    """

    image: str
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    given: Any = None


def offer_of(images: list[str], command: tuple[str, ...] | None, *, allow_tags: bool) -> Offer:
    """The offer that a command line makes.

    Args:
        images: references that payloads may name, one at least.
        command: arguments where a payload has none.
        allow_tags: whether references without a digest are taken: what they name may change.

    Raises:
        ArgumentError: there is none, or one is no reference, or has no digest.
    """
    if not images:
        raise ArgumentError("No image is allowed.", hint="Pass --image name@sha256:… once for each that may run.")
    for image in images:
        if not _REFERENCE.fullmatch(image):
            raise ArgumentError(f"{shown(image)} is no reference of an image.", hint="Write name@sha256:… .")
        if not allow_tags and not _PINNED.fullmatch(image):
            raise ArgumentError(
                f"{shown(image)} has no digest, so what it names may change.",
                hint="Write name@sha256:… as `podman images --digests` shows it, or pass --allow-tags.",
            )
    return Offer(tuple(images), command)


def arguments_of(text: str | None) -> tuple[str, ...] | None:
    """Arguments as a shell reads them.

    Args:
        text: of a command line; None: none are said.

    Raises:
        ArgumentError: a quote is not closed.
    """
    try:
        return None if text is None else tuple(shlex.split(text))
    except ValueError as error:
        raise ArgumentError(f"{shown(text)} is no command line: {error}.") from None


def box_of(payload: Any, offer: Offer) -> Box:
    """Returns what a payload asks for.

    Args:
        payload: of the task, any JSON value; None: nothing but what the runner has as its defaults.
        offer: what this runner runs.

    Raises:
        ArgumentError: it is no such payload, or names an image that is not allowed; the message names the fields.
    """
    try:
        asked = ContainerPayload.model_validate({} if payload is None else payload)
    except ValidationError as error:
        raise ArgumentError(_words(error)) from None
    image = asked.image or offer.images[0]
    if image not in offer.images:
        raise ArgumentError(
            f"The image {shown(image)} is not allowed here.", hint="The runner's --image options say which are."
        )
    command = offer.command or () if asked.command is None else tuple(asked.command)
    return Box(image, command, asked.env, asked.input)


def _words(error: ValidationError) -> str:
    """Returns what is wrong, field by field, without the values."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    lines = [
        f"{'.'.join(str(step)[:60] for step in one['loc']) or 'payload'}: {one['msg']}" for one in found[:_SHOWN_ERRORS]
    ]
    more = f"; and {len(found) - _SHOWN_ERRORS} more" if len(found) > _SHOWN_ERRORS else ""
    return f"The payload is not one for containers: {'; '.join(lines)}{more}."
