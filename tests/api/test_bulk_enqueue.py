"""Bulks of the API where Kafka is away."""

import json
import tracemalloc
from types import SimpleNamespace

from scylla_spark.api import problems
from scylla_spark.api.problems import Problem
from scylla_spark.api.tasks.bulk_enqueue import _Answers
from scylla_spark.errors import UnreachableError


class Sender:
    """Waits for a broker that is away, and counts how often."""

    waits = 0

    def record(self, command):
        return command

    def begin(self, record):
        self.waits += 1
        raise UnreachableError("Kafka is away.")


def api(sender):
    handlers = SimpleNamespace(all_unknown=lambda *_: [])
    return SimpleNamespace(scheduler=SimpleNamespace(connection=SimpleNamespace(sender=sender)), handlers=handlers)


def test_a_broker_that_is_away_is_waited_for_once_and_what_is_wrong_is_told_all_the_same():
    sender = Sender()
    answers = _Answers(api(sender))
    for _ in range(3):
        answers.take_lines([b'{"handler":"echo"}', b'{"handler":5}', b"{"])
    said = [json.loads(line) for line in answers.whole().splitlines()]
    assert [one["problem"]["status"] for one in said[:-1]] == [503, 422, 422] * 3
    assert (sender.waits, said[-1]) == (1, {"accepted": 0, "refused": 9})


def test_what_became_of_the_tasks_of_a_bulk_that_breaks_off_is_told_without_being_read_again():
    answers = _Answers(api(Sender()))
    for _ in range(20):
        answers.take_lines([b'{"handler":"\\n"}', b'{"handler":5}', b"{"] * 100)
    size = len(answers.whole())
    tracemalloc.start()
    answer = answers.broken_off(Problem(problems.TOO_LARGE, "It is too large.", headers={"Connection": "close"}))
    most_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    told = json.loads(answer.body)
    assert (answer.status_code, answer.headers["connection"], told["type"]) == (413, "close", "/problems/too-large")
    assert (told["accepted"], told["refused"], len(told["items"])) == (0, 6_000, 6_001)
    assert [one["index"] for one in told["items"][:-1]] == list(range(6_000))
    assert most_bytes < 5 * size
