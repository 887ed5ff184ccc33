"""The form of a payload: fields by type, what is wrong beside them, and schemas that are made to harm."""

from __future__ import annotations

import json
import re
from datetime import date, datetime
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from scylla_spark.client.handlers import gathered
from scylla_spark.dashboard.payload_form import as_sent, fields_of, filled, read_payload
from scylla_spark.errors import UnreachableError
from scylla_spark.handlers.value_type import ValueType
from tests.api.test_handler_catalogue import row
from tests.support.api_site import Site
from tests.support.dashboard_site import foreign, seen, sent
from tests.support.dashboard_tables import MARKUP
from tests.support.delta_tables import make


class Address(BaseModel):
    city: str


class Remind(BaseModel):
    """What to remind of."""

    email: Annotated[str, Field(max_length=10, description="Whom")]
    invoice: Annotated[int, Field(ge=1)]
    share: float | None = None
    by: Literal["mail", "post", 7] = "mail"
    twice: bool = False
    at: datetime | None = None
    to: Address | None = None
    tags: list[str] = []


SCHEMA = json.loads(ValueType(Remind, "payload").schema(12_000, of_result=False))


def read(**given):
    fields = fields_of(SCHEMA)
    return read_payload(fields, {f"payload.{name}": value for name, value in given.items()})


def test_every_part_of_a_type_has_a_field_of_its_kind():
    fields = {one.name: one for one in fields_of(SCHEMA)}
    assert {name: one.kind for name, one in fields.items()} == {
        "email": "text", "invoice": "whole", "share": "number", "by": "choice", "twice": "flag", "at": "moment", "to": "json",
        "tags": "json",
    }  # fmt: skip
    assert [name for name, one in fields.items() if one.needed] == ["email", "invoice"]
    assert (fields["email"].about, fields["by"].choices, fields["by"].default) == (
        "Whom",
        ('"mail"', '"post"', "7"),
        '"mail"',
    )


def test_what_is_read_of_a_form_is_what_the_handler_takes():
    payload, wrong = read(
        email="a@b", invoice="3", share="0.5", by="7", twice="true", at="2026-01-31T09:00:00", to='{"city": "Kiel"}', tags='["x"]'
    )  # fmt: skip
    assert wrong == {}
    found = Remind.model_validate_json(json.dumps(payload))
    assert (found.invoice, found.by, found.to.city, found.at.hour) == (3, 7, "Kiel", 9)
    assert read(email="a", invoice="1") == ({"email": "a", "invoice": 1}, {}), (
        "what is left empty is left to the handler"
    )


@pytest.mark.parametrize(("name", "text", "why"), [
    ("email", "", "needed"), ("email", "x" * 11, "10 characters"), ("invoice", "x", "whole number"),
    ("invoice", "1.5", "whole number"), ("invoice", "0", "at least 1"), ("invoice", "9" * 5_000, "whole number"),
    ("share", "nan", "no number"), ("share", "1e999", "no number"), ("by", "mail", "offered"), ("twice", "maybe", "yes or no"),
    ("at", "then", "instant"), ("to", "{", "JSON"), ("tags", "[" * 100_000, "JSON"), ("tags", "[NaN]", "JSON"),
])  # fmt: skip
def test_what_cannot_be_taken_is_said_of_its_field(name, text, why):
    given = {"email": "a", "invoice": "1"} | {name: text}
    payload, wrong = read(**given)
    assert list(wrong) == [f"payload.{name}"]
    assert why in wrong[f"payload.{name}"]
    assert name not in payload or name == "email" or why in ("at least 1", "10 characters")


def test_a_form_is_filled_with_a_payload_that_came_as_json():
    fields = fields_of(SCHEMA)
    given = {"payload": '{"email": "a", "invoice": 3, "by": "post", "to": {"city": "ä"}}', "queue": "q"}
    found, shown = filled(fields, given)
    assert found == fields
    typed = {name.removeprefix("payload."): value for name, value in shown.items() if name.startswith("payload.")}
    assert typed == {"email": "a", "invoice": "3", "by": '"post"', "to": '{"city": "ä"}'}
    for no_form in ("[" * 100_000, "[]", "{", '{"email": "a", "more": 1}'):
        assert filled(fields, {"payload": no_form}) is None, "some of it would be lost"


class Many(BaseModel):
    note: str | None = None
    at: datetime | None = None
    day: date | None = None
    whole: int = 1
    number: float = 1.0
    flag: bool = False
    choice: Literal["a", "b"] = "a"
    rest: Any = None


