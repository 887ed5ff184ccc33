"""Task keys: their ids, views, hours, names and runs of schedules, and the partition they belong to."""

from __future__ import annotations

import base64
import json
import re
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from scylla_spark.clock import from_us, iso, read_instant, to_us
from scylla_spark.errors import ArgumentError

EARLIEST_US: Final = 0  # 1970-01-01T00:00:00Z
LATEST_US: Final = 9_214_646_400_000_000  # 2262-01-01T00:00:00Z, the first instant that is too late


def is_storable(us: int) -> bool:
    """Returns True if an instant (microseconds since the epoch) lies in the range."""
    return EARLIEST_US <= us < LATEST_US


HOUR_US = 3_600_000_000
MOST_PART_CHARS: Final = 1024
_COMMAS: Final = 2  # between the three parts of an id
_HINT: Final = (
    "Write SCHEDULED_TIME,ORDERING_ID,UNIQUENESS_KEY, each part percent-encoded: 2026-01-31T09:00:00Z,cust-9,inv-17."
)
_AN_ID: Final = re.compile(r"[0-9]Z,[^ ,]+,")


class TaskKey(NamedTuple):
    """Identity of a task, ordered as tasks of one lane run: by time, then ordering id, then uniqueness key.

    Attributes:
        time_us: scheduled time, microseconds since the Unix epoch, UTC.
        ordering_id: the lane.
        uniqueness_key: tells tasks of the same lane and time apart.
    """

    time_us: int
    ordering_id: str
    uniqueness_key: str

    @classmethod
    def of(cls, scheduled_time: datetime, ordering_id: str, uniqueness_key: str) -> TaskKey:
        """Key from an aware datetime.

        Args:
            scheduled_time: when the task is due; an aware datetime.
            ordering_id: its lane.
            uniqueness_key: what tells it from others of its lane at that time.

        Raises:
            ArgumentError: the datetime has no time zone, or lies before 1970 or after 2261.
        """
        return cls(instant_us(scheduled_time), ordering_id, uniqueness_key)

    @classmethod
    def parse(cls, text: str) -> TaskKey:
        """Reads an id: SCHEDULED_TIME,ORDERING_ID,UNIQUENESS_KEY with each part percent-encoded, or the `id` of an answer of the API.

        Generated clients percent-encode an id once more, as a whole; that is read, too.

        Raises:
            ArgumentError: the text is no id, its time is no RFC 3339 instant with a zone, or a part is empty or too long.
        """
        form = text if "," in text else _unquoted(text)
        parts = [_unquoted(part) for part in form.split(",")] if form.count(",") == _COMMAS else _decoded(form)
        time, ordering_id, uniqueness_key = parts
        try:
            key = cls.of(read_instant(time), ordering_id, uniqueness_key)
        except (ValueError, OverflowError) as error:
            raise _no_id(text, f"{time[:100]!r} is not an instant with a zone: {error}") from None
        if not all(0 < len(part) <= MOST_PART_CHARS for part in key[1:]):
            raise _no_id(text, f"ordering id and uniqueness key have 1 to {MOST_PART_CHARS} characters")
        return key

    @property
    def scheduled_time(self) -> datetime:
        """The scheduled time as an aware UTC datetime."""
        return from_us(self.time_us)

    @property
    def hour(self) -> int:
        """Whole hours since the Unix epoch; independent of any session time zone."""
        return self.time_us // HOUR_US

    def __str__(self) -> str:
        """The id of the task, which `parse` reads: its parts, percent-encoded, so that shells and paths take it as one word."""
        return f"{iso(self.time_us)},{_quoted(self.ordering_id)},{_quoted(self.uniqueness_key)}"

    def __repr__(self) -> str:
        return repr(str(self))


def names_a_task(text: str) -> bool:
    """Reports whether a sentence contains the id of a task."""
    return _AN_ID.search(text) is not None


def _quoted(part: str) -> str:
    return quote(part, safe="", errors="replace")


def _unquoted(text: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise _no_id(text, "it is not UTF-8") from None


def _decoded(text: str) -> list[str]:
    """The parts in an opaque id of the API: base64url of their JSON list."""
    try:
        raw = text.encode("ascii")
        found = json.loads(base64.b64decode(raw + b"=" * (-len(raw) % 4), altchars=b"-_", validate=True).decode())
    except (ValueError, RecursionError):
        found = None
    if not (isinstance(found, list) and len(found) == 3 and all(isinstance(part, str) for part in found)):
        raise _no_id(text, "it has not three parts")
    try:
        "".join(found).encode()
    except UnicodeEncodeError:
        raise _no_id(text, "a part is not Unicode text") from None
    return found


def _no_id(text: str, why: str) -> ArgumentError:
    return ArgumentError(f"{text[:100]!r} is not the id of a task: {why}.", hint=_HINT)


def instant_us(moment: datetime) -> int:
    """Microseconds since the epoch of a moment at which a task can be scheduled.

    Raises:
        ArgumentError: it is no aware datetime, or lies before 1970 or after 2261.
    """
    try:
        us = to_us(moment)
    except (ValueError, AttributeError, TypeError) as error:
        raise ArgumentError(f"{moment!r} is no instant: {error}.", reason="no_time_zone") from None
    if not is_storable(us):
        raise ArgumentError(
            f"{moment.isoformat()} is before 1970 or after 2261.",
            hint="Choose a time that every reader of the tables can hold.",
            reason="time_out_of_range",
        )
    return us


def murmur2(data: bytes) -> int:
    """Kafka's 32-bit murmur2 hash, signed.

    Source: `org.apache.kafka.common.utils.Utils.murmur2`.
    """
    length = len(data)
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = (0x9747B28C ^ length) & mask
    whole = length - length % 4
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m & mask) ^ k
    rest = data[whole:]
    if rest:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    h ^= h >> 15
    return h - (1 << 32) if h & 0x80000000 else h


