"""`lateness`: tasks due some seconds ahead, at a steady rate; from their time to the start of their handler.

Everything runs: ingest with its default trigger and MERGE, dispatch, facts. The start is stamped in the child, inside the
handler. Floor: how late a bare process, in the same run, wakes up for the same instants.
"""

from __future__ import annotations

import json
from typing import Any, Final

from scylla_spark.bench import report
from scylla_spark.bench.helper import Helper
from scylla_spark.bench.sampling import sampled
from scylla_spark.bench.site import Costs, Options, place, say
from scylla_spark.clock import now_us

AHEAD_US: Final = 5_000_000
LEAD_US: Final = 500_000  # from the word to the first of a schedule


def run(options: Options) -> dict[str, Any]:
    """Measures; default 100 tasks a second for 30 s over 1,000 lanes, due 5 s ahead."""
    rate, lanes = options.rate or 100, options.lanes or 1_000
    count = options.tasks or int((options.seconds or 30) * rate)
    schedule = {"count": count, "period_us": round(1e6 / rate)}
    limit_s = count / rate + AHEAD_US / 1e6 + 30
    with place(options, "ingest", "dispatch") as deployment:
        settings = deployment.settings
        with Helper(
            "facts", settings, expected=count, limit_s=limit_s, idle_s=10 + AHEAD_US / 1e6, keep=True
        ) as observer:
            observer.answer()
            with (
                Helper("steady", settings, lanes=lanes, ahead_us=AHEAD_US, **schedule) as load,
                Helper("timer", settings, **schedule) as timer,
                sampled(options.profile),
            ):
                say(f"{count} tasks, {rate:g} a second, due {AHEAD_US / 1e6:g} s ahead")
                load.answer()
                timer.answer()
                begin = now_us() + LEAD_US
                load.send(begin)
                timer.send(begin + AHEAD_US)
                costs = Costs(observer.pid, load.pid, timer.pid)
                sent = load.answer(limit_s)
                floor = timer.answer(limit_s)
                seen = observer.answer(limit_s + 60)
                cores, parts = costs.read()
    if sent["behind_ms"] * 1000 > AHEAD_US / 2:
        say(
            f"the load came up to {sent['behind_ms']:.0f} ms late: this machine is too busy for the numbers to mean much"
        )
    late = [json.loads(result)[0] - time_us for time_us, _start, result in seen["results"]]
    return report.latency(
        "lateness", late, floor, sent=count, early=sum(value < 0 for value in late), cpu_cores=cores, cpu_seconds=parts,
        violations=violations(seen), behind_ms=sent["behind_ms"],
    )  # fmt: skip


def violations(seen: dict[str, Any]) -> int:
    """Rows out of order, overlapping or doubled, in the observer's verdict."""
    return int(seen["disorder"] + seen["overlaps"] + seen["doubled"])
