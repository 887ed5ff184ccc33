"""`single`: one lane, durable order: each task starts when the completion of the one before has been read back.

All are enqueued some seconds ahead and due within milliseconds of one instant, from which the clock runs to the receipt of
the last completion. Floor: a small record sent and read back, one after the other: what one durable fact costs.
`--replay`: in a queue whose lanes do not wait for their facts.
"""

from __future__ import annotations

from typing import Any, Final

from scylla_spark.client.scheduler import Scheduler
from scylla_spark.clock import from_us, now_us
from scylla_spark.config.settings import Settings
from scylla_spark.errors import ConflictError
from scylla_spark_tools.bench import report
from scylla_spark_tools.bench.deployment_under_test import LIMIT_S, Costs, Options, place, say
from scylla_spark_tools.bench.floor_measurements import ECHO_TOPIC, make_topic
from scylla_spark_tools.bench.handlers import NOOP
from scylla_spark_tools.bench.helper_process import Helper
from scylla_spark_tools.bench.outcomes_observer import violations
from scylla_spark_tools.bench.thread_profile import sampled

FACT_BYTES = 200
REPLAY: Final = "replay"
_AHEAD_US = 3_000_000


def run(options: Options) -> dict[str, Any]:
    """Measures; default 2,000 tasks, or 20,000 in replay order."""
    count, queue = options.tasks or 2_000, "default"
    if options.replay:
        count, queue = options.tasks or 20_000, REPLAY
        options = options.needing("queues", **{REPLAY: {"order": "replay"}})
    with place(options, "ingest", "dispatch") as deployment:
        settings = deployment.settings
        make_topic(settings, ECHO_TOPIC, settings.partitions)
        before = _round_trips(settings)
        with Helper("facts", settings, expected=count, limit_s=LIMIT_S, idle_s=20, keep=False) as observer:
            observer.answer()
            first = _enqueue(settings, count, queue)
            say(f"{count} tasks of one lane")
            with sampled(options.profile):
                costs = Costs(observer.pid)
                seen = observer.answer(LIMIT_S)
                cores, parts = costs.read()
        after = _round_trips(settings)
    return report.rate(
        "single", seen["completed"], (seen["last_seen_us"] - first) / 1e6, max(before, after),
        violations=violations(seen), lost=count - seen["completed"], floor_rounds=[round(before, 1), round(after, 1)],
        cpu_cores=round(cores, 3), cpu_seconds=parts, queue=queue,
    )  # fmt: skip


def _enqueue(settings: Settings, count: int, queue: str) -> int:
    """Returns the time of the first task, microseconds since the epoch."""
    first = now_us() + _AHEAD_US + 300 * count
    batch = [
        {
            "handler": NOOP,
            "ordering_id": "lane-0",
            "uniqueness_key": f"{n:09d}",
            "at": from_us(first + n),
            "queue": queue,
        }
        for n in range(count)
    ]
    with Scheduler.connect(settings) as scheduler:
        scheduler.enqueue_many(batch)
    if now_us() > first:
        raise ConflictError(
            "The load took longer than planned; the rate would be of the load.", hint="Try again on a quieter machine."
        )
    return first


def _round_trips(settings: Settings) -> float:
    with Helper("round_trips", settings, seconds=3.0, size=FACT_BYTES) as helper:
        return float(helper.answer()["rate_per_s"])
