"""The decisions of the local pool: who gets what, who hangs, who must die. No threads here; `pool.py` drives it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush
from typing import Final

from scylla_spark.clock import boot_us, now_us
from scylla_spark.core.tasks.handler_durations import MAX_DEPTH, SLOW_US, HandlerDurations
from scylla_spark.core.tasks.task import FAILED, NOT_STARTED, SUCCEEDED, TIMED_OUT, Failure, Invocation, Outcome
from scylla_spark.executors.backlog import Backlog
from scylla_spark.executors.local.child_handle import RECLAIM_US, STUCK_US, Call, ChildHandle, Finished
from scylla_spark.executors.local.nursery_interface import Nursery
from scylla_spark.executors.local.outcomes import BROKE_PROTOCOL, Moment, late, lost, reported, timeout_us
from scylla_spark.executors.local.pool_sizes import Limits
from scylla_spark.handlers.description import HandlerInfo

FRAME_CHARS: Final = 256 * 1024
KILLED: Final = "killed"
STOPPED: Final = "executor_stopped"
IDLE: Final = "idle"
_TICK_US: Final = 10_000
_LONGEST_TICK_US: Final = 1_000_000
_HELD_UP_US: Final = 3_000_000
_STUCK_FORKSERVER_US: Final = 30_000_000


class Supervisor:
    """The children of a pool and the work that they have or wait for. Not thread-safe.

    Args:
        limits: of the pool.
        handlers: by every name that tasks may use.
        nursery: makes children, and ends them.

    Attributes:
        done: outcomes to be handed on, in the order in which they came to be.
        outputs: what finished calls printed, to be handed on.
        forkserver_stuck: what it was asked for long ago has not happened; it should be replaced.
    """

    def __init__(self, limits: Limits, handlers: Mapping[str, HandlerInfo], nursery: Nursery) -> None:
        self.limits = limits
        self.children: dict[int, ChildHandle] = {}
        self.done: list[Outcome] = []
        self.outputs: list[tuple[Call, str]] = []
        self._handlers = handlers
        self._batches = {name for name, info in handlers.items() if info.max_batch is not None}
        self._nursery = nursery
        self._backlog = Backlog(lambda name: handlers[name].max_batch)
        self._pace = HandlerDurations()
        self._killed: set[int] = set()
        self._asked: list[tuple[int, list[int]]] = []  # heap of (boot clock, ids): to be killed then if they still run
        self._depth = 0  # how many calls a child could have when it was last given some
        self._next_number = 1
        self._spawn_from_us = 0
        self._stop_us = 0
        self._watched_us = 0
        self._unbegun: set[int] = set()  # ids that a child did not begin though it should have; once is excused
        self.forkserver_stuck = False

    # ---- requests ----

    def submit(self, batch: Sequence[Invocation]) -> None:
        """Queues invocations; unknown handlers fail at once, and after `stop` nothing starts."""
        if self._stop_us:
            self.done += [Outcome(item.id, NOT_STARTED) for item in batch]
            return
        unknown = {item.handler for item in batch}.difference(self._handlers)
        if unknown:
            now = now_us()
            for item in batch:
                if item.handler in unknown:
                    failure = Failure("handler_unknown", f"No handler {item.handler!r} is registered here.")
                    self.done.append(Outcome(item.id, FAILED, now, now, failure=failure))
            batch = [item for item in batch if item.handler not in unknown]
        self._backlog.add(batch)

    def kill(self, ids: Iterable[int], now: int, grace_ms: int = 0) -> None:
        """Ends these invocations as soon as possible; those that run are given a grace, in which they are only asked to.

        Args:
            ids: of the invocations.
            now: boot clock.
            grace_ms: the grace.
        """
        wanted = set(ids)
        self.done += [Outcome(item.id, NOT_STARTED) for item in self._backlog.discard(wanted)]
        if grace_ms:
            wanted -= self._ask_to_end(wanted, now, now + grace_ms * 1000)
        self._killed |= wanted.intersection(
            item.id for child in self.children.values() for call in child.calls.values() for item in call
        )
        self.watch(now)

    def _ask_to_end(self, wanted: set[int], now: int, until_us: int) -> set[int]:
        """Those of the invocations that run are asked to end, and killed if they still run then (boot clock)."""
        asked: set[int] = set()
        for child in self.children.values():
            number, _ = child.current(now)
            if number and (found := wanted.intersection(item.id for item in child.calls[number])):
                child.slot.ask_to_end(number)
                asked |= found
        if asked:
            heappush(self._asked, (until_us, sorted(asked)))
        return asked

    def stop(self, until_us: int) -> None:
        """Hands back everything that has not started; what runs may go on until `until_us` (boot clock)."""
        self._stop_us = max(1, until_us)
        self.done += [Outcome(item.id, NOT_STARTED) for item in self._backlog.discard()]

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
        return not len(self._backlog) and not any(child.calls for child in self.children.values())

    def room(self, handler: str | None = None) -> int:
        """Free and possible children, and prefetch space in those that run fast handlers, less what waits."""
        if self._stop_us:
            return 0
        children = list(self.children.values())
        now = boot_us()
        idle = sum(not child.calls and not child.ending and not child.unforked(now) for child in children)
        free = self.limits.max_children - len(children) + idle
        fast = [child for child in children if child.calls and child.depth > 2]
        ahead = sum(child.depth - len(child.calls) for child in fast)
        if self._depth > 2:  # the latest calls were fast ones; more of them are likely
            ahead += min(idle, max(0, self.limits.fast_children - len(fast))) * (self._depth - 1)
        return max(0, free + ahead - len(self._backlog))

    @property
    def wants_attention(self) -> bool:
        """Whether outcomes are to be handed on, bytes to be written or children to be started."""
        return bool(self.done or self._backlog.ready or any(child.blocked for child in self.children.values()))

    # ---- work out ----

    def fill(self, now: int) -> bool:
        """Gives waiting calls to children that can take them; whether it did."""
        ready = self._backlog.ready
        if not ready:
            return False
        able = [m for m in self.children.values() if len(m.calls) <= m.depth // 2 and m.usable(now)]
        able.sort(key=lambda child: len(child.calls))
        head = self._backlog.head()
        if head is not None and self._pace.depth(head) > 1:  # a few children do fast calls in fewer and larger frames
            busy = sum(m not in able and bool(m.calls) and not m.hangs(now) for m in self.children.values())
            able = able[: max(1, self.limits.fast_children - busy)]
        for index, child in enumerate(able):
            share = -(-self._backlog.ready // (len(able) - index))
            if share == 0:
                break
            self._give(child, share)
        return self._backlog.ready < ready

    def grow(self, now: int) -> bool:
        """Starts children if work waits that the present ones will not do soon; whether it did."""
        head = self._backlog.head()
        if now < self._spawn_from_us or self._stop_us:
            return False
        present = sum(not child.ending for child in self.children.values())
        wanted = self.limits.min_children - present
        if head is not None:
            most = self.limits.max_children
            if self._pace.depth(head) > 1:
                most = min(most, self.limits.fast_children + sum(child.hangs(now) for child in self.children.values()))
            wanted = max(wanted, min(self._backlog.ready, most - present))
        wanted = min(wanted, self.limits.max_children - len(self.children))
        for _ in range(wanted):
            child = ChildHandle(self._next_number, now, self.limits.longest_ms)
            self._next_number += 1
            self.children[child.number] = child
            self._nursery.spawn(child)
        if wanted > 0:
            self.fill(now)
        return wanted > 0

    def _give(self, child: ChildHandle, share: int) -> None:
        backlog, pace = self._backlog, self._pace
        queued = len(child.calls)
        depth = child.depth if queued else MAX_DEPTH
        calls: list[Call] = []
        followers: set[int] = set()
        chars = 0
        while len(calls) < share and chars < FRAME_CHARS and (head := backlog.head()) is not None:
            depth = min(depth, pace.depth(head))
            if queued + len(calls) >= depth:
                break
            call = backlog.take()
            if not call:
                break
            calls.append(call)
            last = call[0]
            chars += len(last.payload) if len(call) == 1 else sum(len(item.payload) for item in call)
            while (
                queued + len(calls) < depth and chars < FRAME_CHARS and (behind := backlog.follower(last)) is not None
            ):
                calls.append([behind])
                chars += len(behind.payload)
                followers.add(behind.id)
                last = behind
        if calls:
            child.depth = self._depth = depth
            child.send(calls, self._batches, followers)

    # ---- results in ----

    def running(self, now: Moment) -> dict[int, int]:
        """Id → wall clock of its start, for each invocation whose handler runs."""
        found: dict[int, int] = {}
        for child in self.children.values():
            number, started = child.current(now.boot_us)
            if number:
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
            self._end(child, BROKE_PROTOCOL, 0, now)

    def died(self, child: ChildHandle, status: int, now: int) -> None:
        """The child is dead: what it finished counts, what ran has failed, what had not started goes elsewhere.

        Args:
            child: which one.
            status: as `os.waitpid` gives it.
            now: boot clock, microseconds.
        """
        self._settle(child, child.drain(now))
        begun = child.begun()
        if begun == 0 and not child.ending:
            self._spawn_from_us = now + _LONGEST_TICK_US  # it could not even start: do not try in a tight loop
        first = next(iter(child.calls), 0)
        for number in reversed(list(child.calls)):
            call = child.pop(number)
            if number <= begun or (number == first and child.fault and self._again(call)):
                self._lose(child, number, call, status, now)
            else:
                self._take_back(call)
        del self.children[child.number]
        child.close()

    def _again(self, call: Call) -> bool:
        """Whether a call was given before to a child that ought to have begun it and did not say so."""
        ids = {item.id for item in call}
        if ids & self._unbegun:
            return True
        self._unbegun |= ids
        return False

    def _settle(self, child: ChildHandle, finished: Iterable[Finished]) -> None:
        now = Moment(now_us(), 0)
        for call, report in finished:
            if not report.verdicts:
                self._take_back(call)
                continue
            duration = report.duration_us
            overdue = child.victim == report.number and child.ending == TIMED_OUT and duration >= timeout_us(call)
            self._conclude(call, late(call, report, now) if overdue else reported(call, report, now))
            self._pace.note(call[0].handler, duration)
            if report.output:
                self.outputs.append((call, report.output))
            if self._killed or self._unbegun:
                self._forget(call)

    def _forget(self, call: Call) -> None:
        ids = [item.id for item in call]
        self._killed.difference_update(ids)
        self._unbegun.difference_update(ids)

    def _conclude(self, call: Call, outcomes: list[Outcome]) -> None:
        """Outcomes of a call; after one that did not succeed, what waits behind it in its lane is handed back."""
        self.done += outcomes
        for place, outcome in enumerate(outcomes):
            if outcome.outcome != SUCCEEDED:
                ordering_id = call[place].key.ordering_id
                self.done += [Outcome(behind.id, NOT_STARTED) for behind in self._backlog.fail(ordering_id)]
        self._backlog.finish(call)

    def _take_back(self, call: Call) -> None:
        """Puts a call that did not run back into the backlog, or hands it back, and then what is behind it in its lane too."""
        broken, now = self._backlog.broken, boot_us()
        late = {item.key.ordering_id for item in call if item.start_by_us <= now}
        for ordering_id in late:  # nothing may overtake what could not start in time
            self.done += [Outcome(behind.id, NOT_STARTED) for behind in self._backlog.fail(ordering_id)]
        keep = [
            item for item in call
            if not (self._stop_us or item.id in self._killed or broken(item.key.ordering_id))
        ]  # fmt: skip
        gone = [item for item in call if item not in keep] if len(keep) < len(call) else []
        if keep:
            self._backlog.put_back(keep)
        if gone:
            self._forget(gone)
            self._backlog.finish(gone)
            self.done += [Outcome(item.id, NOT_STARTED) for item in gone]

    def _lose(self, child: ChildHandle, number: int, call: Call, status: int, now: int) -> None:
        self._conclude(call, lost(child, number, call, status, self._killed, Moment(now_us(), now)))
        self._forget(call)
        self._pace.note(call[0].handler, SLOW_US)

    # ---- time ----

    def watch(self, now: int) -> int:
        """Acts on everything that is due.

        Returns:
            Boot clock at which to look again, at the latest.
        """
        look_at = now + _LONGEST_TICK_US
        held_up, self._watched_us = now - self._watched_us > _HELD_UP_US, now
        while self._asked and self._asked[0][0] <= now:
            self.kill(heappop(self._asked)[1], now)
        if self._asked:
            look_at = min(look_at, self._asked[0][0])
        spare = sum(not child.ending for child in self.children.values()) - self.limits.min_children
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
            if child.calls:
                look_at = min(look_at, self._watch(child, now))
            elif spare > 0 and not child.ending:
                due = child.idle_us + self.limits.idle_us
                look_at = min(look_at, max(due, now + _TICK_US))
                if due <= now:
                    self._end(child, IDLE, 0, now)
                    spare -= 1
        return look_at

    def _watch(self, child: ChildHandle, now: int) -> int:
        number, started = child.current(now)
        reason, due = self._reason(child.calls[number], started, now) if number else ("", now + _TICK_US)
        if number and now - started > STUCK_US and not child.ending:
            self._settle(child, child.unsent_reports(now))
        if child.behind:
            unwanted = bool(self._stop_us or self._killed)
            if reason or unwanted or child.hangs(now) or child.unforked(now):
                child.revoke(now)
            for call in child.reclaim(now):
                self._take_back(call)
        if child.behind:
            return now + (RECLAIM_US if child.revoking else _TICK_US)
        if not number:
            return min(due, now + min(map(timeout_us, child.calls.values()), default=_LONGEST_TICK_US))
        if reason and number in child.calls and not child.ending:
            self._end(child, reason, number, now)
        return due if due > now else now + _LONGEST_TICK_US

    def _reason(self, call: Call, started: int, now: int) -> tuple[str, int]:
        """Why the running call must be killed now, or nothing; and when to ask again."""
        due = started + timeout_us(call)
        if due <= now:
            return TIMED_OUT, now
        if self._stop_us and self._stop_us <= now:
            return STOPPED, now
        if self._killed and any(item.id in self._killed for item in call):
            return KILLED, now
        return "", min(due, self._stop_us or due)

    def _end(self, child: ChildHandle, reason: str, number: int, now: int) -> None:
        child.ending, child.victim, child.asked_us = reason, number, now
        at_once = reason == BROKE_PROTOCOL
        self._nursery.kill_child(child.number, 0 if at_once else self.limits.grace_ms)
