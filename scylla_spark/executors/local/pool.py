"""The local pool: handlers run in child processes, started in milliseconds and replaced when they misbehave."""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import socket
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType

from scylla_spark.clock import boot_us, both_us
from scylla_spark.core.tasks.attempt_note import WorkNote
from scylla_spark.core.tasks.output import OutputTerms
from scylla_spark.core.tasks.task import NOT_STARTED, Invocation, Outcome
from scylla_spark.defaults import LONGEST_RUN_S, MAX_CHILDREN, MIN_CHILDREN
from scylla_spark.errors import ConflictError, SchedulerError
from scylla_spark.executors.interface import LogKeeper, Sink
from scylla_spark.executors.local.child_handle import ChildHandle
from scylla_spark.executors.local.crews import Limits
from scylla_spark.executors.local.forkserver_handle import FORKED, UNFORKED, ForkserverHandle
from scylla_spark.executors.local.outcomes import ABANDONED, Moment
from scylla_spark.executors.local.output_desk import OutputDesk
from scylla_spark.executors.local.sandbox import Sandboxed
from scylla_spark.executors.local.supervisor import Supervisor
from scylla_spark.handlers.description import LOCAL, HandlerInfo
from scylla_spark.handlers.isolation import SANDBOX

_log = logging.getLogger(__name__)
_SOON_US = 10_000
_RETRY_US = 1_000_000
_STUMBLE_S = 0.05
_LOOK_US = 500_000  # between two looks at whether the forkserver runs
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class LocalPool:
    """An Executor whose handlers run in child processes on this machine.

    One thread of the pool reads outcomes, keeps time and calls the sink; `submit` writes to idle children at once,
    from the caller's thread, and never waits for one. A crash or a timeout costs only the call that ran.

    Args:
        modules: handler modules (see `registry.load`).
        min_children: how many children are kept ready.
        max_children: how many there may be at most.
        kill_grace_s: from SIGTERM to SIGKILL for a call that exceeds its timeout.
        idle_s: after how long without work a child above the minimum ends.
        pass_environment: further environment variables that handlers get (see `environment`).
        longest_s: how long a call may run at most if it asks for longer than its timeout.
        executor: the name of the executor that it is.
        auto: the executor of handlers that name none.
        sessions: see `ForkserverHandle`.
        variables: further variables of the process that imports the handlers.
        apart: the handler that it is for, where that asks for children of its own kind, and whose level of isolation it writes
            onto every attempt; None: it is for all.
        spans: whether each call is a span of OpenTelemetry.
    """

    def __init__(
        self,
        modules: Sequence[str],
        *,
        min_children: int = MIN_CHILDREN,
        max_children: int = MAX_CHILDREN,
        kill_grace_s: float = 1.0,
        idle_s: float = 30.0,
        pass_environment: Sequence[str] = (),
        longest_s: float = LONGEST_RUN_S,
        executor: str = LOCAL,
        auto: str = LOCAL,
        sessions: str = "",
        variables: Mapping[str, str] = MappingProxyType({}),
        apart: Sandboxed | None = None,
        spans: bool = False,
    ) -> None:
        self.executor = executor if apart is None else f"own/{apart.handler}"
        self._auto = auto
        self._sessions, self._variables = sessions, variables
        self._apart = apart
        self._spans = spans
        self._modules = tuple(modules)
        self._pass_environment = tuple(pass_environment)
        fast = min(max_children, max(2, os.cpu_count() or 1))
        self._limits = Limits(
            min_children, fast, max_children, round(idle_s * 1e6), round(kill_grace_s * 1000), round(longest_s * 1000)
        )
        self._logs: LogKeeper | None = None
        self._outputs: OutputTerms | None = None
        self._output_desk: OutputDesk | None = None
        self._lock = threading.Lock()
        self._wake = -1
        self._look_at = 0
        self._thread: threading.Thread | None = None
        self._started = threading.Event()
        self._error: BaseException | None = None
        self._selector: selectors.BaseSelector
        self._forkserver: ForkserverHandle
        self._forkserver_died = False
        self._stops_looked_us = 0
        self._restart_at = 0  # boot clock; no sooner is one that died started again
        self._supervisor: Supervisor
        self._sink: Sink

    def keep_logs(self, keeper: LogKeeper) -> None:
        """Hands what handlers write to a keeper; before `start`."""
        self._logs = keeper

    def keep_outputs(self, terms: OutputTerms) -> None:
        """Says where files are kept that attempts leave behind; out of a sandbox they are handed over; before `start`."""
        if self._apart is not None and self._apart.isolation.level == SANDBOX:
            self._output_desk = OutputDesk(terms)
        else:
            self._outputs = terms

    def start(self, sink: Sink) -> None:
        """Imports the handlers in a process of their own, starts the first children and begins to accept work.

        Raises:
            ConfigError: a handler module cannot be imported.
            ArgumentError: handlers contradict each other, or a module file is missing.
            ConflictError: it was started before.
        """
        if self._thread is not None:
            raise ConflictError("This pool was started before.", hint="Make a new one.")
        self._sink = sink
        self._thread = threading.Thread(target=self._main, name="local-pool", daemon=True)
        self._thread.start()
        self._started.wait()
        if self._error is not None:
            self._thread.join()
            raise self._error

    def handlers(self) -> dict[str, HandlerInfo]:
        """Every name that tasks may use; after `start`."""
        return dict(self._forkserver.handlers)

    def rooms(self) -> dict[str, int]:
        """Returns how many more invocations would run, or be next in a child that does fast ones, by executor name; 0: hold back."""
        with self._lock:
            rooms = self._supervisor.rooms()
            return dict.fromkeys(rooms, 0) if self._forkserver_died else rooms

    def running(self) -> dict[int, int]:
        """Id → wall clock of the start, for each invocation whose handler runs now, as its child's memory says."""
        with self._lock:
            return self._supervisor.running(Moment(*both_us()))

    def notes(self) -> dict[int, WorkNote]:
        """Returns what calls say of their work while they run, of those that have said something since the last time."""
        speakers = [child for child in list(self._supervisor.children.values()) if child.heard.news]
        if not speakers:  # nearly always, and then the lock is not waited for
            return {}
        found: dict[int, WorkNote] = {}
        with self._lock:
            for child in speakers:
                news = child.heard.take_news()
                found.update(
                    (child.calls[number][0].id, self._marked(note))
                    for number, note in news.items()
                    if number in child.calls
                )
        return found

    def submit(self, batch: Sequence[Invocation]) -> None:
        """Takes invocations and gives them to children that are free, without waiting for anything."""
        if not batch:
            return
        if self._output_desk is not None:
            self._output_desk.begin(batch)
        with self._lock:
            supervisor = self._supervisor
            supervisor.submit(batch)
            now = boot_us()
            supervisor.fill(now)
            soonest = now + 1000 * min(item.timeout_ms for item in batch)
            if len(batch) > 1:
                soonest = min(soonest, now + _SOON_US)
            urgent = soonest < self._look_at or supervisor.wants_attention
        if urgent:
            self._nudge()

    def kill(self, ids: Sequence[int], *, grace_ms: int = 0) -> None:
        """Ends these invocations: those that run as timed_out (within the grace), others as not_started.

        Args:
            ids: of the invocations.
            grace_ms: how long those that run are only asked to end.
        """
        with self._lock:
            self._supervisor.kill(ids, boot_us(), grace_ms)
        self._nudge()

    def recall(self, ids: Sequence[int]) -> None:
        """Hands back those of the invocations that no child has, as not_started; the others run on."""
        with self._lock:
            self._supervisor.recall(ids)
        self._nudge()

    def be_lean(self, lean: bool) -> None:
        """Starts no child beside another one of its kind, or does so again; those that there are stay."""
        with self._lock:
            self._supervisor.be_lean(lean)

    def stop(self, *, drain_s: float) -> None:
        """Hands back what has not started, lets the rest run for `drain_s` seconds, then kills it and all children."""
        thread = self._thread
        if thread is None or not thread.is_alive():
            return
        with self._lock:
            self._supervisor.stop(boot_us() + round(drain_s * 1e6))
        self._nudge()
        if thread is not threading.current_thread():
            thread.join()
        if self._output_desk is not None:
            self._output_desk.stop()

    # ---- what Supervisor asks of us, always from the pool's thread ----

    def spawn(self, child: ChildHandle) -> None:
        """Has a child forked for `child`."""
        with contextlib.ExitStack() as passed:
            passed.callback(child.handed_over)
            try:
                log_fd, way = self._ways_of(child, passed)
            except (OSError, RuntimeError) as error:  # too many open files, or threads
                _log.warning("a child process cannot be started, which is tried again: %s", str(error))
                self._bury(child, 1, boot_us())
                return
            self._selector.register(child.sock, _READ, child)
            try:
                self._forkserver.fork(child.number, *child.hand_over(), log_fd, way, on_loop=child.on_loop)
            except OSError:
                self._forkserver_died = True

    def _ways_of(self, child: ChildHandle, passed: contextlib.ExitStack) -> tuple[int | None, socket.socket | None]:
        """Descriptors for the child's lines and files, which `passed` closes here."""
        log_fd = way = None
        if self._logs is not None:
            log_fd = self._logs.open(child)
            passed.callback(os.close, log_fd)
        if self._output_desk is not None:
            way = passed.enter_context(self._output_desk.open(child.number, partial(_has, child)))
        return log_fd, way

    def kill_child(self, number: int, grace_ms: int) -> None:
        """Has the child's process group killed."""
        self._forkserver.kill(number, grace_ms)

    # ---- the pool's thread ----

    def _main(self) -> None:
        with contextlib.ExitStack() as opened:
            try:
                self._open(opened)
            except BaseException as error:
                self._error = error
                return
            finally:
                self._started.set()
            hard_us = round(1000 * self._limits.grace_ms + 2e6)
            while not self._supervisor.stopping or not (
                self._supervisor.finished or boot_us() > self._supervisor.stopping + hard_us
            ):
                try:
                    self._turn()
                except Exception:  # a defect of ours: say so and go on, for the sake of all other tasks
                    _log.exception("the pool's thread stumbled")
                    self._hand_on()
                    threading.Event().wait(_STUMBLE_S)
            self._forkserver.close()
            with self._lock:
                self._bury_all()
            self._hand_on()

    def _open(self, opened: contextlib.ExitStack) -> None:
        """Imports the handlers and starts the first children; what it has opened is closed with `opened`."""
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        opened.callback(self._close_wake)
        self._selector = opened.enter_context(selectors.DefaultSelector())
        self._forkserver = self._new_forkserver()
        opened.callback(lambda: self._forkserver.close())  # it may be another one by then
        self._supervisor = Supervisor(self._limits, self._forkserver.handlers, self, self.executor)
        self._selector.register(self._wake, _READ)
        self._selector.register(self._forkserver.control, _READ)
        self._supervisor.grow(boot_us())

    def _close_wake(self) -> None:
        with self._lock:
            os.close(self._wake)
            self._wake = -1

    def _turn(self) -> None:
        events = self._selector.select(max(0, self._look_at - boot_us()) / 1e6)
        with self._lock:
            now = boot_us()
            for key, mask in events:
                if key.data is not None:
                    self._attend(key.data, mask, now)
                elif key.fileobj == self._wake:
                    os.eventfd_read(self._wake)
                else:
                    self._hear(now)
            supervisor = self._supervisor
            look_at = supervisor.watch(now)
            if now - self._stops_looked_us > _LOOK_US and not self._forkserver_died:
                self._stops_looked_us = now
                supervisor.forkserver_stuck |= not self._forkserver.keep_running()
            if supervisor.hand_out(now):
                look_at = min(look_at, now + _SOON_US)
            self._look_at = look_at
            for child in supervisor.children.values():
                if child.blocked and child.sock in self._selector.get_map():
                    self._selector.modify(child.sock, _READ | _WRITE, child)
        self._hand_on()
        if self._forkserver_died or supervisor.forkserver_stuck:
            if boot_us() >= self._restart_at:
                self._replace_forkserver()
            self._look_at = min(self._look_at, self._restart_at)

    def _attend(self, child: ChildHandle, mask: int, now: int) -> None:
        """Serves a child; whatever it has sent to make that fail costs only this child its life."""
        try:
            self._serve(child, mask, now)
        except Exception:
            _log.exception("what child %d sent cannot be read", child.number)
            child.fault = child.fault or "it sent what nobody can read"
            self._supervisor.expel(child, now)

    def _serve(self, child: ChildHandle, mask: int, now: int) -> None:
        if child.number not in self._supervisor.children:
            return  # buried a moment ago, by a message that came with this event
        if mask & _WRITE:
            child.flush()
            if not child.blocked:
                self._selector.modify(child.sock, _READ, child)
        if mask & _READ and not self._supervisor.receive(child, now):
            self._selector.unregister(child.sock)
            child.deaf = True  # it is dead, or will be when it misses its socket

    def _hear(self, now: int) -> None:
        messages = self._forkserver.messages()
        if messages is None:
            self._forkserver_died = True
            return
        for verb, number, value in messages:
            child = self._supervisor.children.get(number)
            if child is None:
                continue
            if verb == FORKED:
                child.pid = value
                continue
            if verb == UNFORKED:
                _log.warning("no new child could be forked")
            self._bury(child, value, now)

    def _bury(self, child: ChildHandle, status: int, now: int) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(child.sock)
        if self._output_desk is not None:
            self._output_desk.close(child.number)
        self._supervisor.died(child, status, now)
        if self._logs is not None:
            self._logs.close(child)

    def _bury_all(self) -> None:
        """After the end of the forkserver, which takes its children along; their groups are left to us."""
        for child in list(self._supervisor.children.values()):
            child.ending = child.ending or ABANDONED
            if child.pid and not self._forkserver.boxed:  # the ids of a sandbox are those of others here
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.pid, signal.SIGKILL)
            self._bury(child, -signal.SIGKILL, boot_us())

    def _new_forkserver(self) -> ForkserverHandle:
        return ForkserverHandle(
            self._modules,
            sessions=self._sessions,
            pass_environment=self._pass_environment,
            variables=self._variables,
            apart=self._apart,
            children=self._limits.max_children,
            outputs=self._outputs,
            spans=self._spans,
            auto=self._auto,
        )

    def _replace_forkserver(self) -> None:
        """Outside the lock: imports may take long, and `submit` must not wait for them. It may be tried any number of times."""
        with contextlib.suppress(KeyError, ValueError):  # it was let go of the last time
            self._selector.unregister(self._forkserver.control)
        self._forkserver.close(patiently=not self._supervisor.forkserver_stuck)
        self._restart_at = boot_us() + _RETRY_US
        with self._lock:
            self._forkserver_died, self._supervisor.forkserver_stuck = True, False
            self._bury_all()
            self._supervisor.postpone(self._restart_at)
        self._hand_on()
        try:
            forkserver = self._new_forkserver()
        except (SchedulerError, OSError):
            _log.exception("the handlers' process ended and cannot be started again; trying on")
            return
        self._selector.register(forkserver.control, _READ)
        with self._lock:
            self._forkserver, self._forkserver_died = forkserver, False
            self._supervisor.postpone(0)
        self._look_at = self._restart_at = 0

    def _hand_on(self) -> None:
        with self._lock:
            done, self._supervisor.done = self._supervisor.done, []
        try:
            if done:
                if self._output_desk is not None:
                    self._output_desk.end(one.id for one in done)
                self._sink(done if self._apart is None else [self._with_level(one) for one in done])
        except Exception:
            _log.exception("a callback of the pool failed")

    def _with_level(self, outcome: Outcome) -> Outcome:
        if outcome.outcome == NOT_STARTED:
            return outcome
        return outcome._replace(work=self._marked(outcome.work or WorkNote()))

    def _marked(self, note: WorkNote) -> WorkNote:
        return note if self._apart is None else note._replace(isolation=self._apart.isolation.level)

    def _nudge(self) -> None:
        with contextlib.suppress(BlockingIOError, ValueError, OSError):
            os.eventfd_write(self._wake, 1)


def _has(child: ChildHandle, number: int) -> bool:
    """Returns True if a child has the invocation of that id now; from any thread."""
    return any(item.id == number for call in tuple(child.calls.values()) for item in call)
