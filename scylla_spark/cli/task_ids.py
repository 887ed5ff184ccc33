"""Tasks as commands take them: by an id, by its three parts, by a beginning that only one id has, or by a name."""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote

from scylla_spark.cli.context import Context, instant
from scylla_spark.errors import ArgumentError, NotFoundError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from scylla_spark.core.tasks.key import TaskKey

_HINT: Final = "Write the id as the lists show it, or its beginning, from the day on: 2026-01-31T09."
_SHOWN: Final = 5
_FULL: Final = "0000-00-00T00:00:00"
_SPANS_US: Final = {
    19: 1_000_000,
    16: 60_000_000,
    13: 3_600_000_000,
    10: 86_400_000_000,
}  # by how much of a time is given
_OPAQUE_START: Final = "WyI"  # an opaque id is the base64url text of a JSON list of texts
_OPAQUE: Final = re.compile(r"[A-Za-z0-9_-]+")


def task_key(cli: Context, parts: list[str]) -> TaskKey:
    """The key that the words of a command name.

    Args:
        cli: to look up an id by its beginning: first in the tables, then in the records that they do not have yet.
        parts: an id, a beginning of one, a name (see `name_in`), or the three parts of a key.

    Raises:
        ArgumentError: it is none of these, or several ids begin so.
        NotFoundError: no id begins so, or no task has the name.
        ConflictError: several tasks have the name.
    """
    from scylla_spark.core.tasks.key import TaskKey, name_in

    if len(parts) == 3:
        return TaskKey(instant(parts[0]), parts[1], parts[2])
    if len(parts) != 1:
        raise ArgumentError(
            f"A task is named by one or three words, not {len(parts)}.",
            hint="Write its id as the lists show it, or TIME ORDERING_ID UNIQUENESS_KEY.",
        )
    text = parts[0]
    name = name_in(text)
    if name is not None:
        from scylla_spark.client.tasks.by_name import key_of_name

        with cli.scheduler() as scheduler:
            return key_of_name(scheduler.connection, cli.pages(), name)
    window = _window(text)
    try:
        exact = TaskKey.parse(text)
    except ArgumentError as error:
        if window is None:
            raise ArgumentError(error.message, hint=_HINT) from None
        exact = None
    if exact is not None and window is None:
        return exact
    assert window is not None
    found = _in_tables(cli, _begins_with(text), *window)
    if exact in found or (exact is not None and not found):
        return exact
    found |= _in_the_log(cli, _begins_with(text))
    if exact in found or (exact is not None and not found):
        return exact
    return _only(found, text)


def _only(found: set[TaskKey], text: str) -> TaskKey:
    if not found:
        raise NotFoundError(f"No task has an id that begins with {text!r}.", hint="`task list` shows ids.")
    if len(found) > 1:
        some = ", ".join(str(key) for key in sorted(found)[:_SHOWN])
        more = f", and {len(found) - _SHOWN} or more others" if len(found) > _SHOWN else ""
        raise ArgumentError(f"Several ids begin with {text!r}: {some}{more}.", hint="Write more of the id.")
    return found.pop()


def _window(text: str) -> tuple[int, int] | None:
    """The scheduled times [first, after) of ids that begin so, in microseconds since the epoch; None: it is no beginning of an id."""
    readable = _decoded(text) if text.startswith(_OPAQUE_START) else text
    time, comma, _ = readable.partition(",")
    for length, span in _SPANS_US.items():
        if not comma and len(time) >= length:
            try:
                first = _moment(time[:length] + _FULL[length:] + "Z")
            except ValueError:
                return None
            return first, first + span
    try:
        first = _moment(unquote(time))
    except ValueError:
        return None
    return first, first + 1


def _moment(text: str) -> int:
    from scylla_spark.clock import read_instant, to_us

    return to_us(read_instant(text))


def _decoded(text: str) -> str:
    """As much of the parts of an opaque id as a beginning of it has, divided by commas."""
    if not _OPAQUE.fullmatch(text):
        return ""
    whole = text[: len(text) // 4 * 4]
    json = base64.urlsafe_b64decode(whole).decode(errors="ignore")
    return json.removeprefix('["').replace('","', ",")


def _begins_with(text: str) -> Callable[[TaskKey], bool]:
    """Whether the id of a key begins so, in one of its forms."""
    from scylla_spark.core.tasks.key import id_of

    if text.startswith(_OPAQUE_START):
        return lambda key: id_of(key).startswith(text)
    time, comma, rest = text.partition(",")
    if comma:
        rest = ",".join(quote(unquote(part), safe="") for part in rest.split(","))
        return lambda key: str(key).partition(",")[2].startswith(rest)  # the window is that very time
    return lambda key: str(key).startswith(time)


def _in_tables(cli: Context, fits: Callable[[TaskKey], bool], first_us: int, after_us: int) -> set[TaskKey]:
    from scylla_spark.clock import now_us
    from scylla_spark.core.tasks.filter import Range, TaskFilter

    found: set[TaskKey] = set()
    for some in cli.pages().keys(TaskFilter((Range("scheduled", first_us, after_us),)), now=now_us()):
        found.update(filter(fits, some))
        if len(found) > _SHOWN:
            break
    return found


def _in_the_log(cli: Context, fits: Callable[[TaskKey], bool]) -> set[TaskKey]:
    """Keys of tasks that the tables do not have yet; none where Kafka does not answer, since no command needs it to look."""
    try:
        with cli.scheduler() as scheduler:
            return set(filter(fits, scheduler.connection.keys_beyond_tables() or ()))
    except UnreachableError:
        return set()
