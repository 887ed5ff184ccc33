"""kill -9 at random moments under load: nothing is lost, nothing runs after its completion, nothing is left behind."""

import random
import threading

import pytest

from scylla_spark import TaskKey
from tests import history
from tests.acceptance.place import SECOND, Foreign, eventually, now

pytestmark = pytest.mark.acceptance
ROUNDS = 3
LANES = 20


def test_killed_three_times_under_load_it_loses_nothing_and_repeats_nothing_that_had_completed(place):
    rng = random.Random()
    accepted: list[TaskKey] = []
    number = 0
    for turn in range(ROUNDS):
        process = place.up()
        foreign = Foreign(process.ready()["kafka"], linger_ms=5)
        moment = rng.uniform(1.0, 5.0)
        print(f"round {turn}: killed after {moment:.3f} s")
        killer = threading.Timer(moment, place.kill, [process])
        sent = []
        killer.start()
        while killer.is_alive() and process.running:
            for _ in range(10):
                due = now() + rng.randrange(0, 6 * SECOND)
                key = TaskKey(due, f"kill-{rng.randrange(LANES)}", f"{number:06}")
                sent.append((key, foreign.put(key, {"ms": rng.choice([0, 0, 20, 100])})))
                number += 1
            killer.join(0.05)
        killer.join()
        foreign.close()
        accepted += [key for key, future in sent if future.succeeded()]
        eventually(lambda: not place.left(), 10, "no child and no broker outlives a killed deployment")
    assert len(accepted) > 30 * ROUNDS

    process = place.up()
    process.ready()
    ended = place.completed(accepted)
    assert process.stop() == 0, process.told()[-3000:]
    runs = place.history("kill-")
    assert history.lost(accepted, ended) == []
    assert {ended[key]["outcome"] for key in accepted} == {"succeeded"}
    assert history.revived(runs, {key: row["finished_at"] for key, row in ended.items()}) == []
    assert history.overlapping(runs) == []
    assert history.early(runs) == []
    assert history.misnumbered(runs) == []
    rows = place.rows("tasks").select("scheduled_time", "ordering_id", "uniqueness_key")
    assert rows.is_duplicated().sum() == 0, "one row per key"
