"""The decisions of a pool of event loops: which child gets what, who blocks its loop, who must die. No threads here."""

from __future__ import annotations

import logging
from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from scylla_spark.clock import boot_us, now_us
from scylla_spark.core.tasks.task import FAILED, NOT_STARTED, SUCCEEDED, TIMED_OUT, Failure, Invocation, Outcome
from scylla_spark.executors.backlog import Backlog
from scylla_spark.executors.local.child_handle import Call, Finished
from scylla_spark.executors.local.nursery_interface import Nursery
from scylla_spark.executors.local.outcomes import BROKE_PROTOCOL, Moment, late, reported
from scylla_spark.executors.local.pool_sizes import Limits
from scylla_spark.executors.loops.child_handle import LoopChildHandle
from scylla_spark.executors.loops.endings import IDLE, STOPPED, lost
from scylla_spark.handlers.description import HandlerInfo

_log = logging.getLogger(__name__)
_FRAME_CHARS: Final = 256 * 1024
_MOST_CHILDREN: Final = 4  # of one handler: one that works, others whose loop is blocked, or that are dying
_BUSY_US: Final = 100_000  # a loop that is held for so long gets no more calls meanwhile
_BLOCKED_US: Final = 1_000_000
_TICK_US: Final = 10_000
_LONGEST_TICK_US: Final = 1_000_000
_HELD_UP_US: Final = 3_000_000
_STUCK_FORKSERVER_US: Final = 30_000_000


class _Work:
    """A handler and what waits for it."""

    __slots__ = ("at_once", "backlog", "name", "out")

    def __init__(self, info: HandlerInfo) -> None:
        self.name = info.name
        self.at_once = info.concurrency or 1
        self.backlog = Backlog(lambda name: None)
        self.out = 0  # how many its children have


