"""Two forecasts of a past window side by side: start delays and makespans of all tasks, of each queue and of the worst lanes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from scylla_spark.services.simulate.replay_of_window import NEVER_US, Played

if TYPE_CHECKING:
    import polars as pl

SHARES: Final = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1.0))


def outlook(tasks: pl.DataFrame, today: Played, changed: Played, *, lanes: int) -> list[dict[str, Any]]:
    """Compares a forecast under the limits of today with one under changed limits; what was measured stands beside them.

    Both are forecasts, so that what the engine of the forecast does better than a real deployment is in both.

    A start delay is the time from when a task could start (its scheduled time, or its enqueueing if that was later) to the
    start of its first attempt; a makespan is from the first such time to the last end. Tasks that the forecast never starts
    count in `never_started` and are left out of its other figures.

    Args:
        tasks: rows of `io.delta.forecast_material.TaskHistory.tasks`.
        today: what the forecast says of each under the limits of today.
        changed: the same under changed limits.
        lanes: how many lanes to show: those with the greatest predicted delay.

    Returns:
        Rows with `scope` ("all", "queue" or "lane"), `name`, `count`, `never_started` under changed limits, and for each of p50,
        p95, p99 and max `<name>_ms` (today), `predicted_<name>_ms` (changed) and `measured_<name>_ms` (what really was), then
        the same three of `makespan_s`; figures that nothing is known for are None.
    """
    import polars as pl

    rows = _delays(tasks, today, changed)
    everything = _figures(rows.with_columns(name=pl.lit("")), "all")
    queues = _figures(rows.with_columns(name="queue"), "queue")
    worst = rows.group_by("ordering_id").agg(pl.col("predicted_us").max(), pl.col("never").sum())
    worst = worst.sort("never", "predicted_us", "ordering_id", descending=[True, True, False], nulls_last=True)
    chosen = rows.join(worst.head(lanes).with_row_index("rank").select("rank", "ordering_id"), on="ordering_id")
    ranked = _figures(chosen.with_columns(name="ordering_id"), "lane")
    order = {name: rank for rank, name in chosen.select("rank", "ordering_id").unique().iter_rows()}
    return everything + queues + sorted(ranked, key=lambda row: order[row["name"]])


def _delays(tasks: pl.DataFrame, today: Played, changed: Played) -> pl.DataFrame:
    import polars as pl

    known, ended = pl.col("known_us"), pl.col("finished_us")
    columns = {"measured_us": pl.col("started_us") - known, "measured_ended_us": ended}
    for name, played in (("today", today), ("predicted", changed)):
        started = pl.Series(memoryview(played.started_us).tolist(), dtype=pl.Int64)
        finished = pl.Series(memoryview(played.finished_us).tolist(), dtype=pl.Int64)
        starts = pl.lit(started) != NEVER_US
        columns |= {
            f"{name}_us": pl.when(starts).then(pl.lit(started) - known),
            f"{name}_ended_us": pl.when(starts).then(pl.lit(finished)),
        }
    return tasks.select("queue", "ordering_id", "known_us", **columns).with_columns(
        never=pl.col("predicted_us").is_null()
    )


def _figures(rows: pl.DataFrame, scope: str) -> list[dict[str, Any]]:
    """One row per `name`, by name."""
    import polars as pl

    sides = (("", "today"), ("predicted_", "predicted"), ("measured_", "measured"))
    figures = [
        (pl.col(f"{side}_us").quantile(share, "higher") / 1000).round(3).alias(f"{prefix}{name}_ms")
        for name, share in SHARES
        for prefix, side in sides
    ]
    figures += [
        ((pl.col(f"{side}_ended_us").max() - pl.col("known_us").min()) / 1e6).round(3).alias(f"{prefix}makespan_s")
        for prefix, side in sides
    ]
    found = rows.group_by("name").agg(*figures, count=pl.len(), never_started=pl.col("never").sum())
    return [{"scope": scope} | row for row in found.sort("name").to_dicts()]
