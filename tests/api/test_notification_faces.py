"""Notification rules as people write them: in Python, in files, as options and over HTTP; and the examples of the page."""

from __future__ import annotations

import json
import re
import tomllib
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from scylla_spark.cli import one_command as cli
from scylla_spark.client import notification_rules
from scylla_spark.client.stored_definitions import read_file
from scylla_spark.config.settings import Settings, flatten
from scylla_spark.core.notifications.error_fingerprint import fingerprint_of
from scylla_spark.core.plan.state.plan_state import PlanState
from scylla_spark.core.plan.state.stored_definition import StoredDefinition
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.definitions.notification_rule import OCCASIONS, NotificationRule
from scylla_spark.errors import ArgumentError, ConfigError, NotFoundError
from scylla_spark.services.plan.notification_channels import channels_of
from tests.support.api_site import Site, kind
from tests.support.delta_tables import make

PAGE = (Path(__file__).parents[2] / "docs" / "notifications.md").read_text()
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
CHANNELS = {
    "ops": {"url": f"https://hooks.example.com/{SECRET}", "secret": SECRET},
    "desk": {"kind": "handler", "handler": "desk.tell", "queue": "alerts"},
}
PLAIN = {"name": "broken", "when": ["failed"], "channel": "ops"}


# -- rules --------------------------------------------------------------------------------------------------------------


def test_a_rule_in_python_is_the_definition_that_travels() -> None:
    rule = NotificationRule(
        name="broken",
        when=["failed", "absent"],
        channel="ops",
        tags=("night",),
        digest=timedelta(minutes=1),
        within="25h",
    )
    assert rule.definition == {
        "name": "broken", "when": ["failed", "absent"], "channel": "ops", "tags": ["night"], "digest": "1m", "within": "1d1h"
    }  # fmt: skip
    assert NotificationRule.of(rule.definition).definition == rule.definition
    assert NotificationRule(name="broken", when=["failed"], channel="ops").definition == PLAIN


def test_all_fields_are_told_with_their_defaults_and_read_back() -> None:
    assert NotificationRule.of(PLAIN).values == {
        **PLAIN, "queues": [], "handlers": [], "schedules": [], "tags": [], "digest": "5m", "within": None, "every": None,
        "paused": False, "description": "",
    }  # fmt: skip
    for more in ({}, {"when": ["absent"], "within": "90m"}, {"when": ["alive"], "every": "5m"}):
        rule = NotificationRule.of(PLAIN | more)
        assert NotificationRule.of(rule.values) == rule


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"when": []}, "when"),
        ({"when": ["failing"]}, "when"),
        ({"when": "failed"}, "when"),
        ({"when": ["absent"]}, "within"),
        ({"within": "1h"}, "within"),
        ({"when": ["absent"], "within": "1ms"}, "within"),
        ({"when": ["alive"]}, "every"),
        ({"every": "1h"}, "every"),
        ({"when": ["alive", "failed"], "every": "1h"}, "tells nothing else"),
        ({"digest": "25h"}, "digest"),
        ({"digest": "-1s"}, "digest"),
        ({"digest": "soon"}, "digest"),
        ({"digest": None}, "digest"),
        ({"channel": "no name"}, "channel"),
        ({"name": "a|b"}, "name"),
        ({"queues": ["q"] * 51}, "queues"),
        ({"queues": [""]}, "queues"),
        ({"paused": 1}, "paused"),
        ({"description": "x" * 1_025}, "description"),
        ({"description": "\ud800"}, "description"),
        ({"chanel": "ops"}, "chanel"),
        ({"description": {"a": [[]]}}, "description"),
    ],
)
def test_what_is_no_rule_is_refused_with_the_field(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words) as refused:
        NotificationRule.of({**PLAIN, **change})
    assert refused.value.hint


@pytest.mark.parametrize("value", [None, [], "broken", 7, {}])
def test_what_is_no_object_of_a_rule_is_refused(value: Any) -> None:
    with pytest.raises(ArgumentError):
        NotificationRule.of(value)


def test_a_text_is_no_list_of_texts() -> None:
    with pytest.raises(ArgumentError, match="handlers: it is a list"):
        NotificationRule(name="broken", when=["failed"], channel="ops", handlers="mail")


