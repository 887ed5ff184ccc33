"""A worker without a server: what it says, what it takes, and what it makes of trouble."""

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from pydantic import BaseModel
from typer.testing import CliRunner

from scylla_spark import Abort, RateLimited, Worker, Yield
from scylla_spark.cli.app import app
from scylla_spark.core.leases.messages import folded
from scylla_spark.errors import (
    ArgumentError,
    ConfigError,
    ConflictError,
    NotFoundError,
    SchedulerError,
    UnreachableError,
)
from scylla_spark.handlers import registry as handler_registry
from scylla_spark.worker import conversation
from scylla_spark.worker.connection import Connection, Reply, refusal, site
from scylla_spark.worker.conversation import Wishes
from scylla_spark.worker.handlers import asked_for, resolved
from scylla_spark.worker.lease import Lease
from scylla_spark.worker.ledger import Ledger
from scylla_spark.worker.run_lease import work
from scylla_spark.worker.slot_runner import Runner
from tests.support.http_script import Half, Script, SyncScript, lease_view
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
WANT = [{"queue": "gpu", "max": 4}]


class Desk:
    """A ledger and the other side, by hand; a `Reporter`."""

    def __init__(self):
        self.ledger = Ledger("s", "{}")
        self.calls = 0

    def report(self, lease, text):
        self.ledger.report(lease, text)

    def sign(self, lease, **fields):
        self.ledger.sign(lease, fields)

    def refuse(self):
        return None

    def call(self):
        call = self.ledger.call(WANT, 1_000)
        return call, json.loads(call.body)

    def answer(self, call, *views, statuses=(), lost=(), commands=()):
        told = {"accepted": [{"status": status} for status in statuses], "lost": lost, "commands": commands}
        new = [Lease(view, self) for view in views]
        self.ledger.take(call, told, 0, new)
        return new

    def lease(self, number=1, **task):
        call, _ = self.call()
        return self.answer(call, lease_view(number, **task))[0]


@pytest.fixture
def desk():
    return Desk()


# -- what it says ----------------------------------------------------------------------------------------------------------


def test_a_call_says_what_is_held_without_what_it_reports(desk):
    one, two = desk.lease(1), desk.lease(2)
    one.complete({"a": 1}, metrics={"ms": 3})
    call, body = desk.call()
    assert body["results"] == [{"lease": one.token, "outcome": "succeeded", "result": {"a": 1}, "metrics": {"ms": 3}}]
    assert body["held"] == {"count": 1, "digest": f"{folded([two.token]):08x}"}
    assert (body["seq"], body["session"], body["want"], body["wait_ms"]) == (3, "s", WANT, 0)
    desk.answer(call, statuses=["ok"])
    assert (one.status, one.recorded(0)) == ("ok", True)
    assert desk.call()[1]["results"] == []


def test_what_cannot_be_taken_now_is_said_again(desk):
    lease = desk.lease()
    lease.complete()
    call, _ = desk.call()
    desk.answer(call, statuses=["unavailable"])
    assert [one["lease"] for one in desk.call()[1]["results"]] == [lease.token]


def test_asked_for_a_list_the_next_call_names_all_leases(desk):
    leases = [desk.lease(n) for n in (1, 2)]
    call, _ = desk.call()
    desk.answer(call, commands=[{"type": "list_leases"}])
    call, body = desk.call()
    assert body["held"] == {"count": 2, "leases": [lease.token for lease in leases]}
    assert not call.may_be_overtaken
    assert "digest" in desk.call()[1]["held"]


def test_only_a_call_that_says_nothing_is_held_by_the_server(desk):
    lease = desk.lease()
    call, _ = desk.call()
    assert (call.wait_ms, call.may_be_overtaken) == (1_000, True)
    desk.answer(call, commands=[{"type": "list_leases"}])
    for says in (lambda: None, lambda: lease.progress(0.5), lease.complete):
        says()
        call, body = desk.call()
        assert (call.wait_ms, body["wait_ms"], call.may_be_overtaken) == (0, 0, False)
        desk.answer(call, statuses=["ok"] * len(body["progress"] + body["results"]))


def test_a_checkpoint_that_was_left_just_before_the_end_is_in_the_report(desk):
    failing, given_back, fine = (desk.lease(number) for number in (1, 2, 3))
    for lease in (failing, given_back, fine):
        lease.checkpoint({"row": 7})
    failing.fail("broken")
    given_back.yield_(checkpoint={"row": 8})
    fine.complete()
    results = {one["lease"]: one.get("checkpoint") for one in desk.call()[1]["results"]}
    assert [results[lease.token] for lease in (failing, given_back, fine)] == [{"row": 7}, {"row": 8}, None]


