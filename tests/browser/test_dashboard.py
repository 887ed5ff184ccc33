"""What the dashboard does in a real browser: forms and links, the log-in, live pages, and streams that come and go."""

from __future__ import annotations

import re

import httpx
import pytest
from playwright.sync_api import Route

from scylla_spark.clock import now_us
from scylla_spark.core.tasks.key import TaskKey, id_of
from scylla_spark.schemas import TASKS
from tests.support.api_site import shorten_patience
from tests.support.dashboard_site import token_of
from tests.support.dashboard_tables import HOSTILE, MARKUP
from tests.support.delta_tables import append, task
from tests.support.waiting import eventually

REFUSED = ("status of 404", "status of 422", "status of 409")
ENCODED = [name for name in HOSTILE if any(sign in name for sign in ("<", "%2F", "\n", ".."))]
"""Names that a browser can change on the way: markup, escapes, ends of lines, and the name of a parent folder."""


def test_a_screen_is_painted_before_its_scripts_have_come(look):
    held: list[Route] = []
    look.page.route(re.compile(r"(htmx|dashboard)[^/]*\.js$"), lambda route: held.append(route))
    look.page.goto(f"{look.address}/ui/tasks", wait_until="commit")
    paints = "performance.getEntriesByName('first-contentful-paint').length"
    eventually(lambda: look.page.evaluate(paints), 30, "something is painted")
    assert "invoice-17" in look.page.inner_text("#live")
    assert look.page.evaluate("typeof Stream") == "undefined", "no script has run"
    assert len(held) == 2
    for script in held:
        script.abort()


def test_without_scripts_screens_are_whole(look_without_scripts):
    page = look_without_scripts.open("/ui/tasks")
    page.fill("#filter", "state:failed")
    page.click("button:text-is('Filter')")
    assert "invoice-18" in page.inner_text("#live")
    assert "invoice-17" not in page.inner_text("#live")
    page = look_without_scripts.open("/ui/time?span=6h")
    page.click("button:text-is('Look')")
    page.wait_for_url(re.compile("minute="))
    assert "How it stood at a moment" in page.inner_text("main")


def test_hostile_names_are_never_obeyed_and_come_back_from_links_and_forms(visit, site, monkeypatch):
    shorten_patience(monkeypatch)
    visit.expected = REFUSED
    for name in ENCODED:
        visit.open(f"/ui/tasks/{id_of(site.keys[f'hostile {HOSTILE.index(name)}'])}")
        if name == MARKUP:
            assert visit.page.inner_text("h1 bdi") == MARKUP
        visit.page.click(".facts a >> nth=0")
        visit.page.wait_for_url("**/ui/lanes?*")
        assert visit.page.title() != "1"
        assert visit.page.locator("main img").count() == 0
        visit.page.click("text=Skip the head")
        visit.page.wait_for_load_state()
        assert site.connection.sent[-1].key.ordering_id == name
        assert visit.faults == []


def test_a_task_is_enqueued_by_the_form_and_shown(visit, site):
    visit.expected = REFUSED
    visit.open("/ui/tasks:new")
    visit.page.fill("#handler", "send")
    visit.page.fill("#payload", '{"n": 9007199254740993}')
    visit.page.fill("#scheduled_time", "2099-01-02T03:04:05")
    visit.page.click("button:text-is('Enqueue')")
    visit.page.wait_for_url("**/ui/tasks/*")
    command = site.connection.sent[-1]
    assert (command.handler, command.payload) == ("send", '{"n":9007199254740993}')
    assert command.key.scheduled_time.isoformat() == "2099-01-02T03:04:05+00:00"


def test_all_of_a_filter_is_cancelled_after_a_look(visit, site):
    visit.open("/ui/tasks?filter=lane:cust-9")
    visit.page.click("text=Cancel all that are open…")
    assert "invoice-19" in visit.page.inner_text("main")
    visit.page.click("button:has-text('Cancel 2 tasks')")
    visit.page.wait_for_url("**/ui/tasks?filter=*")
    assert "Cancel was sent for 2 tasks" in visit.page.inner_text(".said")
    assert len(site.connection.sender.records) == 2


# -- log-in ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def token(site):
    """A token that may read, once the site knows that one is needed."""
    text = token_of(site, "read")
    eventually(lambda: httpx.get(f"{site.address}/v1/me").status_code == 401, 10, "the token is known")
    return text


def log_in(page, token):
    """Fills in the form of the log-in that the page shows."""
    page.fill("#token", token)
    page.click("button:text-is('Log in')")


def test_the_log_in_leads_on(visit, token):
    page = visit.open("/ui/tasks?filter=state:failed")
    log_in(page, token)
    page.wait_for_url("**/ui/tasks?filter=state:failed")
    assert "invoice-18" in page.inner_text("#live")
    page.click("text=Log out")
    page.wait_for_url("**/ui/login")
    assert visit.faults == []


