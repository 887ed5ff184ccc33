"""A call of a worker is shared out among the desks of several dispatchers, and their answers are put together."""

import asyncio
import contextlib
import json
import random

import pytest

from scylla_spark.api.leases import call_router
from scylla_spark.api.leases.call_router import LeaseCalls
from scylla_spark.api.leases.views import ErrorBody
from scylla_spark.core.leases.messages import (
    LOST,
    OK,
    UNAVAILABLE,
    Answer,
    Call,
    Report,
    Scarcity,
    Sign,
    Want,
    folded,
    new_token,
)
from scylla_spark.core.tasks.attempt_note import WorkNote
from scylla_spark.core.tasks.task import Failure
from scylla_spark.errors import UnreachableError
from tests.support.invocations import invocation, lease_on

RNG = random.Random(1)


class TwoDesks:
    """The desks of two dispatchers: the first owns the even partitions, the second the odd ones."""

    partitions = 4

    def __init__(self) -> None:
        self.desks = {"even": OneDesk(), "odd": OneDesk()}

    async def all(self):
        return sorted(self.desks)

    async def owners(self, *, again=False):
        owners = {number: ("even", "odd")[number % 2] for number in range(4)}
        return {number: owner for number, owner in owners.items() if owner in self.desks}

    async def at(self, address):
        return self.desks[address]


class OneDesk:
    """Answers all that it is told with OK, and gives what it has; slowly, if it is to."""

    alive = True

    def __init__(self) -> None:
        self.heard: list[Call] = []
        self.held: list[str] = []
        self.gives: list[str] = []
        self.returned: list[str] = []
        self.refuses = self.order = ""
        self.told: dict[str, list[str]] = {}  # request → what it was given before
        self.slow = self.dead = False
        self.slow_s = 0.05
        self._hurried: dict[asyncio.Future, asyncio.Event] = {}

    def call(self, call):
        hurried = asyncio.Event()
        answer = asyncio.ensure_future(self._answer(call, hurried))
        self._hurried[answer] = hurried
        return answer

    def hurry(self, answer):
        self._hurried[answer].set()

    def give_back(self, answer):
        self.returned += [lease.token for lease in answer.leases]

    async def _answer(self, call, hurried):
        self.heard.append(call)
        if self.dead:
            raise UnreachableError("gone")
        if self.slow:
            await asyncio.sleep(self.slow_s)
        if call.until_us and not self.gives and not self.order:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(hurried.wait(), call.until_us / 1e6)
        if self.refuses:
            return Answer(call.number, refusal=self.refuses)
        most = sum(want.most for want in call.wants)
        leases = tuple(map(granted, self.told.get(call.request, self.gives[:most])))
        statuses = (OK,) * (len(call.reports) + len(call.signs))
        scarcity = (Scarcity("q", 2, 5, ""),)
        return Answer(
            call.number,
            statuses,
            leases,
            held=len(self.held),
            digest=folded(self.held),
            queues=scarcity,
            order=self.order,
            known=bool(call.request) and call.request in self.told,
        )


def granted(token):
    return lease_on(token, invocation(0, "a", token, queue="q"))


@pytest.fixture
def desks():
    return TwoDesks()


def answer(desks, **call):
    return asyncio.run(LeaseCalls(desks).call(Call(0, "w", **call)))


@pytest.mark.parametrize("partition", range(4))
def test_a_report_goes_to_the_owner_of_its_lease_and_to_nobody_else(desks, partition):
    token = new_token(partition, RNG)
    assert answer(desks, reports=(Report(token, "succeeded"),)).statuses == (OK,)
    reports = {address: [len(call.reports) for call in desk.heard] for address, desk in desks.desks.items()}
    assert reports == {"even": [partition % 2 == 0], "odd": [partition % 2 == 1]}


def test_statuses_are_in_the_order_of_the_call_whoever_answered_first(desks):
    desks.desks["even"].slow = True
    tokens = [new_token(number % 4, RNG) for number in range(6)] + ["none"]
    found = answer(
        desks,
        reports=tuple(Report(token, "succeeded") for token in tokens),
        signs=(Sign(new_token(0, RNG), WorkNote()),),
    )
    assert found.statuses == (OK,) * 6 + (LOST, OK)