def test_progress_and_checkpoints_go_once_and_the_newest_wins(desk):
    lease = desk.lease()
    lease.progress(0.1)
    lease.progress(0.4)
    lease.checkpoint({"row": 7})
    call, body = desk.call()
    assert body["progress"] == [{"lease": lease.token, "value": 0.4, "checkpoint": {"row": 7}}]
    desk.answer(call, statuses=["ok"])
    assert desk.call()[1]["progress"] == []


def test_a_call_that_was_not_taken_loses_nothing(desk):
    lease = desk.lease()
    lease.progress(0.1)
    call, _ = desk.call()
    lease.checkpoint({"row": 1})
    desk.ledger.unheard(call)
    assert desk.call()[1]["progress"] == [{"lease": lease.token, "value": 0.1, "checkpoint": {"row": 1}}]


def test_a_report_that_the_server_refuses_is_found_and_fails_alone(desk):
    leases = [desk.lease(n) for n in (1, 2)]
    for lease in leases:
        lease.complete("x")
    call, _ = desk.call()
    assert desk.ledger.refused(call, "no")
    call, body = desk.call()
    assert [one["lease"] for one in body["results"]] == [leases[0].token]
    assert desk.ledger.refused(call, "no")
    call, body = desk.call()
    assert (body["results"][0]["outcome"], body["results"][0]["error"]["code"]) == ("failed", "report_refused")
    assert not desk.ledger.refused(call, "not even that")


def judged(desk, dislikes):
    """Says what is to be said, until it is taken, to a server that refuses calls with what it dislikes; all reports that it took."""
    taken = []
    for _ in range(200):
        call, body = desk.call()
        items = body["results"] + body["progress"]
        if not items:
            return taken
        if any(map(dislikes, items)):
            assert desk.ledger.refused(call, "no")
        else:
            taken += body["results"]
            desk.answer(call, statuses=["ok"] * len(items))
    raise AssertionError("it never ends")


@pytest.mark.parametrize("bad", [0, 1, 17, 39])
def test_a_sign_that_the_server_refuses_is_dropped_and_no_report_has_to_do_with_it(desk, bad):
    leases = [desk.lease(number) for number in range(60)]
    for number, lease in enumerate(leases[:40]):
        lease.checkpoint({"bad" if number == bad else "row": number})
    for lease in leases[40:]:
        lease.complete()
    taken = judged(desk, lambda item: "bad" in item.get("checkpoint", {}))
    assert sorted(one["lease"] for one in taken) == [lease.token for lease in leases[40:]]
    assert {one["outcome"] for one in taken} == {"succeeded"}
    leases[bad].fail("E1")
    assert judged(desk, lambda item: "bad" in item.get("checkpoint", {}))[0]["error"] == {
        "code": "E1",
        "description": "",
    }


def test_a_report_that_is_refused_fails_alone_among_many_and_signs_are_told(desk):
    leases = [desk.lease(number) for number in range(50)]
    for number, lease in enumerate(leases[:40]):
        lease.complete(number)
    for lease in leases[40:]:
        lease.progress(0.5)
    taken = {one["lease"]: one["outcome"] for one in judged(desk, lambda item: item.get("result") == 33)}
    assert len(taken) == 40
    assert [token for token, outcome in taken.items() if outcome == "failed"] == [leases[33].token]
    leases[40].complete()
    leases[41].complete()
    assert len(desk.call()[1]["results"]) == 2, "it is over"


@pytest.mark.slow
def test_signs_that_are_refused_for_ever_end_no_conversation():
    class Picky(SyncScript):
        refused = refused_before = 0

        def _sync(self, body):
            if any("bad" in one.get("checkpoint", {}) for one in body["progress"]):
                self.refused += 1
                return 422, {"type": "/problems/invalid", "title": "t", "detail": "no"}
            self.refused_before = self.refused
            return super()._sync(body)

    with Picky(tasks=2) as server:
        leases = Worker(server.url, "q", name="w").leases(2, idle="0.3s")
        first = next(leases)
        for number in range(3):
            first.checkpoint({"bad": number})
            eventually(
                lambda number=number: server.refused_before > number, 10, "it is refused, and the worker goes on"
            )
        with next(leases):
            pass
        first.fail("E1")
        assert list(leases) == []
    assert [(one["outcome"], one.get("checkpoint")) for one in server.results] == [
        ("succeeded", None),
        ("failed", None),
    ]


def test_calls_stay_within_the_bytes_that_a_server_takes(desk):
    for n in range(20):
        desk.lease(n).complete("x" * 60_000)
    sizes = []
    while desk.ledger.unsaid:
        call, _ = desk.call()
        sizes.append(len(call.body))
        desk.answer(call, statuses=["ok"] * len(call.results))
    assert len(sizes) > 2
    assert max(sizes) < 1024 * 1024


