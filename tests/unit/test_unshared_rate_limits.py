"""A handler that runs into a rate limit which it does not share is told so in the log of its attempt: nobody else waits."""

from __future__ import annotations

import asyncio

import pytest

from scylla_spark.core.tasks.task import Task
from scylla_spark.errors import RateLimited
from scylla_spark.handlers import registry as handler_registry
from scylla_spark.handlers.call import call
from scylla_spark.handlers.registry import handler, load
from tests.support.invocations import invocation


@pytest.fixture(autouse=True)
def _empty_registry(monkeypatch):
    monkeypatch.setattr(handler_registry, "_registered", {})


def limited(task: Task) -> None:
    raise RateLimited("api.acme", retry_after="90s")


async def limited_later(task: Task) -> None:
    await asyncio.sleep(0)
    limited(task)


def called(function, *, rate_key=(), tags=()):
    handler("h", rate_key=rate_key)(function)
    return call(load([])["h"], invocation(tags=tags), 1)


@pytest.mark.parametrize("function", [limited, limited_later])
def test_who_does_not_share_the_limit_is_told_what_to_do(function, capsys):
    verdict = called(function, tags=["api.other"])
    assert (verdict.outcome, verdict.failure[1]) == ("yielded", "api.acme")
    assert "rate_key='api.acme'" in capsys.readouterr().err


@pytest.mark.parametrize("sharing", [{"rate_key": "api.acme"}, {"tags": ["api.acme"]}])
def test_who_shares_it_is_told_nothing(sharing, capsys):
    assert called(limited, **sharing).outcome == "yielded"
    assert capsys.readouterr().err == ""


def test_a_key_that_can_be_no_tag_fails_without_a_hint(capsys):
    def wrong(task: Task) -> None:
        raise RateLimited(["api.acme"], retry_after="90s")

    assert called(wrong).outcome == "failed"
    assert capsys.readouterr().err == ""
