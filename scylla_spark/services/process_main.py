"""What every process of ours does around its services: options, settings, signals, the line that says ready, exit code."""

from __future__ import annotations

import argparse
import gc
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from scylla_spark.config.assignments import nested
from scylla_spark.config.settings import Settings
from scylla_spark.errors import SchedulerError, UnreachableError
from scylla_spark.executors.handler_registry import look_in_current_folder
from scylla_spark.io.kafka.topics import located
from scylla_spark.log import configure
from scylla_spark.services.deployment import Deployment
from scylla_spark.services.ready_line import ready_facts, ready_line
from scylla_spark.visible import visible_lines

log = structlog.get_logger("services")

_YOUNG_OBJECTS = 50_000
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run(make: Callable[[Settings], Deployment], description: str | None, arguments: Sequence[str] | None = None) -> int:
    """Runs one job of `jobs/` until SIGTERM or Ctrl-C.

    Args:
        make: the services of this job, from the settings; not started.
        description: for --help.
        arguments: default: those of the command line.

    Returns:
        The exit code: 0 once drained, else that of the error, which is told on stderr.
    """
    options = _options(description).parse_args(arguments)
    try:
        overrides = nested(options.set) | ({"handlers": tuple(options.handlers)} if options.handlers else {})
        settings = located(Settings.load(options.config, **overrides))
        configure(settings.log)
        serve(make(settings), _say_ready)
    except SchedulerError as error:
        sys.stderr.write(f"error: {visible_lines(str(error))}\n")
        return error.exit_code
    finally:
        for number in _SIGNALS:  # Python's own shutdown puts the defaults back: a late signal would spoil the exit code
            signal.signal(number, signal.SIG_IGN)
    return 0


def serve(deployment: Deployment, ready: Callable[[Deployment], None]) -> None:
    """Starts services, says once that they are ready, and drains them at SIGTERM or Ctrl-C, also while they start.

    Modules of handlers are found in the current folder, too.

    Raises:
        UnreachableError: something was killed while they stopped.
        SchedulerError: they could not start, or one of them ended.
    """
    stop = threading.Event()
    _stop_on_signals(stop)
    look_in_current_folder()
    try:
        _serve(deployment, ready, stop)
    except Exception as error:
        if not stop.is_set() or isinstance(error, SchedulerError):
            raise
        raise UnreachableError(
            f"The broker or the JVM ended before all was drained ({type(error).__name__}). Nothing is lost: the next start goes on.",
            hint="Send the signal to this process or its group, not to each process; under systemd, set KillMode=mixed.",
        ) from error


def favour_latency() -> None:
    """Sets this interpreter up for a process whose only purpose is to serve; nobody's notebook or shell is changed by it."""
    sys.setswitchinterval(0.0005)  # the engine's thread must not wait 5 ms for a busy one
    gc.freeze()  # tasks and facts hold no cycles: looking through all of them often costs time and finds nothing
    gc.set_threshold(_YOUNG_OBJECTS, 20, 50)


def _serve(deployment: Deployment, ready: Callable[[Deployment], None], stop: threading.Event) -> None:
    favour_latency()
    with deployment.start(stop):
        while not deployment.await_ready(stop=stop):
            if stop.is_set():
                return
            log.warning(
                "the services are not ready after two minutes, and go on trying"
            )  # a spare dispatcher waits for partitions
        ready(deployment)
        deployment.serve(stop)


def _options(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False)
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings file; default: scyllaspark.toml")
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="one setting; repeatable"
    )
    parser.add_argument(
        "--handlers", action="append", metavar="MODULE", help="module or .py file of @handler functions; repeatable"
    )
    return parser


def _stop_on_signals(stop: threading.Event) -> None:
    for number in _SIGNALS:
        signal.signal(number, lambda *_: stop.set())


def _say_ready(deployment: Deployment) -> None:
    sys.stdout.write(ready_line(ready_facts(deployment)) + "\n")
    sys.stdout.flush()
