"""`api`: tasks enqueued over HTTP: one after the other by `PUT`, and as a bulk, as JSON lines and as an Arrow stream.

A `PUT` is answered when Kafka has acknowledged the task. Floor: a record of the same size sent and acknowledged by kafka-python from
the same process, by turns; `empty_p50_ms` is what a call costs that does nothing. A bulk's time runs from the first byte of the request
to the last of its answer, which says of every task what became of it; its floor are the same records from a bare kafka-python producer.
"""

from __future__ import annotations

from typing import Any, Final

from scylla_spark.processes.deployment import Deployment
from scylla_spark_tools.bench import report
from scylla_spark_tools.bench.api_callers import ARROW, LINES
from scylla_spark_tools.bench.deployment_under_test import LIMIT_S, Costs, Options, ends, place, say
from scylla_spark_tools.bench.floor_measurements import ECHO_TOPIC, make_topic
from scylla_spark_tools.bench.helper_process import Helper

_WARM: Final = 200
_SINGLES: Final = 1_000
_BULKS: Final = {"lines": LINES, "arrow": ARROW}


def run(options: Options) -> dict[str, Any]:
    """Measures; default 1,000 calls and bulks of 100,000 tasks."""
    count = options.tasks or 100_000
    singles = max(50, min(_SINGLES, count // 10))
    with place(options, "ingest", "api") as home:
        make_topic(home.settings, ECHO_TOPIC, home.settings.partitions)
        say(f"{singles} tasks one after the other")
        _ask(home, "single_tasks", count=min(singles, _WARM))
        before = _stored(home)
        took, cores = _singles(home, singles)
        bulks = {name: _bulk(home, kind, name, count) for name, kind in _BULKS.items()}
        floor = _ask(home, "bare_records", count=count)
        arrived = _stored(home) - before
    sent = singles + len(_BULKS) * count
    put = took["put"]
    return report.latency(
        "api", put, took["record"], sent=singles, early=0, cpu_cores=cores,
        empty_p50_ms=round(report.percentile(took["empty"], 0.5) / 1000, 3), bulk_per_s=bulks["lines"]["per_s"],
        bulk_arrow_per_s=bulks["arrow"]["per_s"], bulk_floor_per_s=round(floor), missing=max(0, sent - arrived),
        surplus=max(0, arrived - sent), refused=sum(one["refused"] for one in bulks.values()),
    )  # fmt: skip


def _singles(home: Deployment, count: int) -> tuple[dict[str, list[int]], float]:
    """Returns what each call took, and cores in use meanwhile."""
    with Helper("single_tasks", home.settings, api=home.addresses["api"], count=count) as helper:
        helper.answer()
        costs = Costs(helper.pid)
        helper.send(True)
        took: dict[str, list[int]] = helper.answer(LIMIT_S)
        return took, costs.read()[0]


def _bulk(home: Deployment, kind: str, name: str, count: int) -> dict[str, Any]:
    say(f"a bulk of {count} tasks as {kind}")
    _ask(home, "bulk", count=max(1, count // 20), kind=kind, name=f"warm-{name}")
    found: dict[str, Any] = _ask(home, "bulk", count=count, kind=kind, name=name)
    return found | {"per_s": round(found["accepted"] / found["seconds"])}


def _ask(home: Deployment, role: str, **arguments: Any) -> Any:
    with Helper(role, home.settings, api=home.addresses["api"], **arguments) as helper:
        helper.answer()
        helper.send(True)
        return helper.answer(LIMIT_S)


def _stored(home: Deployment) -> int:
    return sum(ends(home.settings).values())
