"""How tasks are run, by what task, queue, handler and deployment say; and what a queue makes of how they ended."""

import json

import pytest

from scylla_spark.clock import boot_us
from scylla_spark.config.settings import Settings
from scylla_spark.core.engine.bounds import Limits, retry_of
from scylla_spark.core.queues.in_force import QueuesInForce
from scylla_spark.core.records.command import Command, WireRetry
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.task import CHILD_DIED, FAILED, SUCCEEDED, TIMED_OUT, Failure, Retry
from scylla_spark.definitions.queue import Queue
from scylla_spark.executors.interface import Shortage
from scylla_spark.executors.unsandboxed import Unsandboxed
from scylla_spark.handlers.description import HandlerInfo
from scylla_spark.handlers.isolation import Isolation
from scylla_spark.services.dispatch import executor_catalog as catalog
from scylla_spark.services.dispatch.describe import describe_due, describe_waiting, explain
from scylla_spark.services.dispatch.engine_settings import limits_of
from scylla_spark.services.dispatch.handler_policies import HandlerPolicies
from tests.support.engine_harness import NOW, Harness
from tests.support.executor_conformance import invocation

STACK = "Traceback (most recent call last):\nValueError: x"


def defined(**fields):
    return Queue.of({"name": "default"} | fields)


def policies(definition=None, **handlers):
    queues = QueuesInForce({"default": definition} if definition is not None else {})
    made = HandlerPolicies(Settings(dispatch={"retry_base": "1s", "retry_cap": "8s", "max_retries": 2}), queues)
    infos = {"h": HandlerInfo("h"), **{name: HandlerInfo(name, **info) for name, info in handlers.items()}}
    made.know(infos, {"local", "own/boxed", "own/limited"})
    return made


def command(handler="h", **fields):
    return Command("enqueue", TaskKey(NOW, "a", "u"), 0, handler=handler, **fields)


class World(Harness):
    """An engine whose policies come from a definition."""

    def __init__(self, definition=None, **handlers):
        self.policies = policies(definition, **handlers)
        queues = {"default": limits_of(definition)} if definition is not None else None
        super().__init__(Limits(least_wait_us=0), terms=self.policies.of, queues=queues)

    def redefine(self, definition):
        self.policies._queues.put({"default": definition})
        self.policies.queues_changed()
        self.engine.put_queue("default", limits_of(definition) if definition is not None else None, self.now)
        self.engine.reconsider("default", self.now)
        return self.pump()


def outcomes(world):
    return [fact.outcome for fact in world.facts]


def retry(made, handler="h"):
    found = made.of(command(handler)).retry
    return found.max_retries, found.base_ms, found.cap_ms


def test_of_retries_counts_the_task_then_the_handler_then_the_queue_then_the_deployment():
    own = {"slow": {"retry": Retry(7, "5s", "50s")}, "few": {"retry": Retry(1)}}
    assert retry(policies(None, **own)) == (2, 1_000, 8_000)
    assert retry(policies(None, **own), "slow") == (7, 5_000, 50_000)
    assert retry(policies(None, **own), "few") == (1, 1_000, 8_000)
    with_queue = policies(defined(maxRetries=3, retryCap="9s"), **own)
    assert retry(with_queue) == (3, 1_000, 9_000)
    assert retry(with_queue, "slow") == (7, 5_000, 50_000)
    assert retry(with_queue, "few") == (1, 1_000, 9_000)
    assert retry(policies(defined(maxRetries=None))) == (None, 1_000, 8_000)
    slow = with_queue.of(command("slow"))
    assert retry_of(command("slow", retry=WireRetry(*Retry(1).terms)), slow) == Retry.from_ms(1, 5_000, 50_000)
    assert retry_of(command("slow", retry=WireRetry(*Retry(base="2s").terms)), slow) == Retry.from_ms(7, 2_000, 50_000)
    world = World(defined(maxRetries=0))
    world.enqueue(retry=WireRetry(1, 0, 0))
    (first,) = world.pump()
    world.finish(first, FAILED)
    assert len(world.pump()) == 1, "the task's own comes first"


def test_another_definition_holds_from_the_next_attempt_on():
    world = World(defined(maxRetries=5))
    world.enqueue()
    (first,) = world.pump()
    world.redefine(defined(maxRetries=0))
    world.finish(first, FAILED)
    assert world.at(2) == []
    assert outcomes(world)[-1] == FAILED


def test_policies_of_handlers_that_nobody_knows_take_no_memory():
    made = policies(defined())
    for number in range(100):
        made.of(command(f"unknown{number}"))
    assert len(made._of_queues) == 1
    assert made.of(command("unknown")).executor == "no_handler"


def test_a_task_without_a_handler_is_run_by_that_of_its_queue():
    world = World(defined(defaultHandler="h"))
    world.enqueue(handler=None)
    (one,) = world.pump()
    assert one.handler == "h"


