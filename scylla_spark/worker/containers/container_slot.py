"""A slot of the runner: runs a leased task in a container, and reports how it ended."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from scylla_spark.clock import boot_us, now_us, to_us
from scylla_spark.core.leases.messages import digest_of_token
from scylla_spark.core.tasks.task import ABORTED
from scylla_spark.errors import ArgumentError, SchedulerError, SetupError
from scylla_spark.handlers.call import PAYLOAD_INVALID, failed
from scylla_spark.handlers.messages import Verdict
from scylla_spark.worker.containers.container_lines import ContainerLines
from scylla_spark.worker.containers.ending import (
    NOT_STARTED,
    ended_of,
    not_kept,
    timed_out,
    verdict_of_container,
)
from scylla_spark.worker.containers.last_lines import LastLines
from scylla_spark.worker.containers.options import Bounds, Files, Mark, run_options
from scylla_spark.worker.containers.out_folder import OutFolder, out_folder
from scylla_spark.worker.containers.podman import Podman
from scylla_spark.worker.containers.readiness import probe, user_processes
from scylla_spark.worker.containers.request import Box, Offer, box_of
from scylla_spark.worker.containers.runner_folder import remove_folder
from scylla_spark.worker.containers.watchdog_handle import Guard
from scylla_spark.worker.lease import Lease

LEVEL: Final = "container"
_TOLD: Final = (
    "scheduled_time", "ordering_id", "uniqueness_key", "handler", "queue", "attempt", "checkpoint", "last_error",
    "traceparent",
)  # fmt: skip
"""Fields of a leased task that its program gets as the server sent them; what a newer server adds is not meant for it."""
_LOOK_S: Final = 0.1
_KILL_S: Final = 20.0
_MOST_REMOVALS: Final = 10
_REMOVED_S: Final = 2.0
_CLOSE_S: Final = 60.0
_ENDED: Final = "ended"
_TIMED_OUT: Final = "timed out"
_GIVEN_UP: Final = "given up"


@dataclass(frozen=True, slots=True)
class Yard:
    """What all slots of a runner share.

    Attributes:
        podman: that runs the containers.
        offer: what is run.
        bounds: what each may take.
        runner: `identity` of this process.
        folder: of its owner only, for the files that containers are given.
        guard: of its containers.
    """

    podman: Podman
    offer: Offer
    bounds: Bounds
    runner: str
    folder: Path
    guard: Guard


class ContainerPlace:
    """Runs one container at a time; a `Workplace`.

    Args:
        yard: what it shares with other slots.
    """

    def __init__(self, yard: Yard) -> None:
        self._yard = yard
        self._closed = threading.Event()
        self._idle = threading.Event()
        self._idle.set()

    def open(self) -> None:
        """Has a watchdog.

        Raises:
            SetupError: there can be none.
        """
        self._yard.guard.check()

    def work(self, lease: Lease) -> None:
        """Runs the task of a lease. A lease that is lost, or given back because the slot closes, gets no report.

        Raises:
            SetupError: no container can run here any more.
        """
        self._yard.guard.check()
        if not self._yard.folder.is_dir():
            raise SetupError(f"The folder {self._yard.folder} of this runner is gone.", hint="Start the runner again.")
        self._idle.clear()
        try:
            self._work(lease)
        finally:
            self._idle.set()

    def close(self) -> None:
        """Kills the container that runs, and waits until it is gone."""
        self._closed.set()
        self._idle.wait(_CLOSE_S)

    def _work(self, lease: Lease) -> None:
        try:
            box = box_of(lease.task.payload, self._yard.offer)
        except ArgumentError as error:
            lease.report_verdict(failed(PAYLOAD_INVALID, str(error))._replace(outcome=ABORTED))
            return
        begun_us = boot_us()
        metrics: dict[str, Any] = {}
        verdict = self._verdict(lease, box, metrics)
        if verdict is not None and not lease.lost.is_set():
            ms = (boot_us() - begun_us) // 1000
            lease.report_verdict(verdict, metrics={"isolation": LEVEL, "image": box.image, "ms": ms} | metrics)

    def _verdict(self, lease: Lease, box: Box, metrics: dict[str, Any]) -> Verdict | None:
        """Returns what becomes of a task in a container; None: it is not ours to say. Adds to the metrics."""
        # there is no token where nothing is to be reported
        named = lease.token or f"{lease.view['task']['id']} {lease.attempt}"
        mark = Mark(self._yard.runner, digest_of_token(named))
        folder = self._yard.folder / mark.lease
        try:
            files = written_files(folder, lease, box)
            return self._contained(lease, box, mark, files, metrics)
        except (OSError, ValueError, RuntimeError) as error:  # such as: no thread can be started, JSON too deep
            return failed(NOT_STARTED, f"The container cannot be started: {error}")
        finally:
            remove_folder(self._yard.podman, folder)

    def _contained(self, lease: Lease, box: Box, mark: Mark, files: Files, metrics: dict[str, Any]) -> Verdict | None:
        """Runs a container to its end, takes what it has left behind, and removes it.

        Raises:
            SetupError: podman runs no containers any more.
        """
        podman, bounds = self._yard.podman, self._yard.bounds
        with out_folder(files.out, lease, bounds.out) as folder:
            try:
                verdict = self._ran(lease, box, mark, files, folder)
            finally:
                _ = podman.remove(mark.name) or podman.remove(mark.name)  # what is left then is the watchdog's
            if verdict is not None:
                verdict = _left_behind(folder, verdict)
                metrics |= folder.metrics()
        return verdict

    def _ran(self, lease: Lease, box: Box, mark: Mark, files: Files, folder: OutFolder) -> Verdict | None:
        """Runs a container to its end; None: its task is not ours any more."""
        podman, bounds = self._yard.podman, self._yard.bounds
        out, err, lines = LastLines(), LastLines(), ContainerLines(lease.tell_lines)
        begun_us, until_us = boot_us(), self._until_us(lease)
        with open(files.task, "rb") as given:
            client = podman.started(run_options(box, bounds, mark, files, user_processes()), given)
        with client:  # whose end waits for the container, however long that runs
            why = _GIVEN_UP
            try:
                lines.start()
                readers = _readers(client, out, err, lines)
                why = self._watched(client, lease, folder, until_us)
            except BaseException:
                lines.end(tell=False)
                raise
            finally:
                if why != _ENDED:
                    _end(client, podman, mark)
            for reader in readers:
                reader.join(_KILL_S)
        lines.end(tell=why != _GIVEN_UP)
        if why == _GIVEN_UP:
            return None
        if why == _TIMED_OUT:
            return timed_out((boot_us() - begun_us) / 1e6, err)
        ended = ended_of(client.returncode, podman.state(mark.name) if client.returncode else None)
        if ended.code is None:  # the task's fault, or that of all that would follow
            podman.remove(mark.name)
            probe(podman, box.image, bounds, mark, files)
        return verdict_of_container(ended, out, err)

    def _until_us(self, lease: Lease) -> int:
        """Returns when the container is killed, on the boot clock: at its time-out, or when its lease ends whatever happens."""
        left_us = to_us(lease.context.deadline) - now_us()
        return boot_us() + min(self._yard.bounds.timeout_ms * 1000, left_us)

    def _watched(self, client: subprocess.Popen[bytes], lease: Lease, folder: OutFolder, until_us: int) -> str:
        """Waits until the container has ended, or has to, and tells meanwhile what its program says of its work."""
        while True:
            folder.look()
            try:
                client.wait(_LOOK_S)
                return _ENDED
            except subprocess.TimeoutExpired:
                if lease.lost.is_set() or self._closed.is_set():
                    return _GIVEN_UP
                if boot_us() > until_us:
                    return _TIMED_OUT


def written_files(folder: Path, lease: Lease, box: Box) -> Files:
    """Writes what a container is given. Others of this machine cannot get at it: the folder above is its owner's only.

    Args:
        folder: to make.
        lease: of the task.
        box: what runs.

    Raises:
        OSError: it cannot be written.
    """
    folder.mkdir()
    task, environment, out = folder / "task.json", folder / "environment", folder / "out"
    task.write_text(json.dumps(told_of(lease, box.given)) + "\n", encoding="ascii")
    task.chmod(0o444)  # the user in the container is another
    environment.write_text("".join(f"{name}={value}\n" for name, value in box.environment.items()), encoding="utf-8")
    out.mkdir()
    out.chmod(0o1777)
    return Files(str(task), str(environment), str(out))


def _left_behind(folder: OutFolder, verdict: Verdict) -> Verdict:
    """Tells what the program has left behind, and what becomes of its task."""
    folder.look()
    try:
        folder.send()
    except (SchedulerError, OSError) as error:
        return not_kept(verdict, str(error))
    return verdict


def told_of(lease: Lease, given: Any) -> dict[str, Any]:
    """Returns what a program learns of its task: the document in /task.json and on its standard input.

    Args:
        lease: of the task; its token, a secret, is not told.
        given: `input` of the payload.
    """
    told = {name: lease.view["task"].get(name) for name in _TOLD}
    return (
        {"input": given}
        | told
        | {"epoch": lease.epoch, "tags": list(lease.tags), "missing": list(lease.invocation.missing)}
    )


def _readers(
    client: subprocess.Popen[bytes], out: LastLines, err: LastLines, lines: ContainerLines
) -> list[threading.Thread]:
    """Threads that take what a client writes."""
    assert client.stdout is not None
    assert client.stderr is not None
    streams = ((client.stdout, out, "stdout"), (client.stderr, err, "stderr"))
    threads = [
        threading.Thread(target=_read, args=(os.dup(pipe.fileno()), last, partial(lines.feed, name)), daemon=True)
        for pipe, last, name in streams
    ]
    for thread in threads:
        thread.start()
    return threads


def _read(descriptor: int, lines: LastLines, also: Callable[[bytes], object]) -> None:
    """Takes all that comes; the descriptor is its own, and is closed."""
    with open(descriptor, "rb", buffering=0):
        lines.read_all(descriptor, also)


def _end(client: subprocess.Popen[bytes], podman: Podman, mark: Mark) -> None:
    """Removes a container, again if it had not been made yet, until its client sees that; one that does not is killed."""
    for _ in range(_MOST_REMOVALS):
        podman.remove(mark.name)
        with contextlib.suppress(subprocess.TimeoutExpired):
            client.wait(_REMOVED_S)
            return
    client.kill()
    client.wait()
