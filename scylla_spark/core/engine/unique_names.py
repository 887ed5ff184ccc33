"""Unique names: of the open tasks that bear a name the first to be enqueued holds it; later ones that ask for a unique name end.

A lane lies in one partition, so its owner sees all tasks of a name in the order of their records, whoever sent them. What is not in
memory stands in the tables, which are asked before anything is decided: of a new task when its record is read, of all others once
when a partition has been taken. Until then such a task does not start. That it holds its name is not recorded: whatever was enqueued
before it has ended by then, for ever, so every later owner finds the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from scylla_spark.core.engine import action
from scylla_spark.core.engine.fact_recorder import Recorder
from scylla_spark.core.engine.lane import CLOSING, IDLE, OPEN, STUB, Entry, Lane
from scylla_spark.core.engine.partition import ACTIVE, DRAINING, Partition
from scylla_spark.core.engine.state import EngineState
from scylla_spark.core.engine.waiting import Waiting
from scylla_spark.core.records.fact import Fact
from scylla_spark.core.tables.progress import Basis, Tenure
from scylla_spark.core.tasks.key import Name, TaskKey, name_of
from scylla_spark.core.tasks.stored_records import Bearer
from scylla_spark.core.tasks.task import DUPLICATE, Failure


class _Known(NamedTuple):
    """An open task that bears a name, as memory and tables together know it.

    Attributes:
        entry: where it is loaded.
        stored: the tables tell that it is open.
    """

    bearer: Bearer
    entry: Entry | None
    stored: bool


class UniqueNames:
    """Decides which tasks are duplicates.

    Args:
        state: of the engine.
        waiting: where lanes go on.
        recorder: writes the ends of duplicates.
    """

    def __init__(self, state: EngineState, waiting: Waiting, recorder: Recorder) -> None:
        self._state = state
        self._waiting = waiting
        self._recorder = recorder

    # -- what is asked --------------------------------------------------------------------------------------------------

    def ask_all(self, partition: Partition) -> None:
        """A partition releases tasks from now on: of all that the tables hold it is asked once which names several bear."""
        if partition.names.settled:
            self._ask_undecided(partition)
        else:
            self._state.ask(action.AskNames(partition.tenure, None))

    def consider(self, partition: Partition, entry: Entry) -> None:
        """A task is loaded, or more is known of it: if its name is to be unique, it is asked who bears it."""
        if entry.undecided and partition.state is ACTIVE:
            self._ask(partition, [name_of(entry.key)])

    def know_more(self, partition: Partition, key: TaskKey) -> None:
        """An end counts, or the tables have said whether there is one: if a name waited for that, it is asked again who bears it."""
        name = partition.names.after.pop(key, None)
        if name is not None:
            partition.names.pending.discard(name)
            self._ask(partition, [name])

    def _ask(self, partition: Partition, names: Iterable[Name]) -> None:
        """Asks for names about which nothing is under way yet."""
        held = partition.names
        new = [name for name in dict.fromkeys(names) if name not in held.pending]
        if new:
            held.pending.update(new)
            covering = max(partition.let_go_of(name) for name in new)
            self._state.ask(action.AskNames(partition.tenure, new, covering))

    def _ask_undecided(self, partition: Partition) -> None:
        lanes = partition.lanes.values()
        entries = (entry for lane in lanes for entry in (*lane.entries.values(), *lane.beyond.values()))
        self._ask(partition, [name_of(entry.key) for entry in entries if entry.undecided])

    # -- what is answered -----------------------------------------------------------------------------------------------

    def answered(
        self, tenure: Tenure, names: Collection[Name] | None, found: Sequence[Bearer], basis: Basis, now: int
    ) -> None:
        """The answer to `AskNames`.

        Args:
            tenure: in which it was asked.
            names: that were asked about; None: all that an open task wants to be unique.
            found: the open tasks that bear them.
            basis: how far the tables were, from a progress that was read before them.
            now: microseconds since the epoch.
        """
        partition = self._state.held(tenure)
        if partition is None or partition.state is DRAINING:
            return
        if names is None:
            self._all_answered(partition, found, basis, now)
            return
        partition.names.pending.difference_update(names)
        if basis.covers(partition.floor):
            fit = [name for name in names if partition.let_go_of(name) < basis.tasks_offset]
            self._decide(partition, fit, found, now)
            names = set(names).difference(fit)
        self._ask(partition, names)

    def _all_answered(self, partition: Partition, found: Sequence[Bearer], basis: Basis, now: int) -> None:
        """What was enqueued before `basis` is decided; of what came later it is asked by its name."""
        if not basis.covers(partition.floor):
            self._state.ask(action.AskNames(partition.tenure, None))  # what ended meanwhile is forgotten by now
            return
        partition.names.settled = True
        told = {name_of(one.key) for one in found}
        fit = [name for name in told if partition.let_go_of(name) < basis.tasks_offset]
        self._decide(partition, [name for name in fit if name not in partition.names.pending], found, now)
        self._ask(partition, told.difference(fit))
        for lane in list(partition.lanes.values()):
            alone = _alone(lane, told, basis)
            if alone:
                self._decide(partition, alone, (), now)
        self._ask_undecided(partition)

    # -- what is decided ------------------------------------------------------------------------------------------------

    def _decide(self, partition: Partition, names: Iterable[Name], found: Iterable[Bearer], now: int) -> None:
        by_lane: dict[str, set[str]] = defaultdict(set)
        for name in names:
            by_lane[name.lane].add(name.unique)
        stored: dict[Name, list[Bearer]] = defaultdict(list)
        for one in found:
            stored[name_of(one.key)].append(one)
        for ordering_id, uniques in by_lane.items():
            lane = partition.lanes.get(ordering_id)
            loaded = _loaded(lane, uniques)
            for unique in uniques:
                name = Name(ordering_id, unique)
                bearers = _bearers(partition, lane, stored.get(name, ()), loaded.get(unique, ()))
                self._decide_name(partition, lane, name, bearers, now)
            if lane is not None:
                self._settle(partition, lane, now)

    def _decide_name(
        self, partition: Partition, lane: Lane | None, name: Name, bearers: Mapping[TaskKey, _Known], now: int
    ) -> None:
        """Of all open tasks of a name the one that was enqueued first has it."""
        in_order = sorted(bearers.values(), key=lambda known: known.bearer.first)
        if not in_order:
            return
        holder, *others = in_order
        if holder.bearer.first >= partition.tasks_position:
            return  # an earlier record may be unread; it is asked again when the tail comes there
        if others and self._is_ending(partition, holder):
            # whoever has seen its end in the log may ask for the name before we have read that back
            partition.names.wait_for(holder.bearer.key)
            return
        if others and self._is_doubtful(partition, holder):
            return
        if lane is not None and holder.entry is not None and holder.entry.undecided:
            holder.entry.sole = True
            self._drop_if_far(partition, lane, holder.entry)
        for known in others:
            if known.bearer.unique and not self._is_ending(partition, known):
                self._end(partition, known, holder.bearer.key, now)

    def _is_doubtful(self, partition: Partition, known: _Known) -> bool:
        """Returns True if a task may have ended long ago: a record of it came again. Then it is looked up, and its name waits."""
        entry, key = known.entry, known.bearer.key
        if entry is None or entry.verified or known.stored:
            return False
        if partition.is_fresh(key) and key.time_us <= partition.complete_us:
            return False
        partition.names.wait_for(key)
        self._state.ask(action.Lookup(partition.tenure, [key]))
        return True

    def _is_ending(self, partition: Partition, known: _Known) -> bool:
        """Returns True if its end is being written."""
        if known.entry is not None:
            return known.entry.stage is CLOSING
        return known.bearer.key in partition.ending

    def _end(self, partition: Partition, known: _Known, holder: TaskKey, now: int) -> None:
        """A task is a duplicate: it ends, and never starts."""
        entry, key = known.entry, known.bearer.key
        if entry is None:
            partition.ending.add(key)
        elif not entry.undecided or entry.stage is not OPEN or self._is_doubtful(partition, known):
            return
        else:
            entry.stage = CLOSING
        failure = Failure(DUPLICATE, f"{holder} has its name.")
        fact = Fact(key, 0, DUPLICATE, finished_us=now, failure=failure)
        self._recorder.record(partition, fact.of(known.bearer), now)
        if entry is not None and entry.requests:
            self._recorder.answer(partition, key, entry.requests, now)
            entry.requests = ()

    def _drop_if_far(self, partition: Partition, lane: Lane, entry: Entry) -> None:
        """What is due after the look-ahead was kept for this decision alone; a scan will read it."""
        if entry.key.time_us > partition.horizon_us and entry.spare and entry is not lane.active:
            lane.remove(entry.key)
            if entry.attempt:
                partition.keep_in_mind(entry)
            partition.let_far_pass(entry.key, entry.data.offset)

    def _settle(self, partition: Partition, lane: Lane, now: int) -> None:
        if lane.state in IDLE:
            self._waiting.settle(partition, lane, now)


def _alone(lane: Lane, told: Collection[Name], basis: Basis) -> list[Name]:
    """Names of loaded tasks that nobody else bears, neither here nor in the tables.

    Where several that are loaded bear one, the tables are asked: they may know an earlier enqueue of one of them, and tell nothing by
    themselves if that did not ask for a unique name.
    """
    bearers: dict[Name, list[Entry]] = defaultdict(list)
    for entry in (*lane.entries.values(), *lane.beyond.values()):
        bearers[name_of(entry.key)].append(entry)
    return [
        name
        for name, (first, *others) in bearers.items()
        if not others and first.undecided and first.first < basis.tasks_offset and name not in told
    ]


def _loaded(lane: Lane | None, uniques: set[str]) -> Mapping[str, list[Entry]]:
    """The loaded tasks of a lane that bear these uniqueness keys; leases of which only the log tells stand in the tables."""
    found: dict[str, list[Entry]] = defaultdict(list)
    for entry in (*lane.entries.values(), *lane.beyond.values()) if lane is not None else ():
        if entry.key.uniqueness_key in uniques and entry.data.offset != STUB:
            found[entry.key.uniqueness_key].append(entry)
    return found


def _bearers(
    partition: Partition, lane: Lane | None, stored: Iterable[Bearer], loaded: Iterable[Entry]
) -> dict[TaskKey, _Known]:
    """All open tasks that bear a name; what has ended since the tables were written is none."""
    found: dict[TaskKey, _Known] = {}
    for bearer in stored:
        entry = lane.find(bearer.key) if lane is not None else None
        if entry is not None:
            entry.note_first(bearer.first, unique=bearer.unique)
        if bearer.key not in partition.ended:
            found[bearer.key] = _Known(bearer, entry, stored=True)
    for entry in loaded:
        data = entry.data
        bearer = Bearer(entry.key, entry.first, entry.unique, data.queue, data.handler, data.tags)
        found[entry.key] = _Known(bearer, entry, stored=entry.key in found)
    return found
