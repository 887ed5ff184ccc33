"""`immediate`: tasks due now, from the client's call (its stamp is in the payload) to the start of their handler.

Floor: a record of the same size, sent halfway between two tasks by the same process with the same client settings to
another topic of the same broker, from its send to its receipt by a bare consumer. What is sent in the first seconds, while
ingest runs its first batches, counts in neither.
"""

from __future__ import annotations

import json
from typing import Any

from scylla_spark.clock import now_us
from scylla_spark_tools.bench import report
from scylla_spark_tools.bench.deployment_under_test import Costs, Options, place, say
from scylla_spark_tools.bench.floor_measurements import ECHO_TOPIC, make_topic, wait_until
from scylla_spark_tools.bench.helper_process import Helper
from scylla_spark_tools.bench.outcomes_observer import violations
from scylla_spark_tools.bench.steady_load import LEAD_US, Load
from scylla_spark_tools.bench.thread_profile import sampled


def run(options: Options) -> dict[str, Any]:
    """Measures; default 50 tasks a second for 20 s over 300 lanes, after 10 s of the same."""
    load = Load.of(options, rate=50, seconds=20, lanes=300)
    limit_s = load.total * load.period_us / 1e6 + 30
    with place(options, "ingest", "dispatch") as deployment:
        settings = deployment.settings
        make_topic(settings, ECHO_TOPIC, settings.partitions)
        with (
            Helper("facts", settings, expected=load.total, limit_s=limit_s, idle_s=10, keep=True) as observer,
            Helper("echo", settings, count=load.total, limit_s=limit_s) as echo,
        ):
            observer.answer()
            echo.answer()
            with (
                Helper("pings", settings, count=load.total, period_us=load.period_us, lanes=load.lanes) as sender,
                sampled(options.profile),
            ):
                say(f"{load.total} tasks due now, {1e6 / load.period_us:g} a second, and as many bare records")
                sender.answer()
                begin = now_us() + LEAD_US
                sender.send(begin)
                wait_until(begin + load.warm * load.period_us)
                costs = Costs(observer.pid, echo.pid, sender.pid)
                sent = sender.answer(limit_s)
                floor, seen = echo.answer(limit_s), observer.answer(limit_s + 60)
                cores, parts = costs.read()
    stamps = sorted((time_us, *json.loads(result)) for time_us, _start, result in seen["results"])[load.warm :]
    return report.latency(
        "immediate", [begun - asked for _due, begun, asked in stamps], floor[load.warm :], sent=load.count,
        early=sum(begun < due for due, begun, _asked in stamps), cpu_cores=cores, cpu_seconds=parts,
        violations=violations(seen), behind_ms=sent["behind_ms"], warm=load.warm,
    )  # fmt: skip
