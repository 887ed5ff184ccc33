"""The cases of the campaign: what is done to a deployment under load. Each leaves it running; the runner lets it calm down and judges."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Callable
from typing import NamedTuple

from scylla_spark.core.tasks.task import MAX_PAYLOAD_BYTES
from scylla_spark.errors import ExitCode
from scylla_spark.failpoint import FREEZE, KILL, POINTS, RAISE
from tests.acceptance.place import POOL, Process, now
from tests.faults.site import DISPATCH, INGEST, PLAN, SESSION_S, UP, Site, fill, pause, until
from tests.support.waiting import eventually

TAKEN_OVER_S = SESSION_S + 4.0  # after so long the partitions of a frozen dispatcher are another's
IN_CALLBACK = {
    "dispatch.send.acknowledged"
}  # an error there is lost in the Kafka client: only death and pauses are possible faults
SURVIVED = ("dispatch.send.begun", "dispatch.send.handed_over")  # a failed send is an ambiguous send: a fence decides
FOLD, FOLDS = "ingest.fold.merged", "ingest.near=5h"  # the setting makes what was deferred near at the next start
NOT_MET = {
    "ingest.purge.queue": "needs hours older than a retention; tests/spark/test_queue_retention.py dies there",
    "ingest.purge.deleted": "needs hours older than the retention; tests/spark/test_space.py purges",
    "judge.command": "nothing is under way there; it stands for a defect of ours",
    "judge.fact": "likewise",
    "engine.offer": "likewise; tests/unit/test_defects.py",
    "engine.row": "likewise",
    "engine.expire": "likewise",
    "engine.release": "likewise",
    "engine.fact": "likewise",
    "plan.load": "likewise; tests/unit/test_plan_defects.py",
    "plan.begin": "likewise",
    "plan.decide": "likewise",
    "plan.happened": "likewise",
    "plan.judge": "likewise",
    "plan.watch": "likewise",
}
SIZES = (1, 2, 3, 7, 15, 100, 1023, 1024, 4096, 65_535, 65_536, 131_072, 262_143, 262_144, 262_145, 500_000, 1_000_000)
CHILDREN = (
    "api",
    "reader of lines",
    "python daemon of spark",
    *POOL,
    "jvm of spark",
)  # after the death of the last `up` ends
NAMES = int(os.environ.get("NAMES", "20000"))  # NAMES=1000000 make faults ARGS=names
NOBODIES = 100
NTH = {  # so that it happens in the middle of work, not at the start
    "ingest.tasks.judged": 2, "dispatch.release.decided": 10, "dispatch.release.submitted": 15, "dispatch.membership.confirmed": 4,
    "dispatch.send.begun": 40, "dispatch.send.handed_over": 60, "dispatch.send.acknowledged": 80, "dispatch.facts.read_back": 50,
    "plan.timer": 3, "plan.group.decided": 2, "plan.group.counts": 2, "plan.launch.sent": 3,
}  # fmt: skip


class Case(NamedTuple):
    """One case.

    Attributes:
        play: does it.
        disk: what lies on a small disk of its own: "", "tables", "checkpoints", "broker", "scratch" or "log".
        repeats: whether tables may hold rows twice afterwards (a checkpoint is lost).
    """

    play: Callable[[Site], None]
    disk: str = ""
    repeats: bool = False


def points_of(*parts: str) -> list[str]:
    """The fail points of some parts ("ingest.tasks", …) that are met in any run, in the order of work."""
    return [point for point in POINTS if point.startswith(parts) and point not in (FOLD, *NOT_MET)]


def ingest_tasks_killed(site: Site) -> None:
    """Ingest and its JVM are killed at every point of a batch of tasks, and while deferred tasks are folded."""
    site.begin()
    for point in points_of("ingest.tables", "ingest.tasks"):
        site.meets(INGEST, point, KILL, NTH.get(point, 1))
    site.meets(INGEST, FOLD, KILL, 1, FOLDS)


def ingest_facts_killed(site: Site) -> None:
    """Likewise at every point of a batch of facts; between completions and attempts, and after both."""
    site.begin()
    for point in points_of("ingest.outcomes"):
        site.meets(INGEST, point, KILL)
    site.meets(INGEST, "ingest.outcomes.appended", KILL, 2)


def ingest_tasks_raised(site: Site) -> None:
    """An error at every point of a batch of tasks: ingest must end and say why, and a restart go on; a failed fold is tried again."""
    site.begin()
    for point in points_of("ingest.tables", "ingest.tasks"):
        site.fails(site.meets(INGEST, point, RAISE, NTH.get(point, 1)))
    site.meets(INGEST, FOLD, RAISE, 1, FOLDS)
    site.goes_on()


def ingest_facts_raised(site: Site) -> None:
    """Likewise at every point of a batch of facts."""
    site.begin()
    for point in points_of("ingest.outcomes"):
        site.fails(site.meets(INGEST, point, RAISE))


def ingest_frozen(site: Site) -> None:
    """Ingest is frozen between two writes while a second one starts on the same tables: the second is refused, the first goes on."""
    site.begin()
    frozen = site.meets(INGEST, "ingest.tasks.merged", FREEZE)
    begin = now()
    second = site.start("ingest-second")
    code = second.ended(site.patience)
    del site.processes["ingest-second"]
    if code != 4 or "Another ingest writes the tables" not in second.told():
        site.complaints.append(f"a second ingest ended with {code}: {second.told()[-300:]}")
    site.thaw(frozen, begin, 1)
    site.goes_on()


def takes_killed(site: Site) -> None:
    """The only dispatcher is killed at every point of a take: assignment, fence, scan."""
    _killed(site, "dispatch.take", "dispatch.scan")


def starts_killed(site: Site) -> None:
    """Likewise around the release of tasks to the executor."""
    _killed(site, "dispatch.membership", "dispatch.release")


def sends_killed(site: Site) -> None:
    """Likewise around the send of facts, its answer, and the facts read back."""
    _killed(site, "dispatch.send", "dispatch.facts")


def takes_raised(site: Site) -> None:
    """An error at every point of a take: the dispatcher must end and say why, and a restart go on."""
    _raised(site, "dispatch.take", "dispatch.scan")


def work_raised(site: Site) -> None:
    """Likewise at every point of its work; failed sends are survived."""
    _raised(site, "dispatch.membership", "dispatch.release", "dispatch.facts")
    _again(site, DISPATCH, ",".join(f"{point}:{RAISE}:{NTH[point]}" for point in SURVIVED))
    for point in SURVIVED:
        _survived(site, point)


def work_frozen(site: Site) -> None:
    """One of two dispatchers is frozen at point after point for longer than its session, and goes on each time."""
    site.begin("dispatch-a")
    order = points_of("dispatch.membership", "dispatch.release", "dispatch.send", "dispatch.facts")
    process = _again(site, "dispatch-b", ",".join(f"{point}:{FREEZE}:{20 * n + 2}" for n, point in enumerate(order)))
    seen: set[str] = set()
    while len(seen) < len(order):
        line = lambda: next((p for p in order if p not in seen and f"failpoint {p} {FREEZE}" in process.told()), "")  # noqa: E731
        point = until(line, site.patience, "a further freeze", lambda: sorted(seen))
        seen.add(point)
        site.events.append(f"{FREEZE} {point}")
        site.thaw(process, now(), TAKEN_OVER_S)
        site.supervised()
    site.goes_on(1)


def takes_frozen(site: Site) -> None:
    """A dispatcher is frozen in the middle of taking partitions, and while it loads them, until they are another's."""
    site.begin("dispatch-a")
    for point in points_of("dispatch.take", "dispatch.scan"):
        process = site.meets("dispatch-b", point, FREEZE)
        site.thaw(process, now(), TAKEN_OVER_S)
        site.goes_on()


