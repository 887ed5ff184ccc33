"""The screen System: are processes, workers, topics and tables in order? Who did what, and what was refused?"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import Response

from scylla_spark.clock import iso
from scylla_spark.dashboard.own_api import ApiProblem
from scylla_spark.dashboard.page_request import Page, acts, shows
from scylla_spark.dashboard.request_values import instant_given, number_given
from scylla_spark.dashboard.value_texts import segment

TABS: Final = (
    ("system", "Processes"),
    ("system/tables", "Tables and ingest"),
    ("system/rejected", "Rejected records"),
    ("system/audit", "Audit"),
    ("system/tokens", "Tokens"),
)
SCOPES: Final = ("read", "tasks:write", "lease", "schedules:write", "queues:write", "admin")
"""Those for all queues; of single ones they are typed."""
DAY_US: Final = 86_400_000_000
_COMMITS: Final = 40
_REFUSED: Final = 100
_ENTRIES: Final = 100
_TYPED: Final = 100  # more records than this are sent again only by who types their number
_FOLLOWED: Final = ("tasks_behind", "outcomes_behind")


async def processes(page: Page) -> Response:
    """Dispatchers with their partitions and epochs, workers with their leases, and how far the tables are behind."""
    told, (workers, silent), (spark, spark_silent) = await asyncio.gather(
        page.own.get("/v1/system/partitions"), _if_told(page, "/v1/workers"), _if_told(page, "/v1/spark-workers")
    )
    partitions = told["partitions"]
    return page.shown(
        "system.html",
        place="system",
        tab="system",
        tabs=TABS,
        partitions=partitions,
        unreachable=told["unreachable"],
        dispatchers=_dispatchers(partitions),
        behind=_behind(partitions),
        workers=[_worker(one) for one in workers or ()],
        silent=silent,
        spark=spark or {"workers": [], "missing": []},
        spark_silent=spark_silent,
    )


async def tables(page: Page) -> Response:
    """Shows the tables and their newest commits by phase."""
    sizes, told = await asyncio.gather(
        page.own.get("/v1/system/tables"), page.own.get("/v1/system/commits", limit=_COMMITS)
    )
    return page.shown(
        "system_tables.html",
        place="system",
        tab="system/tables",
        tabs=TABS,
        tables=sizes["tables"],
        commits=[_commit(one) for one in told["commits"]],
    )


async def rejected(page: Page) -> Response:
    """Rejected records, the newest first; with `preview` also what sending them again would do."""
    asked = page.request.query_params
    if not asked.get("preview"):
        return await _refused(page, asked, None)
    found = await page.own.post("/v1/rejected:replay", **_replay(asked), dry_run=True)
    return await _refused(page, asked, found | {"typed": found["matched"] - found["refused_again"] > _TYPED})


async def replay(page: Page) -> Response:
    """Sends refused records again."""
    wanted = _replay(page.form)
    counted = await page.own.post("/v1/rejected:replay", **wanted, dry_run=True)
    good = counted["matched"] - counted["refused_again"]
    if good > _TYPED and page.form.get("typed", "").strip() != str(good):
        problem = {
            "title": "Nothing was sent",
            "detail": f"These are {good} records.",
            "hint": "Type their number to send them.",
        }
        raise ApiProblem(409, problem)
    found = await page.own.post("/v1/rejected:replay", **wanted)
    return page.goes(
        "/ui/system/rejected",
        f"{found['sent']} records were sent again; {found['refused_again']} would be rejected again.",
    )


async def audit(page: Page) -> Response:
    """Changes over HTTP, and refused requests."""
    asked = {name: page.asked(name) for name in ("token", "operation")}
    before = page.asked("before")
    found = await page.own.get(
        "/v1/audit", **asked, before=iso(instant_given("before", before)) if before else None, limit=_ENTRIES
    )
    entries = found["entries"]
    older = page.site.url("/ui/system/audit", **asked, before=entries[-1]["at"]) if len(entries) == _ENTRIES else None
    return page.shown(
        "system_audit.html", place="system", tab="system/audit", tabs=TABS, entries=entries, asked=asked, older=older
    )


async def tokens(page: Page) -> Response:
    """Shows the tokens of the API."""
    return await _tokens(page)


async def create_token(page: Page) -> Response:
    """Makes a token; this one page shows it, and no other ever does, so there is nowhere to go to from here."""
    days = page.form.get("days", "").strip()
    body = {
        "name": page.form.get("name", ""),
        "namespaces": page.form.get("namespaces", "").split(),
        "scopes": [name for name in SCOPES if page.form.get(f"scope.{name}")] + page.form.get("scopes", "").split(),
    }
    if days:
        if not (days.isascii() and days.isdigit() and 0 < len(days) < 6):
            return await _tokens(page, why="The number of days is none.")
        body["expires_at"] = iso(page.now + int(days) * DAY_US)
    try:
        made = await page.own.post("/v1/tokens", body, author=page.author)
    except ApiProblem as problem:
        if problem.status != 422:
            raise
        return await _tokens(page, why=problem.sentence)
    return page.shown("system_token_made.html", place="system", tab="system/tokens", tabs=TABS, made=made)


async def revoke_token(page: Page) -> Response:
    """Makes a token worthless for ever."""
    id = page.form.get("id", "")
    await page.own.send("DELETE", f"/v1/tokens/{segment(id)}", author=page.author)
    return page.goes(
        "/ui/system/tokens", f"The token {id} is worth nothing from now on; all processes obey within five seconds."
    )


async def _tokens(page: Page, why: str = "") -> Response:
    found = await page.own.get("/v1/tokens")
    return page.shown(
        "system_tokens.html",
        422 if why else 200,
        place="system",
        tab="system/tokens",
        tabs=TABS,
        tokens=found["tokens"],
        scopes=SCOPES,
        given=page.form,
        why=why,
    )


# -- below ----------------------------------------------------------------------------------------------------------------


async def _if_told(page: Page, path: str) -> tuple[Any, str]:
    """Returns the answer of an operation, or its error, so that one failing part does not hide the others."""
    try:
        return await page.own.get(path), ""
    except ApiProblem as problem:
        if problem.status in (401, 403):
            raise
        return None, problem.sentence


def _dispatchers(partitions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the dispatchers by address, with their partitions, epochs and tasks."""
    owned: dict[str, list[dict[str, Any]]] = {}
    for one in partitions:
        if one["owner"]:
            owned.setdefault(one["owner"], []).append(one)
    return [
        {
            "address": address,
            "partitions": [one["partition"] for one in some],
            "answers": any(one["state"] for one in some),
            "epochs": sorted({one["epoch"] for one in some if one["epoch"] is not None}),
        }
        | {name: sum(one[name] or 0 for one in some) for name in ("lanes", "loaded", "in_flight")}
        for address, some in sorted(owned.items())
    ]