def partition_of(ordering_id: str, partitions: int) -> int:
    """Partition of a lane: positive(murmur2(utf8)) mod N, equal to Kafka's default partitioner.

    Args:
        ordering_id: any text that can be written as UTF-8.
        partitions: partition count of the deployment, fixed for its life.
    """
    return (murmur2(ordering_id.encode()) & 0x7FFFFFFF) % partitions


place_of = lru_cache(maxsize=100_000)(partition_of)
"""`partition_of`, remembered for the lanes seen last: a tail and its engine ask for every record of theirs."""


class Name(NamedTuple):
    """A uniqueness key in its lane. Tasks of a name lie in one partition, whose owner sees all of their records in one order."""

    lane: str
    unique: str

    def __str__(self) -> str:
        """The text that `name_in` reads."""
        parts = (self.unique,) if self.lane == self.unique else self
        return _NAME_MARK + ",".join(map(_quoted, parts))


_NAME_MARK: Final = "name:"
_NAME_MARK_QUOTED: Final = "name%3a"


def name_in(text: str) -> Name | None:
    """Reads `name:ORDERING_ID,UNIQUENESS_KEY`, or `name:UNIQUENESS_KEY` of a task whose lane has the name of its key.

    Each part is percent-encoded; the whole may be so once more, as with ids. None: the text does not begin so, and may be an id.

    Raises:
        ArgumentError: it begins so, and a part is missing, empty or too long.
    """
    form = _unquoted(text) if text.lower().startswith(_NAME_MARK_QUOTED) else text
    if not form.startswith(_NAME_MARK):
        return None
    parts = [_unquoted(part) for part in form.removeprefix(_NAME_MARK).split(",")]
    if len(parts) > len(Name._fields) or not all(0 < len(part) <= MOST_PART_CHARS for part in parts):
        raise ArgumentError(
            f"{text[:100]!r} is not the name of a task: ordering id and uniqueness key have 1 to {MOST_PART_CHARS} characters.",
            hint="Write name:ORDERING_ID,UNIQUENESS_KEY, each part percent-encoded, or name:UNIQUENESS_KEY.",
        )
    return Name(parts[0], parts[-1])


def name_of(key: TaskKey) -> Name:
    """The name that a task bears."""
    return Name(key.ordering_id, key.uniqueness_key)


_compact: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def id_of(key: TaskKey) -> str:
    """The opaque id of a key: letters, digits, "-" and "_" only, so that no proxy or shell changes it."""
    parts = [iso(key.time_us), key.ordering_id, key.uniqueness_key]
    return base64.urlsafe_b64encode(_compact(parts).encode()).rstrip(b"=").decode()


def key_view(key: TaskKey) -> dict[str, Any]:
    """The parts of a key, and the id that names it in paths."""
    return {
        "id": id_of(key),
        "scheduled_time": iso(key.time_us),
        "ordering_id": key.ordering_id,
        "uniqueness_key": key.uniqueness_key,
    }


AFTER_NAME: Final = (
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{3}(?:[0-9]{3})?)?Z/[1-9][0-9]{0,17}"
)
"""What stands after the name and a slash, as a regular expression that Python and Rust read alike."""
_RUN: Final = re.compile(rf"(.+)/({AFTER_NAME})", re.DOTALL)


class RunName(NamedTuple):
    """Which schedule a task is a run of, by its uniqueness key; who enqueues a task by hand may spell its key likewise.

    Attributes:
        schedule: its name.
        planned_us: the time that the run was planned for, microseconds since the epoch.
    """

    schedule: str
    planned_us: int


def planned_at(uniqueness_key: str) -> datetime | None:
    """The planned time of a run, aware UTC; None: the key is none of a run."""
    found = run_name(uniqueness_key)
    return None if found is None else from_us(found.planned_us)


def run_name(uniqueness_key: str) -> RunName | None:
    """Returns what a uniqueness key says of a run; None: it is none of a run."""
    found = _RUN.fullmatch(uniqueness_key)
    if found is None:
        return None
    try:
        return RunName(found[1], to_us(datetime.fromisoformat(found[2].rpartition("/")[0])))
    except (ValueError, OverflowError):
        return None
