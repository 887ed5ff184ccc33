"""The screen Lane: what blocks this customer?"""

from __future__ import annotations

import asyncio
from statistics import median
from typing import Any, Final

from starlette.responses import Response

from scylla_spark.clock import iso
from scylla_spark.dashboard.expected_starts import Known, expected_starts
from scylla_spark.dashboard.own_api import ApiProblem
from scylla_spark.dashboard.page_request import Page, acts, shows, within
from scylla_spark.dashboard.request_values import instant_given, unreadable
from scylla_spark.dashboard.value_texts import filter_term, instant_of, segment
from scylla_spark.duration import duration_us
from scylla_spark.errors import ArgumentError

_SHOWN: Final = 50
_ENDED: Final = 100
_HANDLERS: Final = 3  # whose typical time is looked up
_RUNS: Final = 3  # of a handler, by which that is judged
_RUNNING: Final = frozenset({"running", "unknown"})  # also where only the tables answer


async def look(page: Page) -> Response:
    """A lane in its order, its head, what that waits for, and what has ended of it lately; its name stands in the query.

    A name such as ".." could not stand in the path: browsers would resolve it.
    """
    name, since = page.asked("name"), page.asked("since", "-24h")
    if not name:
        return page.shown("lanes.html", place="lanes")
    if as_of := page.asked("as_of"):
        return await _then(page, name, since, instant_given("as_of", as_of))
    try:
        lane = await page.own.get(f"/v1/lanes/{segment(name)}", limit=_SHOWN)
    except ApiProblem as problem:
        if problem.status != 404:
            raise
        lane = {"state": "empty", "why": problem.sentence, "head": None, "tasks": [], "partition": None}
    wanted = f"{filter_term('lane', name)} state:ended ended:>{since}"
    found = await page.own.get("/v1/tasks", filter=wanted, limit=_ENDED, order="newest")
    ended = found["tasks"]
    known = await _known(page, lane, filter_term("lane", name), ended)
    return page.shown(
        "lane.html",
        place="lanes",
        lane_name=name,
        more=len(lane["tasks"]) == _SHOWN,
        ended_more=found["next"] is not None,
        lane=lane,
        tasks=expected_starts(lane["tasks"], known, page.now, lane["head"]),
        ended=ended,
        wanted=filter_term("lane", name),
        since=since,
    )


async def _then(page: Page, name: str, since: str, at_us: int) -> Response:
    """A lane as it was at a moment, by the tables: which tasks were open, and what had ended within some time before."""
    term, as_of = filter_term("lane", name), iso(at_us)
    try:
        begin_us = at_us - duration_us(since.removeprefix("-"))
    except ArgumentError as error:
        raise unreadable("since", since, error.hint or "Write it like -24h.") from None
    stood = await page.own.get("/v1/tasks", filter=f"{term} state:open", as_of=as_of, limit=_SHOWN)
    wanted = f"{term} state:ended ended:>{iso(max(begin_us, 0))}"
    ended = await page.own.get("/v1/tasks", filter=wanted, as_of=as_of, limit=_ENDED, order="newest")
    return page.shown(
        "lane_then.html",
        place="lanes",
        lane_name=name,
        as_of=as_of,
        tasks=stood["tasks"],
        more=stood["next"] is not None,
        ended=ended["tasks"],
        ended_more=ended["next"] is not None,
        wanted=term,
        since=since,
    )


async def skip_head(page: Page) -> Response:
    """Cancels the head of a lane, if it still is the one that the page has shown."""
    name = page.form.get("name", "")
    told = await page.own.post(f"/v1/lanes/{segment(name)}:skip_head", head=page.form.get("head"))
    done = "is cancelled" if told["answer"] == "cancelled" else "will be cancelled as soon as a dispatcher reads it"
    return page.goes(within("/ui/lanes", name=name), f"The head {told['uniqueness_key']} {done}.")


async def _known(page: Page, lane: dict[str, Any], term: str, ended: list[dict[str, Any]]) -> Known:
    """Whatever tells when the tasks of a lane will start: since when its head runs, and how long their handlers take."""
    tasks = lane["tasks"]
    if not tasks:
        return Known(None, {}, {})
    listed = (await page.own.get("/v1/tasks", filter=f"{term} state:open", limit=_SHOWN))["tasks"]
    handlers = {one["id"]: one["handler"] for one in listed if one["handler"]}
    needed = list(dict.fromkeys(handlers[one["id"]] for one in tasks[:-1] if one["id"] in handlers))[:_HANDLERS]
    began, *took = await asyncio.gather(
        _began(page, tasks[0]["id"], lane["state"]), *(_typical(page, handler, ended) for handler in needed)
    )
    return Known(began, handlers, {handler: us for handler, us in zip(needed, took, strict=True) if us is not None})


async def _began(page: Page, id: str, state: str) -> int | None:
    """Since when the head of a lane runs, microseconds since the epoch; None: it does not, or nobody says."""
    if state not in _RUNNING:
        return None
    attempts = await _attempts(page, id)
    newest = attempts[-1] if attempts else {"started_at": None, "finished_at": None}
    return instant_of(newest["started_at"] or "") if newest["finished_at"] is None else None


async def _typical(page: Page, handler: str, ended: list[dict[str, Any]]) -> int | None:
    """Returns the typical duration of a handler (µs): the median of its last runs in this lane (newest first in `ended`) or elsewhere."""
    alike = [one["id"] for one in ended if one["handler"] == handler and one["state"] == "succeeded"][:_RUNS]
    if not alike:
        wanted = f"{filter_term('handler', handler)} state:succeeded scheduled:>-24h"
        found = await page.own.get("/v1/tasks", filter=wanted, limit=_RUNS, order="newest")
        alike = [one["id"] for one in found["tasks"]]
    told = await asyncio.gather(*(_attempts(page, id) for id in alike))
    spans = [
        (instant_of(some[-1]["finished_at"] or "") or 0) - (instant_of(some[-1]["started_at"] or "") or 0)
        for some in told
        if some and some[-1]["started_at"] and some[-1]["finished_at"]
    ]
    return int(median(spans)) if spans else None


async def _attempts(page: Page, id: str) -> list[dict[str, Any]]:
    """The last attempt of a task; none where it is gone by now."""
    try:
        found: list[dict[str, Any]] = (await page.own.get(f"/v1/tasks/{segment(id)}/attempts", limit=1))["attempts"]
    except ApiProblem as problem:
        if problem.status == 401:
            raise
        return []
    return found


ROUTES: Final = (shows("/ui/lanes", look), acts("/ui/lanes:skip_head", skip_head))
