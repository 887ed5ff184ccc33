"""What the planner holds of one schedule: its definition as text, what its trigger has seen, and the runs that have not ended.

Entries are changed by `plan_state` alone. They are kept small, since there may be a hundred thousand: the definition stays text until
a fire needs it. All instants are integer microseconds since the epoch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple

from scylla_spark.core.plan.constraint import MOST_RATE, Asked
from scylla_spark.core.plan.schedule import Schedule
from scylla_spark.core.plan.schedule_format import stored_schedule
from scylla_spark.core.plan.state.backfill_entry import BackfillEntry
from scylla_spark.core.plan.state.plan_log import CAUGHT_UP, PROMISED
from scylla_spark.core.tasks.key import TaskKey

PENDING_TRIGGER: Final = "pending_trigger"
PENDING_CONSTRAINT: Final = "pending_constraint"
PENDING_LAUNCH: Final = "pending_launch"
MOST_RUNS: Final = 1_000
MOST_JOBS: Final = 100
MOST_KEPT: Final = 1_000  # jobs or times of a pause
MOST_LAUNCHES_KEPT: Final = MOST_RATE
MOST_PARTS: Final = 10_000  # of a table; older planners forget one that is beyond


class Latch(NamedTuple):
    """What one leaf of a trigger has seen since the last launch.

    Attributes:
        fired: it holds.
        seen: partitions, commits, or ends of runs or of tasks of a batch.
        rows: of partitions or commits; of a batch: tasks that have failed.
        size: their bytes; of a batch: tasks that were cancelled, or ended unrun.
        values: what templates may know of it.
    """

    fired: bool = False
    seen: int = 0
    rows: int = 0
    size: int = 0
    values: Mapping[str, Any] | None = None


class Job(NamedTuple):
    """One round of a schedule, from the first event to the launch.

    Attributes:
        generation: number of the round.
        state: "pending_trigger", "pending_constraint", or "pending_launch" for one that waits for another run to end.
        first_us: when its first event came.
        planned_us: the time it is named by; 0 while its trigger does not hold.
        latches: number of a leaf → what it has seen.
        asked: the state of its check; None: none was asked.
    """

    generation: int
    state: str
    first_us: int
    planned_us: int = 0
    latches: Mapping[int, Latch] = {}
    asked: Asked | None = None

    def to_json(self) -> dict[str, Any]:
        """As it travels."""
        found = self._asdict() | {"latches": {str(leaf): latch._asdict() for leaf, latch in self.latches.items()}}
        return found if self.asked is not None else {name: value for name, value in found.items() if name != "asked"}

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Job:
        """From what `to_json` gave."""
        latches = {int(leaf): Latch(**latch) for leaf, latch in found["latches"].items()}
        more = {"asked": Asked.of(found["asked"])} if found.get("asked") is not None else {}
        return cls(**{**found, "latches": latches, **more})


class Run(NamedTuple):
    """A launched run that has not ended.

    Attributes:
        generation: of its job.
        planned_us: the time it is named by.
        key: of its task.
        by_hand: it was asked for, so policies do not count it.
        cancelled: it was asked to end before it began: verdict and reason of the row of `fires` that closes its launch, if it never
            begins; True where an older planner asked; False: it was not.
        caught_up: it is one of all the times that were missed, and no later one cancels it.
        start_by_us: when it is told of that it has not started; 0: never, or it has started, or was told of.
        end_by_us: when it is told of that it has not ended; 0: never, or it was told of.
    """

    generation: int
    planned_us: int
    key: TaskKey
    by_hand: bool = False
    cancelled: tuple[str, str] | bool = False
    caught_up: bool = False
    start_by_us: int = 0
    end_by_us: int = 0

    @classmethod
    def of(cls, found: list[Any], *, caught_up: bool = False, promised: Sequence[int] = (0, 0)) -> Run:
        """From a list of its fields.

        Args:
            found: its first five.
            caught_up: as it stands elsewhere.
            promised: by when it is to start and to end, likewise.
        """
        by_hand, cancelled = (*found[3:], False, False)[:2]
        if isinstance(cancelled, list):
            cancelled = (cancelled[0], cancelled[1])
        return cls(found[0], found[1], TaskKey(*found[2]), by_hand, cancelled, caught_up, *promised)


class Handed(NamedTuple):
    """Which versions of a watched table were handed over to runs.

    Attributes:
        table_id: which table; empty: whichever is found, since there was none when counting began.
        version: all up to this one …
        at_us: … the last time then; 0: none was.
        parts: of a table whose partitions fire for themselves: partition → the same of it, where that is more.
    """

    table_id: str
    version: int
    at_us: int = 0
    parts: Mapping[str, tuple[int, int]] = {}

    @classmethod
    def of(cls, found: Sequence[Any]) -> Handed:
        """From a list of its fields."""
        return cls(found[0], found[1], found[2], {part: (one[0], one[1]) for part, one in found[3].items()})

    def is_of(self, *table_ids: str) -> bool:
        """Returns True if these are versions of one of some tables."""
        return not self.table_id or self.table_id in table_ids

    def of_part(self, part: str) -> tuple[int, int]:
        """The last version of a partition that was handed over, and when."""
        return self.parts.get(part, (self.version, self.at_us))

    def all_up_to(self, table_id: str, version: int, since_us: int) -> Handed:
        """The same after all partitions were handed over up to a version; those are known on that are ahead of it, or were so lately.

        Args:
            table_id: which table it is there.
            version: of the table.
            since_us: what was handed over after this instant is known on, microseconds since the epoch.
        """
        parts = {
            part: (max(last, version), at_us)
            for part, (last, at_us) in self.parts.items()
            if last > version or at_us > since_us
        }
        return Handed(table_id, version, self.at_us, parts)

    def with_part(self, part: str, version: int, at_us: int) -> Handed:
        """The same after more of a partition was handed over. None is ever forgotten: it would be handed over once more.

        Args:
            part: values of the partition's columns, as text.
            version: of the table, up to which it was handed over.
            at_us: when, microseconds since the epoch.
        """
        return self._replace(parts={**self.parts, part: (version, at_us)})


@dataclass(slots=True)
class Entry:
    """One schedule.

    Attributes:
        name: unique.
        text: its definition, JSON.
        revision: grows with every change of the definition.
        keys: what it listens to, such as "time", "event:NAME", "dataset:NAME", "work:NAME", "table:PLACE".
        handler: what it runs.
        paused: it fires nothing.
        keeps: while it is paused, what comes is kept as `on_pause` says; never after a defect.
        kept_us: what had come by then was kept during a pause, and runs regardless of other runs; 0: nothing was.
        until_us: when a pause ends by itself; 0: it does not.
        note: why it is paused, or anything else for people.
        author: who changed it last.
        changed_us: when.
        since_us: runs that began before do not count for a trigger on starts; 0: all do.
        cursor_us: fires planned until then are decided.
        next_us: when the next fire by time is to be decided, at the earliest; 0: none is.
        held_us: times that had come by then and are not decided wait for a place among its jobs or runs: no planner missed them; 0: none
            does.
        generation: number of its last job.
        failures: failed runs in a row.
        last_success_us: when its last successful run ended; 0: none did.
        success_of: the handler of that run, if it is another by now.
        silent_us: when it was told of last that none has for too long; 0: never.
        launches_us: its latest launches, as many as rate limits look at.
        jobs: generation → job.
        runs: generation → run that has not ended.
        seen_us: number of a leaf that waits for absence → when something came last; negative: it has fired since.
        tables: number of a leaf on a table → what of it was handed over.
        backfills: number of a backfill → how it stands; those that are over for longest are forgotten.
    """

    name: str
    text: str
    revision: int = 1
    keys: tuple[str, ...] = ()
    handler: str = ""
    paused: bool = False
    keeps: bool = False
    kept_us: int = 0
    until_us: int = 0
    note: str = ""
    author: str = ""
    changed_us: int = 0
    since_us: int = 0
    cursor_us: int = 0
    next_us: int = 0
    held_us: int = 0
    generation: int = 0
    failures: int = 0
    last_success_us: int = 0
    success_of: str = ""
    silent_us: int = 0
    launches_us: tuple[int, ...] = ()
    jobs: dict[int, Job] = field(default_factory=dict)
    runs: dict[int, Run] = field(default_factory=dict)
    seen_us: dict[int, int] = field(default_factory=dict)
    tables: dict[int, Handed] = field(default_factory=dict)
    backfills: dict[int, BackfillEntry] = field(default_factory=dict)

    @property
    def schedule(self) -> Schedule:
        """Its definition, read again if it was not needed lately."""
        return _read(self.text)

    @property
    def collecting(self) -> Job | None:
        """The job whose trigger does not hold yet; there is one at most."""
        return next((job for job in self.jobs.values() if job.state == PENDING_TRIGGER), None)

    @property
    def is_full(self) -> bool:
        """Returns True if as many jobs wait as may; one that collects is none of them. During a pause `wait_for_resume` decides."""
        return not self.paused and sum(job.state != PENDING_TRIGGER for job in self.jobs.values()) >= MOST_JOBS

    @property
    def is_deaf(self) -> bool:
        """Returns True if what comes has no effect: the schedule is paused, and keeps nothing."""
        return self.paused and not self.keeps

    @property
    def has_no_room(self) -> bool:
        """Returns True if so many runs are active that no other is launched."""
        return len(self.runs) >= MOST_RUNS

    @property
    def tags(self) -> tuple[str, ...]:
        """Its tags, each once."""
        return tuple(dict.fromkeys(key.removeprefix("tag:") for key in self.keys if key.startswith("tag:")))

    def active(self) -> list[Run]:
        """Runs that policies count."""
        return [run for run in self.runs.values() if not run.by_hand and not run.cancelled]

    def to_json(self) -> dict[str, Any]:
        """The entry, for snapshots; what is at its default is left out. Backfills are told of apart."""
        plain = {name: getattr(self, name) for name in _PLAIN if getattr(self, name) != _DEFAULTS.get(name)}
        more: dict[str, Any] = {
            "jobs": [job.to_json() for job in self.jobs.values()],
            "runs": [run[:_RUN_FIELDS] for run in self.runs.values()],
            CAUGHT_UP: [generation for generation, run in self.runs.items() if run.caught_up],
            PROMISED: [run[:1] + run[-2:] for run in self.runs.values() if any(run[-2:])],
            "seen_us": {str(leaf): at for leaf, at in self.seen_us.items()},
            "tables": {str(leaf): handed for leaf, handed in self.tables.items()},
        }
        return plain | {name: value for name, value in more.items() if value}

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Entry:
        """From what `to_json` gave."""
        entry = cls(**{name: found[name] for name in _PLAIN if name in found})
        entry.keys, entry.launches_us = tuple(entry.keys), tuple(entry.launches_us)
        entry.jobs = {job["generation"]: Job.of(job) for job in found.get("jobs", ())}
        caught_up = frozenset(found.get(CAUGHT_UP, ()))
        promised = {number: by for number, *by in found.get(PROMISED, ())}
        entry.runs = {
            run[0]: Run.of(run, caught_up=run[0] in caught_up, promised=promised.get(run[0], (0, 0)))
            for run in found.get("runs", ())
        }
        entry.seen_us = {int(leaf): at for leaf, at in found.get("seen_us", {}).items()}
        entry.tables = {int(leaf): Handed.of(handed) for leaf, handed in found.get("tables", {}).items()}
        return entry


_RUN_FIELDS: Final = 5  # those that stand in a list
_APART: Final = frozenset({"jobs", "runs", "seen_us", "tables", "backfills"})
_PLAIN: Final = tuple(name for name in Entry.__dataclass_fields__ if name not in _APART)
_DEFAULTS: Final = {name: Entry.__dataclass_fields__[name].default for name in _PLAIN}


@lru_cache(maxsize=4_096)
def _read(text: str) -> Schedule:
    return stored_schedule(json.loads(text))
