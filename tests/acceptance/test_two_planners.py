"""Two planners beside ingest and dispatch: one plans, the other stands by, and takes over from one that dies or is frozen too long."""

import signal
from datetime import datetime
from pathlib import Path

import pytest

from scylla_spark import Schedule, Scheduler, Settings, Trigger
from scylla_spark.io.host.broker import EmbeddedBroker
from scylla_spark.io.kafka.topics import with_broker
from scylla_spark.testing.history import NEVER
from tests.acceptance.place import HANDLERS, PATIENCE, SECOND, Place, Process, now
from tests.support.waiting import eventually, holds

SESSION_S = 6
TAKEN_OVER_S = SESSION_S + 20  # the machine may be busy


class Planners(Place):
    """A broker, ingest, a dispatcher, and planners: plain processes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.broker = EmbeddedBroker(self.data / "kafka").start()
        self.ingest = self.serve("ingest")
        self.ingest.ready()
        self.dispatch = self.serve("dispatch", "", "--handlers", HANDLERS)
        self.dispatch.ready()
        self.connected = Scheduler.connect(with_broker(Settings(data_dir=self.data), self.broker.bootstrap))
        self._clients.append(self.connected)

    def serve(self, role: str, name: str = "", *more: str) -> Process:
        settings = (f"kafka.bootstrap_servers={self.broker.bootstrap}", "metrics.port=0")
        options = [word for text in settings for word in ("--set", text)]
        command = [*self.command(*options), "run", role, *more, "-o", "json"]
        return Process(role + name, command, self.folder, self.environment)

    def seconds(self) -> list[int]:
        """The planned seconds of all runs, as their keys name them; by start."""
        found = [run for run in self.history() if run.key.uniqueness_key.startswith("tick/") and run.end != NEVER]
        return [round(datetime.fromisoformat(run.key.uniqueness_key.split("/")[1]).timestamp()) for run in found]

    def goes_on(self, since: int, within: float = PATIENCE) -> None:
        """Waits until a second after that instant has run."""
        eventually(
            lambda: self.seconds() and self.seconds()[-1] > since // SECOND, within, "seconds run again", self.told
        )

    def told(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-1500:] for path in sorted(self.folder.glob("plan*.err")))


@pytest.fixture(scope="module")
def place(shared, tmp_path_factory):
    shared.stop()
    place = Planners(tmp_path_factory.mktemp("planners"))
    yield place
    place.clear()
    for process in (place.ingest, place.dispatch):
        process.ended()
    place.broker.stop()


def plans(process: Process) -> int:
    """How often a planner has begun to plan."""
    return process.told().count('"event": "planning"')


def test_one_of_two_plans_and_the_other_takes_over_from_it_when_it_dies_or_is_frozen(place):
    first = place.serve("plan", "-first")
    first.ready()
    eventually(lambda: plans(first) == 1, PATIENCE)
    second = place.serve("plan", "-second")
    second.ready()
    place.connected.put_schedules(Schedule("tick", "work", Trigger.every("1s"), overlap="buffer_all", catch_up="all"))
    place.goes_on(now())
    assert not holds(lambda: plans(second), 2), "it stands by"

    first.signal(signal.SIGKILL)
    first.ended()
    died = now()
    eventually(lambda: plans(second) == 1, TAKEN_OVER_S, "the other takes over", place.told)
    place.goes_on(died)

    third = place.serve("plan", "-third")
    third.ready()
    second.signal(signal.SIGSTOP)
    frozen = now()
    eventually(lambda: plans(third) == 1, TAKEN_OVER_S, "a frozen one is replaced", place.told)
    place.goes_on(frozen)
    second.signal(signal.SIGCONT)
    thawed = now()
    eventually(lambda: "planning begins again" in second.told(), TAKEN_OVER_S, "it was fenced out", place.told)
    place.goes_on(thawed + 3 * SECOND)
    assert plans(second) == 1, "it stands by"

    place.connected.schedule("tick").pause("enough")
    seconds = place.seconds()
    assert seconds == list(range(seconds[0], seconds[-1] + 1)), "each second once and in order"
    assert not holds(lambda: len(place.seconds()) > len(seconds), 2)
    for process in (second, third):
        assert process.stop() == 0, process.told()[-3000:]
