"""Routes of schedules as definitions: list, get, put, patch, delete, and whole sets of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import unquote

from fastapi import Body as JsonBody
from fastapi import Header, Path, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from scylla_spark.api import problems
from scylla_spark.api.context import Api, Asked, Body, Own, Routes, answer
from scylla_spark.api.revisions import ANY, ask, check
from scylla_spark.api.schedules.plan_mirror import StoredText, excerpt, outline
from scylla_spark.api.schedules.views import (
    ListedScheduleView,
    ScheduleView,
    etag_of,
    listed_schedule,
    schedule_view,
    unknown_calendars,
)
from scylla_spark.client.schedules import sets as schedule_sets
from scylla_spark.client.schedules.explanation import missing
from scylla_spark.client.schedules.files import definition_of
from scylla_spark.client.schedules.schedule import Schedule
from scylla_spark.client.schedules.selection import KINDS
from scylla_spark.clock import now_us
from scylla_spark.core.access.scopes import ALL_QUEUES, QueueBounds
from scylla_spark.core.plan.commands.definitions import text_of
from scylla_spark.core.plan.commands.removal import Loss, check_losses, losses
from scylla_spark.core.plan.schedule_state import quick_state, state_of
from scylla_spark.core.plan.state.plan_state import PlanState
from scylla_spark.core.plan.state.schedule_entry import Entry
from scylla_spark.errors import ArgumentError

routes = Routes()

Name = Annotated[
    str, Path(min_length=1, max_length=600, description="Name of the schedule, percent-encoded: %2F for a slash")
]
IfMatch = Annotated[str | None, Header(description="ETag of the version that is meant; * for whichever is stored")]
Author = Annotated[str, Query(max_length=1_024, description="Who asks; stands beside the change")]
Definition = Annotated[
    dict[str, Any],
    JsonBody(
        description="Fields as in the files of `schedule apply`: snake_case or camelCase, the trigger in full or in short",
        examples=[{"handler": "report", "cron": "0 2 * * *", "tz": "Europe/Berlin"}],
    ),
]
STEERS = (problems.NOT_JSON, problems.NOT_FOUND, problems.CONFLICT, problems.TIMED_OUT)
_WRITES = (problems.NOT_JSON, problems.CONFLICT, problems.CHANGED, problems.TIMED_OUT)


class SchedulesView(BaseModel):
    """Schedules by name."""

    schedules: list[ListedScheduleView]
    next: Annotated[str | None, Field(description="The `after` of the next page; null: there is none")]


class RemovalView(BaseModel):
    """The result of a deletion, or of its dry run, with the effects on other schedules."""

    name: str
    change: Literal["removed"]
    also: Annotated[
        dict[str, str], Field(description="Other schedules: changed, since they lost a branch, or removed with it")
    ]
    dry_run: bool


class ApplyBody(Body):
    """A set of schedules."""

    schedules: Annotated[list[dict[str, Any]], Field(max_length=10_000)]
    prune: Annotated[str | None, Field(description="An owner: what else of theirs is stored is removed")] = None
    only_new: Annotated[
        bool, Field(description="Those that are stored stay as they are; where they differ, their change is `kept`")
    ] = False
    dry_run: bool = False


class ChangesView(BaseModel):
    """The result for each schedule, or of a dry run."""

    changes: dict[str, str]
    dry_run: bool


class AppliedView(ChangesView):
    """The result for each schedule, or of a dry run, with warnings."""

    warnings: Annotated[list[str], Field(description="Handlers of the set that no dispatcher has")]


@routes.get("/v1/schedules", SchedulesView)
async def list_schedules(
    api: Asked,
    own: Own,
    state: Annotated[str | None, Query(pattern="^(active|paused|completed)$")] = None,
    tag: Annotated[str | None, Query(description="Only those with this tag")] = None,
    owner: Annotated[str | None, Query(description="Only those of this owner")] = None,
    kind: Annotated[str | None, Query(pattern=f"^({'|'.join(KINDS)})$", description="To what they listen")] = None,
    after: Annotated[str | None, Query(description="Only names after this one")] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1_000,
) -> Response:
    """List schedules by name, as the planner knows them now."""
    wanted = [key for key in (_key("tag", tag), _key("owner", owner)) if key]

    def fits(entry: Entry) -> bool:
        said = all(key in entry.keys for key in wanted) and (kind is None or _listens(entry, kind))
        return said and (after is None or entry.name > after) and (state is None or quick_state(entry) in (state, None))

    def look(plan: PlanState) -> tuple[list[StoredText], PlanState]:
        fitting = [entry for entry in plan.entries.values() if fits(entry)]
        unsure = [entry.name for entry in fitting if state is not None and quick_state(entry) is None]
        return [StoredText.of(entry) for entry in fitting], outline(plan, unsure)

    def made() -> Response:
        found, unsure = api.plan.ask(look)
        now = now_us()

        def is_so(name: str) -> bool:
            entry = unsure.entries.get(name)
            return entry is None or state_of(entry, unsure.calendars, now) == state

        names = list(islice((one.name for one in sorted(found) if one.is_of(own) and is_so(one.name)), limit + 1))
        plan = api.plan.ask(lambda plan: outline(plan, names[:limit]))
        entries = (entry for entry in plan.entries.values() if own.has(entry.schedule.work.queue))
        rows = [listed_schedule(entry, plan, now) for entry in entries]
        return answer({"schedules": rows, "next": names[limit - 1] if len(names) > limit else None})

    return await api.paged(limit, made)


@routes.get("/v1/schedules/{name}", ScheduleView, problems.NOT_FOUND)
def get_schedule(api: Asked, name: Name) -> Response:
    """Return the state and the definition of a schedule. The ETag is its version."""
    return _shown(api, name_of(name))


@routes.put("/v1/schedules/{name}", {200: ScheduleView, 201: ScheduleView}, problems.IF_MATCH_NEEDED, *_WRITES)
async def put_schedule(
    api: Asked, name: Name, definition: Definition, if_match: IfMatch = None, author: Author = ""
) -> Response:
    """Store a whole schedule. Omitted fields get their defaults.

    Replacing a different definition needs If-Match. A paused schedule stays paused.
    """
    plain = name_of(name)
    await api.handlers.fresh()
    return await api.planned(lambda: _put(api, plain, lambda _: definition, if_match, author, needs_match=True))


@routes.patch("/v1/schedules/{name}", ScheduleView, problems.NOT_FOUND, *_WRITES)
async def update_schedule(
    api: Asked, name: Name, fields: Definition, if_match: IfMatch = None, author: Author = ""
) -> Response:
    """Change some fields and keep the others (JSON merge patch, RFC 7396). `payload` and `where` are replaced as a whole."""
    plain = name_of(name)
    changed = _camel(fields)

    def patched(text: str | None) -> dict[str, Any]:
        if text is None:
            raise missing(plain)
        return _patched(json.loads(text), changed)

    await api.handlers.fresh()
    return await api.planned(lambda: _put(api, plain, patched, if_match, author, needs_match=False))


@routes.delete("/v1/schedules/{name}", RemovalView, problems.NOT_FOUND, *_WRITES)
async def delete_schedule(
    api: Asked,
    own: Own,
    name: Name,
    if_match: IfMatch = None,
    author: Author = "",
    dry_run: Annotated[bool, Query(description="Only say what would become of which")] = False,
) -> Response:
    """Delete a schedule. Its past runs stay in the tables. Schedules that wait for it by `after` lose that branch, or are deleted too.

    The answer is 409 if the caller may not change one of these others. Then nothing is changed.
    """
    plain = name_of(name)
    if dry_run:
        return await api.planned(lambda: _would_go(api, own, plain))
    return await api.planned(lambda: _deleted(api, own, plain, if_match, author))


@routes.post("/v1/schedules:apply", AppliedView, *_WRITES)
async def apply_schedules(api: Asked, wanted: ApplyBody, author: Author = "") -> Response:
    """Store a set of schedules. Unchanged schedules keep their state."""
    schedules = await api.planned(lambda: [Schedule.of(definition_of(one)) for one in wanted.schedules])

    def done() -> dict[str, str]:
        if wanted.dry_run:
            return api.plan.ask(
                lambda plan: schedule_sets.compared(plan, schedules, wanted.prune, only_new=wanted.only_new)
            )
        return schedule_sets.put(
            api.scheduler.connection.plan, schedules, wanted.prune, author, only_new=wanted.only_new
        )

    await api.handlers.fresh()
    changes = await api.planned(done)
    handlers = (one.handler for one in schedules if changes.get(one.name) != "kept")
    warnings = api.handlers.all_unknown(handlers)
    return answer({"changes": changes, "dry_run": wanted.dry_run, "warnings": warnings})


# -- below: names and versions ------------------------------------------------------------------------------------------


def name_of(text: str) -> str:
    """The name in a path.

    Raises:
        ArgumentError: it is not UTF-8.
    """
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise ArgumentError("The name is not UTF-8.", hint="Percent-encode it.") from None


def _patched(before: dict[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """A definition with some fields changed; keys of a payload or of an event's `where` belong together, so those are replaced."""
    trigger, payload = fields.get("trigger"), fields.get("payload")
    if isinstance(trigger, Mapping) and "kind" in trigger:
        del before["trigger"]  # of another kind nothing can stay
    elif isinstance(trigger, Mapping) and "where" in trigger:
        before["trigger"].pop("where", None)
    found: dict[str, Any] = merged(before, fields)
    return found if payload is None else found | {"payload": payload}


