"""Threads that ask the engine get an answer, or the error that ended it; they never wait for nobody."""

import threading

import pytest

from scylla_spark.services.dispatch.mailbox import Mailbox
from tests.support.waiting import eventually


def test_an_answer_is_what_the_question_returns_when_the_engine_runs_it():
    mailbox, answers = Mailbox(), []
    asking = threading.Thread(target=lambda: answers.append(mailbox.ask(lambda now: now + 1)))
    asking.start()
    mailbox.wait(30)
    for message in mailbox.drain():
        message(41)
    asking.join(30)
    assert answers == [42]


def test_who_waits_when_the_engine_ends_gets_its_error():
    mailbox, errors = Mailbox(), []

    def ask():
        with pytest.raises(ValueError, match="broken") as caught:
            mailbox.ask(lambda now: now)
        errors.append(caught.value)

    asking = threading.Thread(target=ask)
    asking.start()
    mailbox.wait(30)
    mailbox.close(ValueError("broken"))
    asking.join(30)
    assert len(errors) == 1
    for message in mailbox.drain():
        message(0)  # too late: nobody listens, and nothing breaks


def test_who_asks_afterwards_does_not_wait():
    mailbox = Mailbox()
    mailbox.close(ValueError("broken"))
    with pytest.raises(ValueError, match="broken"):
        mailbox.ask(lambda now: now, timeout_s=5.0)


def test_a_question_is_answered_before_all_that_was_posted_unless_it_must_come_after_that():
    mailbox, said = Mailbox(), []
    for number in range(100):
        mailbox.post(lambda _now, number=number: said.append(number))
    asking = [
        threading.Thread(target=mailbox.ask, args=(lambda _now, who=who: said.append(who),), kwargs={"urgent": urgent})
        for who, urgent in (("after", False), ("first", True))
    ]
    for thread in asking:
        thread.start()
    eventually(lambda: len(mailbox._messages) == 101 and len(mailbox._urgent) == 1, 5)
    while len(said) < 102:
        for message in mailbox.drain():
            message(0)
    for thread in asking:
        thread.join(30)
    assert said == ["first", *range(100), "after"]


def test_however_many_ask_what_was_posted_goes_on():
    mailbox = Mailbox()
    mailbox._urgent.extend(["asked"] * 100)
    for _ in range(20):
        mailbox.post("posted")
    assert mailbox.drain(32) == ["asked"] * 16 + ["posted"] * 16
    assert mailbox.drain(32) == ["asked"] * 28 + ["posted"] * 4
    assert mailbox.drain(1) == ["asked"]
    assert mailbox._ready.is_set()
