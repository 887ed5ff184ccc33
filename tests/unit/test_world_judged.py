"""Whatever is asked of a world, its history passes the judge of all histories."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest

from scylla_spark import Queue, Retry
from scylla_spark.clock import to_us
from scylla_spark.testing import World, world
from scylla_spark.testing.history import NEVER, OK, Cancel, Enqueue, History, Recorded, Run
from scylla_spark.testing.judge import judge

START = datetime(2026, 3, 1, tzinfo=UTC)


def work(task, ctx):
    """Does what its payload says of this attempt."""
    deeds = task.payload["deeds"]
    deed = deeds[min(ctx.attempt, len(deeds)) - 1]
    if deed == "fail":
        raise RuntimeError("as asked")


def story(w: World, chance: random.Random) -> History:
    """Enqueues, cancels and limits at random, while time passes."""
    enqueues, cancels = [], []
    w.put_queue(Queue(name="few", concurrency=2))
    w.put_queue(Queue(name="fast", order="replay"))
    for _ in range(60):
        deeds = [chance.choice(("fail", "fail", "done")) for _ in range(4)] + ["done"]
        attempts = chance.randint(1, 6)
        now, span = to_us(w.now), chance.choice((None, None, 1, 60, 300))
        task = w.enqueue(
            "work", {"deeds": deeds}, ordering_id=f"lane-{chance.randrange(8)}", delay=timedelta(seconds=chance.randrange(300)),
            queue=chance.choice(("default", "few", "fast")), retry=Retry(attempts - 1, base="1s", cap="1m"), priority=chance.randrange(3),
            expires=span,
        )  # fmt: skip
        enqueues.append(
            Enqueue(task.key, OK, now, now, attempts, NEVER if span is None else task.key.time_us + span * 1_000_000)
        )
        if chance.random() < 0.2:
            w.takes("work", f"{chance.randrange(60)}s")
        if chance.random() < 0.2:
            one = chance.choice(enqueues).key
            cancels.append(Cancel(one, w.cancel(one), to_us(w.now), to_us(w.now)))
        w.advance(timedelta(seconds=chance.randrange(30)))
    w.run_until_idle()
    runs = [
        Run(one.key, one.attempt, 1, to_us(one.started_at), to_us(one.finished_at), one.outcome == "succeeded")
        for one in w.runs
    ]
    recorded = [Recorded(fact, 1) for one in w.tasks() for fact in w._here.dispatcher.facts(one.key)]
    return History(enqueues, cancels, runs, (), recorded)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.slow
def test_the_history_of_a_world_passes_the_judge(seed):
    with world([work], START) as w:
        history = story(w, random.Random(seed))
        assert {name: breaches for name, breaches in judge(history).items() if breaches} == {}
        assert {one.open for one in w.tasks()} == {False}
        assert len(history.runs) >= 40
