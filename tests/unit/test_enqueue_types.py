"""What a type checker makes of `Scheduler.enqueue`: handles of the handler's result, and payloads that fit."""

from __future__ import annotations

from pathlib import Path

import pytest
from mypy import api

ROOT = Path(__file__).parents[2]
USER_CODE = """
from dataclasses import dataclass
from typing import Any, assert_type

from scylla_spark import Scheduler, Task, TaskContext, handler
from scylla_spark.client.tasks.handle import TaskHandle


@dataclass
class Remind:
    email: str


@dataclass
class Receipt:
    sent_to: str


@handler("plain")
def plain(p: Remind, ctx: TaskContext) -> Receipt:
    return Receipt(p.email)


@handler("late")
async def late(p: Remind) -> Receipt:
    return Receipt(p.email)


@handler("whole")
async def whole(task: Task) -> int:
    return 1


@handler("whole_plain")
def whole_plain(task: Task, ctx: TaskContext) -> str:
    return "x"


@handler("loose")
def loose(p: dict[str, Any]) -> int:
    return 1


def use(sched: Scheduler) -> None:
    assert_type(sched.enqueue(plain, Remind("a")).result(), Receipt)
    assert_type(sched.enqueue(plain, {"email": "a"}).result(), Receipt)
    assert_type(sched.enqueue(late, Remind("a"), delay="1h").result(), Receipt)
    assert_type(sched.enqueue(late, {"email": "a"}).result(), Receipt)
    assert_type(sched.enqueue(whole).result(), int)
    assert_type(sched.enqueue(whole_plain, {"a": 1}).result(), str)
    assert_type(sched.enqueue(loose, {"a": 1}).result(), int)
    assert_type(sched.enqueue("by name", {"a": 1}), TaskHandle[Any])
    sched.enqueue(plain, Receipt("a"))  # type: ignore[arg-type]
    sched.enqueue(late, 7)  # type: ignore[arg-type]
    sched.enqueue(plain)  # type: ignore[arg-type]
"""


@pytest.mark.slow
def test_a_checker_knows_results_of_plain_and_async_handlers_and_takes_json_for_their_payloads(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("MYPYPATH", str(ROOT))
    (tmp_path / "user_code.py").write_text(USER_CODE)
    told, failed, code = api.run(["--config-file", "pyproject.toml", str(tmp_path / "user_code.py")])
    assert (code, failed) == (0, ""), told