def test_room_is_shared_out_among_queues():
    wishes = Wishes(("a", "b", "c"), ("h",), 500)
    assert [want["max"] for want in wishes.wants(8)] == [3, 3, 2]
    assert [want["max"] for want in wishes.wants(1)] == [1, 1, 1]
    assert [want["max"] for want in wishes.wants(0)] == [0, 0, 0]
    assert wishes.wants(0)[0] == {"queue": "a", "max": 0, "handlers": ("h",), "lease_ms": 500}


# -- how leases end --------------------------------------------------------------------------------------------------------


def test_a_lost_lease_is_told_to_its_code_and_not_held_any_more(desk):
    lost, cancelled = desk.lease(1), desk.lease(2)
    call, _ = desk.call()
    tokens = [lost.token, cancelled.token]
    desk.answer(call, lost=tokens, commands=[{"type": "cancel", "lease": cancelled.token}])
    assert (lost.lost.is_set(), lost.cancelled.is_set()) == (True, False)
    assert (cancelled.lost.is_set(), cancelled.cancelled.is_set()) == (True, True)
    lost.complete()
    assert lost.recorded(0) is False
    assert (desk.call()[1]["results"], desk.call()[1]["held"]["count"]) == ([], 0)


@pytest.mark.parametrize(
    ("error", "outcome", "code"),
    [
        (ValueError("no"), "failed", "ValueError"),
        (Abort("declined"), "aborted", "Abort"),
        (Yield(2), "yielded", None),
        (RateLimited(2), "yielded", None),
        (RateLimited(after=2), "yielded", None),
        (RateLimited("api.acme", retry_after=2), "yielded", "rate_limited"),
        (RateLimited("api.acme", after=2), "yielded", "rate_limited"),
        (RateLimited("api.acme", 2), "yielded", "rate_limited"),
    ],
)
def test_leaving_by_an_exception_reports_it_and_the_loop_goes_on(desk, error, outcome, code):
    with desk.lease():
        raise error
    (told,) = desk.call()[1]["results"]
    assert (told["outcome"], told.get("error", {}).get("code")) == (outcome, code)
    if code == "rate_limited":
        assert told["error"]["description"] == "api.acme"
    if outcome == "failed":
        assert told["error"]["description"] == "no"
        assert "test_worker.py" in told["error"]["stack"]
    assert told.get("after_ms") == (2_000 if outcome == "yielded" else None)


def test_leaving_without_a_report_completes(desk):
    with desk.lease():
        pass
    assert [one["outcome"] for one in desk.call()[1]["results"]] == ["succeeded"]


def test_ctrl_c_gives_the_task_back_and_goes_through(desk):
    with pytest.raises(KeyboardInterrupt), desk.lease():
        raise KeyboardInterrupt
    assert [one["outcome"] for one in desk.call()[1]["results"]] == ["yielded"]


def test_an_exception_after_the_report_is_not_swallowed(desk):
    def use(lease):
        with lease:
            lease.complete()
            raise ValueError("later")

    with pytest.raises(ValueError, match="later"):
        use(desk.lease())


def test_a_lease_is_reported_once(desk):
    lease = desk.lease()
    lease.fail("E1", "in words", after="90s")
    with pytest.raises(ConflictError, match="reported already"):
        lease.complete()
    (told,) = desk.call()[1]["results"]
    assert (told["outcome"], told["after_ms"]) == ("failed", 90_000)
    assert told["error"] == {"code": "E1", "description": "in words"}


@pytest.mark.parametrize("result", [{1, 2}, float("nan"), "x" * 65_537, b"bytes"])
def test_a_result_that_cannot_be_stored_is_refused_where_it_is_reported(desk, result):
    lease = desk.lease()
    with pytest.raises(ArgumentError):
        lease.complete(result)
    assert not lease.reported


def test_what_is_handed_over_once_is_not_held(desk):
    call, _ = desk.call()
    (lease,) = desk.answer(call, lease_view(1) | {"lease": ""})
    lease.complete()
    assert (lease.recorded(0), desk.call()[1]["held"]["count"]) == (True, 0)


def runner_of(server, *places):
    """What works at those places."""
    runner = Runner(places, threading.Event())
    runner.conversation = Worker(server.url, "q", name="w")._conversation(None, runner.room, runner.arrived)
    return runner


@pytest.mark.slow
def test_what_is_handed_over_once_takes_a_slot_until_its_work_has_returned():
    with SyncScript(tasks=3, once=True) as server:
        places = SlowPlace(), SlowPlace()
        runner = runner_of(server, *places)
        thread = threading.Thread(target=runner.run, args=(10,), daemon=True)
        thread.start()
        assert all(place.begun.wait(10) for place in places)
        with runner.conversation.lock:
            assert runner.room() == 2 - server.given <= 0, "what an overtaken call was given counts, too"
        places[0].may_end.set()
        eventually(lambda: len(places[0].done) == 2, 10, "the slot that is free has taken the third")
        runner._stop.set()
        thread.join(0.2)
        assert thread.is_alive(), "the grace of a stop is for these, too"
        places[1].may_end.set()
        thread.join(10)
        assert not thread.is_alive()
    assert [len(place.done) for place in places] == [2, 1]