MANY = fields_of(json.loads(ValueType(Many, "payload").schema(12_000, of_result=False)))


def sent_back(fields, shown):
    """What a browser sends of a form: of its lines the ends are others."""
    return {name: re.sub("\r?\n", "\r\n", value) for name, value in shown.items() if name != "payload"}


@pytest.mark.parametrize(("name", "value", "kind"), [
    ("note", "x", "text"), ("note", "two\nlines\n", "text"), ("note", "\n", "json"), ("note", "a\rb", "json"), ("note", "a\0b", "json"),
    ("note", None, "json"), ("note", "", "json"), ("note", " ", "json"), ("note", 5, "json"), ("note", ["x"], "json"),
    ("at", "2026-01-31T09:00:00-05:00", "moment"), ("at", "2026-01-31T09:00:00.123456+05:30", "moment"),
    ("at", "2026-01-31T09:00:00Z", "moment"),
    ("at", "2026-01-31 09:00", "json"), ("at", "someday", "json"), ("at", None, "json"), ("at", 1_800_000_000, "json"),
    ("day", "2026-01-31", "day"), ("day", "2026-02-30", "json"), ("day", None, "json"),
    ("whole", -7, "whole"), ("whole", 10**400, "whole"), ("whole", 1.0, "json"), ("whole", "1", "json"), ("whole", True, "json"),
    ("number", 0.1, "number"), ("number", 12345678901234567890, "number"), ("number", 1e300, "number"), ("number", None, "json"),
    ("flag", True, "flag"), ("flag", 1, "json"), ("flag", "true", "json"), ("choice", "b", "choice"), ("choice", "c", "json"),
    ("rest", {"a": ["x\ny", None, 1.0, 1, ""]}, "json"), ("rest", None, "json"), ("rest", "", "json"),
])  # fmt: skip
def test_what_a_form_is_filled_with_it_sends_unchanged(name, value, kind):
    fields, shown = filled(MANY, {"payload": json.dumps({name: value})})
    assert {one.name: one.kind for one in fields}[name] == kind
    payload, wrong = read_payload(as_sent(MANY, shown), sent_back(fields, shown))
    assert (json.dumps(payload), wrong) == (json.dumps({name: value}), {})
    assert filled(MANY, shown | {f"payload.{name}": "typed"})[1][f"payload.{name}"] == "typed", (
        "what was typed goes first"
    )


@pytest.mark.parametrize(("name", "text"), [
    ("rest", "1e400"), ("rest", "[-1e999]"), ("rest", r'"\ud800"'), ("number", "1_0"), ("whole", "\u0663"), ("whole", "9" * 5_000),
    ("number", "9" * 5_000), ("day", "31.1.2026"), ("at", "2026-01-31T09:00:00+99:00"), ("number", "1e"), ("number", "."),
])  # fmt: skip
def test_what_json_cannot_hold_is_said_of_its_field_too(name, text):
    payload, wrong = read_payload(MANY, {f"payload.{name}": text})
    assert (payload, list(wrong)) == ({}, [f"payload.{name}"])


LOOP = {"$ref": "#/$defs/a"}


