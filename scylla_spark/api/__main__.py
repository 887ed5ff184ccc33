"""The process that serves the API: `python -m scylla_spark.api LISTENER SETTINGS`, both descriptors that its parent hands over."""

from __future__ import annotations

import gc
import pickle
import signal
import socket
import sys

from scylla_spark.api.http.server import serve
from scylla_spark.api.service import READY
from scylla_spark.config.settings import Settings
from scylla_spark.log import configure

_YOUNG_OBJECTS = 50_000


def main(listener: int, told: int) -> None:
    """Serves until SIGTERM.

    Args:
        listener: descriptor of the socket that listens.
        told: descriptor from which the settings are read.
    """
    with open(told, "rb") as pipe:
        settings = Settings(**pickle.load(pipe))
    configure(settings.log)
    sys.setswitchinterval(0.0005)  # requests must not wait 5 ms at each step for a thread that makes a long list
    gc.freeze()
    gc.set_threshold(
        _YOUNG_OBJECTS, 20, 50
    )  # a bulk makes many objects without cycles: looking for these took a fifth of its time
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # the server drains first, and then raises the signal again
    serve(settings, socket.socket(fileno=listener), _say_ready)


def _say_ready() -> None:
    sys.stdout.buffer.write(READY)
    sys.stdout.flush()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
