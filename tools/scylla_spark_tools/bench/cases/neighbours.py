"""`neighbours`: lateness of others while a worker leases one task after the other over HTTP, against the same load without it.

A hundred tasks a second of another queue start meanwhile. Each call of the worker reports the task before and asks for the next, so
two facts of leases are durable when it is answered; by turns with it go an empty call to the same application and a record sent and
acknowledged. `sync_ratio` is what a call takes beyond such a record over what an empty call takes, by medians.
"""

from __future__ import annotations

from typing import Any, Final

from scylla_spark_tools.bench import report
from scylla_spark_tools.bench import steady_load as paced_load
from scylla_spark_tools.bench.cases.leases import QUEUE, enqueued
from scylla_spark_tools.bench.deployment_under_test import LIMIT_S, Options, place
from scylla_spark_tools.bench.floor_measurements import ECHO_TOPIC, make_topic
from scylla_spark_tools.bench.helper_process import Helper
from scylla_spark_tools.bench.steady_load import AHEAD_US

_PER_S: Final = 400  # more than one worker does


def run(options: Options) -> dict[str, Any]:
    """Measures; default 100 tasks a second for 20 s, three times without the worker and with it."""
    load = paced_load.Load.of(options, rate=100, seconds=20)
    options = options.needing("queues", **{QUEUE: {"mode": "pull"}})
    turns: list[list[paced_load.Result]] = [[], []]
    took: dict[str, list[int]] = {}
    seconds = (load.total * load.period_us + AHEAD_US) / 1e6
    with place(options, "ingest", "dispatch", "api") as home:
        make_topic(home.settings, ECHO_TOPIC, 1)
        for _ in range(options.turns):
            turns[0].append(paced_load.measure(home.settings, load, before=None))
            count = round(seconds * _PER_S)
            enqueued(home, count, count)
            with Helper(
                "lease_turns", home.settings, api=home.addresses["api"], queue=QUEUE, seconds=seconds
            ) as worker:
                worker.answer()
                worker.send(True)
                turns[1].append(paced_load.measure(home.settings, load, before=None))
                for name, found in worker.answer(LIMIT_S).items():
                    took.setdefault(name, []).extend(found)
    plain, result = map(paced_load.joined, turns)
    calls = {name: sorted(found) for name, found in took.items()}
    sync, empty, record = (report.percentile(calls[name], 0.5) / 1000 for name in ("sync", "empty", "record"))
    return report.compared(
        "neighbours", result.late_us, plain.late_us, sent=len(result.late) + result.lost, early=result.early,
        cpu_cores=result.cores, violations=result.violations + len(calls["refused"]), leased=len(calls["sync"]), sync_p50_ms=sync,
        sync_p99_ms=report.percentile(calls["sync"], 0.99) / 1000, empty_p50_ms=empty, record_p50_ms=record,
        sync_ratio=report.ratio(sync - record, empty), behind_ms=result.behind_ms,
    )  # fmt: skip