def test_what_came_just_before_a_stop_and_cannot_be_given_back_is_begun():
    place = Workplace()
    with SyncScript(tasks=0) as server:
        runner = runner_of(server, place)
        runner.arrived([Lease(lease_view(n, payload={"n": n}) | {"lease": ""}, runner.conversation) for n in range(3)])
        runner._stop.set()
        runner.run(10)
    assert place.done == [0, 1, 2]


@pytest.mark.slow
def test_a_loop_over_leases_holds_what_is_handed_over_once_until_it_is_reported():
    with SyncScript(tasks=3, once=True) as server:
        leases = Worker(server.url, "q", name="w").leases(1, idle="10s")
        first = next(leases)
        assert (first.takes_room, server.given) == (True, 1)
        first.complete()
        with next(leases) as second:
            assert (first.takes_room, second.takes_room, server.given) == (False, True, 2)
        assert next(leases).task.payload == {"n": 2}
        leases.close()


def test_a_loop_that_is_to_drain_hands_out_what_cannot_be_given_back():
    with SyncScript(tasks=2, once=True) as server:
        leases = Worker(server.url, "q", name="w").leases(2)
        first = next(leases)
        conversation = leases.gi_frame.f_locals["conversation"]
        server.order("drain")
        eventually(lambda: conversation.order, 10, "it is told")
        first.complete()
        (second,) = list_of(leases)
    assert second.task.payload == {"n": 1}


def list_of(leases, number=None):
    """All of them, each worked on; or so many, and then no more is asked for."""
    seen = []
    for lease in leases:
        with lease:
            seen.append(lease)
        if len(seen) == number:
            leases.close()
    return seen


# -- handlers --------------------------------------------------------------------------------------------------------------


def test_handlers_are_functions_of_a_task_or_of_a_task_and_a_context(desk):
    def one(task):
        return task.payload["n"]

    def two(task, ctx):
        ctx.progress(0.5)
        assert (ctx.host, ctx.executor_id) == (socket.gethostname(), None)
        return [ctx.attempt, ctx.checkpointed, ctx.token, ctx.last_error, ctx.planned_at and str(ctx.planned_at)]

    handlers = resolved({"one": one, "two": two})
    assert asked_for(handlers) == ("one", "two")
    work(handlers, desk.lease(1, handler="one", payload={"n": 3}))
    work(
        handlers,
        desk.lease(
            2,
            handler="two",
            checkpoint={"row": 1},
            last_error={"kind": "Busy", "message": "m"},
            uniqueness_key="n/2026-01-01T00:00:00Z/1",
        ),
    )
    work(handlers, desk.lease(3, handler="three"))
    told = desk.call()[1]["results"]
    assert [one.get("result") for one in told] == [
        3,
        [1, {"row": 1}, [5, 1], ["Busy", "m"], "2026-01-01 00:00:00+00:00"],
        None,
    ]
    assert told[2]["error"]["code"] == "handler_unknown"


def test_a_handler_may_be_for_all_tasks(desk):
    handlers = resolved({"*": lambda task: task.handler})
    assert asked_for(handlers) is None
    work(handlers, desk.lease(1, handler=None))
    assert desk.call()[1]["results"][0]["result"] == ""


def test_a_worker_without_handlers_is_refused():
    with pytest.raises(ArgumentError, match="no handler"):
        Worker("http://localhost", "q").run({})


# -- the way to the server -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["localhost:80", "ftp://x", "http://", "http://h:port", "http://h/?q", "http://u@h"])
def test_what_is_no_url_of_an_api_is_refused(url):
    with pytest.raises(ArgumentError):
        Worker(url, "q")


@pytest.mark.parametrize(
    "fields",
    [{}, {"queue": "a b"}] + [{"queue": "q"} | more for more in ({"slots": 0}, {"name": "a/b"}, {"token": "a\nb"})],
)
def test_arguments_that_cannot_be_used_are_refused(fields):
    with pytest.raises(ArgumentError):
        Worker("http://h", **fields)


def test_a_path_and_a_token_go_with_every_request():
    with Script([(200, {"ok": 1})]) as server:
        place = site(server.url + "/base/", token="secret")
        connection = Connection(place)
        assert connection.request("POST", "/v1/x", b"{}", 5) == Reply(200, {"ok": 1})
        connection.close()
    (request,) = server.requests
    assert (request.path, request.headers["Authorization"]) == ("/base/v1/x", "Bearer secret")
    assert "secret" not in repr(Worker(server.url, "q", token="secret"))


