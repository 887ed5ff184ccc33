"""The screen Schedules: what fires, what fired, what was skipped, and why?"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import Response

from scylla_spark.clock import iso
from scylla_spark.dashboard.own_api import ApiProblem
from scylla_spark.dashboard.page_request import Page, acts, shows
from scylla_spark.dashboard.payload_form import read_value
from scylla_spark.dashboard.request_values import instant_given, instant_text, whole_given
from scylla_spark.dashboard.value_texts import segment
from scylla_spark.visible import visible_json

KINDS: Final = ("time", "event", "partitions", "table", "topic", "after", "batch", "manual")
VERDICTS: Final = (
    "launched",
    "skipped",
    "waiting",
    "missed",
    "obsolete",
    "failed",
    "late",
    "overdue",
    "silent",
    "no_handler",
)
_LISTED: Final = 200
_FIRES: Final = 50
_NEXT: Final = 10
_TYPED: Final = 100  # more runs than this are launched only by who types their number
_WANTED: Final = ("begin", "end", "order", "max_running", "reprocess")
_VERSIONS: Final = ("from_version", "to_version")
_PAUSED: Final = "The backfill is paused. What dispatchers run goes on, without another try; what is leased ends at once, to be run again."
_CANCELLED: Final = (
    "The backfill is cancelled. What dispatchers run goes on, without another try; what is leased ends at once."
)


async def look(page: Page) -> Response:
    """All schedules, by name; or as they were at a moment."""
    if as_of := page.asked("as_of"):
        return await _past(page, instant_text("as_of", as_of))
    asked = {name: page.asked(name) for name in ("state", "kind", "tag", "owner", "after")}
    found = await page.own.get("/v1/schedules", **asked, limit=_LISTED)
    following = page.site.url("/ui/schedules", **asked | {"after": found["next"]}) if found["next"] else None
    return page.shown(
        "schedules.html", place="schedules", schedules=found["schedules"], asked=asked, kinds=KINDS, following=following
    )


async def fires(page: Page) -> Response:
    """Shows the recent decisions about all schedules, or those around a time."""
    verdict = page.asked("verdict")
    as_of = instant_text("as_of", page.asked("as_of")) if page.asked("as_of") else None
    begin, end = page.asked("from"), as_of or page.asked("to")
    window = {
        "from": iso(instant_given("from", begin)) if begin else None,
        "to": iso(instant_given("to", end)) if end else None,
    }
    found = await page.own.get("/v1/fires", **window, verdict=verdict, limit=_LISTED)
    rows = [_fire(row) for row in found["fires"]]
    full = len(rows) == _LISTED
    return page.shown(
        "fires.html",
        place="schedules",
        fires=rows,
        verdicts=VERDICTS,
        verdict=verdict,
        window=window,
        full=full,
        as_of=as_of,
    )


async def _past(page: Page, as_of: str) -> Response:
    """Schedules as they were defined at a moment, and which of them were paused."""
    found = await page.own.get("/v1/schedules:past", as_of=as_of, after=page.asked("after"), limit=_LISTED)
    following = page.site.url("/ui/schedules", as_of=as_of, after=found["next"]) if found["next"] else None
    return page.shown(
        "schedules_then.html", place="schedules", schedules=found["schedules"], as_of=as_of, following=following
    )


async def one(page: Page) -> Response:
    """One schedule: how it stands, its trigger, its next times, what was decided, and why; with a window, which past times would run."""
    name, asked = page.part("name"), page.request.query_params
    if not any(end in asked for end in _WANTED[:2]):
        return await _shown(page, name, {}, None)
    found = await page.own.post(f"{_path(name)}:backfill", _backfill(asked) | {"dry_run": True})
    typed = len(found["planned"]) > _TYPED
    return await _shown(page, name, asked, {"planned": found["planned"], "versions": found["versions"], "typed": typed})


async def pause(page: Page) -> Response:
    """Lets a schedule fire nothing, with a note why."""
    name, until = page.part("name"), page.form.get("until", "")
    body = {"note": page.form.get("note", "")} | ({"until": iso(instant_given("until", until))} if until else {})
    await page.own.post(f"{_path(name)}:pause", body, author=page.author)
    return page.goes(_place(name), "It is paused; what was launched ahead of its time is taken back.")


async def resume(page: Page) -> Response:
    """Lets a schedule fire again."""
    name = page.part("name")
    await page.own.post(f"{_path(name)}:resume", author=page.author)
    return page.goes(_place(name), "It fires again, from now on.")


async def run(page: Page) -> Response:
    """Launches a run at once, with the payload that was given, if any."""
    name, body = page.part("name"), dict[str, Any]()
    if page.form.get("payload", "").strip():
        try:
            body = {"payload": read_value(page.form["payload"])}
        except ValueError as error:
            raise ApiProblem(422, {"detail": f"The payload is no JSON: {str(error)[:200].rstrip('.')}."}) from None
    found = await page.own.post(f"{_path(name)}:run", body, author=page.author)
    return page.goes(f"/ui/tasks/{found['id']}", f"A run of {name} was launched: this is its task.")


async def backfill(page: Page) -> Response:
    """Runs past times as they were previewed."""
    name, wanted = page.part("name"), _backfill(page.form)
    count = len((await page.own.post(f"{_path(name)}:backfill", wanted | {"dry_run": True}))["planned"])
    if count > _TYPED and page.form.get("typed", "").strip() != str(count):
        problem = {
            "title": "Nothing was launched",
            "detail": f"These are {count} runs.",
            "hint": "Type their number to launch them.",
        }
        raise ApiProblem(409, problem)
    found = await page.own.post(f"{_path(name)}:backfill", wanted, author=page.author)
    what = "ranges of versions" if found["versions"] else "past times"
    words = f"{len(found['planned'])} {what} run now, beside what the schedule does by itself"
    return page.goes(
        _place(name), f"{words}; their tasks have the tag {found['tag']}." if found["tag"] else f"{words}."
    )


async def pause_backfill(page: Page) -> Response:
    """Launches no more of a backfill."""
    return await _steer_backfill(page, "pause", _PAUSED)


async def resume_backfill(page: Page) -> Response:
    """Lets a paused backfill go on."""
    return await _steer_backfill(page, "resume", "The backfill goes on with what it has left.")


async def cancel_backfill(page: Page) -> Response:
    """Runs nothing more of a backfill."""
    return await _steer_backfill(page, "cancel", _CANCELLED)


# -- below ----------------------------------------------------------------------------------------------------------------


async def _steer_backfill(page: Page, act: str, said: str) -> Response:
    name, number = page.part("name"), page.part("number")
    await page.own.post(f"{_path(name)}/backfills/{segment(number)}:{act}", author=page.author)
    return page.goes(_place(name), said)


def _path(name: str) -> str:
    return f"/v1/schedules/{segment(name)}"


def _place(name: str) -> str:
    return f"/ui/schedules/{segment(name)}"


def _backfill(form: Mapping[str, str]) -> dict[str, Any]:
    """The body that asks for a backfill."""
    running = whole_given("At once", form.get("max_running", "1"), "It is a number from 1 to 100.")
    return {
        "begin": _end_of("begin", form),
        "end": _end_of("end", form),
        "order": form.get("order", "oldest"),
        "max_running": running,
        "reprocess": form.get("reprocess", "none"),
    }


def _end_of(name: str, form: Mapping[str, str]) -> str | int:
    """Returns the begin or the end of a backfill: a version if it is a whole number, else an instant."""
    text = form.get(name, "").strip()
    is_version = text == "-1" or (text.isascii() and text.isdecimal() and len(text) < 16)
    return int(text) if is_version else iso(instant_given(name, text))


def _watches_a_table(trigger: Mapping[str, Any]) -> bool:
    of = trigger.get("of")
    return trigger["kind"] == "table" or (isinstance(of, list) and any(map(_watches_a_table, of)))


async def _shown(page: Page, name: str, wanted: Mapping[str, str], previewed: dict[str, Any] | None) -> Response:
    path, at = _path(name), page.asked("at")
    schedule = await page.own.get(path)
    when = iso(instant_given("at", at)) if at else None
    times, told, said, filled = await asyncio.gather(
        _times(page, path),
        page.own.get(f"{path}/fires", limit=_FIRES),
        page.own.get(f"{path}:explain", at=when),
        page.own.get(f"{path}/backfills"),
    )
    return page.shown(
        "schedule.html",
        place="schedules",
        schedule=schedule,
        times=times,
        fires=[_fire(row) for row in told["fires"]],
        backfills=filled["backfills"],
        complete=told["complete"],
        reasons=said["said"],
        at=when,
        previewed=previewed,
        watches_a_table=_watches_a_table(schedule["definition"]["trigger"]),
        wanted={name: wanted.get(name, "") for name in _WANTED},
        path=page.site.url(_place(name)),
        run_payload=visible_json(schedule["definition"].get("payload", {})),
        definition={name: value for name, value in schedule["definition"].items() if name != "name"},
    )


async def _times(page: Page, path: str) -> list[dict[str, Any]] | None:
    """The next planned times; None: it fires on what happens."""
    try:
        found = await page.own.get(f"{path}:next", count=_NEXT)
    except ApiProblem as problem:
        if problem.status != 422:
            raise
        return None
    times: list[dict[str, Any]] = found["times"]
    return times


def _fire(row: dict[str, Any]) -> dict[str, Any]:
    """A decision with what triggered it, in words: of a table the versions that the run owns."""
    values = row["values"] or {}
    if all(isinstance(values.get(name), int) for name in _VERSIONS):
        first, last = (values[name] for name in _VERSIONS)
        source = values.get("name") or values.get("table_id") or "the table"
        versions = f"version {last}" if last == first + 1 else f"versions {first + 1} to {last}"
        rows = f", {values['rows']:,} rows" if isinstance(values.get("rows"), int) else ""
        return row | {"cause": f"{versions} of {source}{rows}", "known": values}
    return row | {"cause": "", "known": values}


ROUTES: Final = (
    shows("/ui/schedules", look),
    shows("/ui/fires", fires),
    shows("/ui/schedules/{name}", one),
    acts("/ui/schedules/{name}/pause", pause),
    acts("/ui/schedules/{name}/resume", resume),
    acts("/ui/schedules/{name}/run", run),
    acts("/ui/schedules/{name}/backfill", backfill),
    acts("/ui/schedules/{name}/backfills/{number}/pause", pause_backfill),
    acts("/ui/schedules/{name}/backfills/{number}/resume", resume_backfill),
    acts("/ui/schedules/{name}/backfills/{number}/cancel", cancel_backfill),
)
