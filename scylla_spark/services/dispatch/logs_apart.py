"""The dispatcher's side of `log_process`: it hands over the memories of its children."""

from __future__ import annotations

import json
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from scylla_spark.clock import boot_us
from scylla_spark.config.settings import Settings
from scylla_spark.executors.interface import LogTerms
from scylla_spark.handlers.log_ring import LogMemory
from scylla_spark.log import get_logger
from scylla_spark.services.dispatch.attempt_lines import AttemptName, LeasedRows
from scylla_spark.services.dispatch.attempt_logs import AttemptLogs, counters, memory_fd
from scylla_spark.services.dispatch.log_process import COUNTS, DEAD, LET_GO, MOST_BYTES, READ

log = get_logger("dispatch")

_LOOK_S: Final = 0.05
_AGAIN_US: Final = 1_000_000
_EARLY_US: Final = (
    3_000_000  # after the start of a dispatcher, which has enough to do; but none waits for the first flood of lines
)
_END_S: Final = 45.0
_COMMAND: Final = (sys.executable, "-P", "-m", "scylla_spark.services.dispatch.log_process")


class _Child:
    """A child whose lines are read elsewhere.

    Attributes:
        number: by which the other process knows it.
        fd: of its memory, a duplicate.
        memory: mapped here, to see whether it holds anything.
        dead: whether it is.
        told: what of it the other process was told.
    """

    def __init__(self, number: int, fd: int) -> None:
        self.number = number
        self.memory = LogMemory(fd)
        self.fd = os.dup(fd)
        self.dead = False
        self.told: set[str] = set()

    def close(self) -> None:
        """Lets go of the memory."""
        self.memory.close()
        os.close(self.fd)


class LogsApart(Collector):
    """The LogKeeper of a dispatcher, and what it counts in Prometheus form. What comes from elsewhere is read here: it is little.

    Should the other process die, another goes on with what the memories hold; the lines that it was about to send are lost, like
    those of calls of whose beginning only it knew.

    Args:
        settings: with the broker's address.
        secrets: values that must not appear in lines.
    """

    def __init__(self, settings: Settings, secrets: Iterable[str] = ()) -> None:
        self._settings = settings
        self._secrets = set(secrets)
        self._from_elsewhere = AttemptLogs(settings, self._secrets)
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._children: dict[Hashable, _Child] = {}
        self._all: dict[int, _Child] = {}  # those that are dead and not read to their end, too
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._begin_from_us = self._begin_until_us = 0
        self._counts = self._before = (0, 0)  # of the process that runs, and of all before
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="logs-apart", daemon=True)

    def start(self) -> None:
        """Begins to look for lines."""
        self._from_elsewhere.start()
        self._begin_until_us = boot_us() + _EARLY_US
        self._thread.start()

    def open(self, child: Hashable) -> int:
        """A descriptor of the memory for the lines of a child, which the caller closes."""
        fd, number = memory_fd(self._settings.logs), next(self._numbers)
        try:
            known = _Child(number, fd)
        except OSError:
            os.close(fd)
            raise
        with self._lock:
            self._children[child] = self._all[number] = known
        return fd

    def close(self, child: Hashable) -> None:
        """The child is dead: what it has left is read, and then let go of."""
        with self._lock:
            known = self._children.pop(child, None)
            if known is not None:
                known.dead = True

    def terms(self) -> LogTerms:
        """Returns how much of an attempt is kept."""
        return self._from_elsewhere.terms()

    def hear(self, children: Sequence[Sequence[bytes]]) -> None:
        """See `AttemptLogs.hear`."""
        self._from_elsewhere.hear(children)

    def take(self, name: AttemptName, told: LeasedRows) -> None:
        """See `AttemptLogs.take`."""
        self._from_elsewhere.take(name, told)

    def stop(self) -> None:
        """Has what is left read and sent, as far as that takes some seconds at most, and ends."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(_END_S)
        self._from_elsewhere.stop()

    def collect(self) -> Iterator[CounterMetricFamily]:
        """The counts, when Prometheus asks."""
        ours = self._from_elsewhere
        sent, dropped = (now + before for now, before in zip(self._counts, self._before, strict=True))
        return counters(ours.sent + sent, ours.dropped + dropped)

    def describe(self) -> list[CounterMetricFamily]:
        """Nothing before it is asked."""
        return []

    # -- below: the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.wait(_LOOK_S):
            self._safely(self._turn)
        self._safely(self._turn)
        self._safely(self._finish)

    def _safely(self, step: Any) -> None:
        try:
            step()
        except Exception:
            log.exception("the process that reads lines of attempts cannot be spoken to; it is started anew")
            self._let_process_go()

    def _turn(self) -> None:
        with self._lock:
            children = list(self._all.values())
        if self._process is None:
            holding = [child for child in children if child.memory.holds_lines]
            for child in children:
                if child.dead and child not in holding:
                    self._forget(child.number)
            now = boot_us()
            if now < self._begin_from_us or (not holding and now < self._begin_until_us):
                return
            self._begin()
        for child in children:
            self._tell_of(child)
        self._hear()

    def _begin(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
        with theirs:
            self._process = subprocess.Popen(
                _COMMAND,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": path},
                start_new_session=True,
            )
        told = os.memfd_create("scylla-spark-settings", os.MFD_CLOEXEC)  # not as arguments: they may hold passwords
        with open(told, "w+b") as file:
            pickle.dump((self._settings.model_dump(), self._secrets), file)
            file.flush()
            file.seek(0)
            socket.send_fds(self._control, [b"settings"], [told])

    def _tell_of(self, child: _Child) -> None:
        assert self._control is not None
        if READ not in child.told:
            socket.send_fds(self._control, [json.dumps([READ, child.number]).encode()], [child.fd])
            child.told.add(READ)
        if child.dead and DEAD not in child.told:
            self._control.send(json.dumps([DEAD, child.number]).encode())
            child.told.add(DEAD)

    def _hear(self, *, until_end: bool = False) -> None:
        """Takes what the other process has said.

        Args:
            until_end: wait for its end.
        """
        assert self._control is not None
        while True:
            try:
                data = self._control.recv(MOST_BYTES, 0 if until_end else socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except ConnectionError:
                data = b""
            if not data:
                if not until_end:
                    log.error("the process that reads lines of attempts has ended; another goes on")
                self._let_process_go()
                return
            verb, *values = json.loads(data)
            if verb == COUNTS:
                self._counts = values[0], values[1]
            elif verb == LET_GO:
                self._forget(values[0])

    def _forget(self, number: int) -> None:
        with self._lock:
            child = self._all.pop(number, None)
        if child is not None:
            child.close()

    def _let_process_go(self) -> None:
        """What the process had not finished, another one does."""
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._control = self._process = None
        self._begin_from_us = boot_us() + _AGAIN_US
        self._before = self._before[0] + self._counts[0], self._before[1] + self._counts[1]
        self._counts = 0, 0
        with self._lock:
            for child in self._all.values():
                child.told.clear()

    def _finish(self) -> None:
        if self._control is not None:
            self._control.shutdown(socket.SHUT_WR)
            self._control.settimeout(_END_S)
            self._hear(until_end=True)
        with self._lock:
            left, self._all = list(self._all.values()), {}
        for child in left:
            child.close()
