"""What every process of ours does around its services: options, settings, signals, the line that says ready, exit code."""

from __future__ import annotations

import argparse
import gc
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from scylla_spark.config.assignments import nested
from scylla_spark.config.settings import Settings
from scylla_spark.errors import ExitCode, UnreachableError
from scylla_spark.handlers.registry import look_in_current_folder
from scylla_spark.io.host.foreign_errors import outage_in
from scylla_spark.io.kafka.topics import located
from scylla_spark.log import configure, get_logger
from scylla_spark.processes.deployment import Deployment
from scylla_spark.processes.ready_line import ready_facts, ready_line, tell_service_manager
from scylla_spark.processes.stop_signals import SIGNALS, StopSignals, end_at_once
from scylla_spark.visible import visible_lines

log = get_logger("services")

_YOUNG_OBJECTS = 50_000
_STEP_S = 2.0  # that a step of the start may go on after a request to stop


def run(make: Callable[[Settings], Deployment], description: str | None, arguments: Sequence[str] | None = None) -> int:
    """Runs one job of `jobs/` until SIGTERM or Ctrl-C.

    Args:
        make: the services of this job, from the settings; not started.
        description: for --help.
        arguments: default: those of the command line.

    Returns:
        The exit code; what went wrong is reported on stderr.
    """
    options = _options(description).parse_args(arguments)
    code = ExitCode.OK
    try:
        overrides = nested(options.set) | ({"handlers": tuple(options.handlers)} if options.handlers else {})
        settings = located(Settings.load(options.config, **overrides))
        configure(settings.log)
        serve(make(settings), _say_ready)
    except Exception as error:
        problem = outage_in(error)
        code = ExitCode.DEFECT if problem is None else problem.exit_code
        if problem is None:
            log.exception("this is a defect of scylla-spark")
        sys.stderr.write(f"error: {visible_lines(str(problem or repr(error)))}\n")
    finally:
        for number in SIGNALS:  # Python's own shutdown puts the defaults back: a late signal would spoil the exit code
            signal.signal(number, signal.SIG_IGN)
    return code


def serve(deployment: Deployment, ready: Callable[[Deployment], None]) -> None:
    """Starts services, says once that they are ready, and drains them at SIGTERM or Ctrl-C, also while they start.

    A second signal ends this process at once. What does not end by itself when all services have stopped is ended.
    Modules of handlers are found in the current folder, too.

    Raises:
        SchedulerError: the services could not start, one of them ended, or something was killed while they stopped.
    """
    stop = threading.Event()
    signals = StopSignals(stop)
    look_in_current_folder()
    code = ExitCode.DEFECT
    try:
        _serve(deployment, ready, stop)
        code = ExitCode.OK
    except Exception as error:
        problem = outage_in(error)
        if problem is None:
            raise
        code = problem.exit_code
        if stop.is_set() and problem is not error:
            problem = UnreachableError(
                f"The broker or the JVM ended before all was drained ({problem.message}). Nothing is lost: the next start goes on.",
                hint="Send the signal to this process or its group, not to each process; under systemd, set KillMode=mixed.",
            )
        if problem is error:
            raise
        raise problem from error
    finally:
        signals.leave(code)


def favour_latency() -> None:
    """Sets this interpreter up for a process whose only purpose is to serve; nobody's notebook or shell is changed by it."""
    sys.setswitchinterval(0.0005)  # the engine's thread must not wait 5 ms for a busy one
    gc.freeze()  # tasks and facts hold no cycles: looking through all of them often costs time and finds nothing
    gc.set_threshold(_YOUNG_OBJECTS, 20, 50)


def _serve(deployment: Deployment, ready: Callable[[Deployment], None], stop: threading.Event) -> None:
    favour_latency()
    begun, ends_it = threading.Event(), threading.Lock()
    threading.Thread(target=_give_up, args=(deployment, stop, begun, ends_it), name="give-up", daemon=True).start()
    try:
        deployment.start(stop)
    finally:
        begun.set()
        ends_it.acquire()  # held by the thread that ends this process, if the start took too long
    with deployment:
        while not deployment.await_ready(stop=stop):
            if stop.is_set():
                return
            log.warning(
                "the services are not ready after two minutes, and go on trying"
            )  # a spare dispatcher waits for partitions
            tell_service_manager("READY=1")
        ready(deployment)
        tell_service_manager("READY=1")
        deployment.serve(stop)
        tell_service_manager("STOPPING=1")


def _give_up(deployment: Deployment, stop: threading.Event, begun: threading.Event, ends_it: threading.Lock) -> None:
    """Ends this process after a request to stop where a step of its start does not return, as while a store is silent."""
    stop.wait()
    if begun.wait(_STEP_S) or not ends_it.acquire(blocking=False):
        return
    log.warning("the start is given up: one of its steps does not return", waited_s=_STEP_S)
    try:
        deployment.give_up()
    finally:
        end_at_once(ExitCode.OK)


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


def _say_ready(deployment: Deployment) -> None:
    sys.stdout.write(ready_line(ready_facts(deployment)) + "\n")
    sys.stdout.flush()
