"""The newest rows of a table: chosen by the columns of their order alone, and only then read whole.

So that however many rows there are, and however much they hold, hardly more than a page of them is in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import polars as pl


class Order(NamedTuple):
    """By what rows are ordered, and which of them are one.

    Attributes:
        columns: such that few rows are alike in all of them.
        descending: of each.
        nulls_last: rows without a value stand last; else first.
        distinct: of rows that are alike in these columns there is one; None: of those that are alike in all that they have.
    """

    columns: tuple[str, ...]
    descending: tuple[bool, ...]
    nulls_last: bool = False
    distinct: tuple[str, ...] | None = None


def first_rows(rows: pl.LazyFrame, order: Order, limit: int) -> pl.DataFrame:
    """The first rows in an order, each once.

    Args:
        rows: of a table.
        order: of the answer.
        limit: most rows.
    """
    chosen = _chosen(rows.select(order.columns), order, limit)
    near = rows.filter(*_near(chosen))
    whole = near.join(chosen.lazy(), on=list(order.columns), how="semi", nulls_equal=True)
    return _sorted(whole.unique(order.distinct), order).head(limit).collect(engine="streaming")


def _chosen(places: pl.LazyFrame, order: Order, limit: int) -> pl.DataFrame:
    """The places of so many rows; repeats, which are few, are found among some more than are wanted, not among all."""
    most = 2 * limit
    while True:
        found = _sorted(places, order).head(most).collect(engine="streaming")
        chosen = found.unique(order.distinct, keep="first", maintain_order=True)
        if len(chosen) >= limit or len(found) < most:
            return chosen.head(limit)
        most *= 2


def _near(chosen: pl.DataFrame) -> Sequence[pl.Expr]:
    """Conditions that chosen rows fulfil, and few others, so that little else of a table is read."""
    import polars as pl

    known = [column for column in chosen.iter_columns() if len(column) and not column.null_count()]
    spans = [pl.col(one.name).is_between(pl.lit(one.min()), pl.lit(one.max())) for one in known]
    return [*spans, *(pl.col(one.name).is_in(one.unique().implode()) for one in known)]


def _sorted(rows: pl.LazyFrame, order: Order) -> pl.LazyFrame:
    return rows.sort(order.columns, descending=order.descending, nulls_last=order.nulls_last)
