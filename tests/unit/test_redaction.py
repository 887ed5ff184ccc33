"""Secrets out of lines: by telling names and by known values, in bounded time."""

from __future__ import annotations

import json

import pytest

from scylla_spark.clock import boot_us
from scylla_spark.core.redaction import Redaction

REDACTION = Redaction(["s3cr3t-value", "abc"])


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("password=hunter2 and more", "password=*** and more"),
        ('{"password": "a b", "x": 1}', '{"password": ***, "x": 1}'),
        ("db_password: hunter2", "db_password: ***"),
        ("client_secret => hunter2", "client_secret => ***"),
        ('{"accessToken":"hunter2"}', '{"accessToken":***}'),
        ("Authorization: Bearer hunter2.x", "Authorization: ***"),
        ("sent with bearer hunter2hunter2", "sent with bearer ***"),
        ("postgres://me:hunter2@db/x", "postgres://me:***@db/x"),
        ("password='hunter2", "password=***"),
        ("PassWord=hunter2", "PassWord=***"),
        ("pa\u017f\u017fword=hunter2", "pa\u017f\u017fword=***"),
        ("api_\u212aey=hunter2", "api_\u212aey=***"),
        ("it was s3cr3t-value, we know", "it was ***, we know"),
    ],
)
def test_a_secret_does_not_pass(written, kept):
    assert REDACTION.text(written) == kept


@pytest.mark.parametrize(
    "text", ["tokens=512", "the password was changed", "abc", "https://host:80/path", "keyboard: qwerty", ""]
)
def test_what_is_no_secret_passes_as_it_is(text):
    assert REDACTION.text(text) == text


def test_fields_are_masked_by_their_names_at_any_depth_and_their_values_by_what_we_know():
    fields = {"user": "me", "apiKey": "x", "deep": [{"token": 5, "note": "s3cr3t-value"}], "n": 1}
    assert json.loads(REDACTION.fields(json.dumps(fields)) or "") == {
        "user": "me",
        "apiKey": "***",
        "deep": [{"token": "***", "note": "***"}],
        "n": 1,
    }
    assert REDACTION.fields("[1]") is None
    assert REDACTION.fields("{") is None


@pytest.mark.parametrize(
    "unit", ['password="', "token='", "://a:", "bearer ", "secret:", "a-key", "password = ", "://", "cookie: basic "]
)
def test_no_line_takes_long_whatever_it_is_made_of(unit):
    text = (unit * 8192)[:8192]
    begun = boot_us()
    REDACTION.text(text)
    assert boot_us() - begun < 500_000
