"""Every screen in a real browser: it loads, keeps the policy, fits, is light, and is checked by axe-core."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest

from scylla_spark.core.tasks.key import id_of
from scylla_spark.dashboard.value_texts import segment
from tests.browser.conftest import SCHEDULE
from tests.support.dashboard_tables import MARKUP

SCREENS = {
    "now": "/ui/now",
    "tasks": "/ui/tasks",
    "a filter that is wrong": "/ui/tasks?filter=nonsense:1",
    "failed": "/ui/tasks/{failed}",
    "ready": "/ui/tasks/{ready}",
    "hostile": "/ui/tasks/{hostile 0}",
    "long": "/ui/tasks/{hostile 1}",
    "bulk": "/ui/tasks:bulk?act=cancel&filter=state:ready",
    "enqueue": "/ui/tasks:new",
    "enqueue by fields": "/ui/tasks:new?handler=remind",
    "undo": "/ui/tasks?filter=lane:cust-9&undo=lane:cust-9",
    "lanes": "/ui/lanes",
    "lane": "/ui/lanes?name=cust-9",
    "hostile lane": "/ui/lanes?" + urlencode({"name": MARKUP}),
    "a lane then": "/ui/lanes?name=cust-9&as_of=2026-01-01T00:00:00Z",
    "schedules": "/ui/schedules",
    "schedules then": "/ui/schedules?as_of=2026-01-01T00:00:00Z",
    "hostile schedule": f"/ui/schedules/{segment(SCHEDULE)}",
    "a schedule by events": "/ui/schedules/orders%2Fmerge",
    "a paused schedule": "/ui/schedules/reports%2Fclock-change",
    "decisions of a schedule": "/ui/schedules/reports%2Fon-sales",
    "a backfill": "/ui/schedules/billing%2Fnightly?begin=2026-01-01T00:00&end=2026-01-04T00:00&reprocess=all",
    "decisions": "/ui/fires",
    "decisions then": "/ui/fires?as_of=2026-01-01T00:00:00Z",
    "time": "/ui/time",
    "a moment of an hour": "/ui/time?span=1h&minute=50",
    "a moment": "/ui/time?minute=1380",
    "what if": "/ui/time/simulation?queue=mail",
    "processes": "/ui/system",
    "tables": "/ui/system/tables",
    "rejected": "/ui/system/rejected",
    "audit": "/ui/system/audit",
    "tokens": "/ui/system/tokens",
    "login": "/ui/login",
    "nothing": "/ui/nothing",
}
_MOST_BYTES = 150 * 1024
_UNFOLD = "for (const one of document.querySelectorAll('details')) one.open = true"


@pytest.mark.parametrize("screen", SCREENS)
def test_a_screen_keeps_the_policy_fits_is_light_and_hinders_nobody(look, looked_at, screen):
    look.expected = ("status of 404", "status of 422")
    page = look.open(SCREENS[screen].format(**{name: id_of(key) for name, key in looked_at.keys.items()}))
    assert page.title().endswith("scylla-spark"), "markup would have changed it"
    assert page.locator("main img").count() == 0
    assert 0 < look.weight() <= _MOST_BYTES
    page.evaluate(_UNFOLD)
    for width, scheme in ((1280, "light"), (400, "dark")):  # styles alone depend on the width and the scheme
        look.look(width, scheme)
        assert not look.is_too_wide(), (width, scheme)
        assert look.hindrances() == [], (width, scheme)
    assert look.faults == []


def test_the_errors_of_a_list_are_in_the_picture_however_long_other_names_are(look):
    page = look.open("/ui/tasks")
    header = page.get_by_role("columnheader", name="Error").bounding_box()
    assert header is not None
    assert header["x"] + header["width"] < 640
