"""What every fold of operations must agree on: tables of operations, and what `core.tasks.fold_commands` makes of them.

A fold is given rows with the columns of `tasks`, any number per key, repeats included, and returns one row per key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hypothesis import strategies as st

from scylla_spark.clock import from_us, to_us
from scylla_spark.core.records.command import CANCEL, ENQUEUE, Command
from scylla_spark.core.tasks.fold_commands import fold
from scylla_spark.core.tasks.key import HOUR_US, TaskKey
from scylla_spark.schemas import TASKS

NOON = 1_800_000_000_000_000 // HOUR_US * HOUR_US
Row = dict[str, Any]
_FIRST = ("first_offset", "unique_open")


def row(key: int, data_offset: int | None, cancel_offset: int | None) -> Row:
    """A row of `tasks`; what stands at an offset is always the same, with a null here and there."""
    found: Row = dict.fromkeys(TASKS.names)
    us = NOON + key % 3
    found |= {"partition_id": 0, "hour": us // HOUR_US, "scheduled_time": from_us(us)}
    found |= {"ordering_id": f"lane-{key % 2}", "uniqueness_key": f"u{key}", "cancel_offset": cancel_offset}
    if data_offset is None:
        return found
    payload, handler = f'{{"n":{data_offset}}}', f"h{data_offset}" if data_offset % 3 else None
    timeout = None if data_offset % 2 else data_offset * 1000
    data = {"handler": handler, "queue": "q", "priority": data_offset % 256, "payload": payload, "timeout_ms": timeout}
    first = {"first_offset": None if _is_old(data_offset) else data_offset, "unique_open": _asks(data_offset)}
    return found | data | first | {"data_offset": data_offset}


def _is_old(offset: int) -> bool:
    """Returns True if the row of an enqueue was written by a version that did not know what is unique."""
    return offset % 4 == 1


def _asks(offset: int) -> bool | None:
    """Whether the enqueue at an offset asks for a unique name; None: that does not stand in its row."""
    return None if _is_old(offset) else offset % 2 == 0


_offsets = st.none() | st.integers(0, 9)
tables = st.lists(
    st.tuples(st.integers(0, 4), _offsets, _offsets)
    .filter(lambda one: one[1:] != (None, None))
    .map(lambda one: row(*one)),
    max_size=14,
)
"""Tables of operations: enqueues, cancels, and rows that are folded already."""


def key_of(found: Mapping[str, Any]) -> TaskKey:
    """The key of a row."""
    return TaskKey(to_us(found["scheduled_time"]), found["ordering_id"], found["uniqueness_key"])


def expected(rows: Iterable[Row]) -> dict[TaskKey, Row]:
    """Returns what `core.tasks.fold_commands` makes of the rows' operations: key → its row."""
    commands, known = [], {}
    for one in rows:
        key = key_of(one)
        known[key, one["data_offset"]] = one
        if one["data_offset"] is not None:
            commands.append(
                Command(
                    ENQUEUE, key, one["data_offset"], payload=one["payload"], unique=bool(_asks(one["data_offset"]))
                )
            )
        if one["cancel_offset"] is not None:
            commands.append(Command(CANCEL, key, one["cancel_offset"]))
    folded = {}
    for key, entry in fold(commands).items():
        newest = known[key, entry.data.offset if entry.data else None]
        first = (entry.first.offset, _asks(entry.first.offset)) if entry.first else (None, None)
        cancel_offset = entry.cancel.offset if entry.cancel else None
        folded[key] = newest | {"cancel_offset": cancel_offset} | dict(zip(_FIRST, first, strict=True))
    return folded


def by_key(rows: Iterable[Mapping[str, Any]]) -> dict[TaskKey, Row]:
    """Returns what a fold returned: key → its row; there is one."""
    found: dict[TaskKey, Row] = {}
    for one in rows:
        assert key_of(one) not in found, "two rows of one key"
        found[key_of(one)] = dict(one)
    return found
