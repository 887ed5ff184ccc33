"""What a dispatcher and a Spark worker say to each other, as JSON values in the frames of a `Link`.

A worker runs user code, so its dispatcher believes nothing of what it says: the readers here check forms and bounds. Ends and notes
of calls have the forms that children use (`handlers.messages`), with the id of the invocation as number of the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.task import Invocation
from scylla_spark.executors.local.report import PLAIN_SUCCESS, Report
from scylla_spark.handlers.framing import ProtocolError

TASKS: Final = "tasks"
KILL: Final = "kill"
RECALL: Final = "recall"
DRAIN: Final = "drain"
END: Final = "end"
BEAT: Final = "beat"
BEGUN: Final = "begun"
ENDS: Final = "ends"
SAYS: Final = "says"
DEAD: Final = "dead"
LINES: Final = "lines"
HEARD: Final = "heard"
"""Of a frame without content: its acknowledgement is all that it is for."""
_MOST: Final = 1 << 62
FOR_EVER: Final = 1 << 61
"""A limit to start from here on is none."""
PLAIN_FIELDS: Final = 3
"""Of the record of an attempt that succeeded and reports nothing else (`read_success`)."""
_START_BY: Final = Invocation._fields.index("start_by_us") + len(TaskKey._fields) - 1
_MOST_NAMES: Final = 10_000
_MOST_TEXT: Final = 2_000


class Room(NamedTuple):
    """What a worker would take of the tasks of one executor name.

    Attributes:
        free: how many more would start soon.
        taken: how many it had received in all when it counted.
    """

    free: int
    taken: int


Rooms = dict[str, Room]


class Beat(NamedTuple):
    """A heartbeat of a worker.

    Attributes:
        echo_us: boot clock of the dispatcher when it wrote the lease that this answers; 0: it answers none.
        received_us: boot clock of the worker when it received that.
        answered_us: boot clock of the worker when it wrote this.
        rooms: by executor name.
        memory: bytes that the worker and its children use.
    """

    echo_us: int
    received_us: int
    answered_us: int
    rooms: Rooms
    memory: int


def read_task(fields: list[Any], ahead_us: int) -> Invocation:
    """The invocation of a frame, with its limit to start on the boot clock of this machine.

    Args:
        fields: `Invocation.fields`.
        ahead_us: how far the boot clock of this machine is ahead of that of the dispatcher, at least.
    """
    if fields[_START_BY] < FOR_EVER:
        fields[_START_BY] += ahead_us
    return Invocation.read(fields)


def read_beat(body: Sequence[Any]) -> Beat:
    """A heartbeat of a worker.

    Raises:
        ProtocolError: it is not of that form.
    """
    if len(body) != 6:
        raise ProtocolError("a heartbeat that has not six fields")
    _, echo_us, received_us, answered_us, rooms, memory = body
    if not all(map(_is_count, (echo_us, received_us, answered_us, memory))):
        raise ProtocolError("a heartbeat without times and memory")
    return Beat(echo_us, received_us, answered_us, read_rooms(rooms), memory)


def read_ends(body: Sequence[Any]) -> tuple[list[Any], Rooms]:
    """Records of attempts that have ended, not checked, and what the worker would take now.

    Raises:
        ProtocolError: it is not of that form.
    """
    if len(body) != 3 or type(body[1]) is not list:
        raise ProtocolError("ends that are no list and no rooms")
    return body[1], read_rooms(body[2])


def read_rooms(value: object) -> Rooms:
    """Returns what a worker would take, by executor name.

    Raises:
        ProtocolError: it is not of that form.
    """
    if type(value) is not dict or len(value) > _MOST_NAMES:
        raise ProtocolError("rooms that are no object")
    return {name: _room(room) for name, room in value.items()}


def read_success(record: list[Any]) -> Report:
    """The report of an attempt that succeeded and says nothing else: its id, its start (boot clock of the worker) and its duration.

    Raises:
        ProtocolError: it is not of that form.
    """
    number, started_us, duration_us = record
    if not (type(number) is type(started_us) is type(duration_us) is int) or not (
        0 <= number <= _MOST and 0 <= started_us <= _MOST and 0 <= duration_us <= _MOST
    ):  # spelled out: it is called for each task
        raise ProtocolError("a success that is not an id and two times")
    return Report(number, PLAIN_SUCCESS, started_us, duration_us)


def read_begun(body: Sequence[Any]) -> dict[int, int]:
    """Id → boot clock of the worker when its handler began.

    Raises:
        ProtocolError: it is not of that form.
    """
    if len(body) != 2 or type(body[1]) is not list:
        raise ProtocolError("starts that are no list")
    found: dict[int, int] = {}
    for pair in body[1]:
        if type(pair) is not list or len(pair) != 2 or not all(map(_is_count, pair)):
            raise ProtocolError("a start that is no id and no time")
        found[pair[0]] = pair[1]
    return found


def read_dead(body: Sequence[Any]) -> str:
    """Returns why a worker has ended all its handlers.

    Raises:
        ProtocolError: it is not of that form.
    """
    if len(body) != 2 or type(body[1]) is not str:
        raise ProtocolError("an end without a reason")
    return body[1][:_MOST_TEXT]


def read_lines(body: Sequence[Any]) -> list[list[bytes]]:
    """Returns what children have written, as frames of each of them; nothing of their content is checked.

    Raises:
        ProtocolError: it is not of that form.
    """
    if len(body) != 2 or type(body[1]) is not list:
        raise ProtocolError("lines that are no list")
    for frames in body[1]:
        if type(frames) is not list or not all(type(frame) is str for frame in frames):
            raise ProtocolError("lines of a child that are no list of texts")
    return [[frame.encode(errors="replace") for frame in frames] for frames in body[1]]


def _room(value: object) -> Room:
    if type(value) is not list or len(value) != 2 or not all(map(_is_count, value)):
        raise ProtocolError("a room that is not two counts")
    return Room(*value)


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= _MOST