def test_a_default_handler_that_comes_later_runs_what_waits_and_one_that_goes_leaves_it():
    world = World()
    world.enqueue(handler=None, lane="a")
    world.enqueue(handler=None, lane="b")
    assert world.pump() == []
    first, second = world.redefine(defined(defaultHandler="h"))
    world.finish(first)
    world.finish(second)
    world.pump()
    world.enqueue(handler=None, lane="c")
    assert world.pump(room=0) == []
    assert world.redefine(None) == []
    assert [place.lane.ordering_id for place in world.engine._pulls.places()] == ["c"]


def test_a_pull_queue_gives_no_handler_to_tasks_without_one():
    world = World(defined(defaultHandler="h", mode="pull"))
    world.enqueue(handler=None)
    assert world.pump() == []


def test_an_exception_fails_a_task_at_once_where_its_queue_says_so():
    world = World(defined(onException="fail"))
    world.enqueue()
    (first,) = world.pump()
    world.finish(first, FAILED, failure=Failure("ValueError", "x", STACK))
    world.pump()
    (fact,) = [fact for fact in world.facts if fact.terminal]
    assert (fact.outcome, fact.failure.stack) == (FAILED, STACK)


@pytest.mark.parametrize(
    ("outcome", "failure"),
    [
        (TIMED_OUT, Failure(TIMED_OUT, "x")),
        (FAILED, Failure(CHILD_DIED, "x", "Fatal Python error")),
        (FAILED, Failure("handler_unknown", "x")),
    ],
)
def test_what_is_no_exception_is_tried_again_all_the_same(outcome, failure):
    world = World(defined(onException="fail"))
    world.enqueue()
    (first,) = world.pump()
    world.finish(first, outcome, failure=failure)
    world.pump()
    assert not [fact for fact in world.facts if fact.terminal]
    assert len(world.at(30)) == 1


def test_a_handler_that_returns_false_gets_its_task_again_after_the_lease_and_for_ever():
    world = World(defined(onFalse="redeliver", lease="30s", maxRetries=0))
    world.enqueue()
    (one,) = world.pump()
    for number in range(1, 5):
        world.finish(one, result=json.dumps(False))
        assert world.at(30 * number - 1) == []
        (one,) = world.at(30 * number + 1)
    world.finish(one, result=json.dumps(True))
    world.pump()
    assert outcomes(world)[-1] == SUCCEEDED
    assert [fact.used for fact in world.facts if fact.terminal] == [1]


@pytest.mark.parametrize("fields", [{}, {"onFalse": "redeliver", "lease": 0}])
def test_false_is_a_result_like_others_where_nothing_is_delivered_again(fields):
    world = World(defined(**fields))
    world.enqueue()
    (one,) = world.pump()
    world.finish(one, result="false")
    world.pump()
    assert outcomes(world) == [SUCCEEDED]


def test_behind_a_task_that_may_come_again_nothing_of_its_lane_is_handed_over():
    world = World(defined(onFalse="redeliver", order="replay"), batch={"max_batch": 5})
    for handler in ("h", "batch"):
        for number in range(20):
            world.enqueue(lane=handler, unique=f"{number:02}", handler=handler)
    for expected in ("00", "01", "02"):
        found = world.pump()
        assert [one.key.uniqueness_key for one in found] == [expected] * 2
        for one in found:
            world.finish(one, result="true")


def test_a_cancel_ends_a_task_that_would_come_again():
    world = World(defined(onFalse="redeliver"))
    key = world.enqueue()
    (one,) = world.pump()
    world.command("cancel", key, request_id="r")
    world.finish(one, result="false")
    world.pump()
    assert outcomes(world)[-1] == "cancelled"


def test_a_queue_that_asks_for_a_sandbox_refuses_handlers_that_are_in_none():
    boxed, limited = Isolation("sandbox"), Isolation("process", memory=64_000_000)
    made = policies(defined(isolation="sandbox"), boxed={"isolation": boxed}, limited={"isolation": limited})
    found = {name: made.of(command(name)).executor for name in ("boxed", "limited", "h", "nobody", None)}
    assert found.pop("boxed") == "own/boxed"
    assert found.pop("nobody") == "no_handler"
    assert set(found.values()) == {"unsandboxed"}
    assert policies(defined(), boxed={"isolation": boxed}).of(command("h")).executor == "local"


def test_what_a_queue_refuses_for_want_of_a_sandbox_fails_and_says_so():
    reported = []
    refusing = Unsandboxed()
    refusing.start(reported.extend)
    refusing.submit([invocation("h")])
    assert (reported[0].outcome, reported[0].failure.kind) == (FAILED, "isolation_unavailable")
    assert "'h'" in reported[0].failure.message


