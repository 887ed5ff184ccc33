"""The dashboard in a real browser: every screen loads, is looked at by axe-core, acts, and stays as it is where it is told to."""

from __future__ import annotations

import gzip
from urllib.parse import urlencode

import httpx
import pytest

from scylla_spark.clock import now_us
from scylla_spark.core.key import TaskKey
from scylla_spark.core.key_view import id_of
from scylla_spark.schemas import TASKS
from scylla_spark.services.dashboard.value_texts import segment
from tests.browser.conftest import SCHEDULE
from tests.browser.visit import Visit
from tests.support.api_site import shorten_patience
from tests.support.dashboard_site import token_of
from tests.support.dashboard_tables import HOSTILE, MARKUP
from tests.support.delta_tables import append, task
from tests.support.waiting import eventually

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
    "schedules": "/ui/schedules",
    "schedule": "/ui/schedules/nightly",
    "hostile schedule": f"/ui/schedules/{segment(SCHEDULE)}",
    "fires": "/ui/fires",
    "time": "/ui/time",
    "simulation": "/ui/time/simulation",
    "system": "/ui/system",
    "tables": "/ui/system/tables",
    "rejected": "/ui/system/rejected",
    "audit": "/ui/system/audit",
    "tokens": "/ui/system/tokens",
    "login": "/ui/login",
    "nothing": "/ui/nothing",
}
REFUSED = ("status of 404", "status of 422", "status of 409")
_MOST_BYTES = 150 * 1024


def path_of(site, screen):
    return SCREENS[screen].format(**{name: id_of(key) for name, key in site.keys.items()})


@pytest.fixture
def look(browser, looked_at):
    """A visit of the site that all screens share."""
    with Visit.begun(browser, looked_at.address) as visit:
        yield visit


@pytest.mark.parametrize("screen", SCREENS)
def test_a_screen_keeps_the_policy_fits_and_hinders_nobody(look, looked_at, screen):
    look.expected = REFUSED
    for width in (1280, 400):
        look.look(width, "light")
        look.open(path_of(looked_at, screen))
        assert look.page.title().endswith("scylla-spark")
        for scheme in ("light", "dark"):  # colours follow the scheme while a page is open
            look.look(width, scheme)
            assert not look.is_too_wide(), (width, scheme)
            assert look.hindrances() == [], (width, scheme)
        assert look.faults == []


@pytest.mark.parametrize("screen", SCREENS)
def test_a_screen_with_all_that_it_loads_is_light(look, looked_at, screen):
    bodies: dict[str, bytes] = {}
    look.page.on("response", lambda answer: bodies.update({answer.url: b""}))
    look.open(path_of(looked_at, screen))
    loaded = [url for url in bodies if "/ui/live" not in url and "/lines" not in url]
    weight = sum(len(gzip.compress(look.page.request.get(url).body())) for url in loaded)
    assert 0 < weight <= _MOST_BYTES


def test_a_screen_says_something_before_a_second_has_passed(visit):
    visit.open("/ui/now")
    visit.open("/ui/tasks")
    # by hand: the page's policy forbids the evaluation of texts, by which the browser's driver would wait
    paints = "performance.getEntriesByName('first-contentful-paint').map(one => one.startTime)"
    (painted,) = eventually(lambda: visit.page.evaluate(paints), 30, "something is painted")
    assert painted <= 5_000, "a second on a machine of its own; tests share theirs"


def test_without_scripts_screens_are_whole(browser, site):
    with Visit.begun(browser, site.address, java_script_enabled=False) as visit:
        visit.page.goto(f"{site.address}/ui/tasks")
        visit.page.fill("#filter", "state:failed")
        visit.page.click("button:text-is('Filter')")
        assert "invoice-18" in visit.page.inner_text("#live")
        assert "invoice-17" not in visit.page.inner_text("#live")


