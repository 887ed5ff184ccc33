"""Schedules, Time machine and System in a real browser: their acts by mouse and keyboard."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from scylla_spark.clock import iso, now_us
from tests.support.dashboard_tables import MARKUP


def test_the_slider_says_its_moment_and_shows_the_tasks_of_then(look):
    page = look.open(f"/ui/time?from={iso(now_us() - 7_200_000_000)}&to={iso(now_us())}")
    page.focus("#minute")
    for _ in range(20):
        page.keyboard.press("ArrowLeft")
    page.wait_for_url(re.compile("minute="))
    page.wait_for_selector("[aria-label='States at that moment']")
    assert re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d", page.inner_text("output"))
    assert look.faults == []


def test_a_click_on_the_map_looks_closer(look):
    page = look.open("/ui/time")
    page.locator(".strip a").last.click()
    page.wait_for_url(re.compile("from="))
    assert page.locator("table.heat tbody tr").count() >= 1


def test_limits_are_tried_then_applied(visit, site):
    page = visit.open("/ui/time/simulation?queue=default")
    page.fill("#concurrency", "2")
    page.click("text=Play the window again")
    page.wait_for_selector("text=would be", timeout=60_000)
    page.click("button:has-text('Apply these limits')")
    page.wait_for_selector(".said")
    stored = page.request.get(f"{site.address}/v1/queues/default").json()
    assert stored["fields"]["concurrency"] == 2
    assert visit.faults == []


def test_a_schedule_is_paused_with_a_note_and_resumed(visit):
    page = visit.open("/ui/schedules/crm%2Fsync")
    page.fill("#note", MARKUP)
    page.click("main button:text-is('Pause')")
    page.wait_for_selector(".said")
    assert MARKUP in page.inner_text(".facts")
    page.click("main button:text-is('Resume')")
    page.wait_for_selector("text=It fires again")
    assert visit.faults == []


def test_a_backfill_is_looked_at_first(visit, site):
    page = visit.open("/ui/schedules/billing%2Fnightly")
    page.fill("#begin", "2026-01-01T00:00:00")
    page.fill("#end", "2026-01-04T00:00:00")
    page.select_option("#reprocess", "all")
    page.click("button:text-is('Preview')")
    page.wait_for_selector("text=3 runs")
    page = visit.open(urlsplit(page.url)._replace(scheme="", netloc="").geturl())  # as somebody to whom it was sent
    page.wait_for_selector("text=3 runs")
    page.click("button:has-text('Run these 3')")
    page.wait_for_selector("text=3 past times run now")
    assert visit.faults == []


def test_a_schedule_that_somebody_pauses_elsewhere_is_shown_so_and_what_is_typed_and_unfolded_stays(visit, site):
    page = visit.open("/ui/schedules/orders%2Fmerge")
    page.fill("#at", "2026-01-01T00:00:00")
    page.fill("#note", "while I write")
    page.request.post(f"{site.address}/v1/schedules/orders%2Fmerge:pause", data={"note": "elsewhere"})
    page.evaluate("live.refresh()")
    page.wait_for_selector(".facts :text('elsewhere')")
    assert (page.input_value("#at"), page.input_value("#note")) == ("2026-01-01T00:00", "while I write")
    page = visit.open("/ui/schedules/reports%2Fon-sales")
    page.locator("#live summary").first.click()
    page.request.post(f"{site.address}/v1/schedules/reports%2Fon-sales:pause", data={"note": "again"})
    page.evaluate("live.refresh()")
    page.wait_for_selector(".facts :text('again')")
    assert page.locator("#live details").first.get_attribute("open") is not None
    assert visit.faults == []
