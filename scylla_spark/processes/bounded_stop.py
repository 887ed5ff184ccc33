"""The stop of one part of a process: it may take so long and no longer, and the log says what is waited for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, NamedTuple

from scylla_spark.clock import boot_us
from scylla_spark.log import get_logger

log = get_logger("deployment")

LIMIT_S: Final = 30.0
"""How long the stop of a part may take, unless it says otherwise."""
_FORCED_S: Final = 5.0
_TOLD_S: Final = 5.0  # between two lines about a stop that takes long


class Stop(NamedTuple):
    """How a part is stopped.

    Attributes:
        part: its name, for the log.
        stop: stops it.
        limit_s: after so long it is left to the end of the process, which ends everything.
        force: what is done then.
    """

    part: str
    stop: Callable[[], object]
    limit_s: float = LIMIT_S
    force: Callable[[], object] | None = None

    def carry_out(self) -> None:
        """Stops the part, in a thread of its own.

        Raises:
            Exception: what the part failed with.
        """
        failures: list[Exception] = []

        def run() -> None:
            try:
                self.stop()
            except Exception as error:
                failures.append(error)

        thread, begun = threading.Thread(target=run, name=f"stop-{self.part}", daemon=True), boot_us()
        thread.start()
        waited_s = 0.0
        while waited_s < self.limit_s:
            thread.join(min(_TOLD_S, self.limit_s - waited_s))
            waited_s = (boot_us() - begun) / 1e6
            if not thread.is_alive():
                break
            log.info("the stop waits", part=self.part, waited_s=round(waited_s, 1), limit_s=self.limit_s)
        else:
            log.error("a part did not stop in time", part=self.part, limit_s=self.limit_s)
            if self.force is not None:
                self.force()
                thread.join(_FORCED_S)
        if failures:
            raise failures[0]
