"""What happened beside what a forecast says: start delays and makespans of all tasks, of each queue and of the worst lanes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from scylla_spark.services.simulate.replay_of_window import NEVER_US, Played

if TYPE_CHECKING:
    import polars as pl

SHARES: Final = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1.0))


def outlook(tasks: pl.DataFrame, played: Played, *, lanes: int) -> list[dict[str, Any]]:
    """Compares.

    A start delay is the time from when a task could start (its scheduled time, or its enqueueing if that was later) to the
    start of its first attempt; a makespan is from the first such time to the last end. Tasks that the forecast never starts
    count in `never_started` and are left out of its other figures.

    Args:
        tasks: rows of `io.delta.forecast_material.TaskHistory.tasks`.
        played: what the forecast says of each.
        lanes: how many lanes to show: those with the greatest predicted delay.

    Returns:
        Rows with `scope` ("all", "queue" or "lane"), `name`, `count`, `never_started`, and for each of p50, p95, p99 and max
        `<name>_ms` and `predicted_<name>_ms`, then `makespan_s` and `predicted_makespan_s`; figures that nothing is known
        for are None.
    """
    import polars as pl

    rows = _delays(tasks, played)
    everything = _figures(rows.with_columns(name=pl.lit("")), "all")
    queues = _figures(rows.with_columns(name="queue"), "queue")
    worst = rows.group_by("ordering_id").agg(pl.col("predicted_us").max(), pl.col("never").sum())
    worst = worst.sort("never", "predicted_us", "ordering_id", descending=[True, True, False], nulls_last=True)
    chosen = rows.join(worst.head(lanes).with_row_index("rank").select("rank", "ordering_id"), on="ordering_id")
    ranked = _figures(chosen.with_columns(name="ordering_id"), "lane")
    order = {name: rank for rank, name in chosen.select("rank", "ordering_id").unique().iter_rows()}
    return everything + queues + sorted(ranked, key=lambda row: order[row["name"]])


def _delays(tasks: pl.DataFrame, played: Played) -> pl.DataFrame:
    import polars as pl

    predicted = pl.DataFrame(
        {"started": memoryview(played.started_us).tolist(), "ended": memoryview(played.finished_us).tolist()},
        schema={"started": pl.Int64, "ended": pl.Int64},
    )
    never = pl.col("started") == NEVER_US
    return tasks.hstack(predicted).select(
        "queue", "ordering_id", "known_us", "finished_us", never=never,
        actual_us=pl.col("started_us") - pl.col("known_us"),
        predicted_us=pl.when(~never).then(pl.col("started") - pl.col("known_us")),
        ended_us=pl.when(~never).then("ended"),
    )  # fmt: skip


def _figures(rows: pl.DataFrame, scope: str) -> list[dict[str, Any]]:
    """One row per `name`, by name."""
    import polars as pl

    figures = [
        (pl.col(column).quantile(share, "higher") / 1000).round(3).alias(f"{prefix}{name}_ms")
        for name, share in SHARES
        for prefix, column in (("", "actual_us"), ("predicted_", "predicted_us"))
    ]
    begin = pl.col("known_us").min()
    found = rows.group_by("name").agg(
        *figures, count=pl.len(), never_started=pl.col("never").sum(),
        makespan_s=((pl.col("finished_us").max() - begin) / 1e6).round(3),
        predicted_makespan_s=((pl.col("ended_us").max() - begin) / 1e6).round(3),
    )  # fmt: skip
    return [{"scope": scope} | row for row in found.sort("name").to_dicts()]
