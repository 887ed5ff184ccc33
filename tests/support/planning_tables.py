"""What Schedules and System show: schedules in a planner, decisions, refused records and an audit trail; hostile words among them."""

from __future__ import annotations

import json
import random
from functools import partial

from scylla_spark.client.schedules.files import definition_of
from scylla_spark.clock import from_us
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.schemas import ATTEMPTS, AUDIT_TRAIL, COMPLETIONS, FIRES, REJECTED, TASKS, Table
from tests.support.api_site import Site
from tests.support.dashboard_tables import HOSTILE, MARKUP
from tests.support.delta_tables import append, fact, rejected, task

_MINUTE, _HOUR = 60_000_000, 3_600_000_000
_SCHEDULES = {
    "billing/nightly": {"handler": "charge", "cron": "0 2 * * *", "tz": "Europe/Berlin", "overlap": "skip", "owner": "billing"},
    "billing/month-end": {"handler": "close_books", "cron": "30 23 L * *", "tz": "Europe/Berlin", "tags": ["finance"]},
    "crm/sync": {"handler": "sync_customer", "every": "15m"},
    "orders/merge": {"handler": "merge_orders", "all": [
        {"event": "stock-closed"}, {"any": [{"after": "billing/nightly"}, {"partitions": "sales", "at_least": 3}]}]},
    "reports/clock-change": {"handler": "render_report", "cron": "30 2 * 3,10 SUN", "tz": "Europe/Berlin"},
    "reports/on-sales": {"handler": "render_report", "table": "lake.sales", "min_rows": 1000},
}  # fmt: skip


def planned(site: Site, now: int, note: str = MARKUP) -> None:
    """Puts schedules, and what was decided about them.

    Args:
        site: whose planner and tables are filled.
        now: microseconds since the epoch.
        note: why one of them is paused.
    """
    plan = site.connection.plan
    plan.ask(
        "put", schedules=[definition_of({"name": name} | fields) for name, fields in _SCHEDULES.items()], author="ops"
    )
    plan.ask("pause", names=["reports/clock-change"], note=note)
    plan.ask("event", name="stock-closed", payload={})
    plan.ask("partitions", name="sales", partitions=[{"rows": 40}])
    plan.ask("put_queue", queues=[{"name": "mail", "concurrency": 5, "rate": 10.0}])
    append(site.connection.readers.path, FIRES, _fires(now, note))


def watched(site: Site, now: int, words: tuple[str, ...] = HOSTILE) -> None:
    """Refused records and an audit trail, with these words in them.

    Args:
        site: whose tables are filled.
        now: microseconds since the epoch.
        words: of keys, paths and names.
    """
    path = site.connection.readers.path
    refused, entries = [], []
    for number, word in enumerate(words):
        value = json.dumps({"type": "enqueue", "orderingId": word}).encode()
        row = rejected(number, "missing_field", value, from_us(now - number * _MINUTE))
        refused.append(row | {"detail": "taskData: Field required.", "key": word.encode()})
        entries.append({
            "at": from_us(now - number * 90_000_000), "token": "0a1b2c3d4e5f", "name": word[:200], "operation": "pause_queue",
            "method": "POST", "path": f"/v1/queues/{word[:200]}:pause", "status": (200, 403)[number % 2], "client": "127.0.0.1",
            "plan_offset": number,
        })  # fmt: skip
    append(path, REJECTED, refused)
    append(path, AUDIT_TRAIL, entries)


def busy(site: Site, now: int) -> None:
    """Six hours of many tasks, with an hour in which one queue was slow; and what ingest would have told of its batches.

    Args:
        site: whose tables are filled.
        now: microseconds since the epoch.
    """
    dice, tasks, ends = random.Random(11), [], []
    for number in range(4_000):
        queue = dice.choice(("mail", "billing", "reports", "default", "webhooks", "exports"))
        key = TaskKey(now - dice.randrange(2 * _MINUTE, 6 * _HOUR), f"shop-{number % 300:03d}", f"{queue}-{number}")
        slow = queue == "exports" and 2 * _HOUR < now - key.time_us < 3 * _HOUR
        late = int(dice.expovariate(1 / 15_000)) + (dice.randrange(400 * 1_000_000) if slow else 0)
        late += dice.randrange(3_000_000) if queue == "webhooks" and dice.random() < 0.02 else 0
        start = from_us(key.time_us + late)
        tasks.append(task(key, 10_000 + number, queue=queue))
        ends.append(fact(key, 1, "succeeded", 10_000 + number, started_at=start, finished_at=start))
    append(site.connection.readers.path, TASKS, tasks)
    append(site.connection.readers.path, COMPLETIONS, ends)
    site.connection.readers.history = partial(_commits, now)


def _commits(now: int, table: Table, limit: int) -> list[dict]:
    """Commits as Spark writes them into the logs of tables."""
    dice = random.Random(table.name)
    if table not in (TASKS, COMPLETIONS, ATTEMPTS):
        return []
    found = []
    for number in range(min(limit, 12)):
        rows, scan, rewrite = dice.randrange(200, 4_000), dice.randrange(300, 900), dice.randrange(200, 700)
        times = {
            "executionTimeMs": scan + rewrite + 240,
            "scanTimeMs": scan,
            "rewriteTimeMs": rewrite,
            "materializeSourceTimeMs": 90,
        }
        merged = {name: str(ms) for name, ms in times.items()}
        merged |= {"numSourceRows": str(rows), "numTargetFilesAdded": "8", "numTargetFilesRemoved": "6"}
        plain = {"numOutputRows": str(rows), "numFiles": "4"}
        is_task = table is TASKS
        found.append({
            "timestamp": now // 1000 - number * 10_000 - (0 if is_task else 2_000), "version": 900 - number,
            "operation": "MERGE" if is_task else "WRITE", "operationMetrics": merged if is_task else plain,
        })  # fmt: skip
    return found


def _fires(now: int, words: str) -> list[dict]:
    """A night of decisions."""
    common = {"revision": 1, "by_hand": False}
    rows = [
        {"schedule": "billing/nightly", "hours": 10, "verdict": "skipped", "why": "Run 41 is still active, and its policy is to skip."},
        {"schedule": "billing/nightly", "hours": 34, "verdict": "launched", "why": None},
        {"schedule": "reports/on-sales", "hours": 3, "verdict": "launched", "why": None,
         "values": json.dumps({"name": "lake.sales", "from_version": 211, "to_version": 218, "rows": 12_840})},
        {"schedule": "reports/on-sales", "hours": 5, "verdict": "waiting", "why": words, "values": json.dumps({"note": words})},
        {"schedule": "crm/sync", "hours": 2, "verdict": "missed", "why": "No planner ran at that time."},
        {"schedule": "crm/sync", "hours": 1, "verdict": "launched", "why": None},
    ]  # fmt: skip
    for number, row in enumerate(rows):
        at = from_us(now - row.pop("hours") * _HOUR)
        task = {
            "scheduled_time": at,
            "ordering_id": "schedule",
            "uniqueness_key": f"run-{number}",
            "generation": number + 1,
        }
        row |= common | {"planned_at": at, "decided_at": at, "plan_offset": number}
        row |= task if row["verdict"] == "launched" else {}
    return rows
