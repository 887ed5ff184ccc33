"""One deployment that is killed once and stopped once, and tests that cross these moments.

A start of a deployment costs some 25 core-seconds, so all tests that kill or stop one share it. Such a test is a generator: it prepares
something, yields while the deployment goes down and comes back, and then checks what has become of it.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scylla_spark.io.host.broker_files import free_port
from tests.acceptance.place import PATIENCE, Place, Process, now
from tests.support import connect_handlers
from tests.support.waiting import eventually
from tests.support.webhook_receiver import Receiver

EVENTS = ("killed", "stopped")
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OPTIONS = (
    "broker.auth=true",
    "connect.url=own",
    "plan.ahead=3s",
    "queues.few.concurrency=1",
    "queues.gpu.mode=pull",
    "queues.gpu.lease=20s",
)


class CrashSite(Place):
    """The deployment.

    Args:
        folder: as of `Place`.
        receiver: of the webhooks of channel "ops".
        stories: event → the tests that cross it, in their order.

    Attributes:
        kafka, api, metrics: addresses, which stay the same across restarts except for `metrics`.
        down_at, back_at: instants (µs) of the last time that it went down and was ready again.
        start_us: how long the last start took.
        survivors: command lines of processes that were left ten seconds after the kill.
        not_before: the deployment does not come back before this instant (µs).
    """

    kafka = api = metrics = ""
    down_at = back_at = start_us = not_before = 0
    survivors: Sequence[str] = ()

    def __init__(self, folder: Path, receiver: Receiver, stories: Mapping[str, Sequence[Callable[..., Any]]]) -> None:
        super().__init__(folder)
        self.environment["SCYLLASPARK_NOTIFY__CHANNELS"] = json.dumps(
            {"ops": {"kind": "webhook", "url": receiver.url, "secret": SECRET, "tasks": True}}
        )
        self.environment["SCYLLASPARK_NOTIFY__PRIVATE_ADDRESSES"] = "true"
        self.receiver = receiver
        self.process: Process | None = None
        self._options = (*OPTIONS, f"api.port={free_port()}")
        self._stories = stories
        self._events = list(EVENTS)
        self._begun: dict[Callable[..., Any], Generator[None, None, None] | BaseException] = {}
        self._while_down: list[Callable[[], object]] = []
        self._outsiders: list[Process] = []

    def begin(self) -> Process:
        """Starts the deployment without waiting for it."""
        words = [word for text in self._options for word in ("--set", text)]
        self.process = self.up("--handlers", connect_handlers.__file__, *words)
        return self.process

    def running(self) -> Process:
        """The running deployment; starts it where it does not run."""
        if self.process is None or not self.process.running:
            begun = now()
            facts = self.begin().ready()
            self.back_at = now()
            self.start_us = self.back_at - begun
            self.kafka, self.metrics, self.api = facts["kafka"], facts["metrics"], facts["api"]
        assert self.process is not None
        return self.process

    def outlives(self, process: Process) -> Process:
        """Notes a process of this folder that is to survive the deployment."""
        self._outsiders.append(process)
        return process

    def while_down(self, act: Callable[[], object]) -> None:
        """Has something called when the deployment has gone down the next time, before it comes back."""
        self._while_down.append(act)

    def finish(self, story: Callable[..., Any]) -> None:
        """Runs the second half of a test; before it its event happens, with the first halves of all tests that cross it."""
        while story not in self._begun:
            self._pass(self._events.pop(0))
        begun = self._begun.pop(story)
        if isinstance(begun, BaseException):
            raise begun
        assert next(begun, "ended") == "ended", "a test yields once"

    def _pass(self, event: str) -> None:
        stories = self._stories.get(event, ())
        if not stories:
            return
        self.running()
        for story in stories:
            self._begun[story] = self._half(story)
        try:
            self._go_down(event)
            while self._while_down:
                self._while_down.pop(0)()
            eventually(lambda: now() > self.not_before, PATIENCE, "it may come back")
            self.running()
        except BaseException as error:
            self._begun = dict.fromkeys(stories, error)
            raise

    def _half(self, story: Callable[..., Any]) -> Generator[None, None, None] | BaseException:
        begun: Generator[None, None, None] = story(self)
        try:
            next(begun)
        except Exception as error:
            return error
        return begun

    def _go_down(self, event: str) -> None:
        process = self.running()
        self.close_clients()  # else they would ask for the broker until the end of the tests
        if event == "killed":
            self.kill(process)
            self.down_at = self.deaths[-1]
            self.survivors = _remaining(self)
        else:
            assert process.stop() == 0, process.told()[-3000:]
            self.down_at = now()
            assert not _remaining(self), "nothing is left after a stop"

    def left(self) -> list[str]:
        outsiders = {process.pid for process in self._outsiders if process.running}
        return [line for line in super().left() if int(line.split()[0]) not in outsiders]

    def clear(self) -> None:
        self._outsiders.clear()  # those of a test that failed run on
        super().clear()

    def interrupt(self, process: Process) -> int:
        """SIGINT to the whole process group, as a terminal sends it at Ctrl-C; the exit code."""
        return _signal_group(process, signal.SIGINT)

    def terminate(self, process: Process) -> int:
        """SIGTERM to the whole process group, as a service manager sends it; the exit code."""
        return _signal_group(process, signal.SIGTERM)


def across(
    event: str, *, turn: int = 0
) -> Callable[[Callable[[CrashSite], Generator[None, None, None]]], Callable[[CrashSite], None]]:
    """Makes a test of a generator that yields while the deployment is killed or stopped.

    Args:
        event: one of `EVENTS`.
        turn: the first halves of tests with a higher turn come later, nearer to the event.
    """

    def made(story: Callable[[CrashSite], Generator[None, None, None]]) -> Callable[[CrashSite], None]:
        def test(crash_site: CrashSite) -> None:
            crash_site.finish(story)

        test.__name__, test.__doc__ = story.__name__, story.__doc__
        test.crosses = event, turn, story  # type: ignore[attr-defined]
        return test

    return made


def _remaining(site: CrashSite) -> list[str]:
    """Returns what is still left after ten seconds."""
    try:
        eventually(lambda: not site.left(), 10)
    except AssertionError:
        return site.left()
    return []


def _signal_group(process: Process, number: int) -> int:
    os.killpg(process.pid, number)
    return process.ended()
