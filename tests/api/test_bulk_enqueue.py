"""Bulks of the API where Kafka is away."""

import json
from types import SimpleNamespace

from scylla_spark.errors import UnreachableError
from scylla_spark.services.api.tasks.bulk_enqueue import _Answers


class Sender:
    """Waits for a broker that is away, and counts how often."""

    waits = 0

    def record(self, command):
        return command

    def begin(self, record):
        self.waits += 1
        raise UnreachableError("Kafka is away.")


def test_a_broker_that_is_away_is_waited_for_once_and_what_is_wrong_is_told_all_the_same():
    sender = Sender()
    answers = _Answers(SimpleNamespace(scheduler=SimpleNamespace(connection=SimpleNamespace(sender=sender))))
    for _ in range(3):
        answers.take_lines([b'{"handler":"echo"}', b'{"handler":5}', b"{"])
    said = [json.loads(line) for line in answers.whole().splitlines()]
    assert [one["problem"]["status"] for one in said[:-1]] == [503, 422, 422] * 3
    assert (sender.waits, said[-1]) == (1, {"accepted": 0, "refused": 9})
