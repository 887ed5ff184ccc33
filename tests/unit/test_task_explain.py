"""What clients say of a task by its facts, whether its dispatcher holds it or not."""

from dataclasses import replace

import pytest

from scylla_spark.client.tasks import explain
from scylla_spark.core.records.fact import Fact
from scylla_spark.core.tasks.attempt_note import WorkNote
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.state import READY
from scylla_spark.core.tasks.status import TaskStatus, attempt_of

STATUS = TaskStatus(
    TaskKey(1_700_000_000_000_000, "a", "u"), READY, "h", "default", 0, {}, None, 0, None, cancel_requested=False
)
LATE = {"name": "the tables have been scanned up to its time", "met": False, "detail": "up to noon"}


def explained(monkeypatch, told):
    monkeypatch.setattr(explain, "ask", lambda *_, **__: told)
    found = explain.explain(STATUS, "http://127.0.0.1:1")
    return found["why"], [one["name"] for one in found["conditions"] if not one["met"]]


def test_a_due_task_that_is_not_loaded_is_explained_by_what_its_dispatcher_says(monkeypatch):
    told = {"known": False, "why": "Its dispatcher reads it from the tables.", "conditions": [LATE]}
    assert explained(monkeypatch, told) == ("It is due. Its dispatcher reads it from the tables.", [LATE["name"]])


@pytest.mark.parametrize("why", [None, 7, "", ["x"]])
def test_a_dispatcher_that_says_nothing_sensible_leaves_the_general_answer(monkeypatch, why):
    general = "It is due. Its dispatcher loads it when it comes within the look-ahead."
    told = {"known": False, "why": why, "conditions": [LATE | {"met": "no"}]}
    assert explained(monkeypatch, told) == (general, ["its dispatcher has loaded it"])


@pytest.mark.parametrize(
    ("outcome", "lease", "said"),
    [("started", None, " It said last: 40 %, page 3."), ("started", "digest", ""), ("failed", None, "")],
)
def test_how_far_a_handler_under_way_is_stands_behind_what_its_dispatcher_says(monkeypatch, outcome, lease, said):
    note = WorkNote(worker="w", lease=lease, progress=0.4, progress_note="page 3")
    status = replace(STATUS, attempt_details=(attempt_of(Fact(STATUS.key, 1, outcome, work=note)),))
    monkeypatch.setattr(
        explain, "ask", lambda *_, **__: {"known": True, "state": "running", "why": "It is running, attempt 1."}
    )
    assert explain.explain(status, "http://127.0.0.1:1")["why"] == f"It is running, attempt 1.{said}"
