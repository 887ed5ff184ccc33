"""The decisions of a pool: who gets what, who hangs, who must die. No threads here; `pool.py` drives it.

How calls are given out depends on how they run in a child (see `crews`); all the rest is the same for all.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush
from itertools import groupby
from typing import Final, Protocol

from scylla_spark.clock import boot_us, now_us
from scylla_spark.core.tasks.handler_durations import SLOW_US
from scylla_spark.core.tasks.task import FAILED, NOT_STARTED, SUCCEEDED, TIMED_OUT, Failure, Invocation, Outcome
from scylla_spark.executors.local.child_handle import RECLAIM_US, Call, ChildHandle, Finished, timeout_us
from scylla_spark.executors.local.crews import Crew, InTurn, Limits, OnLoop
from scylla_spark.executors.local.outcomes import BROKE_PROTOCOL, IDLE, KILLED, STOPPED, Moment, ended, lost, reported
from scylla_spark.handlers.description import LOCAL, HandlerInfo

_log = logging.getLogger(__name__)
_BLOCKED_US: Final = 1_000_000
_TICK_US: Final = 10_000
_LONGEST_TICK_US: Final = 1_000_000
_HELD_UP_US: Final = 3_000_000
_STUCK_FORKSERVER_US: Final = 30_000_000


class Nursery(Protocol):
    """Where children come from and end."""

    def spawn(self, child: ChildHandle) -> None:
        """Starts the child of `child`; if that fails, its death is reported like any other, and nothing is raised."""

    def kill_child(self, number: int, grace_ms: int) -> None:
        """Ends a child and its process group."""


class Supervisor:
    """The children of a pool and the work that they have or wait for. Not thread-safe.

    Args:
        limits: of the pool.
        handlers: by every name that tasks may use.
        nursery: makes children, and ends them.
        executor: the name of the executor whose children run one call at a time. Each `async def` handler that runs on it has
            a crew of its own besides.

    Attributes:
        done: outcomes to be handed on, in the order in which they came to be.
        forkserver_stuck: what it was asked for long ago has not happened; it should be replaced.
    """

    def __init__(
        self, limits: Limits, handlers: Mapping[str, HandlerInfo], nursery: Nursery, executor: str = LOCAL
    ) -> None:
        self.limits = limits
        self.children: dict[int, ChildHandle] = {}
        self.done: list[Outcome] = []
        self.forkserver_stuck = False
        self._nursery = nursery
        shared = InTurn(limits, handlers)
        self._crews: dict[str, Crew] = {executor: shared}
        loops = [one for one in handlers.values() if one.concurrency is not None and one.runs_on == executor]
        self._crews |= {info.executor: OnLoop(info) for info in loops}
        self._crew_of = {name: self._crews.get(info.executor, shared) for name, info in handlers.items()}
        self._killed: set[int] = set()
        self._asked: list[tuple[int, list[int]]] = []  # heap of (boot clock, ids): to be killed then if they still run
        self._next_number = 1
        self._spawn_from_us = 0
        self._stop_us = 0
        self._watched_us = 0
        self._unbegun: set[int] = set()  # ids that a child did not begin though it should have; once is excused

    # ---- requests ----

    def submit(self, batch: Sequence[Invocation]) -> None:
        """Queues invocations; unknown handlers fail at once, and after `stop` nothing starts."""
        if self._stop_us:
            self.done += [Outcome(item.id, NOT_STARTED) for item in batch]
            return
        now = now_us()
        for name, items in groupby(batch, lambda item: item.handler):
            crew = self._crew_of.get(name)
            if crew is not None:
                crew.backlog.add(items)
                continue
            failure = Failure("handler_unknown", f"No handler {name!r} is registered here.")
            self.done += [Outcome(item.id, FAILED, now, now, failure=failure) for item in items]

    def kill(self, ids: Iterable[int], now: int, grace_ms: int = 0) -> None:
        """Ends these invocations as soon as possible; those that run are given a grace, in which they are only asked to.

        Args:
            ids: of the invocations.
            now: boot clock.
            grace_ms: the grace; those on an event loop get at least that of a time-out.
        """
        wanted = set(ids)
        self.recall(wanted)
        for child in self.children.values():
            patience_ms = max(grace_ms, self.limits.grace_ms) if child.on_loop else grace_ms
            if patience_ms and (asked := child.ask_to_end(wanted, now)):
                heappush(self._asked, (now + patience_ms * 1000, asked))
                wanted.difference_update(asked)
        self._kill_now(wanted)
        self.watch(now)

    def recall(self, ids: Iterable[int] | None) -> None:
        """Hands back those of the invocations (None: all) that no child has; the others run on."""
        wanted = None if ids is None else set(ids)
        for crew in self._crews.values():
            self.done += [Outcome(item.id, NOT_STARTED) for item in crew.backlog.discard(wanted)]

    def _kill_now(self, ids: set[int]) -> None:
        self._killed |= ids.intersection(
            item.id for child in self.children.values() for call in child.calls.values() for item in call
        )

    def stop(self, until_us: int) -> None:
        """Hands back everything that has not started; what runs may go on until `until_us` (boot clock)."""
        self._stop_us = max(1, until_us)
        self.recall(None)

    def be_lean(self, lean: bool) -> None:
        """Starts no child beside another one of its kind, or does so again."""
        for crew in self._crews.values():
            crew.lean = lean

    def postpone(self, until_us: int) -> None:
        """Starts no children before that time (boot clock)."""
        self._spawn_from_us = until_us

    @property
    def stopping(self) -> int:
        """Boot clock at which the last task is killed, or 0 while no stop was asked for."""
        return self._stop_us

    @property
    def finished(self) -> bool:
        """Returns True if nothing runs or waits."""
        return not any(len(crew.backlog) for crew in self._crews.values()) and not any(
            child.calls for child in self.children.values()
        )

    def rooms(self) -> dict[str, int]:
        """Returns how many more calls would run or be next in a child, by the name of their executor."""
        if self._stop_us:
            return dict.fromkeys(self._crews, 0)
        now = boot_us()
        return {name: crew.room(now) for name, crew in self._crews.items()}

    @property
    def wants_attention(self) -> bool:
        """Returns True if outcomes are to be handed on, bytes to be written or children to be started."""
        waits = self.done or any(crew.backlog.ready for crew in self._crews.values())
        return bool(
            waits or any(child.blocked or (child.on_loop and child.waiting) for child in self.children.values())
        )

    # ---- work out ----

    def hand_out(self, now: int) -> bool:
        """Gives waiting calls to children, then starts those that are missing; whether it did either.

        Both happen each time: calls of one crew that find a child must not delay the first child of another crew.
        """
        gave = self.fill(now)
        return self.grow(now) or gave

    def fill(self, now: int) -> bool:
        """Gives waiting calls to children that can take them; whether it did."""
        gave = False
        for crew in self._crews.values():
            gave = crew.fill(now) or gave
        return gave

    def grow(self, now: int) -> bool:
        """Starts children if work waits that the present ones will not do soon; whether it did."""
        if now < self._spawn_from_us or self._stop_us:
            return False
        grew = False
        for name, crew in self._crews.items():
            for _ in range(crew.missing(now)):
                if now < crew.spawn_from_us:
                    break
                self._start_child(name, crew, now)
                grew = True
        if grew:
            self.fill(now)
        return grew

    def _start_child(self, name: str, crew: Crew, now: int) -> None:
        number = self._next_number
        self._next_number += 1
        try:
            child = ChildHandle(number, now, self.limits.longest_ms, executor=name, on_loop=crew.on_loop)
        except OSError as error:  # such as too many open files: what runs must go on, and its outcomes be handed on
            _log.warning("a child process cannot be started, which is tried again: %s", str(error))
            crew.spawn_from_us = now + _LONGEST_TICK_US
            return
        self.children[number] = crew.children[number] = child
        self._nursery.spawn(child)

    # ---- results in ----

    def running(self, now: Moment) -> dict[int, int]:
        """Id → wall clock of its start, for each invocation whose handler runs."""
        found: dict[int, int] = {}
        for child in self.children.values():
            for number, started in child.running(now.boot_us):
                began = now.wall_us - (now.boot_us - started)
                found.update((item.id, began) for item in child.calls[number])
        return found

    def receive(self, child: ChildHandle, now: int) -> bool:
        """Takes what the child has sent; False when it can send no more."""
        finished, alive = child.receive(now)
        if finished:
            self._settle(child, finished)
        if child.fault:
            self.expel(child, now)
        if not child.calls:
            child.idle_us, child.depth = now, 0
        return alive

    def expel(self, child: ChildHandle, now: int) -> None:
        """Kills a child that did what none of ours does; see `ChildHandle.fault`."""
        if not child.ending:
            self._end(child, BROKE_PROTOCOL, (), now)

    def died(self, child: ChildHandle, status: int, now: int) -> None:
        """The child is dead: what it finished counts, what ran has failed, what had not started goes elsewhere.

        Args:
            child: which one.
            status: as `os.waitpid` gives it.
            now: boot clock, microseconds.
        """
        self._settle(child, child.drain(now))
        begun, crew = child.begun(), self._crews[child.executor]
        if begun == 0 and not child.ending:
            crew.spawn_from_us = now + _LONGEST_TICK_US  # it could not even start: do not try in a tight loop
        first = next(iter(child.calls), 0)
        began = dict(child.running(now))
        for number in reversed(list(child.calls)):
            call = child.pop(number)
            if number <= begun or (number == first and child.fault and self._again(call)):
                self._lose(child, number, call, status, began.get(number, 0), now)
            else:
                self._take_back(crew, call)
        del self.children[child.number], crew.children[child.number]
        child.close()

    def _again(self, call: Call) -> bool:
        """Returns True if a call was given before to a child that ought to have begun it and did not say so."""
        ids = {item.id for item in call}
        again = bool(ids & self._unbegun)
        self._unbegun |= ids
        return again

    def _settle(self, child: ChildHandle, finished: Iterable[Finished]) -> None:
        crew, now = self._crews[child.executor], Moment(now_us(), 0)
        for call, report in finished:
            if not report.verdicts:
                self._take_back(crew, call)
                continue
            plain = not (child.ending or child.on_loop)
            outcomes = reported(call, report, now) if plain else ended(child, call, report, now)
            self._conclude(crew, call, outcomes)
            crew.ended(call, report.duration_us)
            if self._killed or self._unbegun:
                self._forget(call)

    def _forget(self, call: Call) -> None:
        ids = {item.id for item in call}
        self._killed -= ids
        self._unbegun -= ids

    def _conclude(self, crew: Crew, call: Call, outcomes: list[Outcome]) -> None:
        """Outcomes of a call; after one that did not succeed, what waits behind it in its lane is handed back."""
        backlog = crew.backlog
        self.done += outcomes
        for place, outcome in enumerate(outcomes):
            if outcome.outcome != SUCCEEDED:
                ordering_id = call[place].key.ordering_id
                self.done += [Outcome(behind.id, NOT_STARTED) for behind in backlog.fail(ordering_id)]
        backlog.finish(call)

    def _take_back(self, crew: Crew, call: Call) -> None:
        """Puts a call that did not run back into the backlog, or hands it back, and then what is behind it in its lane too."""
        backlog, now = crew.backlog, boot_us()
        late = {item.key.ordering_id for item in call if item.start_by_us <= now}
        for ordering_id in late:  # nothing may overtake what could not start in time
            self.done += [Outcome(behind.id, NOT_STARTED) for behind in backlog.fail(ordering_id)]
        unwanted = self._killed.union(*(ids for _, ids in self._asked))
        keep = [
            item for item in call
            if not (self._stop_us or item.id in unwanted or backlog.broken(item.key.ordering_id))
        ]  # fmt: skip
        gone = [item for item in call if item not in keep] if len(keep) < len(call) else []
        if keep:
            backlog.put_back(keep)
        if gone:
            self._forget(gone)
            backlog.finish(gone)
            self.done += [Outcome(item.id, NOT_STARTED) for item in gone]

    def _lose(self, child: ChildHandle, number: int, call: Call, status: int, began_us: int, now: int) -> None:
        crew, moment = self._crews[child.executor], Moment(now_us(), now)
        outcomes = lost(child, number, call, status, killed=self._killed, began_us=began_us, now=moment)
        self._conclude(crew, call, outcomes)
        self._forget(call)
        crew.ended(call, SLOW_US)

    # ---- time ----

    def watch(self, now: int) -> int:
        """Acts on everything that is due.

        Returns:
            Boot clock at which to look again, at the latest.
        """
        look_at = now + _LONGEST_TICK_US
        held_up, self._watched_us = now - self._watched_us > _HELD_UP_US, now
        while self._asked and self._asked[0][0] <= now:
            self._kill_now(set(heappop(self._asked)[1]))
        if self._asked:
            look_at = min(look_at, self._asked[0][0])
        for crew in self._crews.values():
            spare = sum(not child.ending for child in crew.children.values()) - crew.min_children
            for child in list(crew.children.values()):
                if held_up:
                    child.forgive(now)
                if now - child.asked_us > _STUCK_FORKSERVER_US + self.limits.grace_ms * 1000 and (
                    child.ending or not child.pid
                ):
                    self.forkserver_stuck = True
                child.look(now)
                if child.fault:
                    self.expel(child, now)
                if child.calls:
                    look_at = min(look_at, self._watch(child, now))
                elif spare > 0 and not child.ending:
                    due = child.idle_us + self.limits.idle_us
                    look_at = min(look_at, max(due, now + _TICK_US))
                    if due <= now:
                        self._end(child, IDLE, (), now)
                        spare -= 1
        return look_at

    def _watch(self, child: ChildHandle, now: int) -> int:
        reason, victims, due = self._reason(child, now)
        hangs = child.hangs(now)
        if hangs and not child.ending:
            self._settle(child, child.unsent_reports(now))
            if child.on_loop:
                self._accuse(child, now)
        if child.behind:
            unwanted = bool(self._stop_us or self._killed)
            if reason or unwanted or hangs or child.unforked(now):
                child.revoke(now)
            for call in child.reclaim(now):
                self._take_back(self._crews[child.executor], call)
        if child.behind:
            return now + (RECLAIM_US if child.revoking else _TICK_US)
        if not due:  # nothing runs
            return now + min(_TICK_US, min(map(timeout_us, child.calls.values()), default=_LONGEST_TICK_US))
        if reason and not child.ending and any(number in child.calls for number in victims):
            self._end(child, reason, victims, now)
        due = due if due > now else now + _LONGEST_TICK_US
        return min(due, now + _TICK_US) if child.on_loop and child.waiting else due

    def _reason(self, child: ChildHandle, now: int) -> tuple[str, Sequence[int], int]:
        """Returns why the child must be killed now, or nothing; because of which calls; and when to ask again (0: nothing runs)."""
        # a loop cancels by itself what has run too long
        victims, due = child.overdue(now, self.limits.grace_ms * 1000 if child.on_loop else 0)
        if victims:
            return TIMED_OUT, victims, now
        stopped = 0 < self._stop_us <= now
        if (due or child.on_loop) and (stopped or self._killed):
            # no call is taken back from a loop, so one that a held loop has not begun ends with the child, too
            running = list(child.calls) if child.on_loop else [number for number, _ in child.running(now)]
            if stopped:
                return STOPPED, running, now
            victims = [n for n in running if any(item.id in self._killed for item in child.calls[n])]
            if victims:
                return KILLED, victims, now
        return "", (), min(due, self._stop_us or due)

    def _accuse(self, child: ChildHandle, now: int) -> None:
        """Names, once, the task that keeps all others of its loop from going on."""
        number, since = child.holder(now)
        step = (number, since // _TICK_US)
        if since and now - since > _BLOCKED_US and abs(step[1] - child.accused[1]) > 1:
            child.accused = step
            call = child.calls.get(number)
            key = str(call[0].key) if call is not None else "a task that has ended"
            _log.warning(
                "handler %r blocks the event loop of its child for more than %d s: %s. Use `await`, or asyncio.to_thread.",
                child.executor.partition("/")[2], _BLOCKED_US // 1_000_000, key,
            )  # fmt: skip

    def _end(self, child: ChildHandle, reason: str, victims: Iterable[int], now: int) -> None:
        child.ending, child.victims, child.asked_us = reason, frozenset(victims), now
        # a loop has had its grace; see `_reason`
        at_once = reason == BROKE_PROTOCOL or (child.on_loop and reason != IDLE)
        self._nursery.kill_child(child.number, 0 if at_once else self.limits.grace_ms)
