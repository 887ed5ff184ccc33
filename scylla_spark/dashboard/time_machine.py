"""The screen Time machine: how late were tasks, what was it like at a moment, and what if a queue had had other limits?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from starlette.responses import Response

from scylla_spark.clock import iso
from scylla_spark.dashboard.lateness_map import LEVELS_MS, MOST_QUEUES, Cell, Window, cells_of, hours_axis, strips
from scylla_spark.dashboard.page_request import Page, acts, shows, within
from scylla_spark.dashboard.request_values import instant_given, number_given, unreadable
from scylla_spark.dashboard.value_texts import filter_term, segment
from scylla_spark.duration import duration_us
from scylla_spark.task_states import STATES

SPANS: Final = {"1h": "Hour", "6h": "6 hours", "24h": "Day", "168h": "Week"}
"""Windows that end now: length → name."""
LIMITS: Final = ("concurrency", "rate", "group_concurrency")
"""Fields of queues that the forecast is asked about."""
_OURS: Final = frozenset({"same-origin", "none"})  # a link that was clicked here, and an address that was typed or kept
_DEFAULT_SPAN: Final = "24h"
_MINUTE_US: Final = 60_000_000
_WORST: Final = 10
_LISTED: Final = 50
_OPEN: Final = "state:ready,running,retry_wait"


class Chosen(NamedTuple):
    """The choices in the address of the page.

    Attributes:
        begin_us: of the window, microseconds since the epoch.
        end_us: of the window.
        span: the window ends now, and is so long; empty: it stands still.
        queue: only this one; empty: all.
        filter: of the list at a moment.
        at_us: that moment; None: none is asked for.
    """

    begin_us: int
    end_us: int
    span: str
    queue: str
    filter: str
    at_us: int | None

    def query(self, **other: Any) -> dict[str, Any]:
        """The parameters of this page in an address, with others in their place."""
        at = iso(self.at_us) if self.at_us is not None else None
        window = {"span": self.span} if self.span else {"from": iso(self.begin_us), "to": iso(self.end_us)}
        return window | {"queue": self.queue, "filter": self.filter, "at": at} | other

    @property
    def window(self) -> dict[str, str]:
        """The window as the API takes it."""
        return {"from": iso(self.begin_us), "to": iso(self.end_us)}

    def within(self) -> str:
        """Terms of the filter that choose what was due in the window."""
        queue = f" {filter_term('queue', self.queue)}" if self.queue else ""
        return f"scheduled:>={iso(self.begin_us)} scheduled:<{iso(self.end_us)}{queue}"


async def look(page: Page) -> Response:
    """The heat map of a window, and how the tasks of the window stood at a moment of it."""
    chosen = _chosen(page)
    told = await page.own.get("/v1/lateness", **chosen.window, queue=chosen.queue, most_queues=MOST_QUEUES)
    window = Window(_floor(chosen.begin_us, told["step_ms"]), chosen.end_us, told["step_ms"] * 1000)
    cells = cells_of(told["cells"])

    def link(queue: str, begin: int, end: int) -> str:
        """An hour of a day is looked at closely; of a short window a stretch is, as it was at its end."""
        if chosen.end_us - chosen.begin_us > 2 * duration_us("1h"):
            return page.site.url("/ui/time", **{"from": iso(begin), "to": iso(end)}, queue=queue)
        return page.site.url("/ui/time", **chosen.query(queue=queue, at=iso(min(end, page.now))))

    then = await _then(page, chosen) if chosen.at_us is not None else None
    return page.shown(
        "time.html",
        place="time",
        chosen=chosen,
        spans=SPANS,
        strips=strips(cells, window, link),
        axis=hours_axis(window),
        worst=_worst(page, chosen, cells),
        then=then,
        slider=_slider(chosen),
        moves=_moves(page, chosen),
        levels=_levels(),
        left_out=told["queues"] - len(cells),
    )


async def ask(page: Page) -> Response:
    """The form that asks what would have been, and with `play` the answer: the window under other limits, while nothing is changed.

    An answer costs the work of seconds, so no page of another site gets one made by leading its visitors here: they see the form.
    """
    asked = page.request.query_params
    is_ours = page.request.headers.get("sec-fetch-site", "none") in _OURS
    chosen = _chosen(page)
    defined = {one["name"]: one["fields"] for one in (await page.own.get("/v1/queues"))["queues"]}
    in_force = defined.get(chosen.queue, {})
    limits = {name: asked.get(name, _shown(in_force.get(name))) for name in LIMITS}  # shown, played, and applied
    found = None
    if asked.get("play") and chosen.queue and is_ours:
        path = f"/v1/queues/{segment(chosen.queue)}:simulate"
        found = await page.own.post(path, _changes(limits), **chosen.window, slots=asked.get("slots"))
    told = await page.own.get("/v1/lateness", **chosen.window)
    queues = sorted({*defined, *(one["queue"] for one in told["cells"]), *([chosen.queue] if chosen.queue else [])})
    return page.shown(
        "simulation.html",
        place="time",
        chosen=chosen,
        queues=queues,
        fields=limits,
        in_force=in_force,
        found=found,
        slots=asked.get("slots", ""),
        rows=[_compared(row) for row in found["rows"]] if found else [],
    )


async def apply(page: Page) -> Response:
    """Puts the limits in force that were tried; those that the form does not name stay."""
    queue, changes = page.form.get("queue", ""), _changes(page.form)
    await page.own.send("PATCH", f"/v1/queues/{segment(queue)}", changes, author=page.author)
    place = within("/ui/time/simulation", **_chosen(page, page.form).query())
    return page.goes(place, f"The limits of the queue {queue} are in force within a second.")


# -- below: what the address says -----------------------------------------------------------------------------------------


def _chosen(page: Page, given: Mapping[str, str] | None = None) -> Chosen:
    """The window, the queue and the moment that are asked for.

    Raises:
        ApiProblem: they cannot be read.
    """
    asked = page.request.query_params if given is None else given
    begin, end = asked.get("from", ""), asked.get("to", "")
    if begin or end:
        begin_us, end_us, span = instant_given("from", begin), instant_given("to", end), ""
    else:
        span = asked.get("span") or _DEFAULT_SPAN
        if span not in SPANS:
            raise unreadable("span", span, f"It is one of {', '.join(SPANS)}.")
        begin_us, end_us = page.now - duration_us(span), page.now
    at_us = instant_given("at", at) if (at := asked.get("at", "")) else _minute(asked.get("minute", ""), begin_us)
    return Chosen(begin_us, end_us, span, asked.get("queue", ""), asked.get("filter", ""), at_us)


def _minute(text: str, begin_us: int) -> int | None:
    """The moment that the slider stands at."""
    if not text:
        return None
    if not text.isdecimal() or len(text) > 6:
        raise unreadable("minute", text, "It is a number of minutes after the begin of the window.")
    return begin_us + int(text) * _MINUTE_US


# -- below: what the page shows -------------------------------------------------------------------------------------------


def _floor(us: int, step_ms: int) -> int:
    return us // (step_ms * 1000) * (step_ms * 1000)


def _worst(page: Page, chosen: Chosen, cells: Mapping[str, Sequence[Cell]]) -> list[dict[str, Any]]:
    """The latest stretches, for those who do not see colours or use no mouse."""
    late = [(queue, cell) for queue, some in cells.items() for cell in some if cell.level]
    late.sort(key=lambda pair: (-pair[1].late_ms, pair[0], pair[1].at_us))
    step_us = 5 * _MINUTE_US
    return [
        {
            "queue": queue,
            "at": iso(cell.at_us),
            "cell": cell,
            "then": page.site.url("/ui/time", **chosen.query(queue=queue, at=iso(min(cell.at_us + step_us, page.now)))),
            "tasks": page.site.url("/ui/tasks", filter=_tasks_of(queue, cell.at_us, cell.at_us + step_us)),
        }
        for queue, cell in late[:_WORST]
    ]


def _tasks_of(queue: str, begin_us: int, end_us: int) -> str:
    return f"{filter_term('queue', queue)} scheduled:>={iso(begin_us)} scheduled:<{iso(end_us)}"


async def _then(page: Page, chosen: Chosen) -> dict[str, Any]:
    """Returns the states of the tasks of the window at the chosen time."""
    assert chosen.at_us is not None
    as_of = iso(chosen.at_us)
    totals = (await page.own.get("/v1/tasks:totals", filter=chosen.within(), as_of=as_of))["totals"]
    wanted = f"{chosen.within()} {chosen.filter or _OPEN}"
    found = await page.own.get("/v1/tasks", filter=wanted, as_of=as_of, limit=_LISTED)
    queues: dict[str, dict[str, int]] = {}
    for row in totals:
        queues.setdefault(row["queue"], {})[row["state"]] = row["count"]
    return {
        "at": as_of,
        "queues": sorted(queues.items()),
        "tasks": found["tasks"],
        "more": found["next"] is not None,
        "all": page.site.url("/ui/tasks", filter=wanted, as_of=as_of),
        "states": STATES,
    }


def _slider(chosen: Chosen) -> dict[str, int]:
    """The range input: minutes after the begin of the window."""
    most = max((chosen.end_us - chosen.begin_us) // _MINUTE_US, 1)
    at_us = chosen.end_us if chosen.at_us is None else chosen.at_us
    value = min(max((at_us - chosen.begin_us) // _MINUTE_US, 0), most)
    return {"most": most, "value": value, "step": 1, "begin_ms": chosen.begin_us // 1000}


def _moves(page: Page, chosen: Chosen) -> dict[str, str]:
    """Links to the window before and behind, and to one that is twice as wide."""
    width = chosen.end_us - chosen.begin_us
    most = duration_us("168h")

    def moved(begin_us: int, end_us: int) -> str:
        return page.site.url(
            "/ui/time", **chosen.query(span=None, at=None, **{"from": iso(begin_us), "to": iso(end_us)})
        )

    found = {"Earlier": moved(chosen.begin_us - width, chosen.end_us - width)}
    if chosen.end_us < page.now:
        found["Later"] = moved(chosen.begin_us + width, chosen.end_us + width)
    if 2 * width <= most:
        found["Wider"] = moved(
            chosen.begin_us - width // 2, min(chosen.end_us + width // 2, max(page.now, chosen.end_us))
        )
    return found


def _levels() -> list[tuple[int, str]]:
    """The legend: number of a colour, and from which lateness on it is used."""
    return list(
        enumerate(
            [
                "on time",
                *(f"≥ {text}" for text in ("100\u202fms", "1\u202fs", "10\u202fs", "1\u202fmin", "10\u202fmin")),
            ]
        )
    )


def _changes(given: Mapping[str, str]) -> dict[str, Any]:
    """Limits as the API takes them, of those that are given as texts."""
    return {name: number_given(given[name]) for name in LIMITS if name in given}


def _shown(limit: Any) -> str:
    return "" if limit is None else str(int(limit)) if limit == int(limit) else repr(limit)


def _compared(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the forecast with a verdict: whether starts would have been earlier."""
    was, would = row["p99_ms"], row["predicted_p99_ms"]
    if row["never_started"]:
        verdict = "worse"
    elif was is None or would is None or abs(would - was) <= max(0.1 * was, 10):
        verdict = "same"
    else:
        verdict = "worse" if would > was else "better"
    return row | {"verdict": verdict}


assert len(_levels()) == len(LEVELS_MS) + 1

ROUTES: Final = (shows("/ui/time", look), shows("/ui/time/simulation", ask), acts("/ui/time:apply", apply))
