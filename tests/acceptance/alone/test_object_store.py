"""Tables in a store that speaks the protocol of S3: they are made, written and read there, and a driver that dies is gone on from."""

import json
import time

import polars as pl
import pytest
from deltalake import write_deltalake

from tests.acceptance.place import Place
from tests.support.store_site import BUCKET, store
from tests.support.waiting import eventually

TABLES = ("--set", f"tables.path=s3://{BUCKET}/tables")
ORDERS = f"s3://{BUCKET}/orders"
WATCHING = f"""
[[schedule]]
name = "orders"
handler = "work"
table = "{ORDERS}"
"""


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    with store() as environment:
        place = Place(tmp_path_factory.mktemp("lake"))
        place.environment |= environment
        yield place


def enqueue(place: Place, key: str) -> None:
    done = place.call(*TABLES, "task", "enqueue", "work", "--ordering-id", "lane", "--uniqueness-key", key)
    assert done.returncode == 0, done.stderr


def states(place: Place) -> dict[str, tuple[str, int]]:
    """Uniqueness key → state and number of attempts, as the tables hold them."""
    done = place.call(*TABLES, "-o", "json", "task", "list")
    assert done.returncode == 0, done.stderr
    return {row["uniqueness_key"]: (row["state"], row["attempts"]) for row in json.loads(done.stdout)}


def order(place: Place) -> None:
    """Somebody else adds a version to a table of theirs in the store."""
    options = {name: value for name, value in place.environment.items() if name.startswith("AWS_")}
    write_deltalake(ORDERS, pl.DataFrame({"id": [1, 2, 3]}), mode="append", storage_options=options)


def watched(place: Place) -> int:
    """Returns how many runs of the schedule have succeeded."""
    done = place.call(*TABLES, "-o", "json", "task", "list", "--filter", "schedule:orders state:succeeded")
    assert done.returncode == 0, done.stderr
    return len(json.loads(done.stdout))


def test_tables_in_an_object_store_outlive_the_driver_and_are_watched(lake):
    first = lake.up(*TABLES)
    first.ready()
    order(lake)
    (lake.folder / "orders.toml").write_text(WATCHING)
    done = lake.call(*TABLES, "schedule", "apply", "--yes", str(lake.folder / "orders.toml"))
    assert done.returncode == 0, done.stderr
    for key in ("a", "b"):
        enqueue(lake, key)
    done = {"a": ("succeeded", 1), "b": ("succeeded", 1)}
    eventually(lambda: states(lake) == done, 300, "both are recorded in the tables", lambda: states(lake), every=2)
    assert not (lake.data / "tables").exists()
    lake.kill(first)
    second = lake.up(*TABLES)
    second.ready()
    enqueue(lake, "c")
    order(lake)
    done["c"] = ("succeeded", 1)
    eventually(
        lambda: done.items() <= states(lake).items(),
        300,
        "the third is recorded as well",
        lambda: states(lake),
        every=2,
    )
    eventually(lambda: watched(lake) == 1, 60, "the new version of the watched table made a run", every=2)
    assert lake.journal.read_text().count('"start"') == 4
    assert second.stop() == 0


def test_a_store_that_cannot_be_reached_is_told_in_one_line(lake):
    begun = time.monotonic()
    lake_elsewhere = dict(lake.environment)
    lake.environment["AWS_ENDPOINT_URL"] = "http://127.0.0.1:1"
    try:
        done = lake.call(*TABLES, "task", "list")
    finally:
        lake.environment |= lake_elsewhere
    assert done.returncode == 5
    assert f"The tables at s3://{BUCKET}/tables cannot be reached" in done.stderr
    assert "docs/lakehouse.md" in done.stderr
    assert time.monotonic() - begun < 60
