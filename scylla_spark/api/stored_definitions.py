"""Routes of stored definitions, the same for every kind: list, get, put and delete. A new kind is a `Kind` and a call of `add_routes`.

Annotations are evaluated here, since FastAPI needs those that are made for a kind.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final

from fastapi import Body as JsonBody
from fastapi import Path, Query
from pydantic import BaseModel, Field, WithJsonSchema
from starlette.responses import Response

from scylla_spark.api import problems
from scylla_spark.api.context import Api, Asked, F, Own, Routes, answer
from scylla_spark.api.revisions import ANY, ask, check, etag
from scylla_spark.api.schedules.definitions import Author, IfMatch, name_of
from scylla_spark.client.stored_definitions import DefinitionStatus
from scylla_spark.clock import iso_of
from scylla_spark.core.access.scopes import QueueBounds
from scylla_spark.core.plan.state.plan_state import PlanState
from scylla_spark.core.plan.state.stored_definition import StoredDefinition, StoredDefinitions
from scylla_spark.definitions.definition import Definition
from scylla_spark.errors import ArgumentError, NotFoundError

Name = Annotated[str, Path(min_length=1, max_length=600, description="Its name, percent-encoded: %2F for a slash")]
Unset = Annotated[list[str] | None, Query(max_length=100, description="Fields that go back to their defaults")]
WRITES: Final = (problems.NOT_JSON, problems.NOT_FOUND, problems.CONFLICT, problems.CHANGED)


class DefinitionView(BaseModel):
    """A definition that is stored."""

    name: str
    revision: Annotated[int, Field(description="Of the definition; 0: none was put")]
    etag: str
    author: str
    changed_at: str | None
    definition: Annotated[dict[str, Any], Field(description="As it was put; names are camelCase, as on the wire")]


class DeletedView(BaseModel):
    """A definition that was removed."""

    name: str
    change: Annotated[str, Field(json_schema_extra={"const": "removed"})] = "removed"
    warning: Annotated[
        str | None, Field(description="What follows from it that its owner may not want; null: nothing")
    ] = None


@dataclass(frozen=True)
class Kind:
    """One kind of stored definitions.

    Attributes:
        path: of all of them.
        model: of one.
        view: of one, as it is answered.
        all: of all, as they are answered: a list, under the plural of the word for one.
        stored: what the planner holds of them.
        statuses: name → its state, including what the settings define; of all, or of one name only.
        example: fields of one, without its name.
        warning: what to say before one is removed; None: nothing.
        visible: whether one of a name exists for a caller that may ask about some queues only.
    """

    path: str
    model: type[Definition]
    view: type[DefinitionView]
    all: type[BaseModel]
    stored: Callable[[PlanState], StoredDefinitions]
    statuses: Callable[[Api, PlanState, str | None], Mapping[str, DefinitionStatus]]
    example: Mapping[str, Any]
    warning: Callable[[Api, PlanState, str], str | None] = lambda _api, _plan, _name: None
    visible: Callable[[QueueBounds, str], bool] = lambda _own, _name: True

    def read(self, api: Api, name: str) -> StoredDefinition | None:
        """The definition that is stored under a name; None: there is none."""
        return api.plan.ask(lambda plan: self.stored(plan).get(name))

    def checked(self, name: str, stored: StoredDefinition | None, if_match: str | None, *, needs_match: bool) -> int:
        """The revision that is stored; 0: none.

        Args:
            name: of the definition.
            stored: under that name.
            if_match: what the caller sent.
            needs_match: whether the caller must say which revision is replaced.

        Raises:
            Problem: another is stored, or which is meant is not said.
        """
        revision = stored.revision if stored is not None else 0
        check(f"{self.model.noun} {name!r}", etag(revision), if_match, stored=revision > 0, needs_match=needs_match)
        return revision

    def shown(self, api: Api, name: str, status: int = 200) -> Response:
        """The answer that shows one definition.

        Args:
            api: asks the planner.
            name: of the definition.
            status: of the answer.

        Raises:
            NotFoundError: neither the planner nor the settings have it.
        """
        found = api.plan.ask(lambda plan: self.statuses(api, plan, name)).get(name)
        if found is None:
            raise NotFoundError(f"No {self.model.noun} {name!r} is stored.", hint="PUT a definition.")
        return answer(view_of(found), status, {"ETag": etag(found.revision)})

    def given(self, name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a request, with the name of its path.

        Raises:
            ArgumentError: they have another name, or there is no such field.
        """
        found = self.model.by_name(fields)
        if found.get("name", name) != name:
            raise ArgumentError(f"The definition says another name than the path: {name!r}.", hint="Leave out `name`.")
        return found | {"name": name}


