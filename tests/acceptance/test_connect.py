"""Handlers with sessions of Spark Connect, in a whole deployment: a table is made small by a schedule, and nothing outlives its end."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from deltalake import DeltaTable, write_deltalake
from polars import DataFrame

from scylla_spark import Schedule, Trigger
from tests.acceptance.place import PATIENCE
from tests.support import connect_handlers
from tests.support.waiting import eventually


def _orders(folder: Path) -> str:
    """A table of five small files, without a JVM."""
    for number in range(5):
        write_deltalake(str(folder), DataFrame({"shop": [number % 2], "amount": [number]}).to_arrow(), mode="append")
    return str(folder)


def test_a_schedule_optimizes_a_table_and_one_computes_with_dataframes_and_kill_9_leaves_nothing(place):
    orders = _orders(place.folder / "orders")
    up = place.up("--handlers", connect_handlers.__file__, "--set", "connect.url=own")
    up.ready()
    with place.client() as scheduler:
        once = Trigger.every("1s", start_at=datetime.now(UTC) + timedelta(seconds=2), count=1)
        scheduler.put_schedules(
            Schedule("make_small", "query", once, payload={"sql": f"OPTIMIZE delta.`{orders}`"}),
            Schedule("sums", "sums", once, payload={"table": orders, "into": str(place.folder / "sums")}),
        )
        eventually(lambda: len(DeltaTable(orders).file_uris()) == 1, 2 * PATIENCE, "the table is one file")
        eventually(lambda: DeltaTable.is_deltatable(str(place.folder / "sums")), 2 * PATIENCE, "the sums are written")
        found = DeltaTable(str(place.folder / "sums")).to_pyarrow_table().to_pylist()
        assert sorted(map(tuple, map(dict.values, found))) == [(0, 6), (1, 4)]
        assert scheduler.enqueue("session_id").result(timeout="120s")[0]
    place.kill(up)
    eventually(lambda: not place.left(), PATIENCE, "the JVM and all children end with their parent", place.left)
