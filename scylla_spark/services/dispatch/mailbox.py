"""How threads talk to the engine's thread: they post calls, it runs them one after the other."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any, TypeVar

AT_ONCE = 32  # messages between two looks at the clock

T = TypeVar("T")
Message = Callable[[int], object]


class Mailbox:
    """A queue of calls; each is given `now` when it runs."""

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()
        self._urgent: deque[Message] = deque()
        self._ready = threading.Event()
        self._lock = threading.Lock()
        self._asked: set[Future[Any]] = set()
        self._closed: BaseException | None = None

    def close(self, error: BaseException) -> None:
        """The engine has ended, says its thread: whoever waits for an answer, now or later, gets the error."""
        with self._lock:
            self._closed = error
            asked, self._asked = self._asked, set()
        self._messages.clear()
        self._urgent.clear()
        for answer in asked:
            with contextlib.suppress(InvalidStateError):  # it was given, and has not been taken yet
                answer.set_exception(error)

    def post(self, message: Message) -> None:
        """Leaves a call and returns at once."""
        self._messages.append(message)
        self._ready.set()

    def ask(self, question: Callable[[int], T], *, timeout_s: float | None = 30.0, urgent: bool = True) -> T:
        """Leaves a call and waits for its value.

        Args:
            question: what is called in the engine's thread.
            timeout_s: how long to wait; None: as long as the engine lives.
            urgent: it goes before most of what was posted; else it comes after what this thread has posted.

        Raises:
            TimeoutError: the engine did not get to it in time, or was stopped.
            BaseException: what ended the engine.
        """
        answer: Future[T] = Future()
        with self._lock:
            if self._closed is not None:
                raise self._closed
            self._asked.add(answer)

        def run(now: int) -> None:
            if not answer.set_running_or_notify_cancel():
                return  # nobody waits for it any more
            try:
                answer.set_result(question(now))
            except Exception as error:
                answer.set_exception(error)

        (self._urgent if urgent else self._messages).append(run)
        self._ready.set()
        try:
            return answer.result(timeout_s)
        finally:
            answer.cancel()
            with self._lock:
                self._asked.discard(answer)

    def wait(self, timeout_s: float) -> None:
        """Returns when a message is there or the time is over."""
        self._ready.wait(timeout_s)

    def drain(self, most: int = AT_ONCE) -> list[Message]:
        """The first messages of those left so far, urgent ones first; with more of them, `wait` returns at once.

        Half of the room is for what was posted: however many ask, the work goes on.
        """
        self._ready.clear()
        messages = _taken(self._urgent, most - min(len(self._messages), most // 2))
        messages += _taken(self._messages, most - len(messages))
        if self._messages or self._urgent:
            self._ready.set()
        return messages


def _taken(queue: deque[Message], most: int) -> list[Message]:
    return [queue.popleft() for _ in range(min(most, len(queue)))]
