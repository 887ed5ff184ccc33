"""The load of the campaign: a producer and a canceller in threads, which write down everything they try and what came of it."""

from __future__ import annotations

import contextlib
import json
import random
import threading
import zlib
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kafka.errors import KafkaError

from scylla_spark import Scheduler, TaskKey
from scylla_spark.errors import SchedulerError, UnreachableError, WaitTimeoutError
from scylla_spark.testing.history import OK, UNKNOWN, Cancel, Enqueue
from tests.acceptance.place import SECOND, Foreign, now

WORK = "faults-work"
PER_SECOND = 20
ORDERED, MIXED = 16, 8  # lanes whose tasks are sent in key order, and lanes where they come as they like
MAX_RETRIES = 100
FOR_LONG = 100_000
LARGEST = 2_000_000
SILENT_US = 30 * SECOND
FAR_US = 190 * 60 * SECOND  # past two hours and a full one, so ingest defers them; they are cancelled at the end


class Load:
    """Sends tasks, bad records and cancels until it is stopped.

    Args:
        kafka: the broker's address.
        client: makes the client that cancels.
        file: takes the lines.
        rng: decides everything.
    """

    def __init__(self, kafka: str, client: Callable[[], Scheduler], file: Path, rng: random.Random) -> None:
        self.enqueues: dict[TaskKey, Enqueue] = {}
        self.cancels: list[Cancel] = []
        self.bad: set[tuple[int, int]] = set()  # where acknowledged bad records stand
        self._kafka = kafka
        self._foreign: Foreign | None = None
        self._heard_us = 0  # when a send was answered last, or a producer was made
        self._client = client
        self._file = file
        self._rng = rng
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._last: dict[str, int] = {}
        self._recent: deque[TaskKey] = deque(maxlen=300)
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._send, self._cancel)]

    def start(self) -> Load:
        """Begins."""
        for thread in self._threads:
            thread.start()
        return self

    def stop(self) -> None:
        """Ends, and waits until the fate of everything sent is known; `cancel` still works."""
        if not self._stopping.is_set():
            self._stopping.set()
            for thread in self._threads:
                thread.join()
            if self._foreign is not None:
                with contextlib.suppress(Exception):
                    self._foreign.flush()
                self._foreign.close()

    def _send(self) -> None:
        number = 0
        while not self._stopping.wait(1 / PER_SECOND):
            number += 1
            if number % 50 == 0:
                self._send_bad()
            elif number % 50 == 25:
                self._put(TaskKey(now() + FAR_US, f"far-{number % 7}", f"{number:06}"), {}, MAX_RETRIES)
            else:
                self._send_task(number)

    def _send_task(self, number: int) -> None:
        rng = self._rng
        lane = rng.randrange(ORDERED + MIXED)
        name = f"{'ordered' if lane < ORDERED else 'mixed'}-{lane}"
        time_us = now() + int(rng.choice([0, 0.5, 2, 5, 5, 12]) * rng.random() * SECOND)
        if lane < ORDERED:
            time_us = self._last[name] = max(time_us, self._last.get(name, 0) + 1)
        key = TaskKey(time_us, name, f"{number:06}")
        failures = rng.choice([0] * 30 + [1, 2, 9])
        retries = 2 if failures == 9 else MAX_RETRIES
        payload = {"ms": rng.choice([0] * 20 + [20] * 10 + [200, 1500]), "failures": failures}
        self._put(key, payload, retries)

    def send_sized(self, number: int, size: int) -> None:
        """One task whose payload, as JSON text, has `size` bytes (at least what an empty one takes)."""
        payload = {"pad": ""}
        payload["pad"] = "x" * (size - len(json.dumps(payload)))
        self._put(TaskKey(now(), f"sized-{number % 7}", f"{size:07}-{number}"), payload, MAX_RETRIES)

    def send_named(self, queue: str, handler: str = WORK) -> TaskKey:
        """One task of that queue and handler, due now."""
        key = TaskKey(now(), f"named-{zlib.crc32(queue.encode()) % 97}", f"{queue}/{handler}")
        retries = MAX_RETRIES if handler == WORK else FOR_LONG  # until somebody has the handler, or cancels the task
        self._put(key, {}, retries, queue=queue, handler=handler)
        return key

    def send_garbage(self, data: bytes) -> None:
        """One record that is no task; it belongs into `rejected`."""
        producer = self._producer()
        assert producer is not None
        sent = producer.raw(b"ordered-0", data)
        sent.add_callback(lambda place: self.bad.add((place.partition, place.offset)))

    def _put(self, key: TaskKey, payload: dict[str, Any], retries: int, **more: str) -> None:
        terms = {"maxRetries": retries, "base": "300ms", "cap": "600ms"}
        asked = now()

        def told(outcome: str) -> None:
            self._heard_us = now()
            item = self.enqueues[key] = Enqueue(key, outcome, asked, now(), retries + 1)
            self._note(event="enqueue", **item._asdict())
            if outcome == OK:
                self._recent.append(key)

        producer = self._producer()
        if producer is None:
            told("failed")
            return
        self.enqueues[key] = Enqueue(key, UNKNOWN, asked, asked, retries + 1)
        try:
            sent = producer.put(key, payload, **{"handler": WORK, "retry": terms} | more)
        except Exception:
            self._give_up(producer)
            told(UNKNOWN)
            return
        sent.add_callback(lambda _: told(OK))
        sent.add_errback(lambda _: (self._give_up(producer), told(UNKNOWN)))

    def _producer(self) -> Foreign | None:
        """A producer that has not failed yet: kafka-python's may never recover from a broker that was silent for a while."""
        silent = self._foreign
        if silent is not None and now() - self._heard_us > SILENT_US:
            self._give_up(silent)  # not even the time limits of its sends hold
        if self._foreign is None:
            self._heard_us = now()
            with contextlib.suppress(KafkaError):
                self._foreign = Foreign(self._kafka, linger_ms=5, bootstrap_timeout_ms=2_000, max_request_size=LARGEST)
        return self._foreign

    def _give_up(self, producer: Foreign) -> None:
        if self._foreign is producer:
            self._foreign = None
            threading.Thread(target=producer.close, daemon=True).start()

    def _send_bad(self) -> None:
        producer = self._producer()
        if producer is not None:
            with contextlib.suppress(Exception):
                self.send_garbage(b"no JSON")

    def _cancel(self) -> None:
        while not self._stopping.wait(0.7):
            if self._recent:
                self.cancel(self._rng.choice(tuple(self._recent)))

    def cancel(self, key: TaskKey) -> str:
        """Cancels a task and writes down the answer."""
        asked = now()
        try:
            answer = self._client().task(key).cancel("4s")
        except (WaitTimeoutError, UnreachableError):
            answer = UNKNOWN
        except SchedulerError as error:  # such as no tables yet: nothing was sent
            self._note(event="cancel failed", key=key, error=str(error), at=now())
            return ""
        except Exception as error:  # readers meet half-written tables when a disk is full
            self._note(event="cancel broke", key=key, error=repr(error), at=now())
            answer = UNKNOWN
        self.cancels.append(Cancel(key, answer, asked, now()))
        self._note(event="cancel", **self.cancels[-1]._asdict())
        return answer

    def _note(self, **line: Any) -> None:
        with self._lock, self._file.open("a") as file:
            file.write(json.dumps(line) + "\n")
