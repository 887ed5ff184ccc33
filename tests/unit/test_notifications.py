"""What the planner tells of, whom, and how often; state is the fold of the log, whatever happens."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scylla_spark.client.tasks.enqueue_arguments import command
from scylla_spark.core.notifications.proof import is_proven
from scylla_spark.core.plan.commands.plan_command import encode_command
from scylla_spark.core.plan.commands.stored_kinds import RuleKind
from scylla_spark.core.plan.notices.gathering import MOST_INCIDENTS, MOST_TOLD
from scylla_spark.core.plan.notices.notice import Channel, Channels
from scylla_spark.core.plan.planner import Planner
from scylla_spark.core.plan.state import plan_log
from scylla_spark.core.plan.state.plan_state import PlanState
from scylla_spark.core.records.fact import Fact, Fence, Unreadable
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.task import Failure
from scylla_spark.errors import ArgumentError
from tests.support.planner_harness import CHANNELS, SECOND, START, PlannerHarness, assert_same

EVERY_HOUR = {"kind": "every", "period": "1h"}


@pytest.fixture
def plan() -> PlannerHarness:
    return PlannerHarness()


def put(plan: PlannerHarness, **fields: Any) -> tuple[Any, ...]:
    rule = {"name": "broken", "when": ["failed"], "channel": "ops"} | fields
    return plan.ask("put_rule", rules=[rule])


def failed(plan: PlannerHarness, key: str = "a", message: str = "no route", **fields: Any) -> Fact:
    fact = Fact(
        TaskKey(START, f"lane-{key}", key), 3, "failed", plan.now, plan.now, START, 3, failure=Failure("OSError", message),
        queue="mail", handler="mail.send",
    )  # fmt: skip
    return fact._replace(**fields)


def succeeded(plan: PlannerHarness, key: str = "ok", **fields: Any) -> Fact:
    return failed(plan, key)._replace(outcome="succeeded", failure=None, **fields)


def told(plan: PlannerHarness) -> list[tuple[str, str, int]]:
    return [(one["event"], one["notice"], one["count"]) for one in plan.notices()]


def test_a_failure_for_good_is_told_of_at_once_with_all_that_is_known(plan: PlannerHarness) -> None:
    put(plan, description="wake somebody")
    plan.ends(failed(plan))
    (task,) = plan.sent
    assert (task["queue"], task["handler"], task["orderingId"]) == ("_notify", "scylla.notify", "notify/ops")
    message = dict(task["taskData"])
    assert is_proven(message, CHANNELS.key)
    assert len(message.pop("proof")) == 64
    assert message.pop("id").startswith("msg_")
    assert message.pop("dedupKey").startswith("broken/")
    assert message.pop("link") == "https://tasks.example/v1/tasks/2026-03-01T00:00:00Z,lane-a,a"
    assert message.pop("task") == {
        "scheduledTime": "2026-03-01T00:00:00Z",
        "orderingId": "lane-a",
        "uniquenessKey": "a",
    }
    assert message == {
        "version": 1, "rule": "broken", "channel": "ops", "event": "failed", "notice": "first", "count": 1,
        "since": "2026-03-01T00:00:00Z", "at": "2026-03-01T00:00:00Z", "description": "wake somebody",
        "key": "2026-03-01T00:00:00Z,lane-a,a", "queue": "mail", "handler": "mail.send", "status": "failed",
        "attempts": 3, "started": "2026-03-01T00:00:00Z", "ended": "2026-03-01T00:00:00Z",
        "error": {"kind": "OSError", "message": "no route"},
    }  # fmt: skip


def test_what_repeats_is_one_message_then_one_with_the_count_then_resolved(plan: PlannerHarness) -> None:
    put(plan)
    for number in range(10):
        plan.ends(failed(plan, f"k{number}", f"no route to 10.0.0.{number}"))
    assert told(plan) == [("failed", "first", 1)]
    plan.pass_s(299)
    assert told(plan) == [("failed", "first", 1)]
    plan.pass_s(1)
    assert told(plan)[1:] == [("failed", "repeated", 9)]
    plan.ends(succeeded(plan))
    assert len(told(plan)) == 2, "what is gathered is told of first"
    plan.pass_s(300)
    assert told(plan)[2:] == [("failed", "resolved", 10)]
    plan.pass_s(86_400)
    plan.ends(succeeded(plan))
    assert len(told(plan)) == 3
    assert not plan.planner.state.notices.incidents


def test_a_success_after_a_quiet_time_resolves_at_once(plan: PlannerHarness) -> None:
    put(plan)
    plan.ends(failed(plan))
    plan.pass_s(301)
    plan.ends(succeeded(plan, handler="other"))
    assert len(told(plan)) == 1
    plan.ends(succeeded(plan))
    assert told(plan) == [("failed", "first", 1), ("failed", "resolved", 1)]


def test_work_that_fails_now_and_then_makes_at_most_two_messages_in_a_window(plan: PlannerHarness) -> None:
    put(plan)
    for _ in range(300):
        plan.ends(failed(plan), succeeded(plan))
        plan.pass_s(1)
    assert told(plan) == [("failed", "first", 1), ("failed", "resolved", 300)]


def test_other_errors_and_other_work_have_messages_of_their_own_and_are_resolved_together(plan: PlannerHarness) -> None:
    put(plan)
    plan.ends(failed(plan), failed(plan, message="refused"), failed(plan, handler="charge"))
    assert told(plan) == [("failed", "first", 1)] * 3
    plan.pass_s(100)
    plan.ends(failed(plan, message="refused"))
    plan.pass_s(100)
    plan.ends(succeeded(plan))
    plan.pass_s(400)
    assert told(plan)[3:] == [("failed", "resolved", 3)]


def test_a_failure_after_the_success_keeps_it_open(plan: PlannerHarness) -> None:
    put(plan)
    plan.ends(failed(plan))
    plan.pass_s(10)
    plan.ends(succeeded(plan))
    plan.pass_s(10)
    plan.ends(failed(plan))
    plan.pass_s(300)
    assert told(plan)[1:] == [("failed", "repeated", 1)]


def test_work_of_which_one_error_came_again_is_not_well(plan: PlannerHarness) -> None:
    put(plan)
    plan.ends(failed(plan))
    plan.ends(failed(plan, message="refused"))
    plan.pass_s(10)
    plan.ends(succeeded(plan))
    plan.pass_s(10)
    plan.ends(failed(plan, message="refused"))
    plan.pass_s(300)
    assert told(plan)[2:] == [("failed", "repeated", 1)]
    plan.ends(succeeded(plan))
    plan.pass_s(300)
    assert told(plan)[3:] == [("failed", "resolved", 3)]


def test_without_a_digest_each_one_is_told_of_once(plan: PlannerHarness) -> None:
    put(plan, when=["succeeded", "failed"], digest="0s")
    plan.ends(succeeded(plan, "a"), succeeded(plan, "b"), failed(plan, "c"))
    assert told(plan) == [("succeeded", "first", 1), ("succeeded", "first", 1), ("failed", "first", 1)]
    assert [one["status"] for one in plan.notices()] == ["succeeded", "succeeded", "failed"]
    assert len({one["uniquenessKey"] for one in plan.sent}) == 3
    plan.pass_s(86_400)
    assert len(plan.sent) == 3


@pytest.mark.parametrize(
    ("scope", "is_told"),
    [
        ({"queues": ["mail"]}, True),
        ({"queues": ["ma*"]}, True),
        ({"queues": ["ma"]}, False),
        ({"handlers": ["mail.*"]}, True),
        ({"handlers": ["*"]}, True),
        ({"handlers": ["charge"], "queues": ["mail"]}, True),
        ({"schedules": ["*"]}, False),
        ({"tags": ["*"]}, False),
        ({"paused": True}, False),
        ({"when": ["succeeded"]}, False),
    ],
)
def test_a_rule_tells_of_its_scope_only(plan: PlannerHarness, scope: dict[str, Any], is_told: bool) -> None:
    put(plan, **scope)
    plan.ends(failed(plan))
    assert bool(plan.notices()) == is_told


def test_runs_of_a_schedule_are_known_by_its_name_and_tags(plan: PlannerHarness) -> None:
    put(plan, name="by_name", schedules=["night*"])
    put(plan, name="by_tag", tags=["billing"])
    plan.put("nightly", EVERY_HOUR, tags=["billing"])
    plan.put("other", EVERY_HOUR)
    plan.pass_s(3_600)
    runs = [one for one in plan.sent if one["handler"] == "work"]
    plan.sent = runs
    plan.end(0, "failed")
    plan.end(1, "failed")
    assert sorted(one["rule"] for one in plan.notices()) == ["by_name", "by_tag"]
    assert {one["schedule"] for one in plan.notices()} == {"nightly"}


def test_tasks_are_known_by_their_tags(plan: PlannerHarness) -> None:
    put(plan, name="by_tag", tags=["bill*"])
    plan.ends(failed(plan, "a", tags=("billing", "eu")), failed(plan, "b", tags=("eu",)), failed(plan, "c"))
    assert [one["task"]["uniquenessKey"] for one in plan.notices()] == ["a"]


@pytest.mark.parametrize("outcome", ["succeeded", "failed", "expired", "cancelled"])
def test_a_channel_that_allows_it_is_told_of_the_end_of_a_task_that_names_it(outcome: str) -> None:
    plan = PlannerHarness(
        channels=Channels({"ops": Channel(), "open": Channel(tasks=True), "more": Channel(tasks=True)})
    )
    assert plan.planner.wants_facts
    named = [
        failed(plan, key, tags=("eu", f"notify:{name}")) for key, name in (("a", "open"), ("b", "ops"), ("c", "none"))
    ]
    both = failed(plan, "d", tags=("notify:open", "notify:more"))
    plan.ends(*(one._replace(outcome=outcome) for one in (*named, both, failed(plan, "e"))))
    said = [(one["rule"], one["channel"], one["status"], one["task"]["uniquenessKey"]) for one in plan.notices()]
    assert said == [("task", channel, outcome, key) for channel, key in (("open", "a"), ("more", "d"), ("open", "d"))]
    plan.pass_s(3_600)
    assert len(plan.notices()) == 3, "one message for each end"


def test_the_name_of_a_channel_is_a_tag_of_the_task() -> None:
    assert command(START, "h", tags=["eu"], notify="ops").tags == ("eu", "notify:ops")
    for wrong in ("", "a b", "x" * 58, 7):
        with pytest.raises(ArgumentError, match="names no channel"):
            command(START, "h", notify=wrong)


@pytest.mark.parametrize("outcome", ["expired", "cancelled", "duplicate"])
def test_ends_that_are_neither_success_nor_failure_are_told_of(plan: PlannerHarness, outcome: str) -> None:
    put(plan, name="ends", when=[outcome], queues=["mail"])
    put(plan, when=["failed", "succeeded"])
    plan.ends(failed(plan)._replace(outcome=outcome, failure=None))
    (notice,) = plan.notices()
    assert (notice["rule"], notice["event"], notice["status"]) == ("ends", outcome, outcome)


def test_runs_that_the_planner_takes_back_are_cancelled_by_nobody() -> None:
    plan = PlannerHarness(ahead_us=10 * SECOND)
    put(plan, when=["cancelled"])
    plan.put("nightly", EVERY_HOUR)
    plan.pass_s(3_595)
    (ahead,) = [one for one in plan.sent if one["handler"] == "work"]
    plan.ask("pause", names=["nightly"])
    plan.end(plan.sent.index(ahead), "cancelled")
    assert plan.notices() == []
    plan.ask("resume", names=["nightly"])
    plan.ask("run", name="nightly")
    plan.end(-1, "cancelled")
    assert told(plan) == [("cancelled", "first", 1)], "this one somebody has ended"


def test_missed_skipped_and_paused_fires_are_told_of(plan: PlannerHarness) -> None:
    put(plan, when=["missed", "skipped", "paused"])
    plan.put("hourly", EVERY_HOUR, catchUp="none")
    plan.pass_s(3_600)
    plan.pass_s(3_600)
    assert told(plan) == [("skipped", "first", 1)]
    plan.restart(after_us=10 * 3_600 * SECOND + 1)
    plan.pass_s(1)
    assert told(plan)[1:] == [("missed", "first", 1)]
    plan.ask("pause", names=["hourly"], note="broken upstream", author="ann")
    assert told(plan)[2:] == [("paused", "first", 1)]
    assert plan.notices()[-1]["why"] == "broken upstream (ann)"
    assert plan.notices()[-1]["schedule"] == "hourly"


def test_promises_that_schedules_do_not_keep_are_told_of(plan: PlannerHarness) -> None:
    put(plan, when=["overdue", "silent"])
    plan.put("hourly", EVERY_HOUR, endWithin="1m", expectEvery="90m")
    plan.pass_s(3_600 + 60)
    assert told(plan) == [("overdue", "first", 1)]
    plan.pass_s(1_800)
    assert told(plan)[1:] == [("silent", "first", 1)]
    plan.pass_s(400)
    plan.sent = [one for one in plan.sent if one["handler"] == "work"]
    plan.end(0)
    assert told(plan) == [("silent", "resolved", 1)]


def test_a_success_that_does_not_come_is_told_of_once_and_resolved(plan: PlannerHarness) -> None:
    put(plan, when=["absent"], within="25h", handlers=["mail.send"])
    for _ in range(100):
        plan.ends(succeeded(plan))
        plan.pass_s(600)
    changes = sum(value.count(b"notification_seen") for value in plan.log)
    assert 10 < changes < 30, "not every success needs a change"
    plan.pass_s(25 * 3_600 - 1_200)
    assert told(plan) == []
    plan.pass_s(3_600 + 1_200)
    assert told(plan) == [("absent", "first", 1)]
    plan.pass_s(400 * 3_600)
    plan.restart()
    plan.ends(succeeded(plan, handler="other"))
    assert len(told(plan)) == 1
    plan.ends(succeeded(plan))
    assert told(plan)[1:] == [("absent", "resolved", 1)]


def test_a_sign_of_life_is_sent_as_often_as_asked_and_not_tried_again(plan: PlannerHarness) -> None:
    put(plan, when=["alive"], every="5m")
    plan.pass_s(1)
    assert told(plan) == [("alive", "alive", 1)]
    assert plan.sent[0]["retry"]["maxRetries"] == 0
    plan.pass_s(1_500)
    assert len(plan.notices()) == 6
    plan.restart(after_us=3_600 * SECOND)
    plan.pass_s(1)
    assert len(plan.notices()) == 7, "those that were missed are not sent afterwards"
    assert len({one["uniquenessKey"] + one["scheduledTime"] for one in plan.sent}) == 7
    put(plan, when=["alive"], every="5m", paused=True)
    plan.pass_s(3_600)
    assert len(plan.notices()) == 7


@pytest.mark.parametrize(
    "ours",
    [
        {"queue": "_notify"},
        {"handler": "scylla.notify"},
        {"key": TaskKey(START, "notify/mine", "notice/broken/0/1"), "queue": "alerts", "handler": "my.alert"},
    ],
)
def test_a_notification_that_fails_notifies_nobody(plan: PlannerHarness, ours: dict[str, Any]) -> None:
    put(plan)
    plan.ends(failed(plan)._replace(**ours))
    assert plan.sent == []


def test_a_channel_may_be_a_handler_of_ours(plan: PlannerHarness) -> None:
    put(plan, channel="mine")
    plan.ends(failed(plan))
    (task,) = plan.sent
    assert (task["queue"], task["handler"], task["orderingId"]) == ("alerts", "my.alert", "notify/mine")


def test_a_planner_that_begins_anew_goes_on_with_windows_and_tells_nothing_twice(plan: PlannerHarness) -> None:
    put(plan)
    plan.ends(failed(plan))
    plan.ends(failed(plan))
    plan.restart(after_us=10 * SECOND)
    plan.ends(failed(plan))
    assert told(plan) == [("failed", "first", 1)]
    plan.restart(after_us=600 * SECOND)
    plan.pass_s(1)
    assert told(plan)[1:] == [("failed", "repeated", 2)]
    plan.pass_s(600)
    plan.restart()
    plan.ends(succeeded(plan))
    assert told(plan)[2:] == [("failed", "resolved", 3)]


@pytest.mark.slow
def test_an_input_that_was_written_in_part_is_counted_once(plan: PlannerHarness) -> None:
    put(plan, digest="0s")
    facts = [failed(plan, f"k{number}", message="x" * 2_000) for number in range(200)]
    plan.planner.outcomes(0, 1, facts, (2, 1, "d"), plan.now)
    first = plan.planner.take(plan.now)[0]
    assert first.partly is not None
    plan.log.append(plan_log.encode(first))
    sent = [change[1] for change in first.changes if change[0] == "send"]
    plan.shadow.fold(first)
    plan.restart(after_us=SECOND)
    plan.sent = [json.loads(text) for text in sent]
    plan.planner.outcomes(0, 1, facts, (2, 1, "d"), plan.now)
    plan.turn()
    keys = [one["key"] for one in plan.notices()]
    assert sorted(keys) == sorted({str(fact.key) for fact in facts})
    assert len(keys) == 200


@pytest.mark.slow
def test_memory_is_bounded_however_many_errors_there_are(plan: PlannerHarness) -> None:
    put(plan)
    words = [f"{chr(97 + n % 26)}{chr(97 + n // 26 % 26)}{chr(97 + n // 676)}" for n in range(1_000)]
    plan.ends(*(failed(plan, word, message=word) for word in words))
    assert len(plan.planner.state.notices.incidents["broken"]) == MOST_INCIDENTS + 1
    assert len(plan.notices()) == MOST_INCIDENTS + 1
    plan.pass_s(300)
    assert told(plan)[-1] == ("failed", "repeated", 1_000 - MOST_INCIDENTS - 1)
    plan.pass_s(300)
    plan.ends(failed(plan, message="quite another"))
    assert len(plan.planner.state.notices.incidents["broken"]) == MOST_INCIDENTS + 1
    assert plan.notices()[-1]["error"]["message"] == "quite another"


@pytest.mark.slow
def test_one_occurrence_fits_into_a_record_of_the_log_whatever_its_texts_and_rules(plan: PlannerHarness) -> None:
    for number in range(RuleKind.most):
        put(plan, name=f"r{number:03}", description="\x01" * 1_024)
    assert put(plan, name="one too many")[0] == "argument"
    hostile = TaskKey(START, "\x01" * 1_024, "\x02" * 1_024)
    plan.ends(failed(plan, key="a", message="\x03" * 16_000)._replace(key=hostile))
    assert len(plan.notices()) == MOST_TOLD
    names = plan.planner.begin_snapshot(plan.now)
    while names:
        plan.planner.snapshot(names, plan.now)
    plan.turn()


def test_a_snapshot_repeats_rules_and_what_is_open(plan: PlannerHarness) -> None:
    put(plan, when=["failed", "absent"], within="1h")
    plan.ends(failed(plan))
    begins = len(plan.log)
    names = plan.planner.begin_snapshot(plan.now)
    plan.ends(failed(plan, message="in between"))
    while names:
        plan.planner.snapshot(names, plan.now)
        plan.turn()
    state = PlanState()
    for value in plan.log[begins:]:
        group = plan_log.decode(value)
        assert not isinstance(group, Unreadable)
        state.fold(group)
    assert_same(plan.planner.state, state)
    assert len(state.notices.incidents["broken"]) == 2


# -- commands -----------------------------------------------------------------------------------------------------------


def test_rules_are_put_changed_and_deleted(plan: PlannerHarness) -> None:
    assert put(plan)[3] == {"broken": {"became": "added", "revision": 1}}
    assert put(plan, digest="300s")[3] == {"broken": {"became": "unchanged", "revision": 1}}
    assert put(plan, digest="1m")[3] == {"broken": {"became": "changed", "revision": 2}}
    code, message, _, _ = plan.ask(
        "put_rule", rules=[{"name": "x", "when": ["failed"], "channel": "ops"}], expect={"x": 7}
    )
    assert (code, "is not stored, not at 7" in message) == ("conflict", True)
    assert plan.ask("delete_rule", names=["broken"])[3] == {"broken": {"became": "removed", "revision": 0}}
    assert plan.ask("delete_rule", names=["broken"])[0] == "not_found"
    assert not plan.planner.state.notices.rules


def test_a_rule_whose_channel_the_settings_do_not_have_is_refused(plan: PlannerHarness) -> None:
    code, message, hint, _ = put(plan, channel="pager")
    assert (code, "'pager'" in message, "notify.channels.pager" in hint) == ("argument", True, True)


def test_a_rule_that_is_deleted_takes_what_is_open_along(plan: PlannerHarness) -> None:
    put(plan)
    plan.ends(failed(plan), failed(plan))
    plan.ask("delete_rule", names=["broken"])
    plan.pass_s(600)
    plan.ends(succeeded(plan))
    assert len(plan.notices()) == 1


def test_a_test_goes_the_way_of_all_messages(plan: PlannerHarness) -> None:
    put(plan)
    code, _, _, done = plan.ask("test_rule", name="broken")
    assert (code, told(plan)) == ("ok", [("test", "test", 1)])
    assert TaskKey.parse(done["broken"]).ordering_id == "notify/ops"
    assert plan.ask("test_rule", name="nobody")[0] == "not_found"


def test_a_launch_that_was_never_sent_does_not_lose_a_notice() -> None:
    plan = PlannerHarness()
    put(plan)
    plan.ends(failed(plan))
    (task,) = plan.sent
    key = TaskKey(START, task["orderingId"], task["uniquenessKey"])
    plan.now += 7_200 * SECOND
    plan.planner.anew(key, task["taskData"], plan.now)
    plan.turn()
    assert [one["id"] for one in plan.notices()] == [task["taskData"]["id"]] * 2
    assert plan.sent[1]["scheduledTime"] > task["scheduledTime"]


@pytest.mark.parametrize("others", [0, 16])
def test_a_defect_that_a_rule_meets_pauses_that_rule_only(
    plan: PlannerHarness, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    """Even if the rule is so large that it is not valid with the description of the defect."""
    put(plan, name="a", queues=["mail", *(f"{number}".rjust(1_010, "x") for number in range(others))])
    put(plan, name="b", channel="mine")
    from scylla_spark.core.plan.notices import gathering

    whole = gathering.task_of

    def broken(message: Any, rule: Any, channels: Any, now: int) -> Any:
        if rule.name == "a":
            raise ZeroDivisionError("planted")
        return whole(message, rule, channels, now)

    monkeypatch.setattr(gathering, "task_of", broken)
    plan.ends(failed(plan))
    assert [one["rule"] for one in plan.notices()] == ["b"]
    assert json.loads(plan.planner.state.notices.rules["a"].text)["paused"]
    assert "planted" in json.loads(plan.planner.state.notices.rules["a"].text)["description"]
    plan.ends(failed(plan, message="another"))
    assert [one["rule"] for one in plan.notices()] == ["b", "b"]


def test_without_rules_nothing_of_other_tasks_is_wanted() -> None:
    planner = Planner(PlanState(), Fence(1, "n"), 0, START, channels=CHANNELS)
    assert not planner.wants_facts
    rule = {"name": "a", "when": ["failed"], "channel": "ops"}
    planner.command(0, encode_command("put_rule", rules=[rule]), START, START)
    assert planner.wants_facts


@pytest.mark.slow
def test_work_whose_incidents_were_let_go_of_is_not_remembered(plan: PlannerHarness) -> None:
    put(plan, digest="1s")
    for number in range(MOST_INCIDENTS + 100):
        name = chr(97 + number // 26) + chr(97 + number % 26)
        plan.ends(failed(plan, key=name, handler=f"h_{name}"))
        plan.pass_s(3)
    gathering = plan.planner._noticing._gathering
    assert len(plan.planner.state.notices.incidents["broken"]) == MOST_INCIDENTS
    assert len(gathering._open) == MOST_INCIDENTS
    put(plan, digest="2s")
    assert not gathering._open
