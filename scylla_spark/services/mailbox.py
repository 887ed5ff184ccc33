"""How threads talk to the engine's thread: they post calls, it runs them one after the other."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")
Message = Callable[[int], object]


class Mailbox:
    """A queue of calls; each is given `now` when it runs."""

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()
        self._ready = threading.Event()

    def post(self, message: Message) -> None:
        """Leaves a call and returns at once."""
        self._messages.append(message)
        self._ready.set()

    def ask(self, question: Callable[[int], T], *, timeout_s: float = 30.0) -> T:
        """Leaves a call and waits for its value.

        Raises:
            TimeoutError: the engine did not get to it in time.
        """
        answer: Future[T] = Future()

        def run(now: int) -> None:
            try:
                answer.set_result(question(now))
            except Exception as error:
                answer.set_exception(error)

        self.post(run)
        return answer.result(timeout_s)

    def wait(self, timeout_s: float) -> None:
        """Returns when a message is there or the time is over."""
        self._ready.wait(timeout_s)

    def drain(self) -> list[Message]:
        """All messages left so far."""
        self._ready.clear()
        messages = []
        while self._messages:
            messages.append(self._messages.popleft())
        return messages