def test_hostile_names_are_shown_and_never_obeyed(visit, site):
    for path in (
        "/ui/now",
        "/ui/tasks?filter=state:ready",
        *(f"/ui/tasks/{id_of(site.keys[f'hostile {n}'])}" for n in range(len(HOSTILE))),
    ):
        visit.open(path)
        assert visit.page.title() != "1"
        assert visit.page.locator("main img").count() == 0
        assert visit.faults == []
    visit.open(f"/ui/tasks/{id_of(site.keys['hostile 0'])}")
    assert visit.page.inner_text("h1 bdi") == MARKUP


def test_the_names_of_hostile_lanes_come_back_from_links_and_forms(visit, site, monkeypatch):
    shorten_patience(monkeypatch)
    visit.expected = REFUSED
    for number, name in enumerate(HOSTILE):
        visit.open(f"/ui/tasks/{id_of(site.keys[f'hostile {number}'])}")
        visit.page.click(".facts a >> nth=0")
        visit.page.wait_for_url("**/ui/lanes?*")
        visit.page.click("text=Skip the head")
        visit.page.wait_for_load_state()
        assert site.connection.sent[-1].key.ordering_id == name


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


def known_token(site):
    """A token that may read, once the site knows that one is needed."""
    text = token_of(site, "read")
    eventually(lambda: httpx.get(f"{site.address}/v1/me").status_code == 401, 10, "the token is known")
    return text


def test_the_log_in_leads_on(browser, site):
    token = known_token(site)
    with Visit.begun(browser, site.address) as visit:
        visit.open("/ui/tasks?filter=state:failed")
        visit.page.fill("#token", token)
        visit.page.click("button:text-is('Log in')")
        visit.page.wait_for_url("**/ui/tasks?filter=state:failed")
        assert "invoice-18" in visit.page.inner_text("#live")
        visit.page.click("text=Log out")
        visit.page.wait_for_url("**/ui/login")
        assert visit.faults == []


# -- what happens while a page is open ------------------------------------------------------------------------------------


def enqueue_late(site, number):
    """One more task in the tables, which is overdue."""
    key = TaskKey(now_us() - 60_000_000, "late", f"late-{number}")
    append(f"{site.settings.data_dir}/tables", TASKS, [task(key, 100 + number)])


def test_a_page_follows_what_happens_by_one_connection(visit, site):
    asked: list[str] = []
    visit.page.on("request", lambda request: asked.append(request.url))
    visit.open("/ui/tasks?filter=lane:late")
    visit.page.wait_for_selector(".pulse.is-live")
    assert "No task is like that" in visit.page.inner_text("#live")
    enqueue_late(site, 1)
    visit.page.wait_for_selector("#live >> text=late-1", timeout=30_000)
    assert len([url for url in asked if url.endswith("/ui/live")]) == 1
    assert visit.faults == []


def test_a_page_that_was_paused_stays_as_it_is_also_when_it_is_focused_again(visit, site):
    visit.open("/ui/tasks?filter=lane:late")
    visit.page.wait_for_selector(".pulse.is-live")
    visit.page.click("[data-pause]")
    asked: list[str] = []
    visit.page.on("request", lambda request: asked.append(request.url))
    enqueue_late(site, 1)
    for event in ("visibilitychange", "focus", "pageshow"):
        visit.page.evaluate(
            "name => (name === 'visibilitychange' ? document : window).dispatchEvent(new Event(name))", event
        )
    visit.page.wait_for_timeout(3_000)  # nothing happens: there is no condition to wait for
    assert asked == []
    assert "late-1" not in visit.page.inner_text("#live")
    visit.page.click("[data-pause]")
    visit.page.wait_for_selector("#live >> text=late-1", timeout=30_000)


def test_copies_work_over_plain_http(browser, site):
    """Where a page is not of loopback nor encrypted, there is no clipboard interface."""
    with Visit.begun(browser, site.address) as visit:
        visit.open(f"/ui/tasks/{id_of(site.keys['failed'])}")
        visit.page.evaluate("Object.defineProperty(window, 'isSecureContext', {value: false})")
        visit.page.click("summary:has-text('Copy as')")
        visit.page.click("[data-copy='copy-1']")
        visit.page.wait_for_selector("[data-copy='copy-1']:text-is('Copied')")