def test_who_is_not_let_in_is_told_so():
    place = site("http://h:1/base")
    assert isinstance(refusal(Reply(401, {"detail": "x"}), place), ConflictError)
    assert "right address" in str(refusal(Reply(404, {"type": "/problems/no-such-path"}), place))
    assert isinstance(refusal(Reply(422, {"detail": "x"}), place), ArgumentError)


@pytest.mark.parametrize("tells_length", [True, False])
def test_an_answer_that_is_cut_off_is_none(tells_length, tmp_path):
    (tmp_path / "f").write_bytes(b"{}")
    with Script([Half(200, {"ok": 1}, tells_length), Half(200, {"ok": 1}, tells_length), (200, {"ok": 2})]) as server:
        connection = Connection(site(server.url))
        with pytest.raises(UnreachableError, match="gives no answer"):
            connection.request("POST", "/v1/x", b"{}", 5)
        with pytest.raises(UnreachableError, match="gives no answer"), (tmp_path / "f").open("rb") as file:
            connection.send_file("/v1/x", file, "text/plain", 5)
        assert connection.request("POST", "/v1/x", b"{}", 5).document == {"ok": 2}


def test_a_success_that_is_no_json_is_an_answer_of_somebody_else():
    class Elsewhere(Script):
        def answer(self, request):
            return 200, "welcome"

    with Elsewhere() as server, pytest.raises(UnreachableError, match="no API of ours"):
        list(Worker(server.url, "q").leases())


# -- the conversation ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_same_call_comes_again_until_it_is_answered():
    with SyncScript(tasks=2, broken=3) as server:
        leases = Worker(server.url, "q", name="w").leases(1)
        first = next(leases)
        eventually(lambda: len(server.broken) == 3, 10)
        first.complete()
        next(leases).complete()
        leases.close()
    assert len(server.results) == 2
    assert len({(body["seq"], json.dumps(body)) for body in server.broken}) == 1


class Breaking(SyncScript):
    """Breaks off in its answers to the calls of these numbers: the first time that each comes, having done what it says."""

    def __init__(self, *numbers, tasks=1):
        super().__init__(tasks)
        self.told = {}
        self.came = []
        self._numbers = numbers

    def _sync(self, body):
        self.came.append(body)
        if body["seq"] in self.told:
            return self.told[body["seq"]]
        answer = super()._sync(body)
        if body["seq"] not in self._numbers:
            return answer
        self.told[body["seq"]] = answer
        return Half(*answer)


@pytest.mark.slow
def test_a_call_of_which_the_answer_was_cut_off_comes_again_as_it_was():
    with Breaking(1, 3, tasks=1) as server:
        (lease,) = list_of(Worker(server.url, "q", name="w").leases(1, idle="60s"), 1)
    assert (lease.status, [one["outcome"] for one in server.results]) == ("ok", ["succeeded"])
    for number in (1, 3):  # the second is overtaken by the report
        first, second = (body for body in server.came if body["seq"] == number)
        assert first == second


class Overtaken(SyncScript):
    """Breaks off in its answers to calls that were overtaken, as if it gave them something."""

    def _sync(self, body):
        status, told = super()._sync(body)
        return Half(200, told | {"leases": []}) if status == 409 else (status, told)


@pytest.mark.slow
def test_an_answer_to_an_overtaken_call_that_was_cut_off_ends_nothing():
    with Overtaken(tasks=3) as server:
        assert len(list_of(Worker(server.url, "q", name="w").leases(1, idle="60s"), 3)) == 3
    assert len(server.results) == 3


def test_typed_and_async_handlers_run_in_a_worker_as_they_do_in_a_dispatcher(desk):
    class Order(BaseModel):
        n: int

    async def double(p, ctx) -> int:
        await asyncio.sleep(0)
        ctx.checkpoint({"n": p.n})
        return 2 * p.n

    double.__annotations__["p"] = Order
    handlers = resolved({"double": double})
    work(handlers, desk.lease(1, handler="double", payload={"n": "4"}))
    work(handlers, desk.lease(2, handler="double", payload={"n": "four"}))
    done, refused = desk.call()[1]["results"]
    assert (done["outcome"], done["result"]) == ("succeeded", 8)
    assert (refused["outcome"], refused["error"]["code"]) == ("aborted", "payload_invalid")
    assert "field 'n'" in refused["error"]["description"]


@pytest.mark.slow
def test_a_result_does_not_wait_for_the_call_that_waits_for_work():
    with SyncScript(tasks=1) as server:
        leases = Worker(server.url, "q", name="w").leases(2, idle="10s")
        lease = next(leases)
        eventually(lambda: server.waits, 10)
        lease.complete({"a": 1})
        assert lease.recorded(5)
        leases.close()
    assert server.left


