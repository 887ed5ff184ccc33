"""The screen Lane: what blocks this customer?"""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from scylla_spark.clock import iso
from scylla_spark.services.dashboard.own_api import ApiProblem
from scylla_spark.services.dashboard.page_request import Page, acts, shows
from scylla_spark.services.dashboard.value_texts import filter_term, instant_of, segment

_SHOWN: Final = 50
_ENDED: Final = 100


async def look(page: Page) -> Response:
    """A lane in its order, its head, what that waits for, and what has ended of it lately; its name stands in the query.

    A name such as ".." could not stand in the path: browsers would resolve it.
    """
    name, since = page.asked("name"), page.asked("since", "-24h")
    if not name:
        return page.shown("lanes.html", place="lanes")
    try:
        lane = await page.own.get(f"/v1/lanes/{segment(name)}", limit=_SHOWN)
    except ApiProblem as problem:
        if problem.status != 404:
            raise
        lane = {"state": "empty", "why": problem.sentence, "tasks": [], "partition": None}
    wanted = f"{filter_term('lane', name)} state:ended ended:>{since}"
    ended = await page.own.get("/v1/tasks", filter=wanted, limit=_ENDED)
    return page.shown(
        "lane.html", place="lanes", lane_name=name, lane=lane, tasks=expected(lane["tasks"], page.now), ended=ended["tasks"],
        wanted=filter_term("lane", name), since=since,
    )  # fmt: skip


async def skip_head(page: Page) -> Response:
    """Cancels the head of a lane."""
    name = page.form.get("name", "")
    told = await page.own.post(f"/v1/lanes/{segment(name)}:skip_head")
    done = "is cancelled" if told["answer"] == "cancelled" else "will be cancelled as soon as a dispatcher reads it"
    return page.goes(page.site.url("/ui/lanes", name=name), f"The head {told['uniqueness_key']} {done}.")


def expected(tasks: list[dict[str, Any]], now: int) -> list[dict[str, Any]]:
    """The tasks of a lane, each with the earliest time at which it can start: never before the one in front of it.

    Args:
        tasks: in the order of the lane.
        now: microseconds since the epoch.
    """
    found, earliest = [], now
    for number, task in enumerate(tasks):
        own = instant_of(task["next_start"] or "") or earliest
        earliest = max(own, earliest)
        found.append(task | {"not_before": iso(earliest), "is_head": number == 0})
    return found


ROUTES: Final = (shows("/ui/lanes", look), acts("/ui/lanes:skip_head", skip_head))
