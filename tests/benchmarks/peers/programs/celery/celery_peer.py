"""Celery as a peer: `python celery_peer.py VERB JSON`; see ../../program.py for what each verb does.

The worker is the ordinary `celery -A celery_peer worker`; the address and the file of records come from the environment.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import time
from datetime import UTC, datetime

from celery import Celery

app = Celery("peer", broker=os.environ["PEER_ADDRESS"])
app.conf.task_ignore_result = True
app.conf.task_acks_late = True  # a task outlives the death of its worker, as with the other peers
app.conf.broker_connection_retry_on_startup = True
_records = os.open(os.environ["PEER_RECORDS"], os.O_APPEND | os.O_CREAT | os.O_WRONLY)


@app.task(name="noop")
def noop(key: int, number: int, stamp: float) -> None:
    os.write(_records, struct.pack("<4d", key, number, stamp, time.time() * 1e6))


def enqueue(count: int, first_due_us: int, period_us: int, **_: object) -> float:
    with app.connection_for_write() as connection, app.amqp.Producer(connection, auto_declare=False) as producer:
        begin = time.perf_counter()
        for index in range(count):
            due = first_due_us + index * period_us if first_due_us else 0
            eta = datetime.fromtimestamp(due / 1e6, UTC) if due else None
            noop.apply_async((0, index, due), eta=eta, producer=producer)
        return time.perf_counter() - begin


def send(count: int, rate: float, **_: object) -> float:
    with app.connection_for_write() as connection, app.amqp.Producer(connection, auto_declare=False) as producer:
        begin = time.perf_counter()
        for index in range(count):
            time.sleep(max(0.0, begin + index / rate - time.perf_counter()))
            noop.apply_async((0, index, time.time() * 1e6), producer=producer)
        return time.perf_counter() - begin


if __name__ == "__main__":
    verbs = {"prepare": lambda **_: 0.0, "enqueue": enqueue, "send": send}
    print(json.dumps({"seconds": verbs[sys.argv[1]](**json.loads(sys.argv[2]))}))