@pytest.mark.slow
def test_heartbeats_go_on_while_the_code_works():
    with SyncScript(tasks=1, beat_ms=50) as server:
        leases = Worker(server.url, "q", name="w").leases(1)
        lease = next(leases)
        before = server.calls
        eventually(lambda: server.calls > before + 5, 10)
        assert lease.seconds_left > 0
        leases.close()


def test_a_long_lease_makes_no_call_wait_longer_than_the_server_allows():
    with SyncScript(tasks=1, beat_ms=200_000) as server:
        leases = Worker(server.url, "q", name="w", lease="10m").leases(2, idle="10s")
        next(leases).complete()
        eventually(lambda: server.waits, 10)
        leases.close()
    assert 0 < server.longest_wait_ms <= 60_000


def test_who_was_replaced_ends_with_a_clear_error():
    problem = {"type": "/problems/worker-replaced", "title": "t", "detail": "d"}
    with Script([(409, problem)]) as server, pytest.raises(ConflictError, match="replaced"):
        next(Worker(server.url, "q", name="w").leases())


def test_a_report_that_nobody_will_answer_raises_instead_of_waiting_for_ever():
    with SyncScript(tasks=1) as server:
        leases = Worker(server.url, "q", name="w").leases(1)
        lease = next(leases)
        server.replace()
        with pytest.raises(ConflictError):
            next(leases)
    assert lease.lost.is_set()
    assert lease.recorded(5) is False


@pytest.mark.slow
def test_a_worker_that_runs_stops_when_told_to():
    done = threading.Event()
    with SyncScript(tasks=3) as server:
        worker = Worker(server.url, "q", name="w", slots=2)
        seen = []

        def handle(task):
            seen.append(task.payload["n"])
            if len(seen) == 3:
                done.set()

        thread = threading.Thread(target=worker.run, args=({"*": handle},))
        thread.start()
        assert done.wait(10)
        worker.stop()
        thread.join(10)
        assert not thread.is_alive()
    assert sorted(seen) == [0, 1, 2]
    assert (len(server.results), server.left) == (3, True)


class SlowPlace:
    """Works on a lease until it may end, or is closed."""

    def __init__(self):
        self.begun, self.may_end, self.closed = threading.Event(), threading.Event(), False
        self.done = []

    def open(self):
        pass

    def work(self, lease):
        self.begun.set()
        self.may_end.wait(20)
        if not self.closed:
            self.done.append(lease)
            lease.complete()

    def close(self):
        self.closed = True
        self.may_end.set()


def ordered(server, order, grace="30s"):
    """A worker that works on its one lease when an operator tells it something; its thread, place and itself."""
    place, worker = SlowPlace(), Worker(server.url, "q", name="w", slots=1)
    thread = threading.Thread(target=worker.run_at, args=(lambda: place,), kwargs={"grace": grace})
    thread.start()
    assert place.begun.wait(10)
    server.order(order)
    return thread, place, worker


@pytest.mark.slow
def test_a_worker_that_is_to_drain_ends_when_what_runs_has_ended_however_long_that_takes():
    with SyncScript(tasks=5) as server:
        thread, place, _ = ordered(server, "drain", grace="0s")
        thread.join(1)
        assert thread.is_alive(), "the grace is for signals"
        place.may_end.set()
        thread.join(10)
        assert not thread.is_alive()
    assert ([one["outcome"] for one in server.results], server.left) == (["succeeded"], True)


@pytest.mark.slow
def test_a_worker_that_drains_and_is_told_to_stop_by_its_machine_has_the_grace_then():
    with SyncScript(tasks=5) as server:
        thread, _, worker = ordered(server, "drain", grace="100ms")
        worker.stop()
        thread.join(10)
        assert not thread.is_alive()
    assert (server.results, server.left) == ([], True)


@pytest.mark.slow
def test_a_worker_that_is_to_stop_gives_back_what_runs_and_ends():
    with SyncScript(tasks=5) as server:
        thread, _, _ = ordered(server, "stop")
        thread.join(10)
        assert not thread.is_alive()
    assert (server.results, server.left) == ([], True)


@pytest.mark.parametrize("order", ["drain", "stop"])
def test_a_loop_over_leases_ends_at_its_next_turn_when_an_operator_says_so(order):
    with SyncScript(tasks=5) as server:
        leases = Worker(server.url, "q", name="w").leases(1)
        lease = next(leases)
        server.order(order)
        lease.complete()
        eventually(lambda: server.results, 10, "it is reported")
        assert list(leases) == []
    assert ([one["outcome"] for one in server.results], server.left) == (["succeeded"], True)


