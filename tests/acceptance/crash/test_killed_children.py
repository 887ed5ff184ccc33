"""kill -9 of one process of a deployment that goes on: the process is replaced, and nothing that was acknowledged is lost."""

from __future__ import annotations

import os
import signal

import pytest

from tests.acceptance.place import PATIENCE, POOL
from tests.support.waiting import eventually

REPLACED = ("broker", "api", "reader of lines", "python daemon of spark")
INGEST_USES = ("broker", "python daemon of spark")


@pytest.mark.parametrize("which", [*REPLACED, *POOL])
def test_a_process_that_is_killed_is_replaced_and_all_work_goes_on(crash_site, which):
    running, client = crash_site.running(), crash_site.client()
    enough, lane = crash_site.folder / f"enough-{which}", f"beside-{which}"
    held = client.enqueue("work", {"until": str(enough)}, ordering_id=lane)
    (run,) = eventually(lambda: crash_site.history(lane), PATIENCE, "a task runs")
    victim = eventually(lambda: crash_site.part(which, run.pool), PATIENCE, f"there is a {which}")
    os.kill(victim, signal.SIGKILL)
    if which in REPLACED:
        eventually(
            lambda: crash_site.part(which) not in (None, victim), PATIENCE, f"there is another {which}", running.told
        )
    if which == "broker":  # a process is there before it answers
        eventually(lambda: "the embedded broker runs again" in running.told(), PATIENCE, "it answers", running.told)
    later = crash_site.client().enqueue("errand", {"mark": which})
    enough.touch()
    ended = crash_site.recorded([held.key, later.key])
    assert {end.outcome for end in ended.values()} == {"succeeded"}
    if which in INGEST_USES:
        crash_site.completed([held.key, later.key])  # ingest goes on, too
    attempts = ended[held.key].attempt, ended[later.key].attempt
    # who loses the broker for longer than a session loses its partitions, and what runs there may run again
    assert attempts == ((2 if which in POOL else 1), 1) or which == "broker", "only what ran there runs again"
    assert running.running
    assert "defect" not in running.told()