def test_a_rule_of_a_newer_version_is_shown_as_it_is() -> None:
    state = PlanState()
    text = json.dumps({**PLAIN, "when": ["tomorrow"]})
    state.notices.rules["broken"] = StoredDefinition(text, 3, "me", 0)
    assert notification_rules.status(state, "broken").fields["when"] == ["tomorrow"]
    with pytest.raises(NotFoundError, match="'other'"):
        notification_rules.status(state, "other")


def test_errors_that_differ_in_numbers_and_quoted_values_only_are_the_same() -> None:
    texts = [
        "no invoice 17 for 'ann' at 0x7f00 (3f2504e0-4f89-11d3-9a0c-0305e82c3301)",
        "no invoice 9 for 'bob' at 0x1 (aaaa04e0-4f89-11d3-9a0c-0305e82c33ff)",
    ]
    assert fingerprint_of("mail", texts[0]) == fingerprint_of("mail", texts[1])
    assert fingerprint_of("mail", texts[0]) != fingerprint_of("charge", texts[0])
    assert fingerprint_of("a", "b") != fingerprint_of("ab", "")
    assert fingerprint_of("load_eu1", texts[0]) != fingerprint_of("load_eu2", texts[0]), "names are no messages"
    assert fingerprint_of("a\ud800") == fingerprint_of("a\ud800")
    assert fingerprint_of("mail", texts[0]) == "eb953a0cdbc29389", "it stands in the log: the same in every process"


# -- settings -----------------------------------------------------------------------------------------------------------


def test_no_secret_of_a_channel_is_shown() -> None:
    settings = Settings.load(notify={"channels": CHANNELS})
    assert SECRET not in repr(settings)
    assert SECRET not in json.dumps(flatten(settings), default=str)
    assert SECRET not in repr(channels_of(settings))
    assert settings.notify.channels["ops"].secret is not None


@pytest.mark.parametrize(
    "channel",
    [
        {"kind": "webhook"}, {"url": f"ftp://{SECRET}"}, {"kind": "apprise"}, {"kind": "handler"},
        {"kind": "handler", "handler": "no name"},
        {"kind": "pigeon", "url": SECRET}, {"url": "https://x", "secrt": SECRET},
    ],
)  # fmt: skip
def test_a_channel_that_cannot_work_is_refused_and_not_repeated(channel: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"notify\.channels\.ops") as refused:
        Settings.load(notify={"channels": {"ops": channel}})
    assert SECRET not in str(refused.value)


def test_a_channel_has_a_name_that_rules_can_use() -> None:
    with pytest.raises(ConfigError, match="no rule can name"):
        Settings.load(notify={"channels": {"no name": CHANNELS["ops"]}})


def test_the_planner_knows_where_tasks_must_go_and_nothing_else() -> None:
    channels = CHANNELS | {"open": CHANNELS["ops"] | {"tasks": True}}
    found = channels_of(Settings.load(notify={"channels": channels}, api={"public_url": "https://tasks.example"}))
    assert {name: tuple(one) for name, one in found.known.items()} == {
        "ops": ("scylla.notify", "_notify", False),
        "desk": ("desk.tell", "alerts", False),
        "open": ("scylla.notify", "_notify", True),
    }
    assert found.public_url == "https://tasks.example"


# -- files, and the page ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        '[rules.broken]\nwhen = ["failed"]\nchannel = "ops"\n',
        '[[rules]]\nname = "broken"\nwhen = ["failed"]\nchannel = "ops"\n',
    ],
)
def test_a_file_holds_rules_by_name_or_in_a_list(tmp_path: Path, text: str) -> None:
    (tmp_path / "rules.toml").write_text(text)
    assert [rule.definition for rule in read_file(str(tmp_path / "rules.toml"), NotificationRule)] == [PLAIN]


@pytest.mark.parametrize(
    "text", ["", "[rules]\n", "rules = 3\n", "rules = [3]\n", "[other]\n", "[rules.a]\nwhen=[]\n", "[rules]\na = 1\n"]
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "rules.toml").write_text(text)
    with pytest.raises(ArgumentError):
        read_file(str(tmp_path / "rules.toml"), NotificationRule)


def test_the_page_tells_of_all_fields_and_occasions() -> None:
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", PAGE, re.MULTILINE)
    named = {name for cell in rows for name in re.findall(r"`(\w+)`", cell)}
    assert named >= {*NotificationRule.model_fields, *OCCASIONS}


