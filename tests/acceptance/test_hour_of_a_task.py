"""Tasks lie in the hour of their scheduled time, to the millisecond."""

from scylla_spark import TaskKey
from tests.acceptance.place import now

HOUR = 3_600_000_000


def test_the_last_millisecond_of_an_hour_and_the_next_full_hour_lie_in_different_hours(deployment, foreign):
    full = (now() // HOUR + 2) * HOUR
    before, after = TaskKey(full - 1000, "hour", "before"), TaskKey(full, "hour", "after")
    deployment.ingested([foreign.put(key) for key in (before, after)])
    rows = {row["uniqueness_key"]: row for row in deployment.rows("tasks").to_dicts() if row["ordering_id"] == "hour"}
    assert {name: row["hour"] for name, row in rows.items()} == {"before": full // HOUR - 1, "after": full // HOUR}
    assert {name: row["scheduled_time"] for name, row in rows.items()} == {"before": full - 1000, "after": full}
