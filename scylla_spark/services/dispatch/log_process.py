"""The process that reads and sends the lines of a dispatcher's children: `python -m scylla_spark.services.dispatch.log_process`.

Twenty thousand lines a second take a third of a core of Python, and whatever runs in the dispatcher's own process the engine's thread
has to wait for. Standard input is a socket of whole messages to the parent: its first one brings settings and secrets, then it says which
child's memory to read, of which it hands over descriptors, and which child is dead. It is told what was counted, and which dead child's
memory nothing is left in. The end of the socket is the end of the parent: what is left then is read, sent, and this process ends.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import threading
from collections.abc import Callable
from typing import Final

from scylla_spark.config.settings import Settings
from scylla_spark.log import configure
from scylla_spark.services.dispatch.attempt_logs import AttemptLogs

READ: Final = "read"
DEAD: Final = "dead"
COUNTS: Final = "counts"
LET_GO: Final = "let_go"
MOST_BYTES: Final = 1_024
_EVERY_S: Final = 0.5
_LONGEST_END_S: Final = 40  # the last lines have been sent by then, or never will be


def main() -> None:
    """Serves until the parent ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # those of a whole group are for the parent, who drains
    with socket.socket(fileno=0) as parent:
        _, (told,), _, _ = socket.recv_fds(parent, MOST_BYTES, 1)
        with open(told, "rb") as file:
            fields, secrets = pickle.load(file)
        settings = Settings(**fields)
        configure(settings.log)
        _serve(parent, settings, secrets)


def _serve(parent: socket.socket, settings: Settings, secrets: set[str]) -> None:
    tell = _Teller(parent)
    logs = AttemptLogs(settings, secrets, let_go=lambda child: tell(LET_GO, child))
    logs.start()
    over = threading.Event()
    counting = threading.Thread(target=_count, args=(logs, tell, over))
    counting.start()
    known: set[int] = set()
    while True:
        try:
            data, descriptors, _, _ = socket.recv_fds(parent, MOST_BYTES, 1)
        except OSError:
            break
        if not data:
            break
        verb, child = json.loads(data)
        if verb == READ:
            logs.read(child, descriptors[0])
            os.close(descriptors[0])
            known.add(child)
        else:
            logs.close(child)
            known.discard(child)
    for child in known:  # they have died with the parent, or do so now
        logs.close(child)
    signal.alarm(_LONGEST_END_S)
    logs.stop()
    over.set()
    counting.join()


def _count(logs: AttemptLogs, tell: Callable[..., None], over: threading.Event) -> None:
    told, last = (0, 0), False
    while not last:
        last = over.wait(_EVERY_S)
        counts = logs.sent, logs.dropped
        if counts != told:
            tell(COUNTS, *counts)
            told = counts


class _Teller:
    """Tells the parent something, as long as there is one; of any thread."""

    def __init__(self, parent: socket.socket) -> None:
        self._parent = parent

    def __call__(self, *words: object) -> None:
        try:
            self._parent.send(json.dumps(words).encode())
        except OSError:
            return


if __name__ == "__main__":
    main()