def _behind(partitions: list[dict[str, Any]]) -> dict[str, int | None]:
    """Returns the number of records of each topic that are not in the tables yet. None: not known."""
    return {
        name: None if any(one[name] is None for one in partitions) else sum(one[name] for one in partitions)
        for name in _FOLLOWED
    }


def _worker(one: dict[str, Any]) -> dict[str, Any]:
    about = one["about"] if isinstance(one["about"], dict) else {}
    return one | {"details": about}


def _commit(one: dict[str, Any]) -> dict[str, Any]:
    """A commit with the share of each phase in the longest one, for the bars."""
    phases = one["phases"]
    known = sum(phases.values())
    rest = max((one["ms"] or 0) - known, 0)
    parts = [(name, ms) for name, ms in (*phases.items(), ("rest", rest if phases else one["ms"] or 0)) if ms]
    whole = sum(ms for _, ms in parts) or 1
    return one | {"parts": [(name, ms, round(100 * ms / whole, 1)) for name, ms in parts]}


def _replay(given: Mapping[str, str]) -> dict[str, Any]:
    """The parameters of a replay."""
    since = given.get("since", "")
    return {
        "reason": given.get("reason", ""),
        "since": iso(instant_given("since", since)) if since else None,
        "limit": number_given(given.get("limit", "")) or _REFUSED,
        "now": given.get("now") == "yes",
    }


async def _refused(page: Page, given: Mapping[str, str], previewed: dict[str, Any] | None) -> Response:
    wanted = _replay(given)
    found = await page.own.get("/v1/rejected", reason=wanted["reason"], since=wanted["since"], limit=_REFUSED)
    return page.shown(
        "system_rejected.html",
        place="system",
        tab="system/rejected",
        tabs=TABS,
        rows=found["rejected"],
        wanted=wanted,
        previewed=previewed,
        full=len(found["rejected"]) == _REFUSED,
        reasons=sorted({one["reason"] for one in found["rejected"]}),
    )


ROUTES: Final = (
    shows("/ui/system", processes),
    shows("/ui/system/tables", tables),
    shows("/ui/system/rejected", rejected),
    acts("/ui/system/rejected/replay", replay),
    shows("/ui/system/audit", audit),
    shows("/ui/system/tokens", tokens),
    acts("/ui/system/tokens/create", create_token),
    acts("/ui/system/tokens/revoke", revoke_token),
)