class Workplace:
    """Works on what it is told to, and breaks at the leases of those numbers in a way that nobody foresees."""

    def __init__(self, *breaks, opens=True):
        self._breaks, self._opens = breaks, opens
        self.done = []

    def open(self):
        if not self._opens:
            raise OSError("too many open files")

    def work(self, lease):
        number = lease.task.payload["n"]
        self.done.append(number)
        if number in self._breaks:
            raise RuntimeError("can't start new thread")
        lease.complete()

    def close(self):
        pass


def worked(place, tasks):
    """What a worker with that one place reports of so many tasks; and why it ended, if it did so by itself."""
    ended = []
    with SyncScript(tasks=tasks) as server:
        worker = Worker(server.url, "q", name="w", slots=1)

        def run():
            try:
                worker.run_at(lambda: place)
            except SchedulerError as error:
                ended.append(str(error))

        thread = threading.Thread(target=run)
        thread.start()
        eventually(lambda: not thread.is_alive() or (tasks and len(server.results) == tasks), 20, "all is reported")
        worker.stop()
        thread.join(10)
    return server.results, ended


@pytest.mark.slow
def test_a_lease_that_a_slot_cannot_run_is_reported_and_the_slot_goes_on():
    results, ended = worked(Workplace(0, 1, 3, 4), tasks=6)
    assert [one["outcome"] for one in results] == ["failed", "failed", "succeeded", "failed", "failed", "succeeded"]
    assert results[0]["error"]["code"] == "worker_fault"
    assert "can't start new thread" in results[0]["error"]["description"]
    assert ended == []


@pytest.mark.slow
def test_a_worker_that_can_run_nothing_ends_instead_of_failing_its_queue_task_by_task():
    place = Workplace(*range(20))
    results, ended = worked(place, tasks=20)
    assert place.done == [0, 1, 2]
    assert [one["outcome"] for one in results if one["outcome"] != "yielded"] == ["failed"] * 3
    assert "in a row" in ended[0]


@pytest.mark.slow
def test_a_worker_whose_slot_cannot_be_made_ready_ends_and_says_why():
    _, ended = worked(Workplace(opens=False), tasks=0)
    assert "too many open files" in ended[0]


@pytest.mark.slow
def test_a_line_that_breaks_in_an_unforeseen_way_is_a_call_that_nobody_answered(monkeypatch):
    answer = Connection.request
    breaks = iter([True])

    def request(*call):
        if next(breaks, False):
            raise AttributeError("sock")
        return answer(*call)

    monkeypatch.setattr(Connection, "request", request)
    results, ended = worked(Workplace(), tasks=1)
    assert ([one["outcome"] for one in results], ended) == (["succeeded"], [])


def test_who_refuses_a_file_before_it_has_come_is_heard(tmp_path):
    (tmp_path / "large").write_bytes(bytes(20_000_000))
    with socket.create_server(("127.0.0.1", 0)) as server:

        def refuse():
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                body = b'{"detail": "too large"}'
                connection.sendall(b"HTTP/1.1 422 No\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

        thread = threading.Thread(target=refuse)
        thread.start()
        with open(tmp_path / "large", "rb") as file:
            url = f"http://127.0.0.1:{server.getsockname()[1]}"
            reply = Connection(site(url)).send_file("/x", file, "text/plain", 10)
        thread.join(10)
    assert (reply.status, reply.detail) == (422, "too large")


def test_a_call_that_overtook_another_can_be_overtaken_itself():
    with SyncScript(tasks=0) as server:
        worker = Worker(server.url, "q", name="w", slots=1)
        thread = threading.Thread(target=worker.run, args=({"*": lambda task: None},))
        thread.start()
        eventually(lambda: server.calls >= 2, 10, "more room overtook the first call")
        worker.stop()
        thread.join(5)
        assert not thread.is_alive(), "it did not wait until the second came back"


@pytest.mark.slow
def test_importing_a_worker_needs_no_package():
    code = "import sys; sys.path.insert(0, sys.argv[1]); import scylla_spark; scylla_spark.Worker; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code, str(ROOT)], capture_output=True, text=True, check=True)  # fmt: skip
    foreign = {name.partition(".")[0] for name in done.stdout.split()} - sys.stdlib_module_names
    assert foreign <= {"scylla_spark", "__main__", "__mp_main__", "_sysconfigdata__linux_x86_64-linux-gnu"}, foreign


@pytest.mark.slow
def test_a_server_that_is_not_there_is_tried_again_until_the_worker_stops():
    worker = Worker("http://127.0.0.1:9", "q", name="w")
    assert list(worker.leases(idle=0.3)) == []
    with pytest.raises(UnreachableError):
        Connection(site("http://127.0.0.1:9")).request("GET", "/", None, 1)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["drain", "stop"])
