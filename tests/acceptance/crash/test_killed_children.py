"""kill -9 of one process of a deployment that goes on: the process is replaced, and nothing that was acknowledged is lost."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.acceptance.place import PATIENCE
from tests.support.waiting import eventually

PROGRAMS = {
    "broker": "kafka.Kafka",
    "api": "-m scylla_spark.services.api",
    "reader of lines": "scylla_spark.services.dispatch.log_process",
    "python daemon of spark": "pyspark.daemon",
}
POOLS = ("forkserver", "handler")


@pytest.mark.parametrize("which", [*PROGRAMS, *POOLS])
def test_a_process_that_is_killed_is_replaced_and_all_work_goes_on(crash_site, which):
    running, client = crash_site.running(), crash_site.client()
    enough, lane = crash_site.folder / f"enough-{which}", f"beside-{which}"
    held = client.enqueue("work", {"until": str(enough)}, ordering_id=lane)
    (run,) = eventually(lambda: crash_site.history(lane), PATIENCE, "a task runs")
    victim = eventually(lambda: find(crash_site, which, run.pool), PATIENCE, f"there is a {which}")
    os.kill(victim, signal.SIGKILL)
    if which in PROGRAMS:
        eventually(
            lambda: find(crash_site, which) not in (None, victim), PATIENCE, f"there is another {which}", running.told
        )
    later = client.enqueue("errand", {"mark": which})
    assert later.result(timeout=PATIENCE) == {"mark": which}
    enough.touch()
    held.result(timeout=PATIENCE)
    ended = crash_site.completed([held.key, later.key])  # ingest goes on, too
    assert {row["outcome"] for row in ended.values()} == {"succeeded"}
    attempts = ended[held.key]["attempt"], ended[later.key]["attempt"]
    # who loses the broker for longer than a session loses its partitions, and what runs there may run again
    assert attempts == ((2 if which in POOLS else 1), 1) or which == "broker", "only what ran there runs again"
    assert running.running
    assert "defect" not in running.told()


def find(site, which: str, pool: int = 0) -> int | None:
    """The process id of a part of a deployment, None while there is none.

    Args:
        site: the deployment.
        which: a name of `PROGRAMS`, or of a process of the pool.
        pool: process id of the pool's forkserver.
    """
    if which == "forkserver":
        return pool
    if which == "handler":
        children = [pid for path in Path(f"/proc/{pool}/task").glob("*/children") for pid in path.read_text().split()]
        return next((int(pid) for pid in children), None)
    return next((int(line.split()[0]) for line in site.left() if PROGRAMS[which] in command(line)), None)


def command(line: str) -> str:
    """The whole command line of a process that `Place.left` has listed."""
    try:
        return Path(f"/proc/{line.split()[0]}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