def test_a_chosen_theme_stays(visit):
    page = visit.open("/ui/now")
    page.click("[data-theme-switch]")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page = visit.open("/ui/tasks")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_everything_is_reached_with_the_keyboard(visit):
    page = visit.open("/ui/now")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate("document.activeElement.getAttribute('href') || document.activeElement.textContent.trim()")
        )
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none" or page.evaluate("document.activeElement === document.body")
    assert {"/ui/tasks", "Pause", "/ui/tasks?filter=state%3Aready"} <= reached


def test_now_is_brought_what_changes_and_keeps_what_was_focused(visit, site):
    asked: list[str] = []
    page = visit.open("/ui/now")
    page.wait_for_selector(".pulse.is-live")
    page.on("request", lambda request: asked.append(request.url))
    page.focus("tr:has-text('mail') >> button")
    httpx.post(f"{site.address}/v1/queues/mail:pause").raise_for_status()
    page.wait_for_selector("tr:has-text('mail') >> text=Resume", timeout=30_000)
    assert page.evaluate("document.activeElement.textContent") == "Resume"
    assert asked == [], "the stream alone has brought it"
    page.keyboard.press("Enter")
    page.wait_for_selector(".said:has-text('start again')")
    assert visit.faults == []


def test_rows_are_chosen_with_the_keyboard_and_the_list_stands_still_meanwhile(visit, site):
    page = visit.open("/ui/tasks?filter=lane:cust-9")
    page.wait_for_selector(".pulse.is-live")
    page.focus("[aria-label='Choose invoice-19']")
    page.keyboard.press("Space")
    page.wait_for_selector("[data-chosen]:has-text('1 chosen')")
    key = TaskKey(now_us() - 60_000_000, "cust-9", "late-one")
    append(f"{site.settings.data_dir}/tables", TASKS, [task(key, 200)])
    page.wait_for_timeout(6_000)  # nothing happens: there is no condition to wait for
    assert "late-one" not in page.inner_text("#live")
    assert visit.hindrances() == []
    page.keyboard.press("Space")
    page.wait_for_selector("#live >> text=late-one", timeout=30_000)
    page.focus("[aria-label='Choose invoice-19']")
    page.keyboard.press("Space")
    page.focus("button[value=cancel]")
    page.keyboard.press("Enter")
    page.wait_for_selector(".said:has-text('A cancel was sent for 1 of 1 chosen tasks')")
    assert [one.key.uniqueness_key for one in site.connection.sent] == ["invoice-19"]
    assert visit.faults == []


def test_all_rows_of_a_page_are_chosen_at_once(visit, site):
    page = visit.open("/ui/tasks?filter=lane:cust-9")
    page.check("[data-choose-all]")
    assert page.locator("tbody input:checked").count() == 4
    page.uncheck("[aria-label='Choose invoice-17']")
    assert page.evaluate("document.querySelector('[data-choose-all]').indeterminate")


# -- streams of an open page ----------------------------------------------------------------------------------------------

_REMEMBER_STREAMS = """
window.streams = [];
window.EventSource = class extends EventSource { constructor(address) { super(address); streams.push(this); } };
Object.defineProperty(document, "hidden", {get: () => !!window.isHidden});
"""
_HIDE = "is => { window.isHidden = is; document.dispatchEvent(new Event('visibilitychange')); }"


def test_a_page_whose_stream_was_refused_comes_back_by_itself(visit, site):
    visit.expected = ("status of 503",)
    visit.open("/ui/tasks?filter=lane:late")
    visit.page.wait_for_selector(".pulse.is-live")
    visit.page.route("**/ui/live", lambda route: route.fulfill(status=503, body="busy"))
    visit.page.evaluate("live.stop(); live.start()")
    visit.page.wait_for_selector(".pulse.is-away")
    visit.page.wait_for_timeout(3_000)
    enqueue_late(site, 1)
    visit.page.unroute("**/ui/live")
    visit.page.wait_for_selector(".pulse.is-live", timeout=30_000)
    visit.page.wait_for_selector("#live >> text=late-1", timeout=30_000)
    assert visit.faults == []