def merged(before: Any, patch: Any) -> Any:
    """A JSON merge patch (RFC 7396) applied."""
    if not isinstance(patch, Mapping):
        return patch
    found = dict(before) if isinstance(before, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = merged(found.get(name), value)
    return found


class _Stored(NamedTuple):
    """The definition that the planner has (None: there is none), and its version."""

    text: str | None
    etag: str
    changed_us: int

    def check(self, name: str, if_match: str | None, *, needs_match: bool) -> None:
        """Returns if the client means this version.

        Args:
            name: of the schedule.
            if_match: as the client sent it.
            needs_match: where one is stored, the client must say which it means.

        Raises:
            Problem: another version is stored, or which is meant is not said.
        """
        there = self.text is not None
        check(f"schedule {name!r}", self.etag, if_match, stored=there, needs_match=needs_match)


def _put(
    api: Api, name: str, make: Callable[[str | None], Any], if_match: str | None, author: str, *, needs_match: bool
) -> Response:
    stored = _stored(api, name)
    definition = definition_of({"name": name} | make(stored.text))
    if definition.get("name") != name:
        raise ArgumentError(f"The definition has another name than the path: {name!r}.", hint="Omit `name`.")
    schedule = Schedule.of(definition)
    if needs_match and stored.text == text_of(schedule.definition):
        return _shown(api, name)  # a PUT that is repeated, perhaps since its answer got lost
    stored.check(name, if_match, needs_match=needs_match)
    done = ask(api, "put", expect={name: stored.changed_us}, schedules=[schedule.definition], author=author or None)
    return _shown(api, name, 201 if done[name] == "added" else 200)


def _deleted(api: Api, own: QueueBounds, name: str, if_match: str | None, author: str) -> Response:
    stored = _stored(api, name)
    stored.check(name, if_match, needs_match=False)
    if stored.text is None:
        raise missing(name)
    expect = {name: stored.changed_us} if if_match not in (None, ANY) else None
    if own != ALL_QUEUES:
        losses_of(api, own, [name])  # the planner checks it too, but the kind of its conflicts is not known here
    done = ask(api, "delete", expect=expect, names=[name], bounds=own.to_wire(), author=author or None)
    return answer(_removal(name, {other: became for other, became in done.items() if other != name}))


def _would_go(api: Api, own: QueueBounds, name: str) -> Response:
    if _stored(api, name).text is None:
        raise missing(name)
    also = {other: loss.becomes for other, loss in losses_of(api, own, [name]).items()}
    return answer(_removal(name, also, dry_run=True))


def losses_of(api: Api, own: QueueBounds, names: Sequence[str]) -> dict[str, Loss]:
    """Returns the effects on other schedules when some are deleted.

    Args:
        api: to ask through.
        own: queues of the caller.
        names: of the schedules that would go.

    Raises:
        ConflictError: the caller may not change one of the others.
    """

    def look(plan: PlanState) -> dict[str, Loss]:
        check_losses(plan.entries, names, own)
        return losses(plan.entries, names)

    return api.plan.ask(look)


def _removal(name: str, also: Mapping[str, str], *, dry_run: bool = False) -> dict[str, Any]:
    return {"name": name, "change": "removed", "also": also, "dry_run": dry_run}


def _stored(api: Api, name: str) -> _Stored:
    def look(plan: PlanState) -> _Stored:
        entry = plan.entries.get(name)
        if entry is None:
            return _Stored(None, etag_of(None), 0)
        return _Stored(entry.text, etag_of(entry), entry.changed_us)

    return api.plan.ask(look)


def _shown(api: Api, name: str, status: int = 200) -> Response:
    plan = api.plan.ask(lambda plan: excerpt(plan, name))
    entry = plan.entries.get(name)
    if entry is None:
        raise missing(name)
    unknown = api.handlers.unknown(entry.handler)
    warnings = [*unknown_calendars(entry, plan), *([unknown] if unknown is not None else [])]
    view = schedule_view(entry, plan, now_us()) | {"warnings": warnings}
    return answer(view, status, {"ETag": etag_of(entry)})


def _key(kind: str, value: str | None) -> str:
    return f"{kind}:{value}" if value is not None else ""


def _listens(entry: Entry, kind: str) -> bool:
    return any(key.startswith(KINDS[kind]) for key in entry.keys)


def _camel(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A patch in the names of stored definitions; a trigger in short replaces the stored one."""
    from scylla_spark.client.schedules.trigger_shorthand import BY_KEY, OPTIONS, camel, trigger_of

    named = {camel(name): value for name, value in fields.items()}
    short = {name: named.pop(name) for name in list(named) if name in BY_KEY or name in OPTIONS}
    if short and "trigger" in named:
        raise ArgumentError("The trigger is given twice.", hint="Write `trigger`, or the short form.")
    return named | ({"trigger": trigger_of(short)} if short else {})
