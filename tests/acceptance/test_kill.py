"""kill -9 at random moments under load: nothing is lost, nothing runs after its completion, nothing is left behind."""

import json
import os
import random
import signal
import sys

from scylla_spark import TaskKey
from scylla_spark.testing import judge
from tests.acceptance.place import PATIENCE, Process
from tests.support.waiting import eventually

ROUNDS = int(os.environ.get("KILLS", "1"))  # KILLS=3 python -m pytest tests/acceptance/test_kill.py


def test_killed_under_load_it_loses_nothing_and_repeats_nothing_that_had_completed(place):
    acknowledged = place.folder / "acknowledged.jsonl"
    for turn in range(ROUNDS):
        process = place.up()
        kafka = process.ready()["kafka"]
        enough = len(_keys(acknowledged)) + random.randrange(50, 600)
        command = [sys.executable, "-m", "tests.acceptance.load", kafka, str(acknowledged), f"round-{turn}"]
        load = Process(f"load-{turn}", command, place.folder, place.environment)
        eventually(lambda n=enough: len(_keys(acknowledged)) > n, PATIENCE)
        assert load.running, load.told()
        place.kill(process)
        load.signal(signal.SIGKILL)
        load.ended()
        eventually(lambda: not place.left(), 10, "no child and no broker outlives a killed deployment", place.left)

    process = place.up()
    process.ready()
    accepted = _keys(acknowledged)
    ended = place.completed(accepted)
    assert process.stop() == 0, process.told()[-3000:]
    runs = place.history("kill-")
    assert judge.lost(accepted, ended) == []
    assert {ended[key]["outcome"] for key in accepted} == {"succeeded"}
    assert judge.revived(runs, {key: row["finished_at"] for key, row in place.completions("kill-").items()}) == []
    assert judge.overlapping(runs) == []
    assert judge.early(runs) == []
    assert judge.misnumbered(runs) == []
    rows = place.rows("tasks").select("scheduled_time", "ordering_id", "uniqueness_key")
    assert rows.is_duplicated().sum() == 0, "one row per key"


def _keys(acknowledged):
    text = acknowledged.read_text() if acknowledged.exists() else ""
    return [TaskKey(*json.loads(line)) for line in text[: text.rfind("\n") + 1].splitlines()]
