"""Schedules beside the main job: each second of a short while, whatever comes to a Delta table, and either of a moment and that table.

Their runs do nothing but return what they were told; by that they are judged, apart from all other tasks.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from scylla_spark.client.scheduler import Scheduler
from scylla_spark.client.schedules.schedule import Schedule, Trigger
from scylla_spark.clock import from_us
from scylla_spark_tools.demo import handlers
from scylla_spark_tools.demo.evidence import Intended, ScheduledRun

EACH_SECOND: Final = "demo-each-second"
GROWTH: Final = "demo-growth"
EITHER: Final = "demo-either"
NAMES: Final = (EACH_SECOND, GROWTH, EITHER)
COMMITS: Final = 3
SECONDS: Final = 10
_MOMENT_AFTER_S: Final = 3
_S: Final = 1_000_000


def intended(begin_us: int) -> Intended:
    """Returns what the schedules are to run.

    Args:
        begin_us: the first planned second is the next whole one, microseconds since the epoch.
    """
    first = -(-begin_us // _S) * _S
    return Intended(tuple(first + number * _S for number in range(SECONDS)), first + _MOMENT_AFTER_S * _S, COMMITS)


def definitions(plan: Intended, table: Path) -> list[Schedule]:
    """The schedules, as they are put. None of their fires gives way to another, however slow the machine is.

    Args:
        plan: what they are to run.
        table: folder of a Delta table whose version 0 does not count.
    """
    first, last = from_us(plan.seconds[0]), from_us(plan.seconds[-1] + _S // 2)
    each = Trigger.cron("* * * * * *", start_at=first, end_at=last)
    grown = Trigger.table(str(table), start=0)
    owned = {"after": "{{ table.from_version }}", "upto": "{{ table.to_version }}"}
    perhaps = {name: text.replace(" }}", ' | default("") }}') for name, text in owned.items()}
    return [
        Schedule(EACH_SECOND, handlers.SCHEDULED, each, overlap="allow_all", catch_up="all"),
        Schedule(GROWTH, handlers.SCHEDULED, grown, owned),
        Schedule(EITHER, handlers.SCHEDULED, Trigger.at(from_us(plan.moment_us)) | grown, perhaps),
    ]


def put(client: Scheduler, plan: Intended, table: Path) -> None:
    """Makes the table and hands the schedules to the planner.

    Args:
        client: of the demo's deployment.
        plan: what they are to run.
        table: new folder.

    Raises:
        UnreachableError: the planner did not answer.
    """
    commit(table, 0)
    client.put_schedules(*definitions(plan, table), author="demo")


def commit(table: Path, number: int) -> None:
    """Adds a version to the table, without Spark.

    Args:
        table: its folder; it is made if there is none.
        number: what its row holds.
    """
    import pyarrow as pa
    from deltalake import write_deltalake

    write_deltalake(str(table), pa.table({"number": pa.array([number], pa.int64())}), mode="append")


def settled(plan: Intended, runs: Iterable[ScheduledRun]) -> bool:
    """Returns True if all that must run has ended; whether more than that ran is for the checks.

    Args:
        plan: what is to run.
        runs: the runs that have ended.
    """
    moments: dict[str, set[int]] = {name: set() for name in NAMES}
    newest = dict.fromkeys(NAMES, 0)
    for run in runs:
        moments[run.schedule].add(run.planned_us)
        newest[run.schedule] = max(newest[run.schedule], run.versions[1] if run.versions else 0)
    seen = moments[EACH_SECOND].issuperset(plan.seconds) and plan.moment_us in moments[EITHER]
    return seen and all(newest[name] >= plan.version for name in (GROWTH, EITHER))


def versions(told: dict[str, Any]) -> tuple[int, int] | None:
    """The versions that a run was told to own: those after the first, up to the second; None: it was told of none.

    Args:
        told: what the run returned, which is its payload.
    """
    after, upto = told.get("after", ""), told.get("upto", "")
    return None if "" in (after, upto) else (int(after), int(upto))
