"""Starts the embedded broker again when its process has ended, for example because the kernel was short of memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, NamedTuple

from scylla_spark.clock import boot_us, now_us
from scylla_spark.errors import BrokerError, DiskFullError, SchedulerError
from scylla_spark.io.host.broker import EmbeddedBroker
from scylla_spark.io.host.foreign_errors import full_folder, no_space, outage_in
from scylla_spark.log import get_logger

log = get_logger("broker")

_LOOK_S: Final = 0.1
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 8.0
_LIVED_US: Final = 60_000_000  # a broker that has lived so long is started again without a pause
_MOST_TRIES: Final = 4  # that end or fail one after the other
_END_S: Final = 30.0


class Restarts(NamedTuple):
    """How often the broker was started again, and when last (microseconds since the epoch; 0: never)."""

    times: int = 0
    last_us: int = 0


class BrokerKeeper:
    """Watches a started broker, and starts it again on the same port and records.

    Clients go on by themselves: to them it looks like any broker that was away for some seconds.

    Args:
        broker: started.
        told: called after it was started again.

    Attributes:
        failure: why the broker cannot be started again; None: it runs, or is being started.
        restarts: what was done so far.
    """

    def __init__(self, broker: EmbeddedBroker, told: Callable[[], None]) -> None:
        self.failure: SchedulerError | None = None
        self.restarts = Restarts()
        self._broker = broker
        self._told = told
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="broker-keeper", daemon=True)

    def start(self) -> None:
        """Begins to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Ends watching, and then the broker."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._broker.stop()  # also one that is being started
            self._thread.join(_END_S)
        self._broker.stop()

    def _run(self) -> None:
        tries, since_us = 0, boot_us()
        while not self._stopping.wait(_LOOK_S):
            if self._broker.alive:
                continue
            tries = 0 if boot_us() - since_us > _LIVED_US else tries
            if tries == _MOST_TRIES:
                self.failure = _ends_at_once(self._broker)
                return
            pause_s = min(_FIRST_PAUSE_S * 2 ** (tries - 1), _LONGEST_PAUSE_S) if tries else 0.0
            log.error("the embedded broker ended; it is started again", after_s=pause_s, log=str(self._broker.log_file))
            if self._stopping.wait(pause_s):
                return
            tries += 1
            failure = self._start_again()
            since_us = boot_us()
            if failure is not None and not self._stopping.is_set():
                log.error("the embedded broker could not be started again", error=str(failure)[-500:])
                if tries == _MOST_TRIES or isinstance(failure, DiskFullError):
                    self.failure = failure
                    return

    def _start_again(self) -> SchedulerError | None:
        """Starts it; returns why that failed."""
        try:
            self._broker.start()
        except Exception as error:
            folder = self._broker.data_dir
            return no_space(folder) if full_folder([folder]) else outage_in(error) or BrokerError(repr(error))
        self.restarts = Restarts(self.restarts.times + 1, now_us())
        log.warning("the embedded broker runs again", kafka=self._broker.bootstrap, restarts=self.restarts.times)
        self._told()
        return None


def _ends_at_once(broker: EmbeddedBroker) -> BrokerError:
    return BrokerError(
        "the embedded broker ended again and again after it was started.",
        hint=f"{broker.log_file} says why, or the kernel's log if memory is short: dmesg.",
    )
