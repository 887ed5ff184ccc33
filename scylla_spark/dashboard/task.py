"""One task: how it stands, why it does not run, what its attempts did and wrote, and what can be done to it."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from starlette.responses import Response

from scylla_spark.dashboard.live import PassedOn
from scylla_spark.dashboard.own_api import ApiProblem
from scylla_spark.dashboard.page_request import Page, acts, shows
from scylla_spark.dashboard.request_values import instant_text
from scylla_spark.dashboard.task_as_command import copies
from scylla_spark.dashboard.timeline import timeline
from scylla_spark.dashboard.value_texts import segment
from scylla_spark.task_states import OPEN

_BRIEF: Final = 8  # digits of a fingerprint that people see, and that are enough for a filter
_LINES: Final = 500


async def look(page: Page) -> Response:
    """All that is known of a task."""
    path = _path(page)
    task = await page.own.get(path)
    is_open = task["state"] in OPEN
    told, explained, lines = await asyncio.gather(  # each waits for somebody else: tables, dispatcher, Kafka
        page.own.get(f"{path}/attempts"), _explained(page, path, is_open=is_open), _lines(page, path)
    )
    attempts = told["attempts"]
    return page.shown(
        "task.html",
        place="tasks",
        task=task,
        attempts=attempts,
        left_out=told["next"] is not None,
        is_open=is_open,
        explained=explained,
        lines=lines,
        marks=timeline(task, attempts, page.now),
        alike=_alike(task),
        copies=copies(task, _address(page)),
    )


async def follow_lines(page: Page) -> Response:
    """The lines of a task as they come."""
    return PassedOn(page, f"{_path(page)}/logs", cursor=page.asked("cursor"))


async def download(page: Page) -> Response:
    """A file that an attempt has left behind, to be saved."""
    names = [segment(page.part(name)) for name in ("attempt", "name")]
    return PassedOn(page, f"{_path(page)}/attempts/{names[0]}/outputs/{names[1]}")


async def cancel(page: Page) -> Response:
    """Ends it without running it again."""
    running = page.form.get("running") == "true"
    told = await page.own.post(f"{_path(page)}:cancel", running=running or None)
    said = (
        "The task is cancelled." if told["answer"] == "cancelled" else "The cancel was sent; nobody has answered yet."
    )
    return _back(page, page.request.path_params["id"], said)


async def retry(page: Page) -> Response:
    """Enqueues a copy, due now."""
    copy = await page.own.post(f"{_path(page)}:retry")
    return _back(page, copy["id"], "This is the copy; it is due now.")


async def run_now(page: Page) -> Response:
    """Ends it, and enqueues a copy that is due now."""
    copy = await page.own.post(f"{_path(page)}:run_now")
    return _back(page, copy["id"], "This is the copy that is due now; the other is cancelled.")


async def reschedule(page: Page) -> Response:
    """Ends it, and enqueues a copy for another time."""
    at, delay = page.form.get("scheduled_time", ""), page.form.get("delay", "")
    body = {"scheduled_time": instant_text("The new time", at)} if at else {"delay": delay}
    copy = await page.own.post(f"{_path(page)}:reschedule", body)
    return _back(page, copy["id"], "This is the copy at its new time; the other is cancelled.")


async def _explained(page: Page, path: str, *, is_open: bool) -> Any:
    """Returns why the task does not run. None: it has ended."""
    return await page.own.get(f"{path}/explain") if is_open else None


async def _lines(page: Page, path: str) -> dict[str, Any]:
    """The first lines that its attempts wrote; none where they cannot be read now."""
    try:
        found: dict[str, Any] = await page.own.get(f"{path}/logs", limit=_LINES)
    except ApiProblem as problem:
        if problem.status == 404:
            raise
        return {"lines": [], "next": None, "why": problem.sentence}
    return found | {"why": ""}


def _alike(task: dict[str, Any]) -> dict[str, str] | None:
    """Returns the filter for tasks with the same error. None: it did not fail."""
    if task["error"] is None:
        return None
    brief = task["error"]["fingerprint"][:_BRIEF]
    return {"fingerprint": brief, "filter": f"state:{task['state']} fingerprint:{brief}"}


def _address(page: Page) -> str:
    """Returns the public address of the API."""
    return page.site.public_url.rstrip("/") or f"{page.request.url.scheme}://{page.request.headers.get('host', '')}"


def _path(page: Page) -> str:
    return f"/v1/tasks/{segment(page.part('id'))}"


def _back(page: Page, id: str, said: str) -> Response:
    return page.goes(f"/ui/tasks/{segment(id)}", said)


ROUTES: Final = (
    shows("/ui/tasks/{id}", look),
    shows("/ui/tasks/{id}/lines", follow_lines),
    shows("/ui/tasks/{id}/attempts/{attempt}/outputs/{name}", download),
    acts("/ui/tasks/{id}:cancel", cancel),
    acts("/ui/tasks/{id}:retry", retry),
    acts("/ui/tasks/{id}:run_now", run_now),
    acts("/ui/tasks/{id}:reschedule", reschedule),
)
