"""Refused records, as the tables hold them: which there are, and their values, a MiB each at most, so many bytes at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from scylla_spark.clock import from_us
from scylla_spark.io.delta.newest_rows import Order, first_rows
from scylla_spark.io.delta.rows import Pruning, in_us
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.schemas import REJECTED

if TYPE_CHECKING:
    import polars as pl

PORTION_BYTES: Final = 16 * 1024 * 1024
_MOST_STORED: Final = 1024 * 1024  # of a value; see the table's column
_PLACE: Final = ("topic", "partition_id", "offset")
_NEWEST: Final = Order(("appended_at", *_PLACE), (True, False, False, True), distinct=_PLACE)
Row = dict[str, Any]


class Place(NamedTuple):
    """Where a record stands in Kafka; no two are alike."""

    topic: str
    partition: int
    offset: int


class Beginnings(NamedTuple):
    """How much of values is read.

    Attributes:
        each: first bytes of one.
        read: bytes of values as they are stored; those of later records are left out.
        told: likewise, of the beginnings.
    """

    each: int
    read: int
    told: int


class RejectedRecords:
    """Reads refused records.

    Args:
        readers: of the deployment.
    """

    def __init__(self, readers: TableReader) -> None:
        self._readers = readers

    def chosen(self, limit: int, *, reason: str | None = None, since_us: int | None = None) -> list[Row]:
        """Refused records, newest first, all but their values; instants in microseconds since the epoch.

        Args:
            limit: most rows.
            reason: a code of `core.records.rejection_reason`; None: any.
            since_us: refused at or after this instant, microseconds since the epoch.
        """
        found: dict[Place, Row] = {}
        for first, last in self._stretches(None if since_us is None else from_us(since_us).date()):
            rows = self._readers.frame(REJECTED, [[("day", ">=", first), ("day", "<=", last)]]).drop("value")
            some = first_rows(rows.filter(*_wanted(reason, since_us)), _NEWEST, limit - len(found))
            for row in in_us(some.lazy()).collect().to_dicts():
                found.setdefault(place_of(row), row)
            if len(found) >= limit:
                break
        return list(found.values())

    def _stretches(self, since: date | None) -> Iterator[tuple[date, date]]:
        """Days with refused records, the newest first: one, then two, and so on, as many as are needed; first and last day of each."""
        days = sorted({file["day"] for file in self._readers.files(REJECTED)}, reverse=True)
        days = [day for day in days if since is None or day >= since]
        begin, count = 0, 1
        while some := days[begin : begin + count]:
            yield some[-1], some[0]
            begin, count = begin + count, 2 * count

    def one(self, place: Place) -> Row | None:
        """The record of a place, with its value; None: it was not refused, or is purged."""
        rows = self._readers.frame(REJECTED, [[("offset", "=", place.offset)]]).filter(*_at([place])).head(1)
        return next(iter(in_us(rows).collect().to_dicts()), None)

    def whole(self, rows: Sequence[Row]) -> Iterator[list[Row]]:
        """The same rows with their values, in portions.

        Args:
            rows: as `chosen` gives them.
        """
        for portion in _portions(rows):
            values = self._values(portion, None)
            yield [row | {"value": values.get(place_of(row))} for row in portion]

    def beginnings(self, rows: Sequence[Row], bounds: Beginnings) -> dict[Place, bytes]:
        """The first bytes of the values of the first rows, of as many as the bounds leave room for.

        Args:
            rows: as `chosen` gives them.
            bounds: of what is read.
        """
        found: dict[Place, bytes] = {}
        for portion in _portions(_within(rows, bounds)):
            found |= self._values(portion, bounds.each)
        return found

    def _values(self, rows: Sequence[Row], most: int | None) -> dict[Place, bytes]:
        import polars as pl

        places = [place_of(row) for row in rows]
        value = pl.col("value") if most is None else pl.col("value").bin.head(most)
        frame = self._readers.frame(REJECTED, _pruning(rows)).filter(*_at(places)).select(*_PLACE, value)
        wanted = set(places)
        read = ((Place(*row[:3]), row[3]) for row in frame.collect().iter_rows())
        return {place: value for place, value in read if place in wanted and value is not None}


def _wanted(reason: str | None, since_us: int | None) -> list[pl.Expr]:
    import polars as pl

    wanted = [] if reason is None else [pl.col("reason") == reason]
    return wanted if since_us is None else [*wanted, pl.col("appended_at") >= pl.lit(from_us(since_us))]


def place_of(row: Mapping[str, Any]) -> Place:
    """Returns where the record of a row stands."""
    return Place(row["topic"], row["partition_id"], row["offset"])


def _stored(row: Row) -> int:
    size: int | None = row["value_bytes"]
    return _MOST_STORED if size is None else min(size, _MOST_STORED)


def _portions(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """The rows in order, so many at a time that their values are few bytes; one at least."""
    portion: list[Row] = []
    size = 0
    for row in rows:
        if portion and size + _stored(row) > PORTION_BYTES:
            yield portion
            portion, size = [], 0
        portion.append(row)
        size += _stored(row)
    if portion:
        yield portion


def _within(rows: Sequence[Row], bounds: Beginnings) -> list[Row]:
    """The first rows, of which no more is read and told than the bounds say."""
    read = told = 0
    for number, row in enumerate(rows):
        read += _stored(row)
        told += min(_stored(row), bounds.each)
        if read > bounds.read or told > bounds.told:
            return list(rows[:number])
    return list(rows)


def _pruning(rows: Sequence[Row]) -> Pruning:
    """Conditions that leave out most files without such rows."""
    days = [from_us(row["appended_at"]).date() for row in rows if row["appended_at"] is not None]
    offsets = [row["offset"] for row in rows]
    within: list[tuple[str, str, Any]] = [("offset", ">=", min(offsets)), ("offset", "<=", max(offsets))]
    if len(days) == len(rows):
        within += [("day", ">=", min(days)), ("day", "<=", max(days))]
    return [within]


def _at(places: Sequence[Place]) -> list[pl.Expr]:
    """Conditions that rows of these places fulfil, and few others."""
    import polars as pl

    return [
        pl.col(column).is_in(sorted({place[number] for place in places}))
        for number, column in enumerate(_PLACE)
    ]  # fmt: skip