def test_the_settings_of_the_page_are_settings() -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert sorted(Settings.load(**tomllib.loads(text)).notify.channels) == ["desk", "ops", "phone"]


def test_the_commands_of_the_page_are_commands(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import shlex

    shown = [line for line in PAGE.splitlines() if line.startswith("scylla-spark notify ")]
    lines = [shlex.split(line, comments=True)[2:] for line in shown]
    put = [words for words in lines if words[0] == "put"]
    asked: list[NotificationRule] = []
    monkeypatch.setattr("scylla_spark.cli.stored_definitions.put_all", lambda cli, rules: asked.extend(rules))
    monkeypatch.setattr("scylla_spark.cli.commands.notify._warn_of_tags", lambda cli, names: None)
    for words in put:
        assert cli.run(["notify", *words]) in (0, None)
    assert [rule.definition["when"] for rule in asked] == [
        ["failed"],
        ["failed", "missed", "paused"],
        ["absent"],
        ["alive"],
    ]
    assert {words[0] for words in lines} == {"put", "test", "list", "show", "delete"}
    capsys.readouterr()


@pytest.mark.parametrize(
    "words", [["put"], ["put", "a"], ["put", "a", "--when", "failed"], ["put", "a", "--file", "x.toml"]]
)
def test_a_command_that_says_too_little_or_too_much_is_refused(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["notify", *words]) == 2
    assert "Traceback" not in capsys.readouterr().err


# -- HTTP ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def client(tmp_path: Path) -> Any:
    make(f"{tmp_path}/tables")
    with Site(str(tmp_path)).client() as client:
        yield client


def test_a_rule_is_put_shown_tested_and_deleted(client: Any) -> None:
    fields = {"when": ["failed"], "channel": "ops"}
    put = client.put("/v1/notifications/rules/broken", json=fields)
    assert (put.status_code, put.json()["definition"], put.json()["fields"]["digest"]) == (201, PLAIN, "5m")
    again = client.put("/v1/notifications/rules/broken", json=fields)
    assert (again.status_code, again.headers["etag"]) == (200, put.headers["etag"])
    other = fields | {"digest": "2m"}
    assert kind(client.put("/v1/notifications/rules/broken", json=other)) == "/problems/if-match-needed"
    stale = client.put("/v1/notifications/rules/broken", json=other, headers={"If-Match": '"77"'})
    assert kind(stale) == "/problems/changed"
    changed = client.put(
        "/v1/notifications/rules/broken", json=fields | {"digest": "1m"}, headers={"If-Match": put.headers["etag"]}
    )
    assert (changed.status_code, changed.json()["fields"]["digest"]) == (200, "1m")
    assert [one["name"] for one in client.get("/v1/notifications/rules").json()["rules"]] == ["broken"]
    test = client.post("/v1/notifications/rules/broken:test")
    assert test.status_code == 202
    assert TaskKey.parse(test.json()["key"]).ordering_id == "notify/ops"
    assert SECRET not in client.get("/v1/notifications/rules/broken").text
    gone = client.request("DELETE", "/v1/notifications/rules/broken")
    assert gone.json() == {"name": "broken", "change": "removed", "warning": None}
    for answer in (
        client.get("/v1/notifications/rules/broken"),
        client.post("/v1/notifications/rules/broken:test"),
        client.request("DELETE", "/v1/notifications/rules/broken"),
    ):
        assert kind(answer) == "/problems/not-found"


def test_tags_that_no_schedule_has_are_named(client: Any) -> None:
    client.put("/v1/schedules/nightly", json={"handler": "h", "event": "e", "tags": ["night", "billing"]})
    told = client.put(
        "/v1/notifications/rules/broken",
        json={"when": ["failed"], "channel": "ops", "tags": ["night", "bill*", "task-tag", "x*"]},
    )
    assert told.json()["unknown_tags"] == ["task-tag", "x*"]
    client.delete("/v1/schedules/nightly")
    assert client.get("/v1/notifications/rules/broken").json()["unknown_tags"] == ["night", "bill*", "task-tag", "x*"]


@pytest.mark.parametrize(
    "fields", [{}, {"when": ["failed"]}, {"when": ["failed"], "channel": "nobody"}, {"when": 3, "channel": "ops"}]
)
def test_what_is_no_rule_is_a_problem(client: Any, fields: dict[str, Any]) -> None:
    assert client.put("/v1/notifications/rules/broken", json=fields).status_code == 422
