"""Routes of notification rules: who is told of what, and what they have told of."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field
from starlette.responses import Response

from scylla_spark.api import problems
from scylla_spark.api.context import Asked, Routes, answer
from scylla_spark.api.schedules.definitions import name_of
from scylla_spark.api.stored_definitions import DefinitionView, Kind, Name, add_routes, schema_of
from scylla_spark.client.notification_rules import send_test, statuses
from scylla_spark.core.tasks.key import id_of
from scylla_spark.definitions.notification_rule import NotificationRule

routes = Routes()


class OpenView(BaseModel):
    """Something that a rule has told of and that is not over."""

    event: str
    subject: Annotated[str, Field(description="The work: a schedule, or a queue and a handler")]
    since: str
    last: str
    count: int
    dedup_key: Annotated[str, Field(description="The same in all messages about it")]


class RuleView(DefinitionView):
    """A notification rule that is stored."""

    fields: Annotated[dict[str, Any], schema_of(NotificationRule, "All fields, defaults included")]
    open: list[OpenView]
    unknown_tags: Annotated[
        list[str],
        Field(description="Of its `tags` those that no schedule has now; tasks may have them"),
    ]


class RulesView(BaseModel):
    """All notification rules, by name."""

    rules: list[RuleView]


class RuleTestView(BaseModel):
    """The task that carries the message of a test."""

    name: str
    id: Annotated[str, Field(description="Of the task: GET /v1/tasks/{id}/result waits until the message has arrived")]
    key: str


add_routes(
    routes,
    Kind(
        path="/v1/notifications/rules",
        model=NotificationRule,
        view=RuleView,
        all=RulesView,
        stored=lambda plan: plan.notices.rules,
        statuses=lambda api, plan, only: statuses(plan),
        example={"when": ["failed"], "channel": "ops", "queues": ["mail*"], "digest": "5m"},
    ),
)


@routes.post("/v1/notifications/rules/{name}:test", {202: RuleTestView}, problems.NOT_FOUND)
async def test_notification_rule(api: Asked, name: Name) -> Response:
    """Send a test message to the channel of a rule."""
    plain = name_of(name)

    def done() -> Response:
        key = send_test(api.scheduler.connection.plan, plain)
        return answer({"name": plain, "id": id_of(key), "key": str(key)}, 202)

    return await api.planned(done)
