"""How a task is named in a path: both forms give back the key, and nothing else is a key."""

from __future__ import annotations

import base64
import contextlib
import json
import re
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scylla_spark.core.tasks.key import LATEST_US, TaskKey, id_of
from scylla_spark.errors import ArgumentError

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200)
KEYS = st.builds(TaskKey, st.integers(0, LATEST_US - 1), TEXTS, TEXTS)


@given(KEYS)
def test_an_id_gives_back_its_key_and_no_proxy_or_shell_changes_it(key):
    assert TaskKey.parse(id_of(key)) == key
    assert re.fullmatch(r"[A-Za-z0-9_-]+", id_of(key))


@given(KEYS)
def test_the_readable_form_gives_back_its_key_and_is_one_segment(key):
    path = str(key)
    assert TaskKey.parse(path) == key
    assert TaskKey.parse(quote(path, safe="")) == key, (
        "as a whole, as clients encode that were made from the description"
    )
    assert not set("/?#% ") & set(re.sub(r"%[0-9A-F]{2}", "", path))
    assert path.count(",") == 2


def test_an_id_is_what_the_page_says_it_is():
    text = '["2026-01-31T09:00:00Z","cust-9","inv-17"]'
    key = TaskKey.parse("2026-01-31T09:00:00Z,cust-9,inv-17")
    assert id_of(key) == base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
    assert TaskKey.parse("2026-01-31T10:00:00+01:00,cust-9,inv-17") == key


def encoded(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    "text",
    ["", "abc", "%ff", "%FF,a,b", "2026-01-31T09:00:00,a,b", "2026-01-31,a,b", ",,",
     "2026-01-31T09:00:00Z,,b", "2026-01-31T09:00:00Z,a,b,c",

     "9999-12-31T23:59:59-05:00,a,b", "1969-12-31T23:59:59Z,a,b", "2026-01-31T09:00:00Z," + "x" * 1025 + ",b",
     encoded(["2026-01-31T09:00:00Z", "a"]), encoded(["2026-01-31T09:00:00Z", "a", 7]), encoded("abc"), encoded({"a": 1}),
     encoded([1, 2, 3]),
     encoded(["2026-01-31T09:00:00Z", "\ud800", "b"]), encoded(["2026-01-31T09:00:00Z", "", "b"]), "ä" * 10, "W" * 9, "=" * 8],
)  # fmt: skip
def test_what_is_no_key_is_told(text):
    with pytest.raises(ArgumentError) as caught:
        TaskKey.parse(text)
    assert caught.value.hint or caught.value.fields


@given(st.text(max_size=80))
@pytest.mark.slow
def test_any_text_is_a_key_or_an_error(text):
    with contextlib.suppress(ArgumentError):
        TaskKey.parse(text)
