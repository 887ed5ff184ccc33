"""Renews docs/images: every screen at 1280 and 400 pixels, in light and dark, over tables of a working day."""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

from playwright.sync_api import Browser

from scylla_spark.api.tasks.views import State
from scylla_spark.clock import from_us, now_us
from scylla_spark.core.records.fact import Fact
from scylla_spark.core.tasks.key import TaskKey, id_of
from scylla_spark.schemas import ATTEMPTS, COMPLETIONS, TASKS
from tests.browser.small_png import small
from tests.browser.visit import Visit, new_page
from tests.support.api_site import Site
from tests.support.browser_site import opened, served
from tests.support.dashboard_tables import attempt_row
from tests.support.delta_tables import append, make, task
from tests.support.planning_tables import busy, planned

IMAGES = Path(__file__).parents[2] / "docs" / "images"
VARIANTS = ((1280, "light"), (1280, "dark"), (400, "light"), (400, "dark"))
_MINUTE = 60_000_000
_QUEUES = (("mail", "send_mail"), ("reports", "render_report"), ("billing", "charge"), ("default", "sync_customer"))


def day(path: str, now: int) -> dict[str, TaskKey]:
    """The tables of a working day; name of a screen → key of the task that it shows.

    Args:
        path: of the tables.
        now: microseconds since the epoch.
    """
    make(path)
    dice, rows, ends, attempts = random.Random(7), [], [], []
    for number in range(600):
        queue, handler = _QUEUES[dice.choice((0, 0, 0, 1, 2, 2, 3))]
        key = TaskKey(
            now - dice.randrange(1, 240) * _MINUTE, f"cust-{dice.randrange(40):03d}", f"{handler}-{number:04d}"
        )
        rows.append(task(key, number, queue=queue) | {"handler": handler, "payload": f'{{"customer": {number}}}'})
        ends.append(_ended(key, dice))
    for number, minutes in enumerate((-6, -4, -3, 12, 25, 55, 110)):
        key = TaskKey(now + minutes * _MINUTE, "cust-017", f"charge-{2000 + number}")
        rows.append(task(key, 700 + number, queue="billing") | {"handler": "charge"})
    failed = TaskKey(now - 47 * _MINUTE, "cust-017", "charge-1999")
    rows.append(
        task(failed, 800, queue="billing")
        | {"handler": "charge", "payload": '{"invoice": 90071992547409931, "currency": "EUR"}'}
    )
    for attempt, after in ((1, 47), (2, 45), (3, 40)):
        end = attempt_row(failed, attempt, now - after * _MINUTE, 20 + 4 * attempt, **_too_slow(now, after))
        (ends if attempt == 3 else attempts).append(end)
    running = TaskKey(now - 2 * _MINUTE, "cust-008", "render_report-2300")
    rows.append(task(running, 801, queue="reports") | {"handler": "render_report"})
    attempts.append(
        attempt_row(running, 1, now - 2 * _MINUTE, None, outcome="started", error_class=None, error_message=None)
    )
    append(path, TASKS, rows)
    append(path, COMPLETIONS, ends)
    append(path, ATTEMPTS, attempts)
    return {"task": failed}


def _ended(key: TaskKey, dice: random.Random) -> dict[str, object]:
    outcome = dice.choices(("succeeded", "failed", "cancelled"), (40, 2, 1))[0]
    error = {"error_class": "ConnectionError", "error_message": "The bank did not answer"} if outcome == "failed" else {
        "error_class": None, "error_message": None
    }  # fmt: skip
    return attempt_row(key, 1, key.time_us, dice.random() * 9, outcome=outcome, result=None, **error)


def _too_slow(now: int, after: int) -> dict[str, object]:
    stack = 'Traceback (most recent call last):\n  File "billing.py", line 31, in charge\n    bank.transfer(amount)\nTimeoutError'
    return {
        "error_class": "TimeoutError", "error_message": "The bank did not answer within 30 s", "error_stack": stack,
        "next_at": from_us(now - (after - 3) * _MINUTE), "result": None,
    }  # fmt: skip