def test_an_open_page_goes_to_the_login_once_its_session_is_over(visit, token):
    page = visit.open("/ui/tasks?filter=state:failed")
    log_in(page, token)
    page.wait_for_selector(".pulse.is-live")
    form = page.evaluate("document.querySelector('form[action$=logout] [name=form_token]').value")
    out = page.request.post(
        f"{visit.address}/ui/logout", form={"form_token": form}, headers={"Origin": visit.address}, max_redirects=0
    )
    assert out.status == 303
    page.wait_for_url("**/ui/login?next=*", timeout=30_000)


def test_a_link_from_another_site_leads_in_who_is_logged_in(visit, token):
    page = visit.open("/ui/login")
    log_in(page, token)
    page.wait_for_url("**/ui/now")
    link = f'<a href="{visit.address}/ui/tasks?filter=state:failed">look</a>'
    page.route("http://elsewhere.example/", lambda route: route.fulfill(content_type="text/html", body=link))
    page.goto("http://elsewhere.example/")
    page.click("a")
    page.wait_for_url("**/ui/tasks?filter=state:failed")
    assert "invoice-18" in page.inner_text("#live")
    page.context.clear_cookies()
    page.goto("http://elsewhere.example/")
    page.click("a")
    log_in(page, token)
    page.wait_for_url("**/ui/tasks?filter=state:failed")
    assert "invoice-18" in page.inner_text("#live")


# -- what happens while a page is open ------------------------------------------------------------------------------------


def enqueue_late(site, lane):
    """Adds a task to the tables, which is overdue."""
    key = TaskKey(now_us() - 60_000_000, lane, "late-1")
    append(f"{site.settings.data_dir}/tables", TASKS, [task(key, 101)])


def evaluated(page, condition):
    """Waits for a condition in the page; its policy forbids the evaluation of texts, by which the browser's driver would wait."""
    eventually(lambda: page.evaluate(condition), 30, condition)


def requests_until_now(visit):
    """What the page has asked for, also where the driver has not been told of it yet."""
    visit.page.evaluate("fetch('/healthz').then(answer => answer.status)")
    return [url.removeprefix(visit.address) for url in visit.requests if not url.endswith("/healthz")]


def test_a_page_follows_what_happens_by_one_connection(visit, site):
    visit.open("/ui/tasks?filter=lane:late")
    visit.page.wait_for_selector(".pulse.is-live")
    assert "No matching tasks" in visit.page.inner_text("#live")
    enqueue_late(site, "late")
    visit.page.wait_for_selector("#live >> text=late-1", timeout=30_000)
    assert requests_until_now(visit).count("/ui/live") == 1
    assert visit.faults == []


def test_a_page_that_was_paused_stays_as_it_is_also_when_it_is_focused_again(visit_with_clock, site):
    visit = visit_with_clock
    visit.open("/ui/tasks?filter=lane:late")
    visit.page.wait_for_selector(".pulse.is-live")
    visit.page.click("[data-pause]")
    before = requests_until_now(visit)
    enqueue_late(site, "late")
    for event in ("visibilitychange", "focus", "pageshow"):
        visit.page.evaluate(
            "name => (name === 'visibilitychange' ? document : window).dispatchEvent(new Event(name))", event
        )
    visit.page.clock.fast_forward("05:00")
    assert requests_until_now(visit) == before
    assert "late-1" not in visit.page.inner_text("#live")
    visit.page.click("[data-pause]")
    visit.page.wait_for_selector("#live >> text=late-1", timeout=30_000)


def test_copies_work_over_plain_http(look, looked_at):
    """Where a page is not of loopback nor encrypted, there is no clipboard interface."""
    page = look.open(f"/ui/tasks/{id_of(looked_at.keys['failed'])}")
    page.evaluate("Object.defineProperty(window, 'isSecureContext', {value: false})")
    page.click("summary:has-text('Copy as')")
    page.click("[data-copy='copy-1']")
    page.wait_for_selector("[data-copy='copy-1']:text-is('Copied')")


def test_a_chosen_theme_stays(visit):
    page = visit.open("/ui/now")
    page.click("[data-theme-switch]")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page = visit.open("/ui/tasks")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_everything_is_reached_with_the_keyboard(look):
    page = look.open("/ui/now")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    focused = """() => {
        const one = document.activeElement;
        return [one.getAttribute('href') || one.textContent.trim(), getComputedStyle(one).outlineStyle, one === document.body];
    }"""
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        name, outline, is_body = page.evaluate(focused)
        reached.add(name)
        assert outline != "none" or is_body
    assert {"/ui/tasks", "Pause", "/ui/tasks?filter=state%3Aready"} <= reached


def test_now_is_brought_what_changes_and_keeps_what_was_focused(visit, site):
    page = visit.open("/ui/now")
    page.wait_for_selector(".pulse.is-live")
    before = requests_until_now(visit)
    page.focus("tr:has-text('mail') >> button")
    httpx.post(f"{site.address}/v1/queues/mail:pause").raise_for_status()
    page.wait_for_selector("tr:has-text('mail') >> text=Resume", timeout=30_000)
    assert page.evaluate("document.activeElement.textContent") == "Resume"
    assert requests_until_now(visit) == before, "the stream alone has brought it"
    page.keyboard.press("Enter")
    page.wait_for_selector(".said:has-text('start again')")
    assert visit.faults == []