def test_a_page_that_is_not_told_how_it_stands_keeps_what_it_shows(visit):
    visit.expected = ("status of 503",)
    visit.open("/ui/tasks?filter=lane:cust-9")
    visit.page.wait_for_selector(".pulse.is-live")
    visit.page.route(
        "**/ui/tasks?*", lambda route: route.fulfill(status=503, content_type="application/json", body="{}")
    )
    assert visit.page.evaluate("live.refresh()") is False
    assert "invoice-17" in visit.page.inner_text("#live")
    visit.page.unroute("**/ui/tasks?*")
    assert visit.page.evaluate("live.refresh()") is True
    visit.page.wait_for_selector(".pulse.is-live")


@pytest.mark.parametrize("path", ["/ui/now", "/ui/tasks?filter=state:failed"])
def test_an_open_page_goes_to_the_login_once_its_session_is_over(browser, site, path):
    token = known_token(site)
    with Visit.begun(browser, site.address) as visit:
        visit.open(path)
        visit.page.fill("#token", token)
        visit.page.click("button:text-is('Log in')")
        visit.page.wait_for_selector(".pulse.is-live")
        other = visit.page.context.new_page()
        other.goto(f"{site.address}/ui/system")
        other.click("text=Log out")
        other.wait_for_url("**/ui/login")
        visit.page.wait_for_url("**/ui/login?next=*", timeout=30_000)


@pytest.mark.parametrize("name", ["ready"])
def test_a_page_that_is_hidden_keeps_no_connection(browser, site, name):
    with Visit.begun(browser, site.address) as visit:
        visit.page.add_init_script(_REMEMBER_STREAMS)
        visit.open(f"/ui/tasks/{id_of(site.keys[name])}")
        visit.page.wait_for_function("streams.length >= 2")
        visit.page.evaluate(_HIDE, True)
        assert visit.page.evaluate("streams.map((one) => one.readyState)") == [2] * len(
            visit.page.evaluate("streams.map(String)")
        )
        begun = visit.page.evaluate("streams.length")
        visit.page.wait_for_timeout(5_000)
        assert visit.page.evaluate("streams.length") == begun
        visit.page.evaluate(_HIDE, False)
        visit.page.wait_for_function(f"streams.length >= {begun + 2}")
        visit.page.wait_for_selector(".pulse.is-live")


def test_a_page_that_stays_open_asks_now_and_then_so_that_its_session_is_kept(visit):
    visit.page.clock.install()
    visit.open("/ui/now")
    visit.page.wait_for_selector(".pulse.is-live")
    with visit.page.expect_request("**/ui/now/live"):
        visit.page.clock.fast_forward("01:00:01")
    visit.page.wait_for_selector(".pulse.is-live")
    assert visit.faults == []


def test_a_link_from_another_site_leads_in_who_is_logged_in(browser, site):
    token = known_token(site)
    with Visit.begun(browser, site.address) as visit:
        visit.open("/ui/login")
        visit.page.fill("#token", token)
        visit.page.click("button:text-is('Log in')")
        visit.page.wait_for_url("**/ui/now")
        link = f'<a href="{site.address}/ui/tasks?filter=state:failed">look</a>'
        visit.page.route("http://elsewhere.example/", lambda route: route.fulfill(content_type="text/html", body=link))
        visit.page.goto("http://elsewhere.example/")
        visit.page.click("a")
        visit.page.wait_for_url("**/ui/tasks?filter=state:failed")
        assert "invoice-18" in visit.page.inner_text("#live")
        visit.page.context.clear_cookies()
        visit.page.goto("http://elsewhere.example/")
        visit.page.click("a")
        visit.page.fill("#token", token)
        visit.page.click("button:text-is('Log in')")
        visit.page.wait_for_url("**/ui/tasks?filter=state:failed")
        assert "invoice-18" in visit.page.inner_text("#live")