class LoopSupervisor:
    """The children of a pool, one per handler as long as none is blocked, and what they have or wait for. Not thread-safe.

    Args:
        limits: of the pool.
        handlers: by every name that tasks may use; only those with a concurrency are run.
        nursery: makes children, and ends them.

    Attributes:
        done: outcomes to be handed on.
        outputs: always empty: nobody knows which of many tasks has printed what.
        forkserver_stuck: what it was asked for long ago has not happened; it should be replaced.
    """

    def __init__(self, limits: Limits, handlers: Mapping[str, HandlerInfo], nursery: Nursery) -> None:
        self.limits = limits
        self.children: dict[int, LoopChildHandle] = {}
        self.done: list[Outcome] = []
        self.outputs: list[tuple[Call, str]] = []
        self.forkserver_stuck = False
        works = {info.name: _Work(info) for info in handlers.values() if info.concurrency is not None}
        self._work = {name: works[info.name] for name, info in handlers.items() if info.name in works}
        self._works = list(works.values())
        self._nursery = nursery
        self._killed: set[int] = set()
        self._kill_due: list[tuple[int, list[int]]] = []  # boot clock, ids: killed if they still run then
        self._next_number = 1
        self._spawn_from_us = 0
        self._stop_us = 0
        self._watched_us = 0

    # ---- requests ----

    def submit(self, batch: Sequence[Invocation]) -> None:
        """Queues invocations; unknown handlers fail at once, and after `stop` nothing starts."""
        now = now_us()
        for item in batch:
            work = self._work.get(item.handler)
            if self._stop_us:
                self.done.append(Outcome(item.id, NOT_STARTED))
            elif work is None:
                failure = Failure("handler_unknown", f"No async handler {item.handler!r} is registered here.")
                self.done.append(Outcome(item.id, FAILED, now, now, failure=failure))
            else:
                work.backlog.add((item,))

    def kill(self, ids: Iterable[int], now: int, grace_ms: int = 0) -> None:
        """Ends these invocations: what waits is handed back; what runs is cancelled, and killed if it goes on.

        Args:
            ids: of the invocations.
            now: boot clock.
            grace_ms: how long it may go on, at least as long as after a time-out.
        """
        until_us = now + max(grace_ms, self.limits.grace_ms) * 1000
        wanted = set(ids)
        for work in self._works:
            self.done += [Outcome(item.id, NOT_STARTED) for item in work.backlog.discard(wanted)]
        for child in self.children.values():
            numbers = [number for number, (item,) in child.calls.items() if item.id in wanted]
            if numbers:
                child.cancel(numbers)
                found = {child.calls[number][0].id for number in numbers}
                self._killed |= found
                insort(self._kill_due, (until_us, sorted(found)))

    def stop(self, until_us: int) -> None:
        """Hands back everything that has not started; what runs may go on until `until_us` (boot clock)."""
        self._stop_us = max(1, until_us)
        for work in self._works:
            self.done += [Outcome(item.id, NOT_STARTED) for item in work.backlog.discard()]

    def postpone(self, until_us: int) -> None:
        """Starts no children before that time (boot clock)."""
        self._spawn_from_us = until_us

    @property
    def stopping(self) -> int:
        """Boot clock at which the last task is killed, or 0 while no stop was asked for."""
        return self._stop_us

    @property
    def finished(self) -> bool:
        """Whether nothing runs or waits."""
        return not any(work.out or len(work.backlog) for work in self._works)

    def room(self, handler: str | None = None) -> int:
        """How many more tasks of a handler would run now; without a name: none, since each has room of its own."""
        work = self._work.get(handler) if handler is not None else None
        if self._stop_us or work is None:
            return 0
        return max(0, work.at_once - work.out - len(work.backlog))

    @property
    def wants_attention(self) -> bool:
        """Whether outcomes are to be handed on, bytes to be written or children to be started."""
        waits = any(work.backlog.ready for work in self._works)
        return bool(self.done or waits or any(child.blocked or child.waiting for child in self.children.values()))

    # ---- work out ----

    def fill(self, now: int) -> bool:
        """Gives what waits to children whose loop is free; whether it did."""
        gave = False
        for work in self._works:
            if work.backlog.ready and work.out < work.at_once and (child := self._free(work, now)) is not None:
                gave = self._give(work, child, now) or gave
        return gave

    def grow(self, now: int) -> bool:
        """Starts a child for each handler of which something waits that no child can take; whether it did."""
        if now < self._spawn_from_us or self._stop_us:
            return False
        grew = False
        for work in self._works:
            if not work.backlog.ready or work.out >= work.at_once or self._free(work, now) is not None:
                continue
            if sum(child.handler == work.name for child in self.children.values()) < _MOST_CHILDREN:
                child = LoopChildHandle(self._next_number, work.name, now, self.limits.longest_ms)
                self._next_number += 1
                self.children[child.number] = child
                self._nursery.spawn(child)
                grew = True
        if grew:
            self.fill(now)
        return grew

    def _free(self, work: _Work, now: int) -> LoopChildHandle | None:
        for child in self.children.values():
            if child.handler == work.name and child.well and not child.blocked and child.step(now)[1] < _BUSY_US:
                return child
        return None

    def _give(self, work: _Work, child: LoopChildHandle, now: int) -> bool:
        items: list[Invocation] = []
        chars = 0
        while work.out < work.at_once and (call := work.backlog.take()):
            work.out += 1
            items += call
            chars += len(call[0].payload)
            if chars > _FRAME_CHARS:
                child.send(items, now)
                items, chars = [], 0
                if child.blocked:
                    return True
        if items:
            child.send(items, now)
        return True

    # ---- results in ----

    def running(self, now: Moment) -> dict[int, int]:
        """Id → wall clock of its start, for each invocation whose handler runs."""
        found: dict[int, int] = {}
        for child in self.children.values():
            child.look(now.boot_us)
            for number, began in child.begun():
                found[child.calls[number][0].id] = now.wall_us - (now.boot_us - began)
        return found

    def receive(self, child: LoopChildHandle, now: int) -> bool:
        """Takes what the child has sent; False when it can send no more."""
        finished, alive = child.receive(now)
        self._settle(finished)
        if child.fault:
            self.expel(child, now)
        if not child.calls:
            child.idle_us = now
        return alive

    def expel(self, child: LoopChildHandle, now: int) -> None:
        """Kills a child that did what none of ours does; see `LoopChildHandle.fault`."""
        if not child.ending:
            self._end(child, BROKE_PROTOCOL, (), now)

    def died(self, child: LoopChildHandle, status: int, now: int) -> None:
        """The child is dead: what it finished counts, what ran has failed, what had not started goes elsewhere.

        Args:
            child: which one.
            status: as `os.waitpid` gives it.
            now: boot clock, microseconds.
        """
        self._settle(child.drain(now))
        if not child.slot.claimed and not child.ending:
            self._spawn_from_us = now + _LONGEST_TICK_US  # it could not even start: do not try in a tight loop
        step = child.step(now)
        for number in reversed(list(child.calls)):
            began, begun = child.began_us(number), child.has_begun(number)
            (item,) = child.pop(number)
            if begun:
                killed = item.id in self._killed
                end = lost(
                    child, number, item, status, step=step, began_us=began, killed=killed, now=Moment(now_us(), now)
                )
                self._conclude(item, end)
            else:
                self._take_back(item)
        del self.children[child.number]
        child.close()

    def _settle(self, finished: Iterable[Finished]) -> None:
        now = Moment(now_us(), 0)
        for call, report in finished:
            (item,) = call
            if not report.verdicts:
                self._take_back(item)
                continue
            why = report.verdicts[0].failure
            ended = why is not None and report.duration_us >= item.timeout_ms * 1000 and why.kind == TIMED_OUT
            stopped = why is not None and item.id in self._killed
            (outcome,) = late(call, report, now) if ended else reported(call, report, now)
            if stopped and not ended:
                outcome = outcome._replace(
                    outcome=TIMED_OUT, failure=Failure("killed", "It was cancelled while it ran.")
                )
            self._conclude(item, outcome)

    def _conclude(self, item: Invocation, outcome: Outcome) -> None:
        """An outcome; after one that did not succeed, what waits behind it in its lane is handed back."""
        work = self._work[item.handler]
        self.done.append(outcome)
        if outcome.outcome != SUCCEEDED:
            self.done += [Outcome(behind.id, NOT_STARTED) for behind in work.backlog.fail(item.key.ordering_id)]
        self._over(item)

    def _take_back(self, item: Invocation) -> None:
        """A call that did not run: back into the backlog, or handed back, and then what is behind it in its lane too."""
        work = self._work[item.handler]
        if not (self._stop_us or item.id in self._killed or item.start_by_us <= boot_us()):
            work.out -= 1
            work.backlog.put_back([item])
            return
        self.done += [Outcome(behind.id, NOT_STARTED) for behind in work.backlog.fail(item.key.ordering_id)]
        self.done.append(Outcome(item.id, NOT_STARTED))
        self._over(item)

    def _over(self, item: Invocation) -> None:
        work = self._work[item.handler]
        work.out -= 1
        work.backlog.finish([item])
        self._killed.discard(item.id)

    # ---- time ----

    def watch(self, now: int) -> int:
        """Acts on everything that is due.

        Returns:
            Boot clock at which to look again, at the latest.
        """
        look_at = now + _LONGEST_TICK_US
        held_up, self._watched_us = now - self._watched_us > _HELD_UP_US, now
        stubborn = self._still_running(now)
        for child in list(self.children.values()):
            if held_up:
                child.forgive(now)
            if now - child.asked_us > _STUCK_FORKSERVER_US + self.limits.grace_ms * 1000 and (
                child.ending or not child.pid
            ):
                self.forkserver_stuck = True
            child.look(now)
            if child.fault:
                self.expel(child, now)
            look_at = min(look_at, self._watch(child, stubborn, now))
        if self._kill_due:
            look_at = min(look_at, max(now + _TICK_US, self._kill_due[0][0]))
        return look_at

    def _still_running(self, now: int) -> set[int]:
        """Ids that were cancelled so long ago that they should have ended."""
        found: set[int] = set()
        while self._kill_due and self._kill_due[0][0] <= now:
            found |= self._killed.intersection(self._kill_due.pop(0)[1])
        return found

    def _watch(self, child: LoopChildHandle, stubborn: set[int], now: int) -> int:
        if not child.calls:
            due = child.idle_us + self.limits.idle_us
            if not child.ending and (due <= now or self._stop_us):
                self._end(child, IDLE, (), now)
            return max(due, now + _TICK_US)
        self._accuse(child, now)
        grace_us = self.limits.grace_ms * 1000
        victims, due = child.overdue(now - grace_us)
        if stubborn:
            victims += [number for number, (item,) in child.calls.items() if item.id in stubborn]
        if victims and not child.ending:
            self._end(child, TIMED_OUT, victims, now)
        elif self._stop_us and self._stop_us <= now and not child.ending:
            self._end(child, STOPPED, list(child.calls), now)
        soonest = min(due + grace_us if due else now + _LONGEST_TICK_US, self._stop_us or now + _LONGEST_TICK_US)
        return now + _TICK_US if child.waiting else max(soonest, now + _TICK_US)

    def _accuse(self, child: LoopChildHandle, now: int) -> None:
        """Names, once, the task that keeps all others of its loop from going on; what has ended there counts meanwhile."""
        number, held_us = child.step(now)
        if held_us > _BUSY_US:
            self._settle(child.unsent_reports(now))
        step = (number, (now - held_us) // _TICK_US)
        if held_us > _BLOCKED_US and abs(step[1] - child.accused[1]) > 1:
            child.accused = step
            key = str(child.calls[number][0].key) if number in child.calls else "a task that has ended"
            _log.warning(
                "handler %r blocks the event loop of its child for more than %d s: %s. Use `await`, or asyncio.to_thread.",
                child.handler, _BLOCKED_US // 1_000_000, key,
            )  # fmt: skip

    def _end(self, child: LoopChildHandle, reason: str, victims: Iterable[int], now: int) -> None:
        child.ending, child.victims, child.asked_us = reason, set(victims), now
        self._nursery.kill_child(child.number, self.limits.grace_ms if reason == IDLE else 0)
