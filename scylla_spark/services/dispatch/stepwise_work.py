"""Work that asks the engine and reads tables by turns, written as generators, and what carries it out.

A piece of work yields what it needs next and is given the answer. So the dispatcher runs it in threads of its own, and the
simulation runs the same code with anything happening between two steps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Protocol, TypeVar

from scylla_spark.log import get_logger
from scylla_spark.services.dispatch.mailbox import Mailbox

log = get_logger("dispatch")

T = TypeVar("T")


class Ask(NamedTuple):
    """Ask the engine, after all that this piece of work has posted."""

    question: Callable[[int], Any]


class Read(NamedTuple):
    """Do something that may take long: read tables."""

    work: Callable[[], Any]


class Pause(NamedTuple):
    """Let some time pass."""

    seconds: float


Step = Ask | Read | Pause
Steps = Generator[Step, Any, T]


class Runner(Protocol):
    """What carries out pieces of work."""

    def run(self, line: str, work: Steps[Any]) -> Future[Any]:
        """Carries out a piece of work after those that were given before in the same line; returns at once."""

    def later(self, seconds: float, call: Callable[[], object]) -> None:
        """Calls something after a while; never again once it was stopped."""


class _Line:
    """Carries out calls one after the other, in a thread that keeps no process from ending, whatever it waits for.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        done: Future[Any] = Future()
        self._calls.put((done, call))
        return done

    def stop(self) -> None:
        """Cancels what has not begun; what is under way may go on."""
        try:
            while (item := self._calls.get_nowait()) is not None:
                item[0].cancel()
        except Empty:
            pass
        self._calls.put(None)

    def _work(self) -> None:
        while (item := self._calls.get()) is not None:
            done, call = item
            if not done.set_running_or_notify_cancel():
                continue
            try:
                done.set_result(call())
            except BaseException as error:
                done.set_exception(error)


class Threads:
    """Carries out pieces of work in a thread for each line.

    Args:
        mailbox: the engine's.
    """

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._stopping = threading.Event()
        self._lines: dict[str, _Line] = {}
        self._lock = threading.Lock()

    def run(self, line: str, work: Steps[Any]) -> Future[Any]:
        """See `Runner`; cancelled once it was stopped."""
        with self._lock:
            if self._stopping.is_set():
                never: Future[Any] = Future()
                never.cancel()
                return never
            if line not in self._lines:
                self._lines[line] = _Line(line)
            return self._lines[line].submit(partial(self._carry_out, work))

    def later(self, seconds: float, call: Callable[[], object]) -> None:
        """See `Runner`."""
        timer = threading.Timer(seconds, lambda: self._stopping.is_set() or call())
        timer.daemon = True
        timer.start()

    def stop(self) -> None:
        """Begins nothing more and waits for nothing."""
        self._stopping.set()
        with self._lock:
            for line in self._lines.values():
                line.stop()

    def _carry_out(self, work: Steps[Any]) -> Any:
        try:
            return carry_out(work, self._mailbox, self._stopping)
        except Exception as error:
            if not self._stopping.is_set():
                log.error("work ended with an error", work=repr(work), error=repr(error)[:500])
            raise


def carry_out(work: Steps[T], mailbox: Mailbox, stopping: threading.Event) -> T | None:
    """Carries out a piece of work in this thread; None if it was stopped before its end.

    Args:
        work: its steps.
        mailbox: of the engine, which answers what the work asks.
        stopping: ends the work between two steps.

    Raises:
        Exception: what the work raised, and did not catch itself.
    """
    answer: Any = None
    failure: Exception | None = None
    try:
        while not stopping.is_set():
            step = work.send(answer) if failure is None else work.throw(failure)
            answer, failure = None, None
            try:
                if isinstance(step, Ask):
                    answer = mailbox.ask(step.question, timeout_s=None, urgent=False)
                elif isinstance(step, Read):
                    answer = step.work()
                else:
                    stopping.wait(step.seconds)
            except Exception as error:
                failure = error
    except StopIteration as end:
        result: T = end.value
        return result
    work.close()
    return None
