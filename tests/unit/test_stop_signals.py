"""SIGTERM drains, a second one ends the process, even while its main thread is in a call that does not return."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from scylla_spark.errors import ExitCode

HANGS = """
import ctypes, threading
from scylla_spark.processes.stop_signals import StopSignals
stop = threading.Event()
signals = StopSignals(stop)
threading.Thread(target=lambda: stop.wait() and print("asked to stop", flush=True), daemon=True).start()
print("runs", flush=True)
while True:
    ctypes.CDLL(None).sleep(60)  # Python's own handlers do not run meanwhile
"""
STARTS = """
import ctypes, sys, threading
from pathlib import Path
from scylla_spark.config.settings import Settings
from scylla_spark.processes.bounded_stop import Stop
from scylla_spark.processes.deployment import Deployment
from scylla_spark.processes.process_main import serve

class Stuck(Deployment):
    def _steps(self, stop):
        self._ends.append(Stop("broker", lambda: print("the broker is stopped", flush=True)))
        yield
        self._ends.append(Stop("ingest", threading.Event().wait))
        print("asks the store", flush=True)
        while True:
            ctypes.CDLL(None).sleep(60)  # as in a native call that waits for a store

serve(Stuck(Settings(_env_file=None, data_dir=Path(sys.argv[1])), roles=()), print)
"""
LEAVES = """
import threading
from scylla_spark.processes import stop_signals
stop_signals._LEAVE_S = 0.1
signals = stop_signals.StopSignals(threading.Event())
signals.leave(5)
threading.Thread(target=threading.Event().wait).start()  # not a daemon: Python waits for it
"""


@pytest.mark.slow
def test_the_first_signal_asks_to_stop_and_a_second_one_ends_the_process():
    command = [sys.executable, "-c", HANGS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "runs\n"
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGTERM)  # at once: the same request, as `timeout` sends it
            assert process.stdout.readline() == "asked to stop\n"
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.6)  # it would have ended by now
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == ExitCode.INTERRUPTED
            assert process.stderr.read().startswith("error: ended by a second signal")
        finally:
            process.kill()


@pytest.mark.slow
def test_a_thread_that_does_not_end_keeps_no_process_that_has_stopped_its_services():
    assert subprocess.run([sys.executable, "-c", LEAVES], timeout=60, check=False).returncode == ExitCode.OUTAGE


@pytest.mark.slow
def test_a_signal_ends_a_start_that_waits_for_a_silent_store_and_stops_what_has_begun(tmp_path):
    command = [sys.executable, "-c", STARTS, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "asks the store\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == ExitCode.OK, process.stderr.read()
            assert process.stdout.read().endswith("the broker is stopped\n")
        finally:
            process.kill()
