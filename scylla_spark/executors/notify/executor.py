"""The executor of notifications: a thread for each channel sends messages, each lane in its order."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from scylla_spark.clock import boot_us, now_us
from scylla_spark.config.notify import Notify
from scylla_spark.config.settings import Settings
from scylla_spark.core.notifications.proof import is_proven, notice_key
from scylla_spark.core.records.rejection_reason import of_defect
from scylla_spark.core.tasks.attempt_note import WorkNote
from scylla_spark.core.tasks.task import FAILED, NOT_STARTED, SUCCEEDED, TIMED_OUT, Failure, Invocation, Outcome, Retry
from scylla_spark.defaults import NOTIFY_HANDLER
from scylla_spark.executors.backlog import Backlog
from scylla_spark.executors.interface import Kind, Sink
from scylla_spark.executors.notify.channel_secrets import without_secrets
from scylla_spark.executors.notify.delivery import Delivered, deliver
from scylla_spark.handlers.description import HandlerInfo
from scylla_spark.io.host.deployment_secret import desk_secret

NAME: Final = "notify"
RETRY: Final = Retry(110, "5s", "30m")
"""A day at least, mostly a day and a half: a receiver that is mended the next morning gets what it missed. A queue `_notify` that is
defined says it otherwise."""
_TIMEOUT_MS: Final = 60_000
_LEAST_THREADS: Final = 4
_MOST_THREADS: Final = 32
"""A thread for each channel: a message waits for those of its own channel alone, also where receivers of others never answer."""
_MOST: Final = 64
_UNPROVEN: Final = (
    "Only messages of the planner are sent, and this is none. If a rule has told it: planner and dispatchers on several machines "
    "need the same desk.secret."
)

Deliver = Callable[[Any, Notify], Delivered]


class NotifyExecutor:
    """An Executor that runs one handler, the one that sends notifications.

    Args:
        settings: with the channels.
        key: tells messages of the planner from those of everybody else who may enqueue.
        send: sends one message.
    """

    def __init__(self, settings: Notify, key: bytes, send: Deliver = deliver) -> None:
        self._settings = settings
        self._key = key
        self._send = send
        self._backlog = Backlog(lambda _: None)
        self._news = threading.Condition()
        self._running: dict[int, int] = {}  # id → when it began
        self._busy = 0
        self._left_behind = 0  # threads that end when they are back, since others have taken their places
        self._stopping = False
        self._reporting = threading.Lock()
        self._closed = False
        self._sink: Sink

    def start(self, sink: Sink) -> None:
        """Begins to send."""
        self._sink = sink
        for _ in range(min(max(_LEAST_THREADS, len(self._settings.channels)), _MOST_THREADS)):
            self._begin_thread()

    def handlers(self) -> dict[str, HandlerInfo]:
        """The one that it runs."""
        return {NOTIFY_HANDLER: HandlerInfo(NOTIFY_HANDLER, NAME, None, _TIMEOUT_MS, RETRY)}

    def rooms(self) -> Mapping[str, int]:
        """Some dozens, since threads wait for receivers."""
        with self._news:
            return {NAME: max(_MOST - len(self._backlog) - self._busy, 0)}

    def running(self) -> Mapping[int, int]:
        """Returns what is being sent, and since when."""
        with self._news:
            return dict(self._running)

    def submit(self, batch: Sequence[Invocation]) -> None:
        """Takes messages; those of one lane go out in the order given."""
        with self._news:
            self._backlog.add(batch)
            self._news.notify_all()

    def notes(self) -> Mapping[int, WorkNote]:
        """Nothing: messages say nothing of themselves."""
        return {}

    def kill(self, ids: Sequence[int], *, grace_ms: int = 0) -> None:
        """Gives up on messages at once; one that is being sent may still arrive, and holds back its lane until its time is over."""
        now, chosen = now_us(), set(ids)
        with self._news:
            gone = self._backlog.discard(chosen)
            begun = {id: self._running.pop(id) for id in chosen & self._running.keys()}
            for _ in begun:
                self._leave_behind()
        failure = Failure(TIMED_OUT, "It was given up while it was being sent.")
        self._report([Outcome(item.id, NOT_STARTED) for item in gone])
        self._report([Outcome(id, TIMED_OUT, since, now, failure=failure) for id, since in begun.items()])

    def stop(self, *, drain_s: float) -> None:
        """Sends nothing more; what is being sent may finish for so long, and is abandoned then."""
        deadline = time.monotonic() + drain_s
        with self._news:
            self._stopping = True
            gone = self._backlog.discard()
            self._news.notify_all()
        self._report([Outcome(item.id, NOT_STARTED) for item in gone])
        with self._news:
            self._news.wait_for(lambda: not self._busy, max(deadline - time.monotonic(), 0))
        with self._reporting:
            self._closed = True

    def _begin_thread(self) -> None:
        threading.Thread(target=self._work, name="notify", daemon=True).start()

    def _leave_behind(self) -> None:
        """Another thread takes the place of one whose message was given up; there is one of these for each lane at most.

        Whoever calls this has `_news`, so that neither of the two threads goes on before it is known.
        """
        with suppress(RuntimeError):  # there can be no more threads: the place is free when this one is back
            self._begin_thread()
            self._left_behind += 1
            self._busy -= 1

    # -- in threads -------------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (item := self._next()) is not None:
            outcome = self._outcome(item)
            with self._news:
                known = self._running.pop(item.id, None) is not None or outcome.outcome == NOT_STARTED
                lane = item.key.ordering_id
                behind = self._backlog.fail(lane) if outcome.outcome != SUCCEEDED else []
                self._backlog.finish([item])
            self._report([outcome] * known + [Outcome(other.id, NOT_STARTED) for other in behind])
            with self._news:
                ends = not known and self._left_behind > 0
                self._left_behind -= ends
                self._busy -= not ends
                self._news.notify_all()
            if ends:
                return

    def _next(self) -> Invocation | None:
        with self._news:
            while not self._stopping:
                if call := self._backlog.take():
                    self._busy += 1
                    return call[0]
                self._news.wait()
            return None

    def _outcome(self, item: Invocation) -> Outcome:
        if boot_us() > item.start_by_us:
            return Outcome(item.id, NOT_STARTED)
        began = now_us()
        with self._news:
            self._running[item.id] = began
        done = self._delivered(item)
        ended = max(now_us(), began)
        if done.failure is None:
            return Outcome(item.id, SUCCEEDED, began, ended, done.result)
        return Outcome(
            item.id, FAILED, began, ended, failure=done.failure, final=done.final, least_wait_ms=done.least_wait_ms
        )

    def _delivered(self, item: Invocation) -> Delivered:
        if item.handler != NOTIFY_HANDLER:
            words = f"Handler {item.handler!r} does not run here; only {NOTIFY_HANDLER!r} does."
            return Delivered(None, Failure("handler_unknown", words), final=True)
        try:
            message = json.loads(item.payload)
            if not isinstance(message, dict) or not is_proven(message, self._key):
                return Delivered(None, Failure("message_unproven", _UNPROVEN), final=True)
            return self._send(message, self._settings)
        except Exception as error:  # a defect of ours must not end the thread
            kind, detail = of_defect(error)
            return Delivered(None, Failure(kind, without_secrets(detail, self._settings.channels.values())))

    def _report(self, outcomes: Sequence[Outcome]) -> None:
        with self._reporting:
            if outcomes and not self._closed:
                self._sink(outcomes)


def _from_settings(settings: Settings) -> NotifyExecutor:
    return NotifyExecutor(settings.notify, notice_key(desk_secret(settings)))


KIND: Final = Kind(
    _from_settings,
    wanted=lambda settings: True,
    turned_on_by="it always is on in a dispatcher",
    needs_session=lambda settings: False,
)
