"""Secrets out of lines: by telling names and by known values, in bounded time."""

from __future__ import annotations

import json
from time import thread_time

import pytest

from scylla_spark.core.access.redaction import Redaction

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
        (r'{"password": "ab\"cdefgh", "x": 1}', '{"password": ***, "x": 1}'),
        (r"password='ab\'cdefgh' and more", "password=*** and more"),
        ("password='ab\\", "password=***"),
        ("Authorization: token ghp_16C7, then", "Authorization: ***, then"),
        ("Proxy-Authorization: Negotiate YIIabc", "Proxy-Authorization: ***"),
        ('{"authorization": "token ghp_16C7", "x": 1}', '{"authorization": ***, "x": 1}'),
        ("Cookie: theme=dark; sid=31d4\nnext: line", "Cookie: ***\nnext: line"),
        ("Set-Coo\u212aie: theme=dark; sid=31d4", "Set-Coo\u212aie: ***"),
        ('Cookie: "dark"; sid=31d4', "Cookie: ***"),
        ('{"cookie": "theme=dark; sid=31d4", "x": 1}', '{"cookie": ***, "x": 1}'),
    ],
)
def test_a_secret_does_not_pass(written, kept):
    assert REDACTION.text(written) == kept


@pytest.mark.parametrize(
    "text", ["tokens=512", "the password was changed", "abc", "https://host:80/path", "keyboard: qwerty", ""]
)
def test_what_is_no_secret_passes_as_it_is(text):
    assert REDACTION.text(text) == text


KEY = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEF\nAASCBKcwggSj\r\n-----END PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    "values", [["q7Zk-plain-value-91\n"], ["q7Zk-plain-value-91\n", KEY], ["\t q7Zk-plain-value-91 \r\n"]]
)
def test_a_value_with_blanks_around_it_is_known_without_them(values):
    redaction = Redaction(values)
    assert redaction.text("login with q7Zk-plain-value-91.") == "login with ***."
    assert redaction.line("login with q7Zk-plain-value-91.", is_cut=False) == "login with ***."


def test_each_line_of_a_value_of_several_is_known_but_not_what_stands_around_every_key():
    redaction = Redaction([KEY, "first-1\nab\nsecond-2"])
    for line in KEY.splitlines()[1:3]:
        assert redaction.text(f"> {line} <") == "> *** <"
        assert redaction.line(f"> {line} <", is_cut=False) == "> *** <"
    assert redaction.text("ab, second-2") == "ab, ***", "too short to be looked for"
    assert redaction.text("-----END PRIVATE KEY-----") == "-----END PRIVATE KEY-----"
    assert redaction.text(f"{KEY} it was") == "*** it was"


def test_what_is_masked_to_its_end_still_says_that_it_was_cut():
    assert REDACTION.text("Cookie: theme=dark; sid=31d […]", cut_mark=" […]") == "Cookie: *** […]"


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
    assert REDACTION.fields('{"a": "\ud800"}') is None


@pytest.mark.parametrize(
    "unit",
    [
        'password="',
        "token='",
        "://a:",
        "bearer ",
        "secret:",
        "a-key",
        "password = ",
        "://",
        "cookie: basic ",
        'password="\\',
        '"cookie":"a";',
        '"cookie":"a" ',
        "authorization: a ",
        "authorization: ",
        "cookie:\n",
    ],
)
def test_no_line_takes_long_whatever_it_is_made_of(unit):
    text = (unit * 8192)[:8192]
    begun = thread_time()  # quadratic effort takes seconds
    REDACTION.text(text)
    assert thread_time() - begun < 0.5