@pytest.mark.parametrize(
    "schema",
    [None, 7, [], {}, {"properties": 7}, {"properties": {}}, {"properties": {str(n): {} for n in range(61)}},
     LOOP | {"$defs": {"a": LOOP}}, {"$ref": "http://elsewhere/schema"}, {"anyOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}],
)  # fmt: skip
def test_a_schema_that_names_no_parts_makes_no_form(schema):
    assert fields_of(schema) is None


@pytest.mark.parametrize(
    "part",
    [None, 7, LOOP, {"type": ["string", "null"]}, {"type": {}}, {"enum": {}}, {"enum": []}, {"anyOf": 7}, {"anyOf": [7]}, {"$ref": 7},
     {"title": 7, "description": {}, "minimum": "x", "maximum": float("nan")}, {"type": "string", "format": {}, "maxLength": "1"}],
)  # fmt: skip
def test_a_part_that_is_not_understood_is_written_as_json_or_text(part):
    (field,) = fields_of({"properties": {"x": part}, "required": 7, "$defs": {"a": LOOP}})
    assert field.kind in ("json", "text")
    assert read_payload([field], {"payload.x": "1"})[1] == {}


@pytest.fixture
def client(tmp_path):
    make(f"{tmp_path}/tables")
    site = Site(str(tmp_path))
    hostile = {
        "properties": {MARKUP: {"title": MARKUP, "description": MARKUP, "enum": [MARKUP], "default": MARKUP}, "..": {}}
    }
    told = [
        row(name="remind", payload=SCHEMA, about=MARKUP),
        row(name="evil", payload=hostile, about=MARKUP),
        row(name="plain"),
    ]
    site.app.state.api.handlers._look = lambda: gathered([("http://a:1", {"handlers": told})])
    with site.client() as client:
        client.site = site
        yield client


PAGE = "/ui/tasks:new?handler=remind"


def test_a_task_is_enqueued_by_the_fields_of_its_handler(client):
    page = client.get(PAGE)
    assert "Whom" in seen(page)
    fields = {
        "handler": "remind",
        "typed": "1",
        "payload.email": "a@b",
        "payload.invoice": "3",
        "payload.twice": "true",
    }
    answer = sent(client, "/ui/tasks:new", page, **fields)
    assert answer.status_code == 303, seen(answer)
    (command,) = client.site.connection.sent
    assert json.loads(command.payload) == {"email": "a@b", "invoice": 3, "twice": True}


def test_what_is_wrong_stands_beside_its_field_and_what_was_typed_stays(client):
    fields = {"handler": "remind", "typed": "1", "payload.email": "<b>", "payload.invoice": "many", "queue": "q9"}
    answer = sent(client, "/ui/tasks:new", client.get(PAGE), **fields)
    assert answer.status_code == 422
    assert client.site.connection.sent == []
    invoice = answer.text.split('name="payload.invoice"')[1].split("</div>")[0]
    assert "whole number" in invoice
    assert "whole number" not in answer.text.split('name="payload.email"')[1].split("</div>")[0]
    for kept in ('value="&lt;b&gt;"', 'value="many"', 'value="q9"'):
        assert kept in answer.text


def test_json_can_be_written_instead_and_is_where_nobody_tells_of_fields(client):
    for path in (f"{PAGE}&raw=1", "/ui/tasks:new?handler=plain", "/ui/tasks:new?handler=none", "/ui/tasks:new"):
        assert 'id="payload"' in client.get(path).text
    client.site.app.state.api.handlers._look = lambda: gathered([])
    assert 'id="payload"' in client.get(PAGE).text


def test_a_handler_that_nobody_has_is_warned_of_where_its_task_is_shown(client):
    answer = sent(client, "/ui/tasks:new", client.get("/ui/tasks:new"), handler="remnd", payload="{}")
    assert "remnd" in answer.headers["set-cookie"]
    assert "Did%20you%20mean" in answer.headers["set-cookie"]


@pytest.mark.parametrize("told", [
    [], [row(name="remind")], [row(name="remind", payload={"properties": {"mail": {"type": "string"}}})], None,
])  # fmt: skip
def test_what_was_typed_by_a_schema_of_which_nobody_tells_is_kept_and_nothing_is_enqueued(client, told):
    page = client.get(PAGE)

    def look():
        if told is None:
            raise UnreachableError("Kafka did not answer.")
        return gathered([("http://a:1", {"handlers": told})])

    client.site.app.state.api.handlers._look = look
    fields = {
        "handler": "remind",
        "typed": "1",
        "payload.email": "a@b",
        "payload.invoice": "3",
        "payload.at": "",
        "queue": "q9",
    }
    for more in ({}, {"priority": "x"}):
        answer = sent(client, "/ui/tasks:new", page, **fields, **more)
        assert (answer.status_code, client.site.connection.sent) == (422, [])
        kept = dict(re.findall(r'name="(payload[^"]*)"[^>]*>\n([^<]*)</textarea>', answer.text))
        assert kept == {"payload.email": "a@b", "payload.invoice": "3", "payload.at": ""}
        assert 'value="q9"' in answer.text
    client.site.app.state.api.handlers._look = lambda: gathered(
        [("http://a:1", {"handlers": [row(name="remind", payload=SCHEMA)]})]
    )
    assert sent(client, "/ui/tasks:new", answer, **fields).status_code == 303
    assert json.loads(client.site.connection.sent[0].payload) == {"email": "a@b", "invoice": 3}


def test_a_payload_with_parts_that_are_no_fields_is_json(client):
    page = client.get(
        "/ui/tasks:new", params={"handler": "remind", "payload": '{"email": "a", "invoice": 1, "more": 2}'}
    )
    assert 'id="payload"' in page.text
    assert "&#34;more&#34;: 2" in page.text


def test_a_schema_that_is_made_to_harm_is_text(client):
    page = client.get("/ui/tasks:new?handler=evil")
    assert page.status_code == 200
    assert MARKUP not in page.text
    assert foreign(page) == []
    assert 'name="payload..."' not in page.text.split("<fieldset")[0]