def shared(site: Site) -> None:
    """Dispatchers share the partitions: one is killed, one added, one frozen and let go on, one stopped in good order."""
    site.begin("dispatch-a", "dispatch-b")
    site.goes_on()
    site.kill_process("dispatch-a")
    site.start("dispatch-c").ready(site.patience)
    del site.processes["dispatch-a"]
    site.goes_on(3)
    site.freeze("dispatch-b", TAKEN_OVER_S)
    site.goes_on(2)
    site.stop("dispatch-c")
    del site.processes["dispatch-c"]
    site.goes_on()


def broker_killed(site: Site) -> None:
    """The broker is killed and restarted: at once, after a session, and after longer than any send waits."""
    site.begin()
    for seconds in (0.0, SESSION_S + 2.0, 20.0):
        site.goes_on()
        site.kill_broker(seconds)
    site.goes_on()


def broker_frozen(site: Site) -> None:
    """The broker is frozen for as long: connections stay open and nothing answers."""
    site.begin()
    for seconds in (4.0, 12.0, 20.0):
        site.goes_on()
        begin, pid = now(), site.broker.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        pause(seconds)
        os.kill(pid, signal.SIGCONT)
        site.events.append(f"freeze broker for {seconds:.0f} s")
        site.trouble("broker", begin)
    site.goes_on()


