"""Routes of notification rules: who is told of what, and what they have told of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import Body as JsonBody
from fastapi import Path
from pydantic import BaseModel, Field
from starlette.responses import Response

from scylla_spark.api import problems
from scylla_spark.api.context import Api, Asked, Routes, answer
from scylla_spark.api.revisions import ANY, ask, check, etag
from scylla_spark.api.schedules.definitions import Author, IfMatch, name_of
from scylla_spark.client.notification_rules import NotificationRule, RuleStatus, send_test, status, statuses
from scylla_spark.core.notifications.rule import read_rule
from scylla_spark.core.plan.state.stored_definition import StoredDefinition
from scylla_spark.core.tasks.key import id_of
from scylla_spark.errors import ArgumentError

routes = Routes()

Name = Annotated[
    str, Path(min_length=1, max_length=600, description="Name of the rule, percent-encoded: %2F for a slash")
]
Fields = Annotated[
    dict[str, Any],
    JsonBody(
        description="A whole rule; what is left out is at its default",
        examples=[{"when": ["failed"], "channel": "ops", "queues": ["mail*"], "digest": "5m"}],
    ),
]
_WRITES = (problems.NOT_JSON, problems.NOT_FOUND, problems.CONFLICT, problems.CHANGED)


class OpenView(BaseModel):
    """Something that a rule has told of and that is not over."""

    event: str
    subject: Annotated[str, Field(description="The work: a schedule, or a queue and a handler")]
    since: datetime
    last: datetime
    count: int
    dedup_key: Annotated[str, Field(description="The same in all messages about it")]


class RuleView(BaseModel):
    """A notification rule that is stored."""

    name: str
    revision: int
    etag: str
    author: str
    changed_at: datetime
    fields: Annotated[dict[str, Any], Field(description="All fields, defaults included")]
    definition: Annotated[dict[str, Any], Field(description="As it was put")]
    open: list[OpenView]
    unknown_tags: Annotated[
        list[str],
        Field(description="Of its `tags` those that no schedule has now: they are of schedules, never of tasks"),
    ]


class RulesView(BaseModel):
    """All notification rules, by name."""

    rules: list[RuleView]


class RuleDeletedView(BaseModel):
    """A rule that was forgotten."""

    name: str
    change: Literal["removed"]


class RuleTestView(BaseModel):
    """The task that carries the message of a test."""

    name: str
    id: Annotated[str, Field(description="Of the task: GET /v1/tasks/{id}/result waits until the message has arrived")]
    key: str


@routes.get("/v1/notifications/rules", RulesView)
def list_notification_rules(api: Asked) -> Response:
    """List all stored rules, with the open problems that each has reported."""
    return answer({"rules": [_view(one) for one in api.plan.ask(statuses).values()]})


@routes.get("/v1/notifications/rules/{name}", RuleView, problems.NOT_FOUND)
def get_notification_rule(api: Asked, name: Name) -> Response:
    """Return one rule. The ETag is its revision."""
    return _shown(api, name_of(name))


@routes.put("/v1/notifications/rules/{name}", {200: RuleView, 201: RuleView}, problems.IF_MATCH_NEEDED, *_WRITES)
async def put_notification_rule(
    api: Asked, name: Name, fields: Fields, if_match: IfMatch = None, author: Author = ""
) -> Response:
    """Store a whole rule. It starts without open problems. Replacing a different rule needs If-Match."""
    plain = name_of(name)

    def done() -> Response:
        rule = NotificationRule.of(_named(plain, fields))
        stored = api.plan.ask(lambda plan: plan.notices.rules.get(plain))
        if stored is not None and read_rule(json.loads(stored.text)) == read_rule(rule.definition):
            return _shown(api, plain)  # a PUT that is repeated, perhaps since its answer got lost
        revision = _checked(plain, stored, if_match, needs_match=True)
        done = ask(api, "put_rule", rules=[rule.definition], expect={plain: revision}, author=author or None)
        return _shown(api, plain, 201 if done[plain]["became"] == "added" else 200)

    return await api.planned(done)


@routes.delete("/v1/notifications/rules/{name}", RuleDeletedView, *_WRITES)
async def delete_notification_rule(api: Asked, name: Name, if_match: IfMatch = None, author: Author = "") -> Response:
    """Delete a rule and its open problems."""
    plain = name_of(name)

    def done() -> Response:
        stored = api.plan.ask(lambda plan: plan.notices.rules.get(plain))
        revision = _checked(plain, stored, if_match, needs_match=False)
        expect = {plain: revision} if if_match not in (None, ANY) else None
        ask(api, "delete_rule", names=[plain], expect=expect, author=author or None)
        return answer({"name": plain, "change": "removed"})

    return await api.planned(done)


@routes.post("/v1/notifications/rules/{name}:test", {202: RuleTestView}, problems.NOT_FOUND)
async def test_notification_rule(api: Asked, name: Name) -> Response:
    """Send a test message to the channel of a rule."""
    plain = name_of(name)

    def done() -> Response:
        key = send_test(api.scheduler.connection.plan, plain)
        return answer({"name": plain, "id": id_of(key), "key": str(key)}, 202)

    return await api.planned(done)


def _named(name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    if fields.get("name", name) != name:
        raise ArgumentError(f"The rule has another name than the path: {name!r}.", hint="Omit `name`.")
    return {**fields, "name": name}


def _checked(name: str, stored: StoredDefinition | None, if_match: str | None, *, needs_match: bool) -> int:
    """The revision that is stored; 0: none.

    Raises:
        Problem: another is stored, or which is meant is not said.
    """
    revision = stored.revision if stored is not None else 0
    check(f"notification rule {name!r}", etag(revision), if_match, stored=revision > 0, needs_match=needs_match)
    return revision


def _shown(api: Api, name: str, code: int = 200) -> Response:
    found = api.plan.ask(lambda plan: status(plan, name))
    return answer(_view(found), code, {"ETag": etag(found.revision)})


def _view(one: RuleStatus) -> dict[str, Any]:
    return one._asdict() | {"etag": etag(one.revision)}