def test_reports_of_all_owners_are_waited_for_when_one_gives_work(desks):
    desks.desks["odd"].gives = [new_token(1, RNG)]
    desks.desks["even"].slow = True
    found = answer(desks, reports=(Report(new_token(0, RNG), "succeeded"),), wants=(Want("q"),))
    assert (found.statuses, len(found.leases)) == ((OK,), 1)


def test_what_an_owner_who_is_gone_should_have_heard_is_to_be_said_again(desks):
    desks.desks["odd"].dead = True
    tokens = [new_token(number, RNG) for number in range(4)]
    found = answer(desks, reports=tuple(Report(token, "failed") for token in tokens))
    assert found.statuses == (OK, UNAVAILABLE, OK, UNAVAILABLE)


def test_what_is_held_is_counted_and_folded_over_all(desks):
    tokens = [new_token(number, RNG) for number in range(4)]
    desks.desks["even"].held, desks.desks["odd"].held = tokens[::2], tokens[1::2]
    found = answer(desks, held=tuple(tokens))
    assert (found.held, found.digest, found.queues) == (4, folded(tokens), (Scarcity("q", 4, 5, ""),))
    assert [call.held for desk in desks.desks.values() for call in desk.heard] == [
        tuple(tokens[::2]),
        tuple(tokens[1::2]),
    ]


def test_of_more_than_was_wanted_the_surplus_goes_back_at_once(desks):
    for number, desk in enumerate(desks.desks.values()):
        desk.gives = [new_token(number, RNG), new_token(number + 2, RNG)]
        desk.held = desk.gives[:1]
    found = answer(desks, wants=(Want("q", 1),))
    assert (len(found.leases), found.held) == (1, 1)
    assert found.digest == folded(lease.token for lease in found.leases), "what went back is held no longer"
    returned = [report for desk in desks.desks.values() for call in desk.heard for report in call.reports]
    given = {desk.gives[0] for desk in desks.desks.values()}
    assert {report.token for report in returned} == given - {lease.token for lease in found.leases}
    assert {report.outcome for report in returned} == {"yielded"}


def test_the_surplus_is_what_is_youngest_by_its_own_time_however_late_it_came_back(desks, monkeypatch):
    times = {}

    def told(token):
        came_back, at = times[token]
        return lease_on(token, invocation(at, "a", token, queue="q", planned_us=came_back))

    monkeypatch.setitem(globals(), "granted", told)
    for number, desk in enumerate(desks.desks.values()):
        desk.gives = [new_token(number, RNG)]
        times[desk.gives[0]] = (9_000, 1_000) if number == 0 else (2_000, 2_000)
    found = answer(desks, wants=(Want("q", 1),))
    assert [lease.task.key.time_us for lease in found.leases] == [1_000], (
        "it was yielded, and is the oldest all the same"
    )


def test_what_is_wanted_is_shared_out_so_that_hardly_anything_goes_back(desks):
    for number, desk in enumerate(desks.desks.values()):
        desk.gives = [new_token(number + 2 * (n % 2), RNG) for n in range(8)]
    assert len(answer(desks, wants=(Want("q", 8),)).leases) == 8
    assert [want.most for desk in desks.desks.values() for call in desk.heard for want in call.wants] == [4, 4]


def test_what_ends_with_being_handed_over_is_never_taken_from_two_for_one(desks):
    for number, desk in enumerate(desks.desks.values()):
        desk.gives = [new_token(number, RNG)]
    found = answer(desks, wants=(Want("q", 1, None, 0),))
    assert len(found.leases) == 1
    assert sum(bool(call.wants) for desk in desks.desks.values() for call in desk.heard) == 1


@pytest.mark.slow
def test_who_waits_for_what_is_handed_over_gets_it_when_it_comes(desks):
    token = new_token(1, RNG)

    async def play():
        asking = asyncio.create_task(
            LeaseCalls(desks).call(Call(0, "w", until_us=20_000_000, wants=(Want("q", 1, None, 0),)))
        )
        while len(desks.desks["odd"].heard) < 3:
            await asyncio.sleep(0)
        desks.desks["odd"].gives = [token]
        return await asking

    assert [lease.token for lease in asyncio.run(play()).leases] == [token]