def beats(site: Site, now: int) -> None:
    """A quarter of an hour in which tasks started and ended, as the tail would have told of it."""
    dice, pulse = random.Random(3), site.app.state.api.pulse
    pulse.beats(now)
    for second in range(900):
        for _ in range(dice.randrange(3, 9)):
            planned = now - second * 1_000_000
            late = int(dice.expovariate(1 / 9_000)) + (60_000 if 300 < second < 360 else 0)
            outcome = "failed" if dice.random() < 0.02 else "succeeded"
            fact = Fact(TaskKey(planned, "a", "b"), 1, outcome, planned + late, planned + late + 200_000, planned)
            pulse.heard(SimpleNamespace(facts=(fact,)))


def remember(site: Site, now: int) -> None:
    """What was counted in that quarter of an hour while somebody looked."""
    dice, overviews = random.Random(5), site.app.state.overviews
    for step in range(60, 0, -1):
        states = dict.fromkeys(get_args(State), 0) | {
            "scheduled": 4 + step // 9, "ready": dice.randrange(6), "running": dice.randrange(1, 5), "retry_wait": dice.randrange(3),
            "succeeded": 560 - 3 * step, "failed": 30 - step // 8, "cancelled": 11,
        }  # fmt: skip
        overviews.remember(states, now - step * 15_000_000)


def screens(keys: dict[str, TaskKey]) -> Iterator[tuple[str, str]]:
    """Name of a picture, and the page that it shows."""
    yield "now", "/ui/now"
    yield "tasks", "/ui/tasks?filter=queue%3Abilling+ended%3A%3E-1h"
    yield "task", f"/ui/tasks/{id_of(keys['task'])}"
    yield "lane", "/ui/lanes?name=cust-017"
    yield "schedules", "/ui/schedules"
    yield "schedule", "/ui/schedules/orders%2Fmerge"
    yield "backfill", "/ui/schedules/billing%2Fnightly#backfills"
    yield "decisions", "/ui/fires"
    yield "time", "/ui/time?span=6h&minute=250"
    yield "system", "/ui/system/tables"


def shoot(browser: Browser, address: str, keys: dict[str, TaskKey]) -> None:
    """Writes all pictures; those of one screen together, so that they show the same minute."""
    IMAGES.mkdir(exist_ok=True)
    with ExitStack() as stack:
        pages = [stack.enter_context(new_page(browser)) for _ in VARIANTS]
        visits = [
            stack.enter_context(Visit.begun(page, address, *variant))
            for page, variant in zip(pages, VARIANTS, strict=True)
        ]
        for name, path in screens(keys):
            for variant, visit in zip(VARIANTS, visits, strict=True):
                page = visit.open(path)
                assert "defect" not in page.inner_text("h1"), f"{name} is not the page that it should be"
                if page.locator(".pulse").count():
                    page.wait_for_selector(".pulse.is-live")
                width, scheme = variant
                file = IMAGES / f"dashboard-{name}-{width}-{scheme}.png"
                file.write_bytes(small(page.screenshot()))
                sys.stdout.write(f"{file.relative_to(IMAGES.parents[1])}: {file.stat().st_size // 1024} KiB\n")
                visit.open("/ui/login")  # a page that is open would go on asking


def main() -> None:
    """Makes the tables, serves them, and takes the pictures."""
    now = now_us()
    with tempfile.TemporaryDirectory() as folder:
        keys = day(f"{folder}/tables", now)
        site = Site(folder)
        beats(site, now)
        remember(site, now)
        planned(site, now, "until the new zone data is out")
        weeks = [now - days * 24 * 60 * _MINUTE for days in (30, 2)]
        site.connection.plan.ask(
            "backfill", name="billing/nightly", begin=weeks[0], end=weeks[1], maxRunning=2, author="ops"
        )
        busy(site, now)
        with served(site) as address, opened() as browser:
            shoot(browser, address, keys)


if __name__ == "__main__":
    main()
