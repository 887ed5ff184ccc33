"""The dispatcher's end of a pool of Spark workers, as a state machine: requests, frames and time in; frames and outcomes out.

A worker may be cut off, late, frozen or dead, and nobody can tell which. So it is given leases: it runs handlers only until the end
of the last lease that it has heard. An attempt of a worker that is silent is lost when that lease, the time to kill handlers and
the error of the clocks have passed, and not before: until then its lane waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from scylla_spark.core.tasks.attempt_note import WorkNote
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.task import (
    FAILED,
    NOT_STARTED,
    SUCCEEDED,
    TIMED_OUT,
    YIELDED,
    Failure,
    Invocation,
    Outcome,
)
from scylla_spark.defaults import LONG_RUN_US
from scylla_spark.executors.backlog import Backlog
from scylla_spark.executors.local.outcomes import Moment
from scylla_spark.executors.local.received_notes import Heard
from scylla_spark.executors.local.report import Report, is_extension, read
from scylla_spark.executors.remote.boot_offset import Offset
from scylla_spark.executors.remote.frames import (
    BEAT,
    BEGUN,
    DEAD,
    ENDS,
    LINES,
    PLAIN_FIELDS,
    SAYS,
    read_beat,
    read_begun,
    read_dead,
    read_ends,
    read_lines,
    read_success,
)
from scylla_spark.executors.remote.remote_worker import Held, Hello, RemoteWorker
from scylla_spark.handlers.description import HandlerInfo
from scylla_spark.handlers.framing import ProtocolError

LOST: Final = "executor_lost"
EVENTS: Final = ("late_outcomes", "lost_workers", "protocol_errors", "recalled")
"""Counted for metrics: outcomes of workers that were given up, lost workers with attempts, errors of frames, attempts taken back."""
_LONGEST_TICK_US: Final = 1_000_000
_FREE_LOSSES: Final = 2
_PORTIONS: Final = 4  # in which what waits is spread over each worker, so that the last ones find their loads alike
_MOST_KEYS: Final = 100_000  # whose free losses are counted; the oldest is forgotten first


@dataclass(frozen=True, slots=True)
class RemoteTerms:
    """What both ends of a pool of Spark workers have agreed on, microseconds.

    Attributes:
        lease_us: how long a worker may run handlers after the dispatcher has written a lease.
        beat_us: between two leases.
        kill_us: how long a worker may take to kill its handlers.
        most_error_us: a worker whose clock is known less well gets no work.
        recall_us: how long an attempt waits at a worker before it is given to another one that is free.
    """

    lease_us: int
    beat_us: int = 1_000_000
    kill_us: int = 2_000_000
    most_error_us: int = 250_000
    recall_us: int = 50_000


class _Share:
    """What a worker is about to be given.

    Args:
        worker: that can take work.
        clock: of it, known well enough.
        room: how many attempts it would take.
    """

    __slots__ = ("clock", "items", "room", "worker")

    def __init__(self, worker: RemoteWorker, clock: Offset, room: int) -> None:
        self.worker = worker
        self.clock = clock
        self.room = room
        self.items: list[Invocation] = []

    def runs(self, handler: str) -> bool:
        """Returns True if the worker has this handler."""
        return handler in self.worker.runs

    def load(self) -> int:
        """Returns how many attempts the worker has."""
        return len(self.worker.held) + len(self.items)

    def add(self, items: Sequence[Invocation]) -> None:
        """Adds attempts of one call."""
        self.items += items
        self.room -= len(items)


class RemoteSupervisor:
    """The workers of a pool, and what they have or wait for. Not thread-safe.

    Args:
        terms: leases and limits.
        handlers: by every name that tasks may use.

    Attributes:
        workers: those that may run handlers, by id.
        done: outcomes to be handed on.
        lines: what children have written, to be handed on: the frames of each of them.
        counts: of `EVENTS`.
    """

    def __init__(self, terms: RemoteTerms, handlers: Mapping[str, HandlerInfo]) -> None:
        self.terms = terms
        self.workers: dict[str, RemoteWorker] = {}
        self.done: list[Outcome] = []
        self.lines: list[list[bytes]] = []
        self.counts = dict.fromkeys(EVENTS, 0)
        self._handlers = handlers
        self._digests = {name: info.digest for name, info in handlers.items()}
        self._heard: dict[str, Heard] = {}
        self._given_up: set[str] = set()
        names = sorted({info.executor for info in handlers.values()})
        self._backlogs = {name: Backlog(self._max_batch) for name in names}
        self._killed: set[int] = set()
        self._begun_here: deque[tuple[int, int, str]] = deque()  # when a start was reported, attempt, worker
        self._losses: dict[TaskKey, int] = {}  # by key: attempts that were lost before their start was reported
        self._stop_us = 0

    # ---- requests ----

    def submit(self, batch: Sequence[Invocation], now: Moment) -> None:
        """Queues attempts; an unknown handler fails at once, and nothing starts after `stop`."""
        if self._stop_us:
            self.done += [Outcome(item.id, NOT_STARTED) for item in batch]
            return
        for handler, items in groupby(batch, attrgetter("handler")):
            if (info := self._handlers.get(handler)) is not None:
                self._backlogs[info.executor].add(items)
                continue
            failure = Failure("handler_unknown", f"No handler {handler!r} is registered here.")
            self.done += [Outcome(item.id, FAILED, now.wall_us, now.wall_us, failure=failure) for item in items]
        self._fill(now.boot_us)

    def kill(self, ids: Iterable[int], grace_ms: int = 0) -> None:
        """Ends attempts: those that wait here are returned at once, the others when their worker reports their end."""
        wanted = set(ids)
        for backlog in self._backlogs.values():
            self.done += [Outcome(item.id, NOT_STARTED) for item in backlog.discard(wanted)]
        for worker in self.workers.values():
            if found := wanted.intersection(worker.held):
                self._killed |= found
                worker.kill(found, grace_ms)

    def stop(self, until_us: int) -> None:
        """Returns what waits; what runs may go on until `until_us` (boot clock)."""
        self._stop_us = max(1, until_us)
        for backlog in self._backlogs.values():
            self.done += [Outcome(item.id, NOT_STARTED) for item in backlog.discard()]
        for worker in self.workers.values():
            worker.drain()

    def end(self) -> None:
        """After `stop`: every worker ends what still runs."""
        for worker in self.workers.values():
            worker.end()

    def give_up(self, now: Moment) -> None:
        """Ends what is left after `stop`: attempts whose end no worker has reported."""
        for worker_id, worker in list(self.workers.items()):
            self._lose(worker_id, worker, "Its dispatcher has stopped.", now, kind="executor_stopped")

    def room(self, name: str) -> int:
        """Returns how many more attempts of an executor name would start soon; 0: hold back."""
        backlog = self._backlogs.get(name)
        if self._stop_us or backlog is None:
            return 0
        free = sum(worker.room(name) for worker in self.workers.values() if worker.takes_work)
        return max(0, free - backlog.startable)

    def waiting(self, name: str) -> int:
        """How many attempts of an executor name would start if there were more workers: those behind others of their lane would not."""
        backlog = self._backlogs.get(name)
        return 0 if backlog is None else backlog.startable

    def wanting(self, name: str) -> int:
        """Returns how many of `waiting` another worker might run: no handler that all present workers lack, as it would lack it, too."""
        backlog, lacked = self._backlogs.get(name), self.lacked
        return self.waiting(name) if backlog is None or not lacked else backlog.startable - backlog.startable_of(lacked)

    @property
    def lacked(self) -> frozenset[str]:
        """The handlers that all present workers lack, or have in another version."""
        present = [frozenset(one.lacks) for one in self.workers.values() if one.takes_work]
        return present[0].intersection(*present[1:]) if present else frozenset()

    def forget(self, worker_id: str, why: str = "") -> None:
        """The job of a worker has ended: no worker of this id connects any more.

        Args:
            worker_id: of the job.
            why: as a sentence for the attempts that are lost with it; empty: not known.
        """
        self._given_up.discard(worker_id)
        if (worker := self.workers.get(worker_id)) is not None:
            worker.has_job, worker.why_lost = False, why or worker.why_lost

    def has_seen(self, worker_id: str) -> bool:
        """Returns True if a worker has ever connected."""
        return worker_id in self.workers or worker_id in self._given_up

    @property
    def finished(self) -> bool:
        """Returns True if no attempt is here or at a worker."""
        return not any(map(len, self._backlogs.values())) and not any(w.held for w in self.workers.values())

    def running(self, now: Moment) -> dict[int, int]:
        """Id → wall clock of the start, of each attempt whose start was reported."""
        ahead = now.wall_us - now.boot_us
        return {
            number: ahead + held.begun_us
            for worker in self.workers.values()
            for number, held in worker.held.items()
            if held.begun_us
        }

    def notes(self, now: int) -> dict[int, WorkNote]:
        """What attempts say of their work, of those that have said something since the last call, and of those that have become long.

        Args:
            now: boot clock.
        """
        found: dict[int, WorkNote] = {}
        while self._begun_here and self._begun_here[0][0] <= now - LONG_RUN_US:
            _, number, worker_id = self._begun_here.popleft()
            if (worker := self.workers.get(worker_id)) is not None and number in worker.held:
                found[number] = worker.with_place(self._heard[worker_id].of(number))
        for worker_id, heard in self._heard.items():
            if heard.news:
                place = self.workers[worker_id].with_place
                found |= {number: place(note) for number, note in heard.take_news().items()}
        return found

    # ---- connections ----

    def joined(self, worker_id: str, hello: Hello, now: int) -> bool:
        """A worker connects for the first time; False if it must not: its id is in use, or was given up.

        Args:
            worker_id: which one.
            hello: what it says of itself.
            now: boot clock.
        """
        if worker_id in self.workers or worker_id in self._given_up:
            return False
        self.workers[worker_id] = RemoteWorker(hello, now, self.terms.lease_us, self._digests)
        self._heard[worker_id] = Heard()
        if self._stop_us:
            self.workers[worker_id].drain()
        return True

    def rejoined(self, worker_id: str, their_received: int, now: int) -> bool:
        """A worker connects again; False if it was given up, so that it must end its handlers.

        Args:
            worker_id: which one.
            their_received: number of the last frame that it has taken.
            now: boot clock.
        """
        worker = self.workers.get(worker_id)
        if worker is None or worker.connected or worker.expelled:
            return False
        try:
            worker.link.reconnected(their_received)
        except ProtocolError:
            self.counts["protocol_errors"] += 1
            return False
        worker.connected, worker.silent_since_us = True, now
        return True

    def cut(self, worker_id: str) -> None:
        """The connection to a worker is closed. That proves nothing: it may come back, and its handlers run on."""
        if (worker := self.workers.get(worker_id)) is not None:
            worker.connected = False

    def expel(self, worker_id: str) -> None:
        """A worker says what none of ours says: it gets no lease and cannot come back, so that what it has is lost when its lease ends.

        What else was in such a frame is not known, and attempts whose ends it reported would wait for ever.
        """
        if (worker := self.workers.get(worker_id)) is not None:
            self.counts["protocol_errors"] += 1
            worker.connected, worker.expelled = False, True

    def heard(self, worker_id: str, now: int) -> None:
        """A worker has sent a part of a frame, so it is not silent."""
        if (worker := self.workers.get(worker_id)) is not None:
            worker.silent_since_us = now

    def receive(self, worker_id: str, frame: Any, now: Moment) -> bool:
        """Takes a frame; False if the connection must be closed, because no worker of ours sends that or it was given up.

        Args:
            worker_id: that has sent it.
            frame: a JSON value.
            now: of the dispatcher.
        """
        worker = self.workers.get(worker_id)
        if worker is None:
            self.counts["late_outcomes"] += worker_id in self._given_up
            return False
        worker.silent_since_us = now.boot_us
        try:
            body = worker.link.receive(frame)
            if body is not None:
                self._take(worker_id, worker, body, now)
        except ProtocolError:
            self.expel(worker_id)
            return False
        self._fill(now.boot_us)
        return worker_id in self.workers

    def _take(self, worker_id: str, worker: RemoteWorker, body: Any, now: Moment) -> None:
        if type(body) is not list or not body or type(body[0]) is not str:
            raise ProtocolError("a body that is no list with a name")
        kind = body[0]
        if kind == BEAT:
            worker.heard(read_beat(body), now.boot_us)
        elif kind == BEGUN:
            self._begun(worker_id, worker, read_begun(body), now)
        elif kind == ENDS:
            records, worker.rooms = read_ends(body)
            self._ended(worker, self._heard[worker_id], records, now)
        elif kind == SAYS:
            for record in _list(body):
                if type(record) is not list or not record:
                    raise ProtocolError("a note that is no list")
                if not is_extension(record):
                    self._heard[worker_id].take(record, worker.held)
        elif kind == LINES:
            self.lines += read_lines(body)
            worker.owes_answer = True
        elif kind == DEAD:
            self._lose(worker_id, worker, f"Its Spark worker has ended: {read_dead(body)}", now)
        else:
            raise ProtocolError("a body of no kind")

    # ---- results ----

    def _begun(self, worker_id: str, worker: RemoteWorker, begun: Mapping[int, int], now: Moment) -> None:
        offset = worker.offset.best(now.boot_us)
        for number, theirs_us in begun.items():
            if (held := worker.held.get(number)) is not None:
                ours_us = now.boot_us if offset is None else theirs_us - offset.us
                held.begun_us = min(max(ours_us, held.sent_us), now.boot_us)
                self._begun_here.append((now.boot_us, number, worker_id))

    def _ended(self, worker: RemoteWorker, heard: Heard, records: list[Any], now: Moment) -> None:
        offset = worker.offset.best(now.boot_us)
        for record in records:
            plain = type(record) is list and len(record) == PLAIN_FIELDS
            report = read_success(record) if plain else read(record, timed_out=True)
            held = worker.held.get(report.number)
            if held is None:
                raise ProtocolError("the end of an attempt that it does not have")
            if len(report.verdicts) > 1 or (held.begun_us and not report.verdicts):
                raise ProtocolError("several outcomes of one attempt, or none of one that has begun")
            del worker.held[report.number]
            if not report.verdicts:
                self._returned(held, now.boot_us)
                continue
            if self._losses:
                self._losses.pop(held.item.key, None)
            report = heard.with_report(report)
            self._conclude(held, _outcome(held, report, worker.with_place(report.work), offset, now))

    def _returned(self, held: Held, now: int) -> None:
        """An attempt did not run at its worker: another one may take it, unless it may not run any more."""
        backlog, lane = self._backlogs[held.name], held.item.key.ordering_id
        late = held.item.start_by_us <= now
        if late:  # nothing may overtake what could not start in time
            self.done += [Outcome(behind.id, NOT_STARTED) for behind in backlog.fail(lane)]
        if late or self._stop_us or held.item.id in self._killed or backlog.broken(lane):
            self._killed.discard(held.item.id)
            backlog.finish([held.item])
            self.done.append(Outcome(held.item.id, NOT_STARTED))
        else:
            self.counts["recalled"] += held.recalled_us > 0
            backlog.put_back([held.item])

    def _conclude(self, held: Held, outcome: Outcome) -> None:
        """An outcome; after one that did not succeed, what waits here behind it in its lane is returned."""
        backlog = self._backlogs[held.name]
        self._killed.discard(held.item.id)
        self.done.append(outcome)
        if outcome.outcome != SUCCEEDED:
            lane = held.item.key.ordering_id
            self.done += [Outcome(behind.id, NOT_STARTED) for behind in backlog.fail(lane)]
        backlog.finish([held.item])

    def _lose(self, worker_id: str, worker: RemoteWorker, message: str, now: Moment, *, kind: str = LOST) -> None:
        """The handlers of a worker are dead. Every attempt that it had may have begun, so each uses up an attempt number.

        One whose start was not reported probably waited there. It uses up no retry, unless the same happened twice to its task:
        a handler may kill its worker before that can report the start.
        """
        self.counts["lost_workers"] += bool(worker.held)
        del self.workers[worker_id]
        if worker.has_job:
            self._given_up.add(worker_id)
        heard = self._heard.pop(worker_id)
        for number, held in list(worker.held.items()):
            started = now.wall_us - (now.boot_us - held.begun_us) if held.begun_us else now.wall_us
            work = worker.with_place(heard.pop(number))
            outcome = TIMED_OUT if number in self._killed else FAILED
            if outcome == FAILED and not held.begun_us and self._is_free(held.item.key):
                outcome = YIELDED
            failure = Failure(kind, message)
            self._conclude(held, Outcome(number, outcome, started, now.wall_us, failure=failure, work=work))
        worker.held.clear()

    def _is_free(self, key: TaskKey) -> bool:
        """Counts the loss of an attempt whose start was not reported; whether it uses up no retry."""
        losses = self._losses.pop(key, 0) + 1
        self._losses[key] = losses
        if len(self._losses) > _MOST_KEYS:
            del self._losses[next(iter(self._losses))]
        return losses <= _FREE_LOSSES

    # ---- work out ----

    def _fill(self, now: int) -> None:
        """Gives what waits to workers with room, the emptiest first; each gets one frame."""
        for name, backlog in self._backlogs.items():
            if backlog.ready and (shares := self._shares(name, now)):
                self._share_out(backlog, shares)
                for one in shares:
                    if one.items:
                        one.worker.give(one.items, name, one.clock, now)

    def _shares(self, name: str, now: int) -> list[_Share]:
        found = []
        for worker in self.workers.values():
            if worker.takes_work and (room := worker.room(name)) > 0:
                clock = worker.clock(now, self.terms.most_error_us)
                if clock is not None:
                    found.append(_Share(worker, clock, room))
        return found

    def _share_out(self, backlog: Backlog, shares: Sequence[_Share]) -> None:
        """Spreads calls over workers in portions: each goes to the emptiest that runs its handler, up to the load of the next one."""
        passed_over = 0
        while passed_over < backlog.ready and (handler := backlog.head()) is not None:
            able = sorted((one for one in shares if one.room > 0 and one.runs(handler)), key=_Share.load)
            if not able:
                if not any(one.room > 0 for one in shares):
                    break
                backlog.pass_over()  # what other handlers wait for must not wait behind one that these workers lack
                passed_over += 1
                continue
            to_next = able[1].load() - able[0].load() if len(able) > 1 else able[0].room
            portion = max(1, to_next, backlog.ready // (_PORTIONS * len(able)))
            if not self._give_portion(backlog, handler, able[0], portion):
                break

    def _give_portion(self, backlog: Backlog, handler: str, share: _Share, most: int) -> bool:
        """Gives a worker up to so many calls of the handler that is next; False if none of those that wait can start."""
        single = self._max_batch(handler) is None
        for _ in range(most):
            if share.room <= 0 or backlog.head() != handler:
                break
            items = backlog.take()
            if not items:
                return False
            if not share.runs(items[0].handler):  # all tasks of the head wait for others of their lanes
                backlog.put_back(items)
                break
            share.add(items)
            last = items[-1]
            while single and share.room > 0 and (behind := backlog.follower(last)) is not None:
                share.add([behind])
                last = behind
        return True

    def _max_batch(self, handler: str) -> int | None:
        return self._handlers[handler].max_batch

    # ---- time ----

    def watch(self, now: Moment) -> int:
        """Acts on everything that is due.

        Returns:
            Boot clock at which to look again, at the latest.
        """
        for worker_id, worker in list(self.workers.items()):
            if self._dead_us(worker) <= now.boot_us:
                self._lose(worker_id, worker, worker.why_lost, now)
        self._recall(now.boot_us)
        self._fill(now.boot_us)
        return min([now.boot_us + _LONGEST_TICK_US, *map(self._dead_us, self.workers.values())])

    def leases(self, now: int) -> Iterable[tuple[str, list[object]]]:
        """Worker and frame, of all leases that are to be written now; to be called every `beat_us`.

        A worker that was silent for half a lease gets no other: the frames may wait in a buffer that nobody empties.
        """
        for worker_id, worker in self.workers.items():
            if not worker.connected or now - worker.silent_since_us > self.terms.lease_us // 2:
                continue
            clock = worker.offset.best(now)
            if clock is None or (self._stop_us and now >= self._stop_us):
                yield worker_id, worker.link.unnumbered([BEAT, 0, now])  # it answers with its clock
            else:
                yield worker_id, worker.lease(self.terms.lease_us, clock, now)

    def _dead_us(self, worker: RemoteWorker) -> int:
        """Returns when the handlers of a worker are certainly dead, if it is not heard from."""
        return worker.leased_until_us + self.terms.kill_us

    def _recall(self, now: int) -> None:
        """Asks for lanes that waited long at a worker while another has room, and for those that may not start any more."""
        for name in self._backlogs:
            rooms = {worker_id: worker.room(name) for worker_id, worker in self.workers.items() if worker.takes_work}
            free = sum(rooms.values())
            for worker_id, worker in self.workers.items():
                if not worker.connected or not worker.held:
                    continue
                others = free - rooms.get(worker_id, 0)
                if others or worker.is_late(now):
                    lanes = worker.waits(name, now, self.terms.recall_us)
                    late = [lane for lane in lanes if any(worker.held[n].item.start_by_us <= now for n in lane)]
                    others = min(others, len(lanes))
                    if ids := {number for lane in late + lanes[len(lanes) - others :] for number in lane}:
                        worker.recall(ids, now)


def _outcome(held: Held, report: Report, work: WorkNote, offset: Offset | None, now: Moment) -> Outcome:
    """Returns what a report says, in times of the dispatcher: a worker names those of its boot clock."""
    (end,) = report.verdicts
    wall_us, boot_us = now
    began_us = boot_us - report.duration_us if offset is None else report.started_us - offset.us
    began_us = held.sent_us if began_us < held.sent_us else boot_us if began_us > boot_us else began_us
    started = wall_us - boot_us + began_us
    ended = min(started + report.duration_us, wall_us)
    return Outcome(
        held.item.id, end.outcome, started, ended, end.result, end.failure, end.after_ms, None, work, False,
        report.follow_ups,
    )  # fmt: skip


def _list(body: Sequence[Any]) -> list[Any]:
    if len(body) != 2 or type(body[1]) is not list:
        raise ProtocolError("records that are no list")
    return body[1]