def test_whoever_has_work_first_ends_the_waiting_at_the_others(desks):
    desks.desks["odd"].gives = [new_token(1, RNG)]
    loop_time = asyncio.run(timed(desks))
    assert loop_time < 5


async def timed(desks):
    clock = asyncio.get_running_loop().time
    begun = clock()
    found = await LeaseCalls(desks).call(Call(0, "w", until_us=20_000_000, wants=(Want("q"),)))
    assert len(found.leases) == 1
    return clock() - begun


class DistantDesks(TwoDesks):
    """The way to the odd one is open when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.open = asyncio.Event()

    async def at(self, address):
        if address == "odd":
            await self.open.wait()
        return self.desks[address]


def test_a_desk_is_told_at_once_while_the_way_to_another_is_being_opened():
    token = new_token(0, RNG)

    async def play():
        desks = DistantDesks()
        call = Call(0, "w", until_us=20_000_000, signs=(Sign(token, WorkNote()),), wants=(Want("q"),))
        asking = asyncio.create_task(LeaseCalls(desks).call(call))
        async with asyncio.timeout(5):
            while not desks.desks["even"].heard:
                await asyncio.sleep(0.005)
        early = len(desks.desks["odd"].heard)
        desks.desks["odd"].gives = [new_token(1, RNG)]
        desks.open.set()
        found = await asyncio.wait_for(asking, 5)
        return early, found

    early, found = asyncio.run(play())
    assert (early, found.statuses, len(found.leases)) == (0, (OK,), 1)


def test_a_way_that_does_not_open_keeps_no_answer_and_what_it_should_have_heard_is_to_be_said_again(monkeypatch):
    monkeypatch.setattr(call_router, "_OPENING_S", 0.05)
    tokens = [new_token(number, RNG) for number in range(2)]

    async def play():
        calls = LeaseCalls(DistantDesks())
        return await asyncio.wait_for(
            calls.call(Call(0, "w", signs=tuple(Sign(token, WorkNote()) for token in tokens))), 5
        )

    assert asyncio.run(play()).statuses == (OK, UNAVAILABLE)


def test_who_is_reached_after_another_had_something_does_not_wait(monkeypatch):
    monkeypatch.setattr(call_router, "_OPENING_S", 5.0)

    async def play():
        desks = DistantDesks()
        desks.desks["even"].gives = [new_token(0, RNG)]
        asking = asyncio.create_task(LeaseCalls(desks).call(Call(0, "w", until_us=20_000_000, wants=(Want("q", 2),))))
        async with asyncio.timeout(5):
            while not desks.desks["even"].heard:
                await asyncio.sleep(0.005)
        await asyncio.sleep(0.02)
        desks.open.set()
        return await asyncio.wait_for(asking, 5), desks.desks["odd"].heard

    found, heard = asyncio.run(play())
    assert (len(found.leases), [call.until_us for call in heard]) == (1, [0])


# -- nothing that was leased is dropped ------------------------------------------------------------------------------------


def test_what_a_second_owner_has_leased_meanwhile_is_passed_on_or_goes_back(desks):
    desks.desks["odd"].gives = [new_token(1, RNG)]
    desks.desks["even"].slow = True

    async def play():
        calls = LeaseCalls(desks)
        asking = asyncio.create_task(calls.call(Call(0, "", until_us=20_000_000, wants=(Want("q", 2),))))
        await asyncio.sleep(0.01)
        desks.desks["even"].gives = [new_token(0, RNG)]
        return await asking

    assert len(asyncio.run(play()).leases) == 2


def test_a_refusal_of_one_owner_does_not_hide_what_another_has_leased(desks):
    desks.desks["even"].refuses = UNAVAILABLE
    desks.desks["odd"].gives = [new_token(1, RNG)]
    found = answer(desks, wants=(Want("q"),))
    assert (len(found.leases), found.refusal) == (1, "")
    desks.desks["odd"].refuses = UNAVAILABLE
    assert answer(desks, wants=(Want("q"),)).refusal == UNAVAILABLE


def test_nobody_listens_any_more_and_what_was_leased_goes_back(desks):
    desks.desks["odd"].gives = [new_token(1, RNG)]
    desks.desks["even"].slow = True
    desks.desks["even"].slow_s = 60.0  # on a busy machine, too, it has not answered when the caller goes

    async def play():
        asking = asyncio.create_task(
            LeaseCalls(desks).call(
                Call(0, "", until_us=0, wants=(Want("q", 2),), reports=(Report(new_token(0, RNG), "failed"),))
            )
        )
        await asyncio.sleep(0.02)
        asking.cancel()
        await asyncio.wait([asking])

    asyncio.run(play())
    assert desks.desks["odd"].returned == desks.desks["odd"].gives


class Dying(OneDesk):
    """Is there when it is looked up, and gone when it is asked: at once, or from the second call on."""

    def __init__(self, answers=0):
        super().__init__()
        self.answers = answers

    def call(self, call):
        if len(self.heard) >= self.answers:
            raise UnreachableError("The dispatcher has closed the connection.")
        return super().call(call)


@pytest.mark.parametrize("dying", ["even", "odd"])
def test_of_a_desk_that_dies_while_all_are_asked_the_others_still_give(desks, dying):
    desks.desks[dying] = Dying()
    (other,) = desks.desks.keys() - {dying}
    desks.desks[other].gives = [new_token(0, RNG)]
    found = answer(desks, wants=(Want("q", 2),), reports=(Report(new_token(0, RNG), "failed"),))
    assert [lease.token for lease in found.leases] == desks.desks[other].gives
    assert found.statuses == (UNAVAILABLE if dying == "even" else OK,)


class Broken(OneDesk):
    """Fails in a way that nobody foresees, once the others have answered."""

    def call(self, call):
        return asyncio.ensure_future(self._answer(call, None))

    async def _answer(self, call, hurried):
        await asyncio.sleep(60)

    def hurry(self, answer):
        raise RuntimeError("unforeseen")


def test_whatever_ends_a_call_what_was_leased_for_it_goes_back(desks):
    desks.desks["even"] = Broken()
    desks.desks["odd"].gives = [new_token(1, RNG)]
    with pytest.raises(RuntimeError, match="unforeseen"):
        answer(desks, until_us=20_000_000, wants=(Want("q", 2),))
    assert desks.desks["odd"].returned == desks.desks["odd"].gives


def test_surplus_that_cannot_be_given_back_takes_nothing_wanted_with_it(desks):
    for number, address in enumerate(desks.desks):
        desks.desks[address] = Dying(answers=1)
        desks.desks[address].gives = [new_token(number, RNG)]
    assert len(answer(desks, wants=(Want("q", 1),)).leases) == 1


def test_an_answer_of_the_only_desk_that_comes_as_its_caller_leaves_goes_back(desks):
    del desks.desks["odd"]
    desks.partitions = 2
    even = desks.desks["even"]
    even.gives = [new_token(0, RNG)]

    async def play():
        come = asyncio.get_running_loop().create_future()
        even.call = lambda call: come
        asking = asyncio.create_task(LeaseCalls(desks).call(Call(0, "", until_us=1_000_000, wants=(Want("q"),))))
        await asyncio.sleep(0.01)
        come.set_result(Answer(0, (), tuple(map(granted, even.gives))))
        asking.cancel()
        await asyncio.wait([asking])

    asyncio.run(play())
    assert even.returned == even.gives


class Restless(OneDesk):
    """Tells what it has handed over again as long as the call is the same."""

    async def _answer(self, call, hurried):
        self.heard.append(call)
        told = [token for token in self.gives if call.wants or call.sequence == 1]
        return Answer(call.number, (), tuple(map(granted, told)), held=2, digest=6)


def test_what_was_handed_over_in_an_answer_that_was_lost_is_told_again(desks):
    desks.desks["odd"] = Restless()
    desks.desks["odd"].gives = [""]
    told = [answer(desks, session="s", sequence=1, wants=(Want("q", 1, None, 0),)) for _ in range(20)]
    assert [len(one.leases) for one in told] == [1] * 20
    assert {(one.held, one.digest) for one in told} == {(2, 6)}, "of each owner what it said last"


@pytest.mark.parametrize(
    ("args", "said"),
    [({"days": 3}, 'too late {"days": 3}'), (["ä"], 'too late ["ä"]'), ({}, "too late"), ([], "too late")],
)
def test_the_values_of_an_error_are_an_object_or_a_list(args, said):
    body = ErrorBody.model_validate_json(json.dumps({"code": "late", "args": args, "description": "too late"}))
    assert body.failure() == Failure("late", said)


def test_a_request_that_comes_again_is_asked_of_all_before_anybody_gives_more(desks):
    even, odd = desks.desks.values()
    even.gives = odd.gives = [new_token(0, RNG), new_token(2, RNG)]
    first = new_token(1, RNG)
    odd.told = {"r": [first]}
    found = answer(desks, wants=(Want("q", 2),), request="r")
    assert [lease.token for lease in found.leases] == [first]
    assert [len(desk.heard) for desk in (even, odd)] == [1, 1]
    assert len(answer(desks, wants=(Want("q", 2),), request="another").leases) == 2


@pytest.mark.parametrize("lease_ms", [None, 0])
def test_a_request_that_nobody_has_answered_is_done(desks, lease_ms):
    desks.desks["odd"].gives = [new_token(1, RNG)]
    assert len(answer(desks, wants=(Want("q", 1, lease_ms=lease_ms),), request="r").leases) == 1


@pytest.mark.parametrize(("orders", "told"), [(("", ""), ""), (("drain", ""), "drain"), (("drain", "stop"), "stop")])
def test_the_strictest_order_of_all_is_told_and_ends_the_waiting(desks, orders, told):
    for desk, order in zip(desks.desks.values(), orders, strict=True):
        desk.order = order
    wait_us = 20_000_000 if told else 0
    assert answer(desks, session="s", sequence=1, until_us=wait_us, wants=(Want("q"),)).order == told


def test_a_request_that_two_had_answered_is_told_as_much_as_it_wants_and_the_rest_goes_back(desks):
    for number, desk in enumerate(desks.desks.values()):
        desk.told = {"r": [new_token(number, RNG)]}
    found = answer(desks, wants=(Want("q", 1),), request="r")
    assert len(found.leases) == 1
    returned = [report.token for desk in desks.desks.values() for call in desk.heard for report in call.reports]
    given = {token for desk in desks.desks.values() for token in desk.told["r"]}
    assert set(returned) == given - {found.leases[0].token}


def test_a_request_whose_task_is_done_is_given_no_other_by_another_desk(desks):
    desks.desks["even"].told = {"r": []}
    desks.desks["odd"].gives = [new_token(1, RNG)]
    found = answer(desks, wants=(Want("q", 1),), request="r")
    assert (found.leases, found.refusal) == ((), "")


@pytest.mark.parametrize("lease_ms", [None, 0])
@pytest.mark.parametrize("trouble", ["dead", "refuses"])
def test_a_request_is_done_only_when_all_have_said_that_they_do_not_know_it(desks, lease_ms, trouble):
    even, odd = desks.desks.values()
    setattr(even, trouble, UNAVAILABLE)
    odd.gives = [new_token(1, RNG)]
    found = answer(desks, wants=(Want("q", 1, lease_ms=lease_ms),), request="r")
    assert (found.leases, found.refusal) == ((), UNAVAILABLE)
    setattr(even, trouble, "")
    assert len(answer(desks, wants=(Want("q", 1, lease_ms=lease_ms),), request="r").leases) == 1


def test_what_was_handed_over_is_told_though_it_is_more_than_was_wanted(desks):
    for number, desk in enumerate(desks.desks.values()):
        desk.told = {"r": ["", new_token(number, RNG)]}
    found = answer(desks, wants=(Want("q", 1, lease_ms=0),), request="r")
    assert [lease.token for lease in found.leases] == ["", ""]


def test_an_order_ends_the_waiting_of_what_is_to_be_handed_over(desks):
    for desk in desks.desks.values():
        desk.order = "stop"
    found = answer(desks, session="s", sequence=1, until_us=20_000_000, wants=(Want("q", lease_ms=0),))
    assert found.order == "stop"
    assert [len(desk.heard) for desk in desks.desks.values()] == [1, 1]