def test_rows_are_chosen_with_the_keyboard_and_the_list_stands_still_meanwhile(visit, site):
    page = visit.open("/ui/tasks?filter=lane:cust-9")
    page.wait_for_selector(".pulse.is-live")
    page.focus("[aria-label='Select invoice-19']")
    page.keyboard.press("Space")
    page.wait_for_selector("[data-chosen]:has-text('1 selected')")
    enqueue_late(site, "cust-9")
    evaluated(page, "live.due")
    assert "late-1" not in page.inner_text("#live")
    assert visit.hindrances() == []
    page.keyboard.press("Space")
    page.wait_for_selector("#live >> text=late-1", timeout=30_000)
    page.focus("[aria-label='Select invoice-19']")
    page.keyboard.press("Space")
    page.focus("button[value=cancel]")
    page.keyboard.press("Enter")
    page.wait_for_selector(".said:has-text('A cancel was sent for 1 of 1 chosen tasks')")
    assert [one.key.uniqueness_key for one in site.connection.sent] == ["invoice-19"]
    assert visit.faults == []


def test_all_rows_of_a_page_are_chosen_at_once(look):
    page = look.open("/ui/tasks?filter=lane:cust-9")
    page.check("[data-choose-all]")
    assert page.locator("tbody input:checked").count() == 4
    page.uncheck("[aria-label='Select invoice-17']")
    assert page.evaluate("document.querySelector('[data-choose-all]').indeterminate")


# -- streams of an open page ----------------------------------------------------------------------------------------------

_STREAMS = "[live.stream, lineStream]"
_HIDE = """is => {
    Object.defineProperty(document, 'hidden', {get: () => is, configurable: true});
    document.dispatchEvent(new Event('visibilitychange'));
}"""


def test_a_page_whose_stream_was_refused_comes_back_by_itself(visit_with_clock, site):
    visit, refused = visit_with_clock, []
    visit.expected = ("status of 503",)
    visit.open("/ui/tasks?filter=lane:late")
    visit.page.wait_for_selector(".pulse.is-live")

    def refuse(route):
        refused.append(route.request.url)
        route.fulfill(status=503, body="busy")

    visit.page.route("**/ui/live", refuse)
    visit.page.evaluate("live.stop(); live.start()")
    visit.page.wait_for_selector(".pulse.is-away")
    for count in (2, 3):  # it waits twice as long from time to time, up to a minute
        evaluated(visit.page, "live.stream.timer && !live.stream.source && !live.asking")
        visit.page.clock.fast_forward("02:00")
        eventually(lambda count=count: visit.page.evaluate("1") and len(refused) >= count, 30, f"{count} refusals")
    enqueue_late(site, "late")
    visit.page.unroute("**/ui/live")
    evaluated(visit.page, "live.stream.timer && !live.stream.source && !live.asking")
    visit.page.clock.fast_forward("02:00")
    visit.page.wait_for_selector(".pulse.is-live", timeout=30_000)
    visit.page.wait_for_selector("#live >> text=late-1", timeout=30_000)
    assert visit.faults == []


def test_a_page_that_is_not_told_how_it_stands_keeps_what_it_shows(look):
    look.expected = ("status of 503",)
    page = look.open("/ui/tasks?filter=lane:cust-9")
    page.wait_for_selector(".pulse.is-live")
    page.route("**/ui/tasks?*", lambda route: route.fulfill(status=503, content_type="application/json", body="{}"))
    assert page.evaluate("live.refresh()") is False
    assert "invoice-17" in page.inner_text("#live")
    page.unroute("**/ui/tasks?*")
    assert page.evaluate("live.refresh()") is True
    page.wait_for_selector(".pulse.is-live")


def test_a_page_that_is_hidden_keeps_no_connection(visit_with_clock, site):
    page = visit_with_clock.open(f"/ui/tasks/{id_of(site.keys['ready'])}")
    evaluated(page, f"{_STREAMS}.every(one => one.source)")
    page.evaluate(f"window.sources = {_STREAMS}.map(one => one.source)")
    page.evaluate(_HIDE, True)
    assert page.evaluate("sources.map(one => one.readyState)") == [2, 2], "both are closed"
    page.clock.fast_forward("01:00:01")
    assert page.evaluate(f"{_STREAMS}.filter(one => one.source).length") == 0
    page.evaluate(_HIDE, False)
    evaluated(page, f"{_STREAMS}.every(one => one.source)")
    page.wait_for_selector(".pulse.is-live")


def test_a_page_that_stays_open_asks_now_and_then_so_that_its_session_is_kept(visit_with_clock):
    page = visit_with_clock.open("/ui/now")
    page.wait_for_selector(".pulse.is-live")
    with page.expect_request("**/ui/now/live"):
        page.clock.fast_forward("01:00:01")
    page.wait_for_selector(".pulse.is-live")
    assert visit_with_clock.faults == []