def test_a_task_whose_handler_is_not_here_waits_keeps_its_place_and_uses_up_no_retry():
    world = World()
    missing = world.enqueue(handler="sum_flie", lane="a")
    world.enqueue(lane="a", unique="v", due=0.001)
    world.enqueue(lane="b")
    (other,) = world.pump()
    assert other.key.ordering_id == "b", "what is behind it in its lane waits as well"
    assert world.at(600) == []
    told = explain(world.engine, world.now, missing)
    assert (told["attempts"], told["reason"]) == (0, "no_handler")
    assert "no handler 'sum_flie'" in told["why"]
    assert [one for one in told["conditions"] if not one["met"]] == [
        {"name": "this dispatcher has its handler", "met": False, "detail": "sum_flie"}
    ]
    assert describe_due(world.engine, world.now)["without_handler"] == 1
    assert describe_waiting(world.engine)["no_handler"] == [{"queue": "default", "handler": "sum_flie", "lanes": 1}]


def test_a_task_whose_handler_is_not_here_ends_when_it_is_cancelled_or_expires():
    world = World()
    cancelled = world.enqueue(handler="nobody", lane="a")
    world.enqueue(handler="nobody", lane="b", expires_ms=5_000)
    world.pump()
    world.command("cancel", cancelled)
    world.pump()
    world.at(6)
    world.pump()
    assert sorted(outcomes(world)) == ["cancelled", "expired"]


def test_an_executor_that_is_off_is_the_same_case_and_the_answer_says_what_to_set():
    world = World(train={"runs_on": "spark"})
    key = world.enqueue(handler="train")
    assert world.pump() == []
    told = explain(world.engine, world.now, key)
    assert told["reason"] == "no_handler"
    assert f"Handler 'train' runs on 'spark', which is off here: {catalog.turned_on_by('spark')}." in told["why"]


def test_an_isolated_handler_whose_executor_is_off_is_answered_with_what_turns_that_on():
    world = World(train={"runs_on": "spark", "isolation": Isolation(memory=100_000_000)})
    key = world.enqueue(handler="train")
    assert world.pump() == []
    assert (
        f"runs on 'spark', which is off here: {catalog.turned_on_by('spark')}."
        in explain(world.engine, world.now, key)["why"]
    )


def test_a_task_without_a_spark_worker_waits_with_its_reason_until_one_runs():
    world = World(train={"runs_on": "spark"})
    world.policies.know({"train": HandlerInfo("train", "spark"), "h": HandlerInfo("h")}, {"spark", "local"})
    key, behind = world.enqueue(handler="train"), world.enqueue(unique="v", handler="h")
    world.pump(room={"spark": 0})
    for why in ("Spark's session is not up yet.", "No Spark executor has a free core for a Spark worker."):
        short = {"spark": Shortage(why, boot_us() - 12_000_000)}
        told = explain(world.engine, world.now, key, short)
        assert (told["reason"], told["attempts"]) == ("no_worker", 0)
        assert told["why"] == f"It is due and waits for a Spark worker. {why}"
        (unmet,) = [one for one in told["conditions"] if not one["met"]]
        assert unmet == {"name": "somebody can run it", "met": False, "detail": f"it waits for a Spark worker: {why}"}
        told = explain(world.engine, world.now, behind, short)
        assert (told["reason"], "waits for a Spark worker" in told["why"]) == ("", True)
        assert [one["name"] for one in told["conditions"] if not one["met"]] == ["it is the head of its lane"]
        (row,) = describe_waiting(world.engine, short)["no_worker"]
        assert (row["handler"], row["lanes"], row["seconds"] >= 12) == ("train", 1, True)
        world.pump(room={"spark": 1})  # the pool has it: it starts a worker, and waits for that one
    (run,) = world.engine.runs.values()
    leaving = {"spark": short["spark"]._replace(held=frozenset({run.invocation.id}))}  # its worker is being drained
    told = explain(world.engine, world.now, key, leaving)
    assert (told["reason"], "It is running" in told["why"]) == ("", True)
    assert describe_waiting(world.engine, leaving)["no_worker"] == []
    for handlers, reason in ({"other"}, ""), ({"train", "other"}, "no_worker"):  # workers are there, and all lack some
        lacked = {"spark": Shortage("Every worker lacks it.", 0, handlers=frozenset(handlers))}
        told = explain(world.engine, world.now, key, lacked)
        assert (told["reason"], "Every worker lacks it." in told["why"]) == (reason, bool(reason))
        assert len(describe_waiting(world.engine, lacked)["no_worker"]) == len(reason[:1])
    told = explain(world.engine, world.now, key)
    assert (told["reason"], "It is running" in told["why"]) == ("", True)


def test_a_queue_that_is_paused_goes_before_a_spark_worker_that_is_missing():
    world = World(defined(paused=True))
    world.policies.know({"train": HandlerInfo("train", "spark")}, {"spark"})
    key = world.enqueue(handler="train")
    world.pump(room={"spark": 0})
    told = explain(world.engine, world.now, key, {"spark": Shortage("No Spark worker runs.", 0)})
    assert (told["reason"], "paused" in told["why"]) == ("", True)


def test_every_executor_says_what_turns_it_on():
    assert all(catalog.turned_on_by(name) for name in catalog.EXECUTORS)
