"""A form that makes something does it once, however often its button is pressed."""

from __future__ import annotations

import asyncio
import re

import pytest
from starlette.responses import RedirectResponse, Response

from scylla_spark.core.tasks.key import id_of
from scylla_spark.dashboard.own_api import ApiProblem
from scylla_spark.dashboard.presses import REMEMBERED_US, Presses, press_of
from tests.support.api_site import Site
from tests.support.dashboard_site import ORIGIN, seen
from tests.support.dashboard_tables import fill


@pytest.fixture
def site(tmp_path):
    keys = fill(f"{tmp_path}/tables")
    site = Site(str(tmp_path))
    site.keys = keys
    return site


@pytest.fixture
def client(site):
    with site.client() as client:
        yield client


def pressed(client, path, page, **fields):
    """Sends a form with all that it hides."""
    hidden = dict(re.findall(r'name="(form_token|form_id)" value="(\w+)"', page.text))
    assert len(hidden) == 2
    return client.post(path, data=hidden | fields, headers=ORIGIN)


def twice(client, path, page, **fields):
    first, second = (pressed(client, path, page, **fields) for _ in range(2))
    assert (first.status_code, second.status_code) == (303, 303)
    assert first.headers["location"] == second.headers["location"]
    assert "sent%20before" in second.headers["set-cookie"]
    assert "sent%20before" not in first.headers["set-cookie"]


def test_a_task_is_enqueued_once_and_another_one_by_other_fields_or_another_page(client, site):
    page, fields = client.get("/ui/tasks:new"), {"handler": "charge", "payload": '{"amount": 5}'}
    twice(client, "/ui/tasks:new", page, **fields)
    assert len(site.connection.sent) == 1
    pressed(client, "/ui/tasks:new", page, **fields | {"payload": '{"amount": 6}'})
    pressed(client, "/ui/tasks:new", client.get("/ui/tasks:new"), **fields)
    assert len(site.connection.sent) == 3


def test_one_copy_is_made_of_a_task_and_of_each_of_a_filter(client, site):
    task = f"/ui/tasks/{id_of(site.keys['failed'])}"
    twice(client, f"{task}:retry", client.get(task))
    assert len(site.connection.sent) == 1
    page = client.get("/ui/tasks:bulk?act=retry&filter=state:failed")
    twice(client, "/ui/tasks:bulk", page, act="retry", filter="state:failed", matched="1")
    assert len(site.connection.sender.records) == 1
    page = client.get("/ui/tasks?filter=state:failed")
    twice(client, "/ui/tasks:chosen", page, act="retry", **{"task.1": id_of(site.keys["failed"])})
    assert len(site.connection.sent) == 2


def test_what_was_refused_may_be_sent_again(client, site):
    page, fields = client.get("/ui/tasks:new"), {"handler": "charge", "payload": "{}"}
    site.connection.down = True
    assert pressed(client, "/ui/tasks:new", page, **fields).status_code == 503
    site.connection.down = False
    answer = pressed(client, "/ui/tasks:new", page, **fields)
    assert (answer.status_code, len(site.connection.sent)) == (303, 1), seen(answer)


def test_presses_while_it_is_done_wait_for_it_though_the_first_has_given_up():
    async def run():
        presses, may_end, done = Presses(), asyncio.Event(), []

        async def act():
            await may_end.wait()
            done.append(1)
            return RedirectResponse("/there", 303)

        first, second = (asyncio.create_task(presses.once("p", 0, act)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        may_end.set()
        answer, had_been_sent = await second
        assert (answer.headers["location"], had_been_sent, done) == ("/there", True, [1])
        assert (await presses.once("p", REMEMBERED_US + 1, act))[1] is False, "it is not remembered for ever"

    asyncio.run(run())


def test_what_ends_otherwise_is_not_remembered():
    async def run():
        presses = Presses()

        async def refused():
            raise ApiProblem(409, {})

        async def shown():
            return Response("Type the number", 409)

        for act in (refused, refused, shown, shown):
            try:
                assert (await presses.once("p", 0, act))[1] is False
            except ApiProblem:
                assert act is refused

    asyncio.run(run())


def test_a_press_is_told_by_its_page_its_path_and_its_fields():
    form = {"form_id": "1", "form_token": "t", "a": "b"}
    others = [
        ("/x", form | {"a": "c"}),
        ("/x", form | {"form_id": "2"}),
        ("/y", form),
        ("/x", form | {"form_token": "u"}),
    ]
    assert len({press_of("/x", form), *(press_of(path, one) for path, one in others)}) == 5
    assert press_of("/x", {"form_token": "t"}) == ""
