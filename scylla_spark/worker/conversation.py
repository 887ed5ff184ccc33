"""The one conversation of a worker with the server, in threads of its own, which the worker's code cannot block.

A call waits at the server until there is work, a lease has to be kept alive, or something is to be told. When a report is to be
sent meanwhile, the next call takes the place of the one that waits: over a second connection, because the first is busy waiting.
The server answers the call that was overtaken at once, and what it was given with it is taken, too.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Final, NamedTuple

from scylla_spark.clock import boot_us, iso
from scylla_spark.core.leases.messages import DRAIN, STOP, LeasedLine
from scylla_spark.errors import ArgumentError, ConflictError, SchedulerError, UnreachableError
from scylla_spark.worker.connection import Connection, Reply, Site, refusal, segment
from scylla_spark.worker.lease import Lease, Output
from scylla_spark.worker.ledger import Call, Ledger

LONGEST_WAIT_MS: Final = 20_000
_PATIENCE_S: Final = 25.0  # beyond the time that the server holds a call
_SLOW_US: Final = (
    30_000_000  # beyond that again: each byte of an answer may take as long, so that whole it may take for ever
)
_LINES_S: Final = 5.0
_UPLOAD_S: Final = 60.0  # without a byte going on
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 2.0
_OVERTAKEN_S: Final = 2.0  # an overtaken call is answered within this, or its answer does not matter
_SIGNS_US: Final = 1_000_000  # what is told of leases that go on is worth a call of its own so often
_AGAIN: Final = frozenset({408, 429, 500, 502, 503, 504})
_TOLD: Final = frozenset({"accepted", "leases", "lost", "commands"})  # in the answer to a call that was taken
_IN_TURN: Final = frozenset({"superseded", "sequence-out-of-order"})


class Wishes(NamedTuple):
    """What a worker leases.

    Attributes:
        queues: names, in order of preference.
        handlers: only tasks of these; None: whichever, and tasks without one.
        lease_ms: how long a lease lasts without a sign of life; None: as the queue says.
    """

    queues: tuple[str, ...]
    handlers: tuple[str, ...] | None = None
    lease_ms: int | None = None

    def wants(self, room: int) -> list[dict[str, Any]]:
        """Returns what to ask for.

        Args:
            room: for so many leases; shared out among the queues, one each at least.
        """
        share, rest = divmod(max(room, 0), len(self.queues))
        more = {"handlers": self.handlers, "lease_ms": self.lease_ms}
        known = {name: value for name, value in more.items() if value is not None}
        least = 1 if room > 0 else 0
        return [
            {"queue": queue, "max": min(max(share + (number < rest), least), 1_000)} | known
            for number, queue in enumerate(self.queues)
        ]


class _Sent:
    """A call on its way.

    Args:
        call: what is said.
        room: for how many more leases there was room.

    Attributes:
        sent_us: when it was sent first, on the boot clock.
        answer: None: there is none yet.
    """

    def __init__(self, call: Call, room: int) -> None:
        self.call = call
        self.room = room
        self.sent_us = boot_us()
        self.answer: Reply | UnreachableError | None = None


class _Line:
    """A connection with the thread that waits for its answers.

    Args:
        site: where to.
        path: of the conversation.
        changed: told of every answer.
        name: of the thread.
    """

    def __init__(self, site: Site, path: str, changed: threading.Condition, name: str) -> None:
        self.connection = Connection(site)
        self.busy = False
        self.until_us = 0  # boot clock: by when it is to be answered as a whole
        self._path = path
        self._changed = changed
        self._work: SimpleQueue[_Sent | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def send(self, sent: _Sent) -> None:
        """Sends a call; its answer will stand in it."""
        self.busy, self.until_us = True, boot_us() + round(_patience_s(sent.call) * 1e6) + _SLOW_US
        sent.answer = None
        self._work.put(sent)

    def end_late(self) -> None:
        """Has a call fail that is not answered in time."""
        if self.busy and boot_us() >= self.until_us:
            self.until_us = boot_us() + _SLOW_US
            self.connection.interrupt()

    def close(self) -> None:
        """Ends the connection and the thread."""
        self._work.put(None)
        self.connection.close()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        while (sent := self._work.get()) is not None:
            answer: Reply | UnreachableError
            try:
                answer = self.connection.request("POST", self._path, sent.call.body, _patience_s(sent.call))
            except UnreachableError as error:
                answer = error
            except Exception as error:  # a line that ended in silence would be waited for without end
                answer = UnreachableError(f"The call broke: {type(error).__name__}: {error}.")
            with self._changed:
                sent.answer, self.busy = answer, False
                self._changed.notify_all()


class Conversation:
    """Leases tasks, keeps the leases alive, and brings reports to the server.

    Args:
        site: where the API is.
        worker: its name, and of this run of it.
        about: JSON text of what it says of itself.
        wishes: what it leases.
        room: for how many more leases it has room now; called with the lock held.
        arrived: takes new leases.

    Attributes:
        order: what an operator wants the worker to do: DRAIN or STOP; empty: to go on.
    """

    def __init__(
        self,
        site: Site,
        worker: tuple[str, str],
        about: str,
        *,
        wishes: Wishes,
        room: Callable[[], int],
        arrived: Callable[[Sequence[Lease]], None],
    ) -> None:
        self._site = site
        self._worker, self._session = worker
        self._wishes = wishes
        self._room = room
        self._arrived = arrived
        self._ledger = Ledger(self._session, about)
        self._changed = threading.Condition(threading.RLock())
        self._path = f"/v1/workers/{segment(self._worker)}/sync"
        self._lines: list[_Line] = []
        self._overtaken: _Sent | None = None
        self._asked: _Sent | None = None  # the newest call, until its answer is taken
        self._stop_us: int | None = None  # when it ends, whatever is left to say, on the boot clock
        self._error: SchedulerError | None = None
        self.order = ""
        self._failures = 0
        self._signs_us = 0
        self._rng = random.Random()
        self._thread = threading.Thread(target=self._run, name="worker-conversation", daemon=True)

    # -- for the threads of the worker ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins to talk."""
        self._lines = [_Line(self._site, self._path, self._changed, f"worker-line-{n}") for n in (1, 2)]
        self._thread.start()

    def report(self, lease: Lease, text: str) -> None:
        """A lease ends; see `Reporter`."""
        with self._changed:
            self._ledger.report(lease, text)
            if self._error is not None:
                self._ledger.close()
            self._changed.notify_all()

    def sign(self, lease: Lease, **fields: str) -> None:
        """A lease goes on; see `Reporter`."""
        with self._changed:
            self._ledger.sign(lease, fields)
            self._changed.notify_all()

    def output(self, lease: Lease, output: Output) -> None:
        """A file is left behind; see `Reporter`. It has a connection of its own: calls do not wait for it."""
        path = f"/v1/leases/{segment(lease.token)}/outputs/{segment(output.name)}"
        with open(output.file, "rb") as file:
            reply = Connection(self._site).send_file(path, file, output.media_type, _UPLOAD_S)
        if reply.status in (429, 503):
            raise UnreachableError(reply.detail, hint="Leave it behind again in a moment.")
        if reply.status != 200:
            raise ArgumentError(f"The file {output.name!r} was not stored: {reply.detail}")

    def lines(self, lease: Lease, lines: Sequence[LeasedLine]) -> None:
        """Lines for the logs of the attempt; see `Reporter`. They have a connection of their own: calls do not wait for them."""
        connection = Connection(self._site)
        try:
            body = json.dumps({"lines": [_line(one) for one in lines]}).encode()
            reply = connection.request("POST", f"/v1/leases/{segment(lease.token)}/logs", body, _LINES_S)
        finally:
            connection.close()
        if reply.status in (429, 503):
            raise UnreachableError(reply.detail, hint="Lines are missing.")
        if reply.status != 200:
            raise ArgumentError(f"The lines were not taken: {reply.detail}")

    def refuse(self) -> SchedulerError | None:
        """Returns why nothing can be brought to the server any more."""
        return self._error or (None if self._thread.is_alive() else UnreachableError("The worker has stopped."))

    def wake(self) -> None:
        """There is more room."""
        with self._changed:
            self._changed.notify_all()

    @property
    def lock(self) -> threading.Condition:
        """Guards the conversation; is told of every change."""
        return self._changed

    @property
    def may_bring(self) -> bool:
        """Returns True if leases may come that were asked for before; with the lock held."""
        return any(sent is not None and sent.room > 0 for sent in (self._asked, self._overtaken))

    @property
    def error(self) -> SchedulerError | None:
        """Returns why it has ended by itself."""
        return self._error

    def stop(self, within_s: float) -> None:
        """Says what is left to say, gives back everything that is held, and ends.

        Args:
            within_s: most seconds to spend on it.
        """
        with self._changed:
            self._stop_us = boot_us() + int(within_s * 1e6)
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout=within_s + 5)
        for line in self._lines:
            line.close()

    # -- the thread -------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_over():
                self._round()
            self._leave()
        except SchedulerError as error:
            self._error = error
        except Exception as error:
            self._error = UnreachableError(f"The conversation with the server broke: {type(error).__name__}: {error}.")
            self._error.__cause__ = error
        finally:
            with self._changed:
                self._asked = self._overtaken = None
                self._ledger.close()
                self._changed.notify_all()

    def _is_over(self) -> bool:
        with self._changed:
            return self._stop_us is not None and (not self._ledger.unsaid or boot_us() >= self._stop_us)

    def _round(self) -> None:
        """One call and its answer, unless the next call overtakes it."""
        with self._changed:
            room = 0 if self._stop_us is not None else self._room()
            sent = self._asked = _Sent(self._next_call(room), room)
            self._free_line().send(sent)
            while not self._is_answered(sent):
                self._hear_overtaken(0)
                if self._is_urgent(sent):
                    self._overtaken = sent
                    return
            self._hear_overtaken(_OVERTAKEN_S)
            self._judge(sent)
            self._asked = None
            self._changed.notify_all()

    def _hear_overtaken(self, patience_s: float) -> None:
        """Takes what the call was given that the last one overtook.

        Args:
            patience_s: how long its answer is waited for, and then forgotten; 0: another time.
        """
        sent = self._overtaken
        if sent is None:
            return
        self._changed.wait_for(lambda: sent.answer is not None, patience_s)
        if sent.answer is None and not patience_s:
            return
        self._overtaken = None
        self._changed.notify_all()
        if isinstance(sent.answer, Reply) and _is_taken(sent.answer):
            self._take(sent, sent.answer)

    def _next_call(self, room: int) -> Call:
        stopping = self._stop_us is not None
        wait_ms = 0 if stopping else self._ledger.beat_ms(LONGEST_WAIT_MS)
        if self._ledger.signs:
            self._signs_us = boot_us()
        return self._ledger.call([] if stopping else self._wishes.wants(room), wait_ms)

    def _free_line(self) -> _Line:
        while (free := next((line for line in self._lines if not line.busy), None)) is None:
            self._wait(None)
        return free

    def _wait(self, most_s: float | None) -> None:
        """Waits for a change, and ends calls that are not answered in time."""
        left_s = [max(line.until_us - boot_us(), 0) / 1e6 for line in self._lines if line.busy]
        self._changed.wait(min([*left_s, *([] if most_s is None else [most_s])], default=None))
        for line in self._lines:
            line.end_late()

    def _is_answered(self, sent: _Sent) -> bool:
        """Waits until a call is answered, or something else happens; a call that nobody answered is sent again."""
        if sent.answer is None:
            due_us = self._signs_us + _SIGNS_US - boot_us()
            self._wait(max(due_us / 1e6, 0.01) if self._ledger.signs else None)
            return False
        if isinstance(sent.answer, Reply) and sent.answer.status not in _AGAIN:
            return True
        told = sent.answer.retry_after_s if isinstance(sent.answer, Reply) else None
        self._pause(told)
        if self._stop_us is not None and boot_us() >= self._stop_us:
            raise UnreachableError("The server could not be reached before the worker stopped.")
        self._free_line().send(sent)
        return False

    def _is_urgent(self, sent: _Sent) -> bool:
        """Returns True if there is something to say for which a call that waits must not be waited for."""
        if not sent.call.may_be_overtaken or sent.answer is not None or self._overtaken is not None:
            return False
        signs = self._ledger.signs and boot_us() - self._signs_us >= _SIGNS_US
        room = self._room()
        other_room = room > sent.room or (room <= 0 < sent.room)
        return bool(self._ledger.unsaid) or signs or self._stop_us is not None or other_room

    def _pause(self, told_s: float | None = None) -> None:
        """Waits before the server is asked again: longer each time, and never as long as others."""
        longest = min(_FIRST_PAUSE_S * 2**self._failures, told_s or _LONGEST_PAUSE_S, _LONGEST_PAUSE_S)
        self._failures = min(self._failures + 1, 10)
        until = boot_us() + int(longest * self._rng.uniform(0.5, 1) * 1e6)
        while (left := until - boot_us()) > 0 and (self._stop_us is None or boot_us() < self._stop_us):
            self._changed.wait(left / 1e6)

    # -- answers ----------------------------------------------------------------------------------------------------------

    def _judge(self, sent: _Sent) -> None:
        """What becomes of an answer.

        Raises:
            SchedulerError: the conversation cannot go on.
        """
        reply = sent.answer
        assert isinstance(reply, Reply)
        if _is_taken(reply):
            if self._take(sent, reply):
                self._pause()
            else:
                self._failures = 0
            return
        if reply.problem in _IN_TURN:
            self._ledger.unheard(sent.call)
            self._pause()
        elif reply.problem == "worker-replaced":
            raise ConflictError(
                f"Another process has joined as worker {self._worker!r}: this one has been replaced, and its leases go to others.",
                hint="Give every worker a name of its own, or none.",
            )
        elif reply.status not in (400, 413, 422) or not self._ledger.refused(sent.call, reply.detail):
            raise refusal(reply, self._site)

    def _take(self, sent: _Sent, reply: Reply) -> bool:
        """Takes an answer; True: ask again a little later."""
        document = reply.document
        new = [Lease(view, self) for view in document["leases"]]
        news = self._ledger.take(sent.call, document, sent.sent_us, new)
        orders = {command["type"] for command in document["commands"]} & {DRAIN, STOP}
        self.order = max(self.order, *orders) if orders else self.order  # who is to stop need not drain
        if news.leases:
            self._arrived(news.leases)
        self._changed.notify_all()
        return news.again

    def _leave(self) -> None:
        """All that is held goes to others at once."""
        connection = Connection(self._site)
        try:
            path = f"/v1/workers/{segment(self._worker)}?session={segment(self._session)}"
            connection.request("DELETE", path, None, 5.0)
        except UnreachableError:
            pass  # it ends by itself, when no heartbeats come
        finally:
            connection.close()


def _patience_s(call: Call) -> float:
    """Returns how long each step of the answer to a call may take."""
    return call.wait_ms / 1000 + _PATIENCE_S


def _is_taken(reply: Reply) -> bool:
    """Returns True if a call was taken, by an API of ours."""
    return reply.status == 200 and isinstance(reply.document, dict) and reply.document.keys() >= _TOLD


def _line(one: LeasedLine) -> dict[str, Any]:
    fields = None if one.fields is None else json.loads(one.fields)
    return {
        "seq": one.seq,
        "at": iso(one.at_us),
        "stream": one.stream,
        "level": one.level,
        "text": one.text,
        "fields": fields,
    }