def takes_without_broker(site: Site) -> None:
    """The broker is killed and comes back while a dispatcher stands in the middle of a take, at point after point."""
    site.begin()
    for point in points_of("dispatch.take", "dispatch.scan"):
        process = site.meets(DISPATCH, point, FREEZE)
        begin = now()
        site.kill_broker(0.0)
        site.thaw(process, begin, 0.5)
        site.goes_on()


def children_killed(site: Site) -> None:
    """Each child of `up` is killed in turn: it is replaced, or `up` ends as an outage and a restart goes on."""
    site.begin_up()
    for part in CHILDREN:
        site.goes_on()
        site.kill_part(part)
    up = site.processes[UP]
    if up.ended(60) != ExitCode.OUTAGE or "error: Spark's JVM has ended" not in up.told():
        site.complaints.append(f"up ended with {up.ended()} after the death of its JVM: {up.told()[-300:]}")
    site.goes_on()


def children_frozen(site: Site) -> None:
    """Each child of `up` that runs no handlers is frozen for a minute; tasks go on meanwhile, and it works again."""
    site.begin_up()
    for part in CHILDREN:
        if part not in POOL:
            site.goes_on()
            site.freeze_part(part, 60)
    site.goes_on()


def up_twice(site: Site) -> None:
    """A second and a third process are to serve the folder of a first: they are refused with words, and it does not suffer."""
    first = site.begin_up()
    for name in ("up-second", "up-third"):
        site.goes_on()
        begin = now()
        second = site.start(name)
        code = second.ended(site.patience)
        del site.processes[name]
        if code != 4 or "Another ingest writes the tables" not in second.told():
            site.complaints.append(f"a further up ended with {code}: {second.told()[-300:]}")
        site.events.append(f"{name} ended with {code}")
        site.trouble("shared partitions", begin)  # it may have had some of them until it was refused
    own = Process("up-embedded", [*site.command(), "up", "-o", "json"], site.folder, site.environment)
    code = own.ended(site.patience)
    if code not in (4, 5) or not own.told().strip():
        site.complaints.append(f"an up with the same broker folder ended with {code}: {own.told()[-300:]}")
    site.events.append(f"up with the same broker folder ended with {code}")
    if not first.running or not site.broker.alive:
        site.complaints.append("the first up, or the broker, did not live through it")
    site.goes_on()


