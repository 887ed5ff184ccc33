"""The screens Tasks and Lane over real tables and no brokers: what is shown, what is done, and names that are made to harm."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from html import unescape
from types import SimpleNamespace

import pytest

from scylla_spark.clock import iso, now_us
from scylla_spark.core.records.command import CANCEL
from scylla_spark.core.tasks.filter import FIELDS
from scylla_spark.core.tasks.key import TaskKey, id_of
from scylla_spark.core.tasks.task import Retry
from scylla_spark.dashboard.expected_starts import Known, expected_starts
from scylla_spark.dashboard.own_api import ApiProblem
from scylla_spark.dashboard.request_values import instant_text
from scylla_spark.dashboard.task_as_command import copies
from scylla_spark.dashboard.timeline import WIDTH, timeline
from scylla_spark.dashboard.value_texts import filter_term
from scylla_spark.schemas import ATTEMPTS, COMPLETIONS, TASKS
from scylla_spark.visible import visible
from tests.support.api_site import Site, shorten_patience
from tests.support.dashboard_site import foreign, seen, sent
from tests.support.dashboard_tables import HOSTILE, attempt_row, fill
from tests.support.delta_tables import append, at, fact, make, task

_S = 1_000_000


def made(folder):
    keys = fill(f"{folder}/tables")
    site = Site(str(folder))
    site.keys = keys
    return site


@pytest.fixture
def site(tmp_path):
    return made(tmp_path)


@pytest.fixture
def client(site):
    with site.client() as client:
        yield client


def page_of(client, site, name):
    return client.get(f"/ui/tasks/{id_of(site.keys[name])}")


# -- the list -------------------------------------------------------------------------------------------------------------


def test_a_filter_in_the_address_chooses(look):
    text = seen(look.get("/ui/tasks", params={"filter": "state:failed"}))
    assert "invoice-18" in text
    assert "invoice-17" not in text
    assert "1 tasks" in text


def test_a_filter_that_cannot_be_read_says_why_and_stays(look):
    answer = look.get("/ui/tasks", params={"filter": 'nonsense:"<b>'})
    assert answer.status_code == 422
    assert 'value="nonsense:&#34;&lt;b&gt;"' in answer.text
    assert 'role="alert"' in answer.text


def test_what_was_is_shown_as_of_then_and_does_not_refresh(look):
    answer = look.get("/ui/tasks", params={"as_of": "2020-01-01T00:00:00Z"})
    assert "As it was at" in seen(answer)
    assert "data-live" not in answer.text


def test_pages_follow_each_other(client, monkeypatch):
    monkeypatch.setattr("scylla_spark.dashboard.tasks.PAGE_ROWS", 5)
    shown, path = [], "/ui/tasks"
    while path:
        text = client.get(path).text
        shown += re.findall(r'<th scope="row"><a href="/ui/tasks/([\w-]+)"', text)
        following = re.search(r'class="more"><a class="button" href="([^"]+)"', text)
        path = unescape(following[1]) if following else ""
    assert len(shown) == len(set(shown)) == 7 + len(HOSTILE)


def test_the_help_names_every_field_of_the_grammar(look):
    (help_text,) = re.findall(r'<details class="grammar">.*?</details>', look.get("/ui/tasks").text, re.DOTALL)
    assert [field for field in FIELDS if not re.search(rf"\b{field}\b", help_text)] == []


# -- acts on all that a filter chooses ------------------------------------------------------------------------------------


def test_an_act_on_a_filter_is_previewed_with_count_and_rows(look, looked_at):
    answer = look.get("/ui/tasks:bulk", params={"act": "cancel", "filter": "lane:cust-9"})
    assert "Cancel 2 tasks" in seen(answer)
    assert "invoice-19" in answer.text
    assert "invoice-17" not in answer.text, "it has ended"
    assert looked_at.connection.sender.records == []


def test_an_act_does_what_was_previewed(client, site):
    path = "/ui/tasks:bulk?act=cancel&filter=lane:cust-9"
    answer = sent(client, "/ui/tasks:bulk", client.get(path), act="cancel", filter="lane:cust-9", matched="2")
    assert (answer.status_code, answer.headers["location"]) == (303, answer.headers["location"])
    assert answer.headers["location"].startswith("/ui/tasks?filter=lane%3Acust-9&undo=lane%3Acust-9+state%3Acancelled")
    assert len(site.connection.sender.records) == 2


def test_an_act_on_another_number_than_was_seen_is_asked_about_again(client, site):
    preview = client.get("/ui/tasks:bulk?act=cancel&filter=lane:cust-9")
    answer = sent(client, "/ui/tasks:bulk", preview, act="cancel", filter="lane:cust-9", matched="1")
    assert answer.status_code == 409
    assert "Nothing was done yet" in seen(answer)
    assert site.connection.sender.records == []


def test_an_act_on_many_tasks_wants_their_number_typed(client, site, monkeypatch):
    monkeypatch.setattr("scylla_spark.dashboard.tasks.TYPED_ABOVE", 1)
    preview = client.get("/ui/tasks:bulk?act=cancel&filter=lane:cust-9")
    assert "Type 2 to confirm" in seen(preview)
    fields = {"act": "cancel", "filter": "lane:cust-9", "matched": "2"}
    assert sent(client, "/ui/tasks:bulk", preview, **fields, typed="3").status_code == 409
    assert site.connection.sender.records == []
    assert sent(client, "/ui/tasks:bulk", preview, **fields, typed="2").status_code == 303
    assert len(site.connection.sender.records) == 2


def chosen(client, page, act, *keys):
    boxes = {f"task.{number}": id_of(key) for number, key in enumerate(keys)}
    return sent(client, "/ui/tasks:chosen?filter=lane:cust-9", page, act=act, **boxes)


def test_tasks_that_are_chosen_are_acted_on_and_no_others(client, site, monkeypatch):
    shorten_patience(monkeypatch)
    page = client.get("/ui/tasks", params={"filter": "lane:cust-9"})
    assert f'value="{id_of(site.keys["ready"])}" aria-label="Select invoice-19"' in unescape(page.text)
    answer = chosen(client, page, "cancel", site.keys["ready"], site.keys["scheduled"])
    assert answer.headers["location"] == "/ui/tasks?filter=lane%3Acust-9"
    sent_now = {(one.kind, one.key) for one in site.connection.sent}
    assert sent_now == {(CANCEL, site.keys["ready"]), (CANCEL, site.keys["scheduled"])}
    assert "A cancel was sent for 2 of 2 chosen tasks" in seen(client.get("/ui/tasks"))


def test_what_cannot_be_done_to_one_that_is_chosen_is_said_and_done_to_the_others(client, site):
    page = client.get("/ui/tasks")
    chosen(client, page, "retry", site.keys["failed"], site.keys["ready"])
    assert [one.key.ordering_id for one in site.connection.sent] == ["cust-9"]
    assert "of 1 of 2 chosen tasks; the lists show it within seconds. Not the others:" in seen(client.get("/ui/tasks"))


def test_nothing_is_done_where_nothing_or_no_act_is_chosen(client, site):
    page = client.get("/ui/tasks")
    assert chosen(client, page, "cancel").status_code == 400
    assert chosen(client, page, "delete", site.keys["ready"]).status_code == 404
    assert site.connection.sent == []


def test_an_act_that_is_none_is_told_so(look):
    assert look.get("/ui/tasks:bulk?act=delete&filter=state:open").status_code == 404
    assert look.get("/ui/tasks:bulk?act=cancel&filter=").status_code == 422


# -- one task -------------------------------------------------------------------------------------------------------------


def test_a_failed_task_shows_its_attempts_its_error_and_others_like_it(look, looked_at):
    answer = page_of(look, looked_at, "failed")
    text = seen(answer)
    assert "TimeoutError" in text
    assert "File mail.py, line 31" in text
    assert "9007199254740993" in text, "exactly"
    assert text.count("500 ms") >= 3, "each attempt waited so long"
    assert "filter=state%3Afailed+fingerprint%3A" in answer.text
    assert ":retry" in answer.text
    assert "data-live" not in answer.text, "nothing of it changes any more"


@pytest.mark.parametrize("levels", [196, 200])
def test_a_task_whose_values_are_as_deep_as_any_may_be_is_shown(site, tmp_path, levels):
    key, deep = TaskKey(at(10), "o", "deep"), f"{'[' * levels}1{']' * levels}"
    append(f"{tmp_path}/tables", TASKS, [task(key, 9, payload=f'{{"a": {deep[1:-1]}}}')])
    append(f"{tmp_path}/tables", COMPLETIONS, [fact(key, 1, "succeeded", 9, result=deep)])
    with site.client() as client:
        assert client.get(f"/v1/tasks/{id_of(key)}").status_code == 200
        assert client.get(f"/ui/tasks/{id_of(key)}").status_code == 200
        assert client.get("/ui/tasks").status_code == 200


def test_an_open_task_says_why_it_is_not_done(look, looked_at):
    answer = page_of(look, looked_at, "ready")
    assert "Why it is not running" in seen(answer)
    assert "data-live" in answer.text
    assert "data-lines" in answer.text


@pytest.mark.parametrize("name", ["succeeded", "failed", "ready", "scheduled", "retrying", "running", "cancelled"])
def test_every_state_has_a_page(look, looked_at, name):
    assert page_of(look, looked_at, name).status_code == 200


def test_a_task_that_is_not_there_is_said(look):
    assert look.get("/ui/tasks/nothing").status_code in (404, 422)
    assert look.get("/ui/tasks/%ff").status_code == 404


def test_a_retry_leads_to_the_copy(client, site):
    name = id_of(site.keys["failed"])
    answer = sent(client, f"/ui/tasks/{name}:retry", client.get(f"/ui/tasks/{name}"))
    assert answer.status_code == 303
    assert site.connection.sent[-1].key.ordering_id == "cust-9"
    assert answer.headers["location"] == f"/ui/tasks/{id_of(site.connection.sent[-1].key)}"


def test_all_that_ended_with_an_error_are_found_by_its_fingerprint(look, looked_at):
    page = page_of(look, looked_at, "failed").text
    link = re.search(r'<a href="([^"]+)">All tasks with this error', page)
    assert link is not None
    assert "fingerprint%3A" in link[1]
    assert "invoice-18" in look.get(unescape(link[1])).text
    assert "invoice-18" not in look.get("/ui/tasks?filter=fingerprint:0000").text


def test_a_wait_is_never_negative():
    task = {"scheduled_time": "2026-01-01T00:00:10Z"}
    yielded = {"attempt": 1, "outcome": "yielded", "planned_at": "2026-01-01T00:00:10Z", "started_at": "2026-01-01T00:00:09Z",
               "finished_at": "2026-01-01T00:00:08Z"}  # fmt: skip
    running = {
        "attempt": 2,
        "outcome": "started",
        "planned_at": None,
        "started_at": "2026-01-01T00:00:12Z",
        "finished_at": None,
    }
    pieces = timeline(task, [yielded, running], 0)
    assert [(one.waited_us, one.ran_us) for one in pieces] == [(0, 0), (0, 0)]
    assert all(0 <= value <= WIDTH for one in pieces for value in one[2:6])


# -- a new one ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "meant"),
    [("2026-01-31T09:00:00-05:00", "2026-01-31T14:00:00Z"), ("2026-01-31T09:00:00+01:00", "2026-01-31T08:00:00Z"),
     ("2026-01-31T09:00", "2026-01-31T09:00:00Z"), ("2026-01-31T09:00:00Z", "2026-01-31T09:00:00Z"),
     ("1969-12-31T00:00:00.5-00:30", "1969-12-31T00:30:00.500Z")],
)  # fmt: skip
def test_an_instant_may_have_any_zone_and_without_one_it_is_of_utc(given, meant):
    assert instant_text("at", given) == meant


@pytest.mark.parametrize("given", ["", "x", "09:00", "2026-01-31T09:00:00-05:00Z", "0001-01-01T00:00:00+23:59", "1e9"])
def test_what_is_no_instant_is_told_with_how_one_is_written(look, given):
    with pytest.raises(ApiProblem, match="is"):
        instant_text("at", given)
    if given:
        assert "Write it like" in seen(look.get("/ui/time", params={"from": given, "to": given}))


def test_the_form_is_filled_in_like_a_task_with_a_payload_that_fits_no_address(client, site):
    payload = {"text": "<b>" + "x" * 100_000}
    key = TaskKey(at(11), "cust-1", "large")
    append(
        f"{site.settings.data_dir}/tables",
        TASKS,
        [task(key, 99, payload=json.dumps(payload), handler="send", queue="mail")],
    )
    page = client.get(f"/ui/tasks/{id_of(key)}")
    (link,) = re.findall(r'href="([^"]*tasks:new[^"]*)"', page.text)
    assert len(link) < 500
    form = client.get(unescape(link))
    (filled,) = re.findall(r'<textarea id="payload"[^>]*>([^<]*)</textarea>', form.text)
    assert json.loads(unescape(filled)) == payload
    assert 'value="send"' in form.text
    assert client.get("/ui/tasks:new", params={"like": "nothing"}).status_code in (404, 422)


def test_the_form_enqueues(client, site):
    fields = {"handler": "send", "payload": '{"n": 9007199254740993}', "queue": "mail", "ordering_id": "cust-1", "priority": "3",
              "scheduled_time": "2099-01-02T03:04"}  # fmt: skip
    answer = sent(client, "/ui/tasks:new", client.get("/ui/tasks:new"), **fields)
    assert answer.status_code == 303
    command = site.connection.sent[-1]
    assert (command.handler, command.queue, command.priority, command.payload) == (
        "send",
        "mail",
        3,
        '{"n":9007199254740993}',
    )
    assert command.key.scheduled_time.isoformat() == "2099-01-02T03:04:00+00:00"


def test_the_form_enqueues_with_tags_expiry_a_unique_name_and_retries(client, site):
    fields = {
        "handler": "send", "payload": "{}", "uniqueness_key": "mine", "tags": "billing\r\n a, b \r\n", "expires": "10m",
        "unique": "open", "max_retries": "ever", "retry_base": "5s", "retry_cap": "",
    }  # fmt: skip
    page = client.get("/ui/tasks:new")
    assert '<details class="block">' in page.text, "it is folded until somebody wants it"
    assert sent(client, "/ui/tasks:new", page, **fields).status_code == 303
    command = site.connection.sent[-1]
    assert (command.tags, command.expires_ms, command.unique) == (("billing", "a, b"), 600_000, True)
    assert (command.retry.max_retries, command.retry.base_ms) == (None, 5_000)
    sent(client, "/ui/tasks:new", page, **fields | {"max_retries": "3"})
    assert site.connection.sent[-1].retry.max_retries == 3
    answer = sent(client, "/ui/tasks:new", page, **fields | {"max_retries": "few"})
    assert answer.status_code == 422
    assert '<details class="block" open>' in answer.text
    assert "billing" in answer.text


def test_the_form_is_filled_in_with_the_tags_of_the_task_that_it_is_like(client, site):
    key = TaskKey(at(11), "cust-1", "tagged")
    append(f"{site.settings.data_dir}/tables", TASKS, [task(key, 99, tags=["billing", "a, b"])])
    assert ">billing\na, b</textarea>" in client.get("/ui/tasks:new", params={"like": id_of(key)}).text


def test_an_attempt_says_at_which_level_it_was_isolated(client, site):
    key = TaskKey(at(11), "cust-1", "boxed")
    path = f"{site.settings.data_dir}/tables"
    append(path, TASKS, [task(key, 99)])
    append(path, COMPLETIONS, [attempt_row(key, 1, key.time_us, 3, isolation="sandbox")])
    assert "isolation sandbox" in seen(client.get(f"/ui/tasks/{id_of(key)}"))


@pytest.mark.parametrize(
    "fields", [{"payload": "{"}, {"payload": "[1]"}, {"priority": "x"}, {"delay": "soon"}, {"scheduled_time": "x"}]
)
def test_a_form_that_cannot_be_read_keeps_what_was_typed(look, looked_at, fields):
    answer = sent(look, "/ui/tasks:new", look.get("/ui/tasks:new"), handler="send-this", **fields)
    assert answer.status_code == 422
    assert 'value="send-this"' in answer.text
    assert looked_at.connection.sent == []


def test_a_cancel_of_many_is_undone_by_copies(client, site):
    preview = client.get("/ui/tasks:bulk", params={"act": "cancel", "filter": "lane:cust-9 state:open"})
    assert "It can be undone" in seen(preview)
    done = sent(client, "/ui/tasks:bulk", preview, act="cancel", filter="lane:cust-9 state:open", matched="2")
    page = client.get(done.headers["location"])
    link = re.search(r'href="([^"]+)">Undo', page.text)
    assert link is not None
    assert "filter=lane%3Acust-9+state%3Acancelled+ended%3A%3E%3D20" in unescape(link[1])
    assert "Restore 0 tasks" in seen(client.get(unescape(link[1]))), "no dispatcher is here to end them"


def test_what_was_cancelled_is_restored(client, site):
    preview = client.get("/ui/tasks:bulk?act=restore&filter=lane:cust-6")
    assert "Restore 1 tasks" in seen(preview)
    assert "reminder-1" in seen(preview)
    done = sent(client, "/ui/tasks:bulk", preview, act="restore", filter="lane:cust-6", matched="1")
    assert done.headers["location"] == "/ui/tasks?filter=lane%3Acust-6"
    assert len(site.connection.sender.records) == 1


# -- lanes ----------------------------------------------------------------------------------------------------------------


def test_a_lane_is_shown_in_order_with_what_has_ended_of_it(look):
    text = seen(look.get("/ui/lanes?name=cust-9"))
    assert text.index("invoice-19") < text.index("invoice-20") < text.index("Ended within") < text.index("invoice-17")
    assert "head" in text


def test_a_lane_without_open_tasks_still_has_its_past(look):
    assert "reminder-1" in seen(look.get("/ui/lanes?name=cust-6"))


def test_a_lane_is_shown_as_it_was_at_a_moment(look, looked_at):
    before = iso(looked_at.keys["failed"].time_us + 60 * _S)
    page = look.get("/ui/lanes", params={"name": "cust-9", "as_of": before})
    text = seen(page)
    assert "As it was at" in text
    order = [text.index(word) for word in ("In order", "invoice-18", "Ended within", "invoice-17")]
    assert order == sorted(order)
    assert "invoice-19" not in text, "it was enqueued later"
    assert "Skip the head" not in text
    assert "data-live" not in page.text
    assert look.get("/ui/lanes", params={"name": "cust-9", "as_of": before, "since": "-x"}).status_code == 400


def test_without_a_name_the_screen_asks_for_one(look):
    assert "Enter an ordering id to see its lane" in seen(look.get("/ui/lanes"))


def test_a_head_is_skipped(client, site, monkeypatch):
    shorten_patience(monkeypatch)
    page = client.get("/ui/lanes?name=cust-9")
    answer = sent(client, skipping(page), page)
    assert answer.status_code in (303, 409, 503)
    assert [(one.kind, one.key) for one in site.connection.sent] == [(CANCEL, site.keys["ready"])]


def skipping(page):
    """Where the form of a lane is sent that skips its head."""
    return unescape(re.search(r'action="(/ui/lanes:skip_head[^"]*)"', page.text)[1])


def test_of_a_head_that_has_ended_since_its_page_was_shown_nothing_is_skipped(client, site):
    page = client.get("/ui/lanes?name=cust-9")
    done = attempt_row(
        site.keys["ready"], 1, site.keys["ready"].time_us, 4, outcome="succeeded", error_class=None, error_message=None
    )
    append(f"{site.settings.data_dir}/tables", COMPLETIONS, [done])
    answer = sent(client, skipping(page), page)
    assert (answer.status_code, "Nothing was done" in seen(answer), site.connection.sent) == (409, True, [])


def lane_of(*starts):
    return [{"id": str(number), "next_start": start, "cancelled": False} for number, start in enumerate(starts)]


def starts_of(tasks, known, now):
    return [(one["about"], one["expected_at"]) for one in expected_starts(tasks, known, now, "0")]


HANDLERS = {str(number): "render" for number in range(4)}
NOW = at(10)
DUE = iso(NOW - 60 * _S)


def test_a_follower_does_not_start_before_the_one_in_front_of_it():
    tasks = lane_of("2026-01-01T00:00:10Z", "2026-01-01T00:00:05Z", None)
    assert [at for _, at in starts_of(tasks, Known(None, {}, {}), 0)] == ["2026-01-01T00:00:10Z"] * 3


def test_a_follower_starts_about_when_the_head_has_run_as_long_as_its_handler_usually_does():
    known = Known(NOW - 480 * _S, HANDLERS, {"render": 600 * _S})
    head, *others = expected_starts(lane_of(DUE, DUE, DUE), known, NOW, "0")
    assert (head["runs_since"], head["ends_at"]) == (iso(NOW - 480 * _S), iso(NOW + 120 * _S))
    assert [(one["about"], one["expected_at"]) for one in others] == [
        (True, iso(NOW + 120 * _S)), (True, iso(NOW + 720 * _S)),
    ]  # fmt: skip


def test_behind_a_head_that_runs_longer_than_usual_or_that_nobody_knows_there_is_only_a_bound():
    for typical in ({"render": 300 * _S}, {}):
        known = Known(NOW - 480 * _S, HANDLERS, typical)
        assert starts_of(lane_of(DUE, DUE), known, NOW)[1] == (False, iso(NOW))


def test_behind_a_head_that_is_due_and_has_not_begun_there_is_only_a_bound():
    assert starts_of(lane_of(DUE, DUE), Known(None, HANDLERS, {"render": 5 * _S}), NOW) == [
        (False, iso(NOW)), (False, iso(NOW)),
    ]  # fmt: skip
    later = iso(NOW + 60 * _S)
    assert starts_of(lane_of(later, DUE), Known(None, HANDLERS, {"render": 5 * _S}), NOW) == [
        (False, later), (True, iso(NOW + 65 * _S)),
    ]  # fmt: skip


def test_the_first_that_somebody_may_see_is_no_head_where_another_is_in_front_of_it():
    later = iso(NOW + 60 * _S)
    found = expected_starts(lane_of(later, DUE), Known(None, HANDLERS, {"render": 5 * _S}), NOW, None)
    assert [(one["is_head"], one["about"]) for one in found] == [(False, False), (False, False)]


def test_what_is_cancelled_takes_no_time():
    tasks = lane_of(iso(NOW + _S), None, None)
    tasks[1]["cancelled"] = True
    assert starts_of(tasks, Known(None, {"0": "render"}, {"render": _S}), NOW)[2] == (True, iso(NOW + 2 * _S))


def test_the_lane_behind_a_task_that_runs_says_since_when_and_when_the_next_may_start(tmp_path):
    now = now_us()
    running, next_one, done = (TaskKey(now - n * 60 * _S, "cust-1", f"job-{n}") for n in (8, 7, 30))
    path = f"{tmp_path}/tables"
    make(path)
    append(path, TASKS, [task(key, n) | {"handler": "render"} for n, key in enumerate((done, running, next_one))])
    append(
        path,
        COMPLETIONS,
        [attempt_row(done, 1, done.time_us, 650, outcome="succeeded", error_class=None, error_message=None)],
    )
    append(
        path,
        ATTEMPTS,
        [attempt_row(running, 1, running.time_us, None, outcome="started", error_class=None, error_message=None)],
    )
    with Site(str(tmp_path)).client() as client:
        text = seen(client.get("/ui/lanes?name=cust-1"))
    assert "runs since" in text
    assert "until about" in text
    assert len(re.findall(r"about [-0-9]+ [:0-9]+ in 2 min", text)) == 2, text


def test_a_long_lane_shows_the_newest_that_ended_and_is_judged_by_them(tmp_path):
    minute = 60 * _S
    now = now_us() // minute * minute
    ended = [TaskKey(now - (160 - n) * minute, "cust-1", f"ended-{n:03}") for n in range(150)]
    running, *others = [TaskKey(now + n * minute, "cust-1", f"open-{n:03}") for n in range(-2, 80)]
    path = f"{tmp_path}/tables"
    make(path)
    append(path, TASKS, [task(key, n) | {"handler": "render"} for n, key in enumerate((*ended, running, *others))])
    done = {"outcome": "succeeded", "result": None, "error_class": None, "error_message": None}
    append(
        path,
        COMPLETIONS,
        [attempt_row(key, 1, key.time_us, 500 if n < 147 else 100, **done) for n, key in enumerate(ended)],
    )
    began = attempt_row(running, 1, now_us() - 30 * _S, None, outcome="started", error_class=None, error_message=None)
    append(path, ATTEMPTS, [began])
    with Site(str(tmp_path)).client() as client:
        page = client.get("/ui/lanes?name=cust-1")
        then = client.get("/ui/lanes", params={"name": "cust-1", "as_of": iso(now)})
    for one in (page, then):
        assert re.findall(r'title="(ended-\d+)"', one.text) == [f"ended-{n:03}" for n in reversed(range(50, 150))]
        assert "Only the newest 100 are shown" in seen(one)
    assert "Only the first 50 are shown" in seen(page)
    assert re.search(r"until about [-0-9]+ [:0-9]+ in 1 min", seen(page)), "its newest runs took 100 seconds"


def test_of_a_payload_that_is_long_and_deep_a_page_shows_the_beginning(tmp_path):
    deep = '{"a":' + "[" * 190 + "0," * 50_000 + "0" + "]" * 190 + "}"
    key = TaskKey(at(9), "l", "k")
    make(f"{tmp_path}/tables")
    append(f"{tmp_path}/tables", TASKS, [task(key, 1) | {"payload": deep}])
    with Site(str(tmp_path)).client() as client:
        page = client.get(f"/ui/tasks/{id_of(key)}")
    assert f"GET /v1/tasks/{id_of(key)}" in seen(page)
    begin = page.text.split('<pre class="json"')[1].split("</pre>")[0]
    assert len(begin) < 50_000


OPTIONS = {
    "handler": "h", "payload": {"a": 1}, "queue": "mail", "priority": 7, "ordering_id": "l", "uniqueness_key": "k",
    "tags": ["urgent", "e u"], "expires": "10m", "timeout": "30s", "retry": {"max_retries": 7, "base": "20s", "cap": "2m"},
    "unique": "open",
}  # fmt: skip


def stored_task(client, site, **more):
    """A task as the API shows it, once the tables have what was sent."""
    sent_id = client.post("/v1/tasks", json=OPTIONS | more).json()["id"]
    command = site.connection.sent.pop()
    row = task(command.key, 9, queue=command.queue) | {
        "handler": command.handler, "payload": command.payload, "priority": command.priority, "timeout_ms": command.timeout_ms,
        "expires_ms": command.expires_ms, "tags": list(command.tags), "unique_open": command.unique, "retry": command.retry._asdict(),
    }  # fmt: skip
    append(f"{site.settings.data_dir}/tables", TASKS, [row])
    return client.get(f"/v1/tasks/{sent_id}").json()


def test_copies_of_a_task_carry_all_that_was_said_of_it(client, site):
    told = stored_task(client, site)
    assert {name: told[name] for name in OPTIONS} == OPTIONS
    found = copies(told, "http://x")
    assert json.loads(shlex.split(found["curl"])[-1]) == OPTIONS
    asked = []
    names = {"scheduler": SimpleNamespace(enqueue=lambda *of, **how: asked.append((of, how))), "Retry": Retry}
    eval(found["Python"], names)
    ((of, how),) = asked
    assert of == ("h", {"a": 1})
    assert how == {name: OPTIONS[name] for name in OPTIONS if name not in ("handler", "payload")} | {
        "retry": Retry(7, "20s", "2m")
    }
    words = shlex.split(found["CLI"])
    assert words[3:] == [
        '--payload={"a": 1}', "--ordering-id=l", "--uniqueness-key=k", "--queue=mail", "--priority=7", "--timeout=30s", "--expires=10m",
        "--tag=urgent", "--tag=e u", "--unique", "--max-retries=7", "--retry-base=20s", "--retry-cap=2m", "--", "h",
    ]  # fmt: skip


def test_a_copy_has_no_key_but_one_by_which_it_is_unique_and_says_what_it_cannot_carry(client, site):
    told = stored_task(client, site, unique=None, retry={"max_retries": None, "base": "1s", "cap": "5m"})
    found = copies(told, "http://x")
    assert not any("uniqueness" in text or "scheduled" in text for text in found.values())
    assert '# It cannot say all of its retries: {"max_retries": null, "base": "1s", "cap": "5m"}' in found["CLI"]
    assert "max_retries=None, base='1s', cap='5m'" in found["Python"]


def test_one_like_it_has_all_options_of_the_other(client, site):
    told = stored_task(client, site)
    page = client.get(f"/ui/tasks:new?like={told['id']}")
    given = dict(re.findall(r'<input id="(\w+)" name="\w+" [^>]*?value="([^"]*)"', page.text))
    assert {name: value for name, value in given.items() if value} == {
        "handler": "h", "queue": "mail", "ordering_id": "l", "uniqueness_key": "k", "priority": "7", "timeout": "30s", "expires": "10m",
        "max_retries": "7", "retry_base": "20s", "retry_cap": "2m",
    }  # fmt: skip
    assert '<option value="open" selected>' in page.text
    assert "urgent\ne u" in page.text


def test_a_copy_for_the_shell_means_exactly_the_name(look, looked_at):
    for number, name in enumerate(HOSTILE):
        task = look.get(f"/v1/tasks/{id_of(looked_at.keys[f'hostile {number}'])}").json()
        for tool, program in (("CLI", "scylla-spark"), ("curl", "curl")):
            text = copies(task, "http://127.0.0.1")[tool]
            assert text.isprintable()
            command = 'show() { printf "%s\\0" "$@"; }; show ' + text.removeprefix(program)
            done = subprocess.run(["bash", "-c", command], capture_output=True, check=True, env={"LC_ALL": "C.UTF-8"})
            words = done.stdout.decode().split("\0")
            lane = words[3].removeprefix("--ordering-id=") if tool == "CLI" else json.loads(words[-2])["ordering_id"]
            assert lane == name


# -- names that are made to harm ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_a_hostile_name_is_shown_never_obeyed_and_its_link_leads_to_it(look, looked_at, number):
    name = HOSTILE[number]
    own = page_of(look, looked_at, f"hostile {number}")
    lane = re.search(r'<a href="(/ui/lanes\?[^"]+)"', own.text)
    assert lane is not None
    pages = [
        own,
        look.get(unescape(lane[1])),
        look.get("/ui/tasks", params={"filter": filter_term("lane", name)}),
        look.get("/ui/tasks:bulk", params={"act": "cancel", "filter": filter_term("lane", name)}),
    ]
    for page in pages:
        assert page.status_code == 200, page.request.url
        assert visible(name) in seen(page)
        assert foreign(page) == []
        assert "\u202e" not in seen(page)


def test_now_shows_hostile_names_and_never_obeys_them(look):
    page = look.get("/ui/now")
    assert page.status_code == 200
    assert foreign(page) == []
    assert "\u202e" not in seen(page)
