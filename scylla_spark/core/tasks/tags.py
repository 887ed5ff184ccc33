"""Tags of tasks: short texts by which tasks are found, and counted as a batch; they change nothing about the tasks themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from scylla_spark.errors import ArgumentError, shown
from scylla_spark.name import RULE, is_name

MOST_TAGS: Final = 16
MAX_TAG_CHARS: Final = 64
_NOTIFIES: Final = "notify:"  # begins the tag of a task whose end a channel is told of


def is_tag(text: object) -> bool:
    """Returns True if a text may be a tag: 1 to 64 printable characters, without spaces around them."""
    return isinstance(text, str) and 0 < len(text) <= MAX_TAG_CHARS and text.isprintable() and text == text.strip()


def given_tags(tags: Iterable[str] | None) -> tuple[str, ...]:
    """Tags as people pass them, each once, in their order; whether they are tags is judged with the record.

    Raises:
        ArgumentError: it is one text, a mapping, or no collection at all.
    """
    if tags is None:
        return ()
    check_collection(tags)
    return tuple(dict.fromkeys(tags))


def check_collection(tags: object) -> None:
    """Refuses what would become other tags than somebody meant.

    Raises:
        ArgumentError: it is one text, a mapping, or no collection at all.
    """
    if isinstance(tags, Mapping):
        texts = [f"{name}:{value}" for name, value in list(tags.items())[:2]]
        raise ArgumentError(
            f"tags is a mapping, {shown(tags)}, and tags have no values.",
            hint=f"Write a name and its value as one text, such as {shown(texts or ['team:blue'])}.",
            reason="wrong_value",
        )
    if isinstance(tags, str | bytes) or not isinstance(tags, Iterable):
        raise ArgumentError(f"tags is {tags!r}.", hint='Pass several texts, such as ["billing"].', reason="wrong_value")


def tags_of_runs(tags: Iterable[str]) -> tuple[str, ...]:
    """The tags that the runs of a schedule have: the first 16 of its own that may be tags of tasks."""
    return tuple(dict.fromkeys(filter(is_tag, tags)))[:MOST_TAGS]


def with_channel(tags: tuple[str, ...], channel: object) -> tuple[str, ...]:
    """The tags of a task that names a channel, which is notified of its end.

    Raises:
        ArgumentError: it is no name of a channel, or too long for a tag.
    """
    most = MAX_TAG_CHARS - len(_NOTIFIES)
    if not is_name(channel) or len(str(channel)) > most:
        raise ArgumentError(
            f"notify is {shown(channel)}, and names no channel.",
            hint=f"Pass the name of a channel of the settings, at most {most} characters: {RULE}.",
            reason="wrong_value",
        )
    return tuple(dict.fromkeys((*tags, f"{_NOTIFIES}{channel}")))


def channels_in(tags: Iterable[str]) -> list[str]:
    """Returns the channels that the tags of a task name."""
    return [tag.removeprefix(_NOTIFIES) for tag in tags if tag.startswith(_NOTIFIES)]