def sizes(site: Site) -> None:
    """Records of one byte up to what the topic takes: payloads up to the limit run, and what is no task is refused; nobody stops."""
    site.begin()
    site.goes_on()
    for number in range(3):
        for size in SIZES:
            site.load.send_sized(number, min(max(size, 16), MAX_PAYLOAD_BYTES))
            site.load.send_garbage(site.rng.randbytes(size))
            site.load.send_garbage(b"{" + b" " * (size - 1))
        site.goes_on()
    site.events.append(f"{len(SIZES)} sizes from 1 to {SIZES[-1]} bytes")


def names(site: Site) -> None:
    """Each task names a queue of its own, and some a handler that nobody has: memory and time must not grow with names ever seen."""
    site.begin()
    site.goes_on()
    begun, named = now(), set()
    for number in range(NAMES):
        named.add(site.load.send_named(f"queue-{number}"))
        if number % 500 == 0:
            pause(0.05)
    waiting = [site.load.send_named(f"lost-{number}", f"nobody-{number}") for number in range(NOBODIES)]
    sent = now()
    site.goes_on()
    site.events.append(
        f"{NAMES} queues, {NOBODIES} handlers; tasks of other queues go on after {(now() - sent) / 1e6:.1f} s"
    )
    until(
        lambda: site.supervised() or named <= site.completions().keys(),
        site.patience + NAMES / 200,
        "all queues have run",
        site.told,
    )
    site.events.append(f"all have run {(now() - begun) / 1e6:.0f} s after the first was sent")
    for key in waiting:
        site.load.cancel(key)


def plans_killed(site: Site) -> None:
    """The planner is killed at every point of its work; each planned second is launched once or told of, each notification counts once."""
    site.begin()
    site.begin_plan()
    for point in points_of("plan."):
        site.notify(PLAN)
        site.meets(PLAN, point, KILL, NTH.get(point, 1))
    site.notify(PLAN)
    site.end_plan()


def random_kills(site: Site) -> None:
    """kill -9 of ingest, dispatch or both, at random moments."""
    site.begin()
    for _ in range(5):
        site.goes_on(site.rng.random() * 4)
        for name in site.rng.choice([[INGEST], [DISPATCH], [DISPATCH], [INGEST, DISPATCH]]):
            site.kill_process(name)
    site.goes_on()


def checkpoint_deleted(site: Site) -> None:
    """The checkpoints are deleted while ingest is down: it reads both topics from the beginning and changes nothing."""
    site.begin()
    site.goes_on()
    site.kill_process(INGEST)
    shutil.rmtree(site.data / "checkpoints")
    site.events.append("delete checkpoints")
    site.goes_on()


def disk_full(site: Site) -> None:
    """The disk under tables or checkpoints is full for a while: dispatch goes on, and so does ingest once there is space."""
    site.begin()
    site.goes_on()
    folder = site.tables.parent if site.tables.parent != site.data else site.data / "checkpoints"
    ballast = fill(folder)
    site.events.append(f"disk under {folder.name} full")
    ingest = site.processes[INGEST]
    with contextlib.suppress(AssertionError):
        eventually(lambda: not ingest.running, 15)
    site.events.append(f"ingest {'goes on' if ingest.running else f'ended with {ingest.ended()}'}")
    ballast.unlink()
    site.goes_on()


def other_disk_full(site: Site) -> None:
    """The disk under temporary files, or under the log, is full for a while: who needs it may end, and a restart goes on."""
    site.begin()
    site.goes_on()
    assert site.small is not None
    ballast = fill(site.small)
    log = site.small / "log.jsonl"
    if log.exists():  # the rest of its last block
        with contextlib.suppress(OSError), log.open("ab", buffering=0) as file:
            while True:
                file.write(b"\n")
    site.events.append("disk full")
    begin = now()
    pause(15)
    for name, process in site.processes.items():
        site.events.append(f"{name} {'goes on' if process.running else f'ended with {process.ended()}'}")
    site.supervised()
    ballast.unlink()
    site.trouble("disk full", begin)
    site.goes_on()