def test_the_command_line_tells_a_worker_what_to_do(what):
    with Script([(200, {"worker": "w@7", "order": what})]) as server:
        done = CliRunner().invoke(app, ["-o", "json", "worker", what, "w@7", "--url", server.url])
        assert (done.exit_code, json.loads(done.stdout)) == (0, {"worker": "w@7", "order": what})
        assert [(one.method, one.path) for one in server.requests] == [("POST", f"/v1/workers/w%407:{what}")]


@pytest.mark.slow
def test_the_command_line_says_that_there_is_no_such_worker():
    problem = {"type": "/problems/not-found", "title": "t", "detail": "No worker 'w' has called."}
    with Script([(404, problem)]) as server:
        done = CliRunner().invoke(app, ["worker", "drain", "w", "--url", server.url])
    assert isinstance(done.exception, NotFoundError)
    assert "No worker 'w'" in str(done.exception)


RUN = ["worker", "run", "--url", "http://127.0.0.1:9", "--queue", "gpu", "--handlers"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "said"),
    [(None, "No module named 'my_chores'"), ("1 / 0", "division by zero"), ("exit(3)", "SystemExit")],
)
def test_a_worker_whose_handlers_cannot_be_imported_says_so(tmp_path, monkeypatch, source, said):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    if source is not None:
        (tmp_path / "my_chores.py").write_text(source)
    done = CliRunner().invoke(app, [*RUN, "my_chores"])
    assert isinstance(done.exception, ConfigError)
    assert said in str(done.exception)
    assert "the current folder" in done.exception.hint


def test_a_worker_finds_modules_of_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one])
    (tmp_path / "my_leased_chores.py").write_text(
        "from scylla_spark import handler\n\n\n@handler('leased_chore')\ndef chore(task):\n    pass\n"
    )
    asked = []
    monkeypatch.setattr(Worker, "run_at", lambda _self, _place, handlers, grace: asked.extend(handlers))
    monkeypatch.setattr(handler_registry, "_registered", {})
    done = CliRunner().invoke(app, [*RUN, "my_leased_chores"])
    assert (done.exit_code, asked) == (0, ["leased_chore"])


@pytest.mark.slow
def test_a_loop_over_leases_that_is_to_drain_waits_for_what_other_threads_work_on():
    with SyncScript(tasks=3) as server:
        leases = Worker(server.url, "q", name="w").leases(3)
        first, second = next(leases), next(leases)
        conversation = leases.gi_frame.f_locals["conversation"]
        ended = threading.Event()
        thread = threading.Thread(target=lambda: (list(leases), ended.set()))
        server.order("drain")
        eventually(lambda: conversation.order, 10, "it is told")
        thread.start()
        assert not ended.wait(1), "two are worked on"
        assert not server.left
        first.complete()
        assert not ended.wait(0.2)
        second.complete()
        assert ended.wait(10)
        thread.join(10)
    assert sorted(one["outcome"] for one in server.results) == ["succeeded", "succeeded", "yielded"]
    assert server.left


def test_a_loop_over_leases_that_is_to_stop_waits_for_nothing():
    with SyncScript(tasks=1) as server:
        leases = Worker(server.url, "q", name="w").leases(2)
        next(leases)
        server.order("stop")
        assert list(leases) == []
    assert (server.results, server.left) == ([], True)


def test_an_answer_of_which_a_byte_comes_now_and_then_is_given_up(monkeypatch):
    monkeypatch.setattr(conversation, "_PATIENCE_S", 1.0)
    monkeypatch.setattr(conversation, "_SLOW_US", 0)
    monkeypatch.setattr(conversation, "LONGEST_WAIT_MS", 0)
    document = json.dumps({"accepted": [], "leases": [], "lost": [], "commands": []}).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(document)}\r\nConnection: close\r\n".encode()
    over, answered = threading.Event(), threading.Event()

    def serve(server):
        for number in range(1_000_000):
            with contextlib.suppress(OSError), server.accept()[0] as asked:
                asked.recv(65_536)
                asked.sendall(head + b"X: x")
                while number == 0 and not over.wait(0.02):
                    asked.sendall(b"x")
                asked.sendall(b"\r\n\r\n" + document)
                answered.set()
            if over.is_set():
                return

    with socket.create_server(("127.0.0.1", 0)) as server:
        serving = threading.Thread(target=serve, args=(server,), daemon=True)
        serving.start()
        worker = Worker(f"http://127.0.0.1:{server.getsockname()[1]}", "q")
        working = threading.Thread(target=lambda: list(worker.leases()), daemon=True)
        working.start()
        try:
            assert answered.wait(20)
        finally:
            worker.stop()
            working.join(20)
            over.set()
            socket.create_connection(server.getsockname()).close()
            serving.join(20)
