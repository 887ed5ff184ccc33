"""The screen Tasks: a list by filter, what is done to all that a filter chooses, and the form that enqueues one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import Response

from scylla_spark.dashboard.own_api import ApiProblem
from scylla_spark.dashboard.page_request import Page, acts, shows, within
from scylla_spark.dashboard.payload_form import (
    are_all_known,
    as_sent,
    fields_of,
    fields_sent,
    filled,
    read_payload,
    read_value,
)
from scylla_spark.dashboard.request_values import instant_text
from scylla_spark.dashboard.value_texts import count_text, segment

PAGE_ROWS: Final = 50
PREVIEW_ROWS: Final = 10
TYPED_ABOVE: Final = 100
"""Whoever acts on more tasks than this types their number."""
_ACTS: Final = {
    "cancel": (
        "Cancel",
        "state:open",
        "ends them without running them again",
        "It can be undone: what is cancelled can be enqueued once more, as copies under new keys. What runs by then goes on.",
    ),
    "retry": (
        "Retry",
        "state:ended",
        "enqueues a copy of each that is due now",
        "It cannot be undone: the copies begin at once. Those that still wait can be cancelled one by one.",
    ),
    "restore": (
        "Restore",
        "state:cancelled",
        "enqueues each that was cancelled once more, at its own time or now where that has passed",
        "Done twice, it makes two copies.",
    ),
}
_SHORTCUTS: Final = (
    ("open", "state:open"),
    ("overdue", "state:ready"),
    ("running", "state:running"),
    ("waiting to retry", "state:retry_wait"),
    ("failed today", "state:failed ended:>-24h"),
    ("late by 5 min", "late:>5m"),
    ("next hour", "state:scheduled scheduled:<+1h"),
)
CHOSEN: Final = (("cancel", "Cancel"), ("retry", "Retry"), ("run_now", "Run now"))
"""The actions on selected tasks: the operation and the label of each."""
_DONE: Final = {"cancel": "A cancel was sent for", "retry": "Copies were enqueued of", "run_now": "Run now:"}
_CHOSEN: Final = "task."
_TEXTS: Final = ("handler", "queue", "ordering_id", "uniqueness_key", "delay", "timeout", "expires", "unique")
_MORE: Final = ("tags", "expires", "unique", "max_retries", "retry_base", "retry_cap")
"""Fields of the form that are folded away until somebody wants them."""
_FOR_EVER: Final = "ever"
_UNTOLD: Final = (
    "No dispatcher tells by now that the handler takes these fields; nothing was enqueued, and what was typed is kept."
)

_ALIKE: Final = ("handler", "queue", "ordering_id", "priority", "timeout", "expires", "unique")


async def look(page: Page) -> Response:
    """The tasks that a filter chooses, a page at a time."""
    wanted, as_of = page.asked("filter"), page.asked("as_of")
    tasks: dict[str, Any] = {"tasks": [], "next": None}
    matched, why, status = None, "", 200
    try:
        tasks = await page.own.get(
            "/v1/tasks", filter=wanted, limit=PAGE_ROWS, cursor=page.asked("cursor"), as_of=as_of
        )
        matched = (await page.own.get("/v1/tasks:count", filter=wanted, as_of=as_of))["matched"]
    except ApiProblem as problem:
        if problem.status != 422:
            raise
        why, status = problem.sentence, 422
    return page.shown(
        "tasks.html",
        status,
        place="tasks",
        wanted=wanted,
        as_of=as_of,
        found=tasks,
        matched=matched,
        why=why,
        shortcuts=_SHORTCUTS,
        cursor=page.asked("cursor"),
        undo=page.asked("undo"),
        chosen_acts=CHOSEN,
        grammar=page.site.grammar,
    )


# -- those that are chosen ------------------------------------------------------------------------------------------------


async def act_on_chosen(page: Page) -> Response:
    """Does something with each task of a page that was chosen, and says of how many it was done."""
    act, ids = page.form.get("act", ""), [id for name, id in page.form.items() if name.startswith(_CHOSEN)]
    if act not in dict(CHOSEN):
        raise ApiProblem(
            404, {"title": "There is no such act", "detail": "Chosen tasks can be cancelled, retried or run now."}
        )
    if not ids:
        raise ApiProblem(
            400, {"title": "No task is chosen", "detail": "Nothing was done.", "hint": "Choose some by their boxes."}
        )
    problems = await asyncio.gather(*(_acted(page, act, id) for id in ids[:PAGE_ROWS]))
    wrong = [one for one in problems if one]
    count = f"{count_text(len(problems) - len(wrong))} of {count_text(len(problems))} chosen tasks"
    done = f"{_DONE[act]} {count}; the lists show it within seconds."
    why = f" Not the others: {wrong[0]}" if wrong else ""
    place = within("/ui/tasks", filter=page.form.get("filter"), cursor=page.form.get("cursor"))
    return page.goes(place, done + why)


async def _acted(page: Page, act: str, id: str) -> str:
    """Does something with a task; why it could not be done, or nothing.

    Raises:
        ApiProblem: who asks is not known any more.
    """
    try:
        await page.own.post(f"/v1/tasks/{segment(id)}:{act}")
    except ApiProblem as problem:
        if problem.status == 401:
            raise
        return problem.sentence
    return ""


# -- all that a filter chooses --------------------------------------------------------------------------------------------


async def preview(page: Page) -> Response:
    """Shows a preview of an action on all tasks of a filter: their number and the first of them."""
    return await _previewed(page, page.asked("act"), page.asked("filter"))


async def act(page: Page) -> Response:
    """Does it, if it still is what was looked at."""
    name, wanted = _known(page.form.get("act", "")), page.form.get("filter", "")
    counted = await page.own.post(f"/v1/tasks:{name}", filter=wanted, dry_run=True)
    if str(counted["matched"]) != page.form.get("matched"):
        return await _previewed(page, name, wanted, "It has become another number meanwhile. Nothing was done yet.")
    if counted["matched"] > TYPED_ABOVE and page.form.get("typed", "").strip() != str(counted["matched"]):
        return await _previewed(page, name, wanted, f"Type {counted['matched']} to confirm. Nothing was done yet.")
    done = await page.own.post(f"/v1/tasks:{name}", filter=wanted)
    said = f"{_ACTS[name][0]} was sent for {count_text(done['sent'])} tasks; the lists show it within seconds."
    return page.goes(within("/ui/tasks", filter=wanted, undo=done["undo"]), said)


async def _previewed(page: Page, act: str, wanted: str, why: str = "") -> Response:
    name = _known(act)
    counted = await page.own.post(f"/v1/tasks:{name}", filter=wanted, dry_run=True)
    label, states, meaning, undoing = _ACTS[name]
    first = await page.own.get("/v1/tasks", filter=wanted, limit=10 * PREVIEW_ROWS)
    meant = states.removeprefix("state:")
    rows = [one for one in first["tasks"] if meant in (one["state"], "ended" if one["ended_at"] else "open")][
        :PREVIEW_ROWS
    ]
    return page.shown(
        "bulk.html",
        409 if why else 200,
        place="tasks",
        act=name,
        label=label,
        meaning=meaning,
        undoing=undoing,
        wanted=wanted,
        rows=rows,
        matched=counted["matched"],
        typed=counted["matched"] > TYPED_ABOVE,
        why=why,
    )


def _known(act: str) -> str:
    if act not in _ACTS:
        raise ApiProblem(
            404, {"title": "There is no such act", "detail": "A filter can be cancelled, retried or restored."}
        )
    return act


# -- a new one ------------------------------------------------------------------------------------------------------------


async def new(page: Page) -> Response:
    """The form of a task; the query may fill it in, or name a task that it is to be like.

    Where a dispatcher tells of the handler's payload, there is a field for each part.
    """
    return await _form(page, await _given(page))


async def _given(page: Page) -> dict[str, str]:
    """Returns the initial values of the form. The address names another task only by its id, because a payload would be too long."""
    given = dict(page.request.query_params)
    if like := given.pop("like", ""):
        task = await page.own.get(f"/v1/tasks/{segment(like)}")
        given = _alike(task) | given
    return given


def _alike(task: Mapping[str, Any]) -> dict[str, str]:
    """The fields of the form that make a task like another one, under a new key, unless it is unique by its name."""
    named = ("uniqueness_key",) if task["unique"] else ()
    fields = {name: task[name] for name in (*_ALIKE, *named)}
    if (retry := task["retry"]) is not None:
        most = {None: _FOR_EVER, "inherited": ""}.get(retry["max_retries"], retry["max_retries"])
        fields |= {"max_retries": most, "retry_base": retry["base"] or "", "retry_cap": retry["cap"] or ""}
    texts = {"payload": json.dumps(task["payload"], ensure_ascii=False), "tags": "\n".join(task["tags"])}
    return {name: str(value) for name, value in fields.items() if value is not None} | texts


async def enqueue(page: Page) -> Response:
    """Enqueues it, and shows it."""
    wrong: Mapping[str, str] = {}
    try:
        body = _body(page.form)
        if page.form.get("typed"):
            parts = fields_of(await _schema(page, page.form.get("handler", "")))
            if parts is None or not are_all_known(parts, page.form):
                return await _form(page, dict(page.form), _UNTOLD)
            body["payload"], wrong = read_payload(as_sent(parts, page.form), page.form)
        if wrong:
            return await _form(page, dict(page.form), "Some fields of the payload cannot be taken.", wrong)
        accepted = await page.own.post("/v1/tasks", body, wait="none")
    except ApiProblem as problem:
        if problem.status not in (400, 422):
            raise
        return await _form(page, dict(page.form), problem.sentence, wrong)
    return page.goes(f"/ui/tasks/{accepted['id']}", "The task was enqueued.", accepted["warning"])


async def _form(page: Page, given: dict[str, str], why: str = "", wrong: Mapping[str, str] | None = None) -> Response:
    """The form with what was given; by the schema of the handler, unless JSON is asked for or nobody tells of one.

    What was typed by a schema of which nobody tells any more stays, too.
    """
    try:
        known = {one["name"]: one for one in (await page.own.get("/v1/handlers"))["handlers"]}
    except ApiProblem:
        known = {}  # who may not look at them, or cannot now, writes JSON
    chosen = known.get(given.get("handler", ""))
    parts = fields_of(chosen["payload"]) if chosen is not None and not given.get("raw") else None
    parts, shown = (filled(parts, given) if parts is not None else None) or (None, given)
    if given.get("typed") and (parts is None or not are_all_known(parts, given)):
        parts = fields_sent(given)
    return page.shown(
        "enqueue.html",
        422 if why else 200,
        place="tasks",
        given=shown,
        why=why,
        wrong=wrong or {},
        parts_of=parts,
        names=sorted(known),
        chosen=chosen,
        more_given=any(given.get(name) for name in _MORE),
    )


async def _schema(page: Page, handler: str) -> Any:
    try:
        return (await page.own.get(f"/v1/handlers/{segment(handler)}"))["payload"] if handler else None
    except ApiProblem:
        return None


def _body(form: Any) -> dict[str, Any]:
    """Returns the request body for the filled fields.

    Raises:
        ApiProblem: a field cannot be read.
    """
    body: dict[str, Any] = {name: form[name] for name in _TEXTS if form.get(name)}
    try:
        if form.get("payload", "").strip() and not form.get("typed"):
            body["payload"] = read_value(form["payload"])
        if form.get("priority"):
            body["priority"] = int(form["priority"])
        body |= _retry(form)
    except ValueError as error:
        raise ApiProblem(
            422, {"detail": f"The payload is JSON, priority and retries are numbers: {str(error)[:200].rstrip('.')}."}
        ) from None
    if tags := [line.strip() for line in form.get("tags", "").split("\n") if line.strip()]:
        body["tags"] = tags
    if form.get("scheduled_time"):
        body["scheduled_time"] = instant_text("Due at", form["scheduled_time"])
    return body


def _retry(form: Any) -> dict[str, Any]:
    """Returns the retry policy of the form; empty: that of the handler.

    Raises:
        ValueError: their number is none.
    """
    most = form.get("max_retries", "").strip()
    number = {"max_retries": None if most == _FOR_EVER else int(most)} if most else {}
    waits = {name: form[f"retry_{name}"] for name in ("base", "cap") if form.get(f"retry_{name}")}
    return {"retry": number | waits} if number or waits else {}


ROUTES: Final = (
    shows("/ui/tasks", look),
    shows("/ui/tasks:bulk", preview),
    acts("/ui/tasks:bulk", act),
    acts("/ui/tasks:chosen", act_on_chosen),
    shows("/ui/tasks:new", new),
    acts("/ui/tasks:new", enqueue),
)
