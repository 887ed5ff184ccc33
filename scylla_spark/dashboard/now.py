"""The screen Now: are we healthy and on time?"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, Final

from starlette.responses import Response

from scylla_spark.dashboard.now_live import NowStream
from scylla_spark.dashboard.page_request import Page, acts, shows, within
from scylla_spark.dashboard.value_texts import segment
from scylla_spark.task_states import STATES

_LISTED: Final = 50


async def look(page: Page) -> Response:
    """Counts, lateness, queues (a page of them by name), and what somebody should look at."""
    overview = await page.own.get("/v1/overview")
    defined = (await page.own.get("/v1/queues"))["queues"]
    return page.shown("now.html", place="now", **_shown(overview, defined, page.asked("after")))


async def follow(page: Page) -> Response:
    """The part of it that changes, whenever it has become another."""
    template = page.site.templates.get_template("_now.html")  # compiled before anybody measures what a part costs
    after = page.asked("after")

    def make(overview: dict[str, Any], defined: list[dict[str, Any]]) -> str:
        return template.render(_shown(overview, defined, after))

    return NowStream(page.own, page.site.now_parts, make, after)


async def pause(page: Page) -> Response:
    """Lets nothing of a queue start any more."""
    queue = page.form.get("queue", "")
    await page.own.post(f"/v1/queues/{segment(queue)}:pause", author=page.author)
    return page.goes(_place(page), f"Nothing of the queue {queue} starts any more; what runs goes on.")


async def resume(page: Page) -> Response:
    """Lets the tasks of a queue start again."""
    queue = page.form.get("queue", "")
    await page.own.post(f"/v1/queues/{segment(queue)}:resume", author=page.author)
    return page.goes(_place(page), f"The tasks of the queue {queue} start again.")


def _place(page: Page) -> str:
    """The page of queues from which a button was pressed."""
    return within("/ui/now", after=page.form.get("after"))


def _shown(overview: dict[str, Any], defined: list[dict[str, Any]], after: str) -> dict[str, Any]:
    """Returns the values for the template."""
    return {
        "overview": overview,
        "states": _states(overview),
        "curves": _curves(overview["history"]),
        **_queues(overview, defined, after),
    }


def _states(overview: dict[str, Any]) -> list[dict[str, Any]]:
    """Each state with its count now, and its counts lately."""
    history = overview["states_history"]
    return [
        {"name": state, "count": overview["states"][state], "history": [one["states"][state] for one in history]}
        for state in STATES
    ]


def _curves(history: list[dict[str, Any]]) -> dict[str, list[float | None]]:
    """The history as one list for each curve, without the step that is under way."""
    return {name: [one[name] for one in history[:-1]] for name in ("started", "ended", "failed", "p50_ms", "p99_ms")}


def _queues(overview: dict[str, Any], defined: list[dict[str, Any]], after: str) -> dict[str, Any]:
    """A page of the queues that have tasks or a definition, by name; with how many there are, and where the next page begins."""
    counts = {one["name"]: one["states"] for one in overview["queues"]}
    known = {one["name"]: one for one in defined}
    names = sorted({*counts, *known})
    first = bisect_right(names, after)
    page = names[first : first + _LISTED]
    return {
        "queues": [_queue(name, counts.get(name, {}), known.get(name)) for name in page],
        "all_queues": len(names),
        "first_queue": first + 1,
        "after": after,
        "following": page[-1] if first + _LISTED < len(names) else None,
    }


def _queue(name: str, states: dict[str, int], defined: dict[str, Any] | None) -> dict[str, Any]:
    fields = defined["fields"] if defined is not None else {}
    limit = fields.get("concurrency")
    return {
        "name": name,
        "states": states,
        "paused": bool(fields.get("paused")),
        "limit": limit,
        "rate": fields.get("rate"),
        "share": min(states.get("running", 0) / limit, 1.0) if limit else None,
        "defined": defined is not None,
        "pull": fields.get("mode") == "pull",
    }


ROUTES: Final = (
    shows("/ui/now", look),
    shows("/ui/now/live", follow),
    acts("/ui/now:pause", pause),
    acts("/ui/now:resume", resume),
)