def view_of(status: DefinitionStatus) -> dict[str, Any]:
    """A definition as it is answered."""
    view: dict[str, Any] = _plain(vars(status))
    return view | {"etag": etag(status.revision)}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return iso_of(value) if isinstance(value, datetime) else value


def schema_of(model: type[Definition], description: str) -> WithJsonSchema:
    """The schema of an object with some fields of a model."""
    schema = model.model_json_schema()
    schema.pop("required", None)
    return WithJsonSchema(schema | {"description": description})


def add_routes(routes: Routes, kind: Kind) -> None:
    """Adds the routes of a kind.

    Args:
        routes: which they are added to.
        kind: what they are about.
    """
    noun, plural = kind.model.noun, f"{kind.model.word}s"
    word = noun.replace(" ", "_")
    schema = schema_of(kind.model, f"Fields of a {noun}; what is left out is at its default")

    def page(api: Asked, own: Own) -> Response:
        found = api.plan.ask(lambda plan: kind.statuses(api, plan, None))
        return answer({plural: [view_of(one) for name, one in found.items() if kind.visible(own, name)]})

    def get(api: Asked, name: Name) -> Response:
        return kind.shown(api, name_of(name))

    async def put(
        api: Asked,
        name: Name,
        fields: Annotated[dict[str, Any], schema, JsonBody(examples=[dict(kind.example)])],
        if_match: IfMatch = None,
        author: Author = "",
    ) -> Response:
        plain = name_of(name)

        def done() -> Response:
            wanted = kind.model.of(kind.given(plain, fields))
            stored = kind.read(api, plain)
            if stored is not None and kind.model.of(json.loads(stored.text)) == wanted:
                return kind.shown(api, plain)  # a PUT that is repeated, perhaps since its answer got lost
            expect = {plain: kind.checked(plain, stored, if_match, needs_match=True)}
            asked = {plural: [wanted.definition], "expect": expect, "author": author or None}
            done = ask(api, f"put_{kind.model.word}", **asked)
            return kind.shown(api, plain, 201 if done[plain]["became"] == "added" else 200)

        return await api.planned(done)

    async def delete(api: Asked, name: Name, if_match: IfMatch = None, author: Author = "") -> Response:
        plain = name_of(name)

        def done() -> Response:
            revision = kind.checked(plain, kind.read(api, plain), if_match, needs_match=False)
            expect = {plain: revision} if if_match not in (None, ANY) else None
            warning = api.plan.ask(lambda plan: kind.warning(api, plan, plain))
            ask(api, f"delete_{kind.model.word}", names=[plain], expect=expect, author=author or None)
            return answer({"name": plain, "change": "removed", "warning": warning})

        return await api.planned(done)

    one = kind.path + "/{name}"
    routes.get(kind.path, kind.all)(_named(page, f"list_{word}s", f"List all {noun}s that are defined."))
    routes.get(one, kind.view, problems.NOT_FOUND)(
        _named(get, f"get_{word}", f"Return the {noun} that is in force. The ETag is its revision.")
    )
    routes.put(one, {200: kind.view, 201: kind.view}, problems.IF_MATCH_NEEDED, *WRITES)(
        _named(
            put,
            f"put_{word}",
            f"Store a whole {noun}. Omitted fields get their defaults. Replacing a different one needs If-Match.",
        )
    )
    routes.delete(one, DeletedView, *WRITES)(
        _named(
            delete, f"delete_{word}", f"Delete a stored {noun}. What the settings define under its name applies again."
        )
    )


def _named(function: F, name: str, description: str) -> F:
    """The function of a route, with the name and the docstring that its description is made from."""
    function.__name__, function.__doc__ = name, description
    return function