def broker_disk_full(site: Site) -> None:
    """The disk under the broker is full: it ends, or refuses records; with space again and a restart nothing acknowledged is gone."""
    site.begin()
    site.goes_on()
    assert site.small is not None
    begin, ballast = now(), fill(site.small)
    with contextlib.suppress(AssertionError):
        eventually(lambda: not site.broker.alive, 20)
    site.events.append(f"disk under broker full: it {'goes on' if site.broker.alive else 'ends'}")
    ballast.unlink()
    site.broker.stop()
    site.broker.start()
    site.trouble("broker", begin)
    site.goes_on()


def fence_doubted(site: Site) -> None:
    """The fence of a take lands and is taken for lost: the next one of the same dispatcher must not be shut out by it."""
    site.begin(dispatch=f"dispatch.send.handed_over:{RAISE}:1")
    _survived(site, "dispatch.send.handed_over")


def short(site: Site) -> None:
    """What fits into the everyday tests: ingest dies between two writes, dispatch freezes before a release and dies after a send."""
    site.begin(
        ingest=f"ingest.tasks.merged:{KILL}:2",
        dispatch=f"dispatch.release.decided:{FREEZE}:50,dispatch.send.acknowledged:{KILL}:250",
    )
    ingest, dispatch = site.processes[INGEST], site.processes[DISPATCH]
    site.reached(dispatch, "dispatch.release.decided", FREEZE)
    site.thaw(dispatch, now(), TAKEN_OVER_S)
    site.reached(dispatch, "dispatch.send.acknowledged", KILL)
    site.reached(ingest, "ingest.tasks.merged", KILL)
    site.goes_on()


CASES = {
    **{
        play.__name__.replace("_", "-"): Case(play)
        for play in (
            ingest_tasks_killed, ingest_facts_killed, ingest_tasks_raised, ingest_facts_raised, ingest_frozen,
            takes_killed, starts_killed, sends_killed, plans_killed, takes_raised, work_raised, fence_doubted, takes_frozen, work_frozen,
            shared, broker_killed, broker_frozen, takes_without_broker, up_twice, sizes, names, random_kills,
            children_killed, children_frozen,
        )
    },
    "checkpoint-deleted": Case(checkpoint_deleted, repeats=True),
    "tables-disk-full": Case(disk_full, disk="tables"),
    "checkpoint-disk-full": Case(disk_full, disk="checkpoints"),
    "scratch-disk-full": Case(other_disk_full, disk="scratch"),
    "log-disk-full": Case(other_disk_full, disk="log"),
    "broker-disk-full": Case(broker_disk_full, disk="broker"),
}  # fmt: skip
SHORT = Case(short)
MODES = (  # the same points in several modes: a campaign plays one mode of each, the next seed the next
    (("ingest-tasks-killed",), ("ingest-tasks-raised",)),
    (("ingest-facts-killed",), ("ingest-facts-raised",)),
    (("takes-killed",), ("takes-raised",), ("takes-frozen",)),
    (("starts-killed", "sends-killed"), ("work-raised",), ("work-frozen",)),
)


def campaign(seed: int) -> list[str]:
    """Names of the cases that meet each fail point at least once, in the mode whose turn it is, and of all other cases."""
    chosen = {name for modes in MODES for name in modes[seed % len(modes)]}
    others = {name for modes in MODES for names in modes for name in names} - chosen
    return [name for name in CASES if name not in others]


def _killed(site: Site, *parts: str) -> None:
    site.begin()
    for point in points_of(*parts):
        site.meets(DISPATCH, point, KILL, NTH.get(point, 1))


def _raised(site: Site, *parts: str) -> None:
    site.begin()
    for point in points_of(*parts):
        site.fails(site.meets(DISPATCH, point, RAISE, NTH.get(point, 1)))


def _survived(site: Site, point: str) -> None:
    site.reached(site.processes[DISPATCH], point, RAISE)
    site.trouble("failed sends", now())
    site.goes_on()


def _again(site: Site, name: str, points: str) -> Process:
    if name in site.processes and site.processes[name].running:
        site.stop(name)
    return site.start(name, points)
