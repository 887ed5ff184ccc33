"""Tokens and scopes: read strictly, compared by digests, and nothing of a secret is shown."""

from __future__ import annotations

import pytest

from scylla_spark.core.access.scopes import EVERYTHING, PLAIN, Rights, read_rights
from scylla_spark.core.access.token_text import TokenText, digest_of, new_token, proves, read_token
from scylla_spark.errors import ArgumentError


def test_a_token_is_read_as_it_was_made():
    token = new_token()
    assert read_token(token.text) == token
    assert token != new_token()


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[:-1],
        lambda text: text + "0",
        lambda text: text + "\n",
        lambda text: text.upper(),
        lambda text: text.replace("ss_", "st_"),
        lambda text: text[:-1] + "٣",
        lambda text: text[:-1] + "\0",
        lambda text: " " + text[:-1],
        lambda text: "",
        lambda text: "ss__",
        lambda text: text * 100_000,
    ],
)
def test_what_is_no_token_is_not_read(change):
    assert read_token(change(new_token().text)) is None


def test_a_token_proves_itself_only_by_its_own_secret_and_id():
    token, other = new_token(), new_token()
    assert proves(token, digest_of(token))
    assert not proves(TokenText(token.id, other.secret), digest_of(token))
    assert not proves(TokenText(other.id, token.secret), digest_of(token)), "a digest is worth nothing under another id"
    assert not proves(token, "")


def test_the_secret_is_in_no_digest_and_no_repr():
    token = new_token()
    assert token.secret not in digest_of(token) + repr(token)
    assert len(digest_of(token)) == 64


@pytest.mark.parametrize(
    ("scopes", "namespaces", "scope", "queue", "allowed"),
    [
        (["tasks:write"], [], "tasks:write", "mail", True),
        (["tasks:write:queue=mail"], [], "tasks:write", "mail", True),
        (["tasks:write:queue=mail"], [], "tasks:write", "mail2", False),
        (["tasks:write:queue=mail"], [], "read", "mail", False),
        (["lease:gpu"], [], "lease", "gpu", True),
        (["lease:gpu"], [], "lease", "mail", False),
        (["lease:gpu"], [], "tasks:write", "gpu", False),
        (["lease:a:b"], [], "lease", "a:b", True),
        (["read"], [], "lease", "mail", False),
        (["admin"], [], "queues:write", "mail", True),
        (["admin"], ["team/"], "queues:write", "team/x", True),
        (["admin"], ["team/"], "queues:write", "teamx", False),
        (["lease:gpu"], ["team/"], "lease", "gpu", False),
        (["read"], ["a/", "b/"], "read", "b/c", True),
    ],
)
def test_scopes_and_namespaces_say_what_is_allowed(scopes, namespaces, scope, queue, allowed):
    assert read_rights(scopes, namespaces).has_for(scope, queue) is allowed


def test_a_scope_of_one_queue_is_not_one_for_all():
    rights = read_rights(["lease:gpu"], [])
    assert (rights.has("lease"), rights.has_some("lease"), rights.has_some("read")) == (False, True, False)


def test_no_scopes_allow_nothing_and_admin_everything():
    assert not any(Rights().has_some(scope) for scope in PLAIN)
    assert all(EVERYTHING.has(scope) for scope in PLAIN)


@pytest.mark.parametrize(
    "scope", ["", "write", "READ", "read:mail", "tasks:write:mail", "tasks:write:queue=", "lease:", "lease:a b", "*", "admin "]
)  # fmt: skip
def test_an_unknown_scope_is_refused(scope):
    with pytest.raises(ArgumentError, match="is no scope"):
        read_rights([scope], [])


@pytest.mark.parametrize("prefix", ["", "a b", "ä", "x" * 201])
def test_a_namespace_that_no_queue_can_have_is_refused(prefix):
    with pytest.raises(ArgumentError, match="begins with"):
        read_rights(["read"], [prefix])
