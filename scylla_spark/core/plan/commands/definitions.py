"""What is asked of definitions: put, delete, pause, resume. All of one record is done, or nothing.

What is asked of many is done in steps, one schedule after the other in order of their names, so that what is decided may be written in
several records. A planner that ends between two of these is followed by one that is told the last name that was done.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Generator, Iterable, Mapping
from typing import Any, Final, NamedTuple

from scylla_spark.core.access.scopes import ALL_QUEUES, QueueBounds
from scylla_spark.core.plan.commands.circles import Circles
from scylla_spark.core.plan.commands.plan_command import PlanCommand
from scylla_spark.core.plan.commands.removal import check_losses
from scylla_spark.core.plan.constraint import Check, MaxLoad, Rate
from scylla_spark.core.plan.launching import Launching
from scylla_spark.core.plan.schedule import Schedule
from scylla_spark.core.plan.schedule_format import is_same_work, read_schedule, stored_schedule
from scylla_spark.core.plan.state.plan_log import GOES_ON, SUCCEEDED, Change
from scylla_spark.core.plan.state.plan_state import MOST_TAGS_RATED, RATE_KEY
from scylla_spark.core.plan.state.schedule_entry import Entry
from scylla_spark.core.plan.state.timers import Timer, Timers
from scylla_spark.core.plan.state.unwritten_changes import Journal
from scylla_spark.core.plan.tables.handing_over import leaves_kept, parts_let_go
from scylla_spark.core.plan.triggers.due_times import Timing
from scylla_spark.core.plan.triggers.observations import Watching
from scylla_spark.core.plan.triggers.tree import keys_of
from scylla_spark.core.plan.triggers.trigger import AtTimes, OnTable, leaves, source_of
from scylla_spark.core.plan.triggers.without_deleted import without_work
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.errors import ArgumentError, ConflictError, NotFoundError
from scylla_spark.table_place import TablePlaces
from scylla_spark.topic_names import WatchableTopics

CHECK_KEY: Final = "check"
"""The key of a schedule with a check."""
LOAD_KEY: Final = "load"
"""The key of a schedule whose constraints look at the load."""
MAX_DEFINITION_BYTES: Final = 256 * 1024
Steps = Generator[str, None, tuple[dict[str, Any], list[TaskKey]]]
"""Yields the name of each schedule that is done; in the end, what became of all by name, and keys of runs that were taken back."""


class Watchable(NamedTuple):
    """The tables and topics that triggers may watch."""

    tables: TablePlaces
    topics: WatchableTopics


class Definitions:
    """Changes what is planned.

    Args:
        journal: takes what is decided.
        timers: when to look again.
        launching: takes back what was launched ahead.
        watching: arms what waits for absence.
        timing: says when the first fire is due.
        watchable: which tables and topics triggers may watch.
    """

    def __init__(
        self, journal: Journal, timers: Timers, launching: Launching, watching: Watching, timing: Timing, watchable: Watchable
    ) -> None:  # fmt: skip
        self._journal = journal
        self._state = journal.state
        self._timers = timers
        self._launching = launching
        self._watching = watching
        self._timing = timing
        self._watchable = watchable
        self.listeners: dict[str, set[str]] = defaultdict(set)  # key → names of schedules
        self._indexed: dict[str, tuple[str, ...]] = {}
        self._circles = Circles(self._state, self.listeners)
        self._listens: bool | None = None  # not known since the last change
        journal.watchers.append(self._watch)

    @property
    def listens_to_handlers(self) -> bool:
        """Returns True if a schedule waits for the end of work that is no schedule, or of tasks with a tag, which anybody may enqueue."""
        if self._listens is None:
            works = (key.removeprefix("work:") for key in self.listeners if key.startswith("work:"))
            self._listens = any(work not in self._state.entries for work in works) or any(
                key.startswith("batch:") and names for key, names in self.listeners.items()
            )
        return self._listens

    def load(self, entry: Entry) -> None:
        """Takes over a schedule of the log."""
        self._add(entry.name, entry.keys)

    # -- put and delete -------------------------------------------------------------------------------------------------

    def put(self, command: PlanCommand, now: int, last: str = "") -> Steps:
        """Stores definitions; those of the same content stay as they are.

        Args:
            command: with the definitions.
            now: microseconds since the epoch.
            last: the schedules up to this one are done; empty: none.

        Returns:
            What became of them, by name; keys of runs that were taken back.

        Raises:
            ArgumentError: one of them is none, or watches a table or topic that triggers may not watch; nothing is changed.
            ConflictError: one of the names is taken, and `ifAbsent` was said, or one is at another change than `expect` says and
                differs from what is given.
        """
        read = [_read(value) for value in command.fields["schedules"]]
        for schedule, _ in read:
            self._check_sources(schedule)
        names = [schedule.name for schedule, _ in read]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ArgumentError(f"The schedule {twice!r} is defined twice.", hint="Give each a name of its own.")
        taken = [name for name in names if name in self._state.entries and name > last]
        if taken and command.fields.get("ifAbsent"):
            raise ConflictError(f"There is a schedule {taken[0]!r} already.", hint="Update it, or choose another name.")
        self._check_expected(command, last, {schedule.name: text for schedule, text in read})
        self._circles.check(schedule for schedule, _ in read)
        self._check_tags_rated(schedule for schedule, _ in read)
        todo: dict[str, tuple[Schedule, str] | None] = dict.fromkeys(self._pruned(command, set(names)))
        todo |= {one[0].name: one for one in read}
        done: dict[str, Any] = {name: "stored" for name in names if name <= last}
        keys: list[TaskKey] = []
        for name, one in sorted(todo.items()):
            if name > last:
                done[name], taken_back = self._put(*one, command, now) if one else self._drop(name, command, now)
                keys += taken_back
                yield name
        return done, keys

    def _check_tags_rated(self, schedules: Iterable[Schedule]) -> None:
        """Refuses limits of the rate of more tags than launches are counted of: such a limit would not hold."""
        new = {key for schedule in schedules for key in _rate_keys(schedule)} - self.listeners.keys()
        if new and len(new) + sum(key.startswith(RATE_KEY) for key in self.listeners) > MOST_TAGS_RATED:
            raise ArgumentError(
                f"The rates of more than {MOST_TAGS_RATED:,} tags would be limited.",
                hint="Delete schedules that limit the rate of a tag, or share tags.",
            )

    def _check_sources(self, schedule: Schedule) -> None:
        for source in map(source_of, leaves(schedule.trigger)):
            if isinstance(source, OnTable):
                self._watchable.tables.of(source.table)
            elif source is not None:
                self._watchable.topics.check(source.topic)

    def _put(self, schedule: Schedule, text: str, command: PlanCommand, now: int) -> tuple[str, list[TaskKey]]:
        old = self._state.entries.get(schedule.name)
        if old is not None and old.text == text:
            return "unchanged", []
        pause = old if old is not None and old.paused and "paused" not in (schedule.definition or {}) else None
        paused = schedule.paused or pause is not None
        goes_on = old is not None and old.paused == paused and is_same_work(old.text, text)
        taken_back: list[TaskKey] = []
        if old is not None and not goes_on:
            taken_back = self._let_go(old, now, "its schedule was changed")
        retagged = old is not None and set(old.tags) != set(schedule.tags)
        if old is not None and (retagged or old.handler != schedule.work.handler):
            self._launching.outlive(old, retagged=retagged)
        keeps = old.keeps if old is not None and goes_on else paused and schedule.policies.on_pause != "drop"
        keys = _keys(schedule)
        fields = {
            "text": text, "revision": (old.revision if old else 0) + 1, "keys": keys, "handler": schedule.work.handler,
            "paused": paused, "note": pause.note if pause else schedule.note, "until_us": pause.until_us if pause else 0,
            "author": command.author, "changed_us": now, "cursor_us": now,
            "next_us": 0 if paused and not keeps else self._timing.begin(schedule, now), **({"keeps": True} if keeps else {}),
        }  # fmt: skip
        if "starts" in keys:
            fields["since_us"] = now
        if LOAD_KEY in keys and not self.listeners.get(LOAD_KEY):
            self._launching.expect_load(now)
        if old is not None and goes_on:
            fields |= {"cursor_us": old.cursor_us, "next_us": old.next_us}
            fields |= {name: value for name in ("kept_us", "since_us") if (value := getattr(old, name))}
            fields |= {GOES_ON: True} if old.jobs or old.seen_us or old.held_us or old.silent_us else {}
        kept = leaves_kept(old.schedule.trigger, schedule.trigger, old.tables) if old is not None else {}
        put = ("put", schedule.name, fields, *_leaves_kept(old, kept, keys))
        let_go = parts_let_go(old, schedule.trigger, kept) if old is not None else []
        self._journal.note_together(put, *let_go)
        if goes_on:
            self._expect(self._state.entries[schedule.name], schedule, now)
        elif not paused or keeps:
            self._begin(self._state.entries[schedule.name], schedule, now)
        return ("changed" if old is not None else "added"), taken_back

    def _begin(self, entry: Entry, schedule: Schedule, now: int) -> None:
        """Sets the timers of a schedule; `schedule` is its definition, which the entry would read from its text again."""
        if entry.next_us:
            self._timers.add(Timer(entry.next_us, entry.name, "time"))
        if not all(isinstance(leaf, AtTimes) for leaf in leaves(schedule.trigger)):
            self._watching.arm(entry, now)
        self._expect(entry, schedule, now)

    def _expect(self, entry: Entry, schedule: Schedule, now: int) -> None:
        expect_every_us = schedule.policies.expect_every_us
        if expect_every_us and not entry.paused:
            self._timers.add(Timer(now + expect_every_us, entry.name, "silent"))

    def _let_go(self, entry: Entry, now: int, why: str) -> list[TaskKey]:
        """Drops what a schedule waits for, each with a row, and takes back what is ahead; keys of that."""
        self._timing.give_up(entry, now, why)
        self._launching.drop_jobs(entry, now, why)
        return self._launching.cancel_ahead(entry, now, why)

    def _pruned(self, command: PlanCommand, kept: set[str]) -> list[str]:
        """Names that a set does not have any more: those of its owner that are not given."""
        owner = command.fields.get("prune")
        if owner is None:
            return []
        mine = self.listeners.get(f"owner:{owner}", set())
        return sorted(mine - kept)

    def delete(self, command: PlanCommand, now: int, last: str = "") -> Steps:
        """Forgets schedules; what has run stays in the tables. See `put` for arguments and result.

        Raises:
            NotFoundError: one of the names is not there; nothing is changed.
            ConflictError: one is at another change than `expect` says, or schedules outside of `bounds` wait for one; nothing is changed.
        """
        self._check_expected(command, last)
        chosen = self._chosen(command, last)
        if not last:
            check_losses(self._state.entries, chosen, bounds_of(command))
        done: dict[str, Any] = {name: "removed" for name in command.fields.get("names", ()) if name <= last}
        keys: list[TaskKey] = []
        for name in chosen:
            done[name] = "removed"
            if name in self._state.entries:  # it may have gone with another
                keys += self._drop(name, command, now)[1]
            keys += self._without(name, done, command, now)
            yield name
        return done, keys

    def _without(self, gone: str, done: dict[str, Any], command: PlanCommand, now: int) -> list[TaskKey]:
        """Takes a schedule that is gone out of the triggers that wait for it; what can never fire any more goes too."""
        if self.listeners.get(f"runs:{gone}"):
            return []  # a handler of that name still runs
        keys: list[TaskKey] = []
        for name in sorted(self.listeners.get(f"work:{gone}", ())):
            if name not in self._state.entries:  # it has gone with one before it
                continue
            value = json.loads(self._state.entries[name].text)
            left = without_work(value["trigger"], gone)
            if left is not None:  # not judged anew: what it names may be gone, and then a fire says so
                pruned = {**value, "trigger": left}
                done[name], taken_back = self._put(stored_schedule(pruned), text_of(pruned), command, now)
                keys += taken_back
                continue
            done[name], taken_back = self._drop(name, command, now)
            keys += [*taken_back, *self._without(name, done, command, now)]
        return keys

    def _drop(self, name: str, command: PlanCommand, now: int) -> tuple[str, list[TaskKey]]:
        entry = self._state.entries[name]
        taken_back = self._let_go(entry, now, "its schedule was removed")
        self._launching.close_ahead(entry, now)
        self._launching.outlive(entry)
        if entry.last_success_us:  # it still counts for its handler, also where a snapshot has not come to the schedule
            self._journal.note(SUCCEEDED, entry.success_of or entry.handler, entry.last_success_us)
        self._journal.note(
            "drop",
            name,
            {"at_us": now, "author": command.author, "revision": entry.revision, "generation": entry.generation},
        )
        return "removed", taken_back

    # -- pause and resume -----------------------------------------------------------------------------------------------

    def pause(self, command: PlanCommand, now: int, last: str = "") -> Steps:
        """Stops schedules from firing: drops what they wait for, and takes back what is ahead. See `put` for arguments and result.

        Raises:
            NotFoundError: one of the names is not there.
            ConflictError: a schedule that was named alone is paused already, and neither its note nor its end is to change.
        """
        names = self._chosen(command, last)
        todo = [name for name in names if not self._state.entries[name].paused or self._pauses_anew(name, command)]
        if names and not todo and "names" in command.fields and not last:
            raise ConflictError(
                f"The schedule {names[0]!r} is paused already.", hint="Give another note or end, or leave it."
            )
        done: dict[str, Any] = {name: "paused" for name in command.fields.get("names", ()) if name <= last}
        until_us, note = command.fields.get("until", 0), command.fields.get("note", "")
        keys: list[TaskKey] = []
        for name in todo:
            entry = self._state.entries[name]
            before = (entry.note, entry.until_us) if entry.paused else ("", 0)
            keys += self.stop(entry, note or before[0], command.author, now, until_us or before[1], keeps=True)
            done[name] = "paused"
            yield name
        return done, keys

    def _pauses_anew(self, name: str, command: PlanCommand) -> bool:
        """Returns True if a paused schedule that is named is given another note, or another end of its pause; by a tag none is."""
        entry, fields = self._state.entries[name], command.fields
        before = {"note": entry.note, "until": entry.until_us}
        return name in fields.get("names", ()) and any(
            fields.get(one, was) not in ("", was) for one, was in before.items()
        )

    def stop(
        self, entry: Entry, note: str, author: str, now: int, until_us: int = 0, *, keeps: bool = False
    ) -> list[TaskKey]:
        """Pauses one schedule.

        Args:
            entry: the schedule.
            note: why, for people.
            author: who wants it.
            now: microseconds since the epoch.
            until_us: when the pause ends by itself; 0: it does not.
            keeps: what waits and what comes is kept, if `on_pause` says so; not after a pause that kept nothing.

        Returns:
            Keys of what was ahead.
        """
        why = "its schedule was paused"
        fields = {"paused": True, "note": note, "author": author, "changed_us": now, "until_us": until_us, "next_us": 0}
        if keeps and not entry.is_deaf and entry.schedule.policies.on_pause != "drop":
            ahead = [run.planned_us - 1 for run in entry.active() if run.key.time_us > now]
            cursor_us = min([entry.cursor_us, *ahead])
            next_us = self._timing.begin(entry.schedule, cursor_us) if ahead else entry.next_us
            fields |= {"keeps": True, "cursor_us": cursor_us, "next_us": next_us}
            taken_back = self._launching.cancel_ahead(entry, now, why)
        else:
            fields |= {"keeps": False} if entry.keeps else {}
            taken_back = self._let_go(entry, now, why)
        self._journal.note("set", entry.name, fields)
        if until_us:
            self._timers.add(Timer(until_us, entry.name, "until"))
        return taken_back

    def resume(self, command: PlanCommand, now: int, last: str = "") -> Steps:
        """Lets schedules fire again, from now on. See `put` for arguments and result.

        With `fromNow` what has come since they were paused is left out: to their tables, and what they keep.

        Raises:
            NotFoundError: one of the names is not there.
            ConflictError: a schedule that was named alone is not paused.
            ArgumentError: it is to leave out versions, and its trigger would begin at earlier ones again; nothing is changed.
        """
        names = self._chosen(command, last)
        todo = [name for name in names if self._state.entries[name].paused]
        if names and not todo and "names" in command.fields and not last:
            raise ConflictError(f"The schedule {names[0]!r} is not paused.", hint="Nothing is to be done.")
        done: dict[str, Any] = {name: "resumed" for name in command.fields.get("names", ()) if name <= last}
        forgets = command.fields.get("fromNow", False)
        for name in todo if forgets else ():
            _check_start(self._state.entries[name])
        for name in todo:
            if forgets and self._state.entries[name].keeps:
                self._let_go(self._state.entries[name], now, "its schedule was resumed without what had come")
                self._journal.note("set", name, {"keeps": False})
            if forgets and self._state.entries[name].tables:
                self._forget_tables(self._state.entries[name], command.author, now)
            self.go_on(self._state.entries[name], command.author, now)
            done[name] = "resumed"
            yield name
        return done, []

    def _forget_tables(self, entry: Entry, author: str, now: int) -> None:
        """A schedule forgets how far its tables were read: like a new one, it begins with what comes once they are looked at."""
        fields = {
            "text": entry.text, "revision": entry.revision, "keys": list(entry.keys), "handler": entry.handler, "paused": True,
            "note": entry.note, "until_us": entry.until_us, "author": author, "changed_us": now, "cursor_us": now, "next_us": 0,
        }  # fmt: skip
        self._journal.note("put", entry.name, fields, [])

    def go_on(self, entry: Entry, author: str, now: int) -> None:
        """Resumes one schedule.

        Args:
            entry: the schedule.
            author: who wants it.
            now: microseconds since the epoch.
        """
        keeps, schedule = entry.keeps, entry.schedule
        fields = {
            "paused": False, "note": schedule.note, "author": author, "changed_us": now, "until_us": 0, "failures": 0,
        }  # fmt: skip
        if keeps:
            self._timing.drop_more_than_kept(entry, now)
            fields |= {"keeps": False, "kept_us": now, "next_us": self._timing.begin(schedule, entry.cursor_us)}
        else:
            fields |= {"cursor_us": now, "next_us": self._timing.begin(schedule, now)}
            fields |= {"since_us": now} if "starts" in entry.keys else {}
        self._journal.note("set", entry.name, fields)
        if not keeps:
            self._begin(entry, schedule, now)
            return
        self._launching.load(entry)
        self._watching.load(entry)
        self._expect(entry, schedule, now)
        if entry.next_us:
            self._timers.add(Timer(entry.next_us, entry.name, "time"))

    # -- which are meant ------------------------------------------------------------------------------------------------

    def _chosen(self, command: PlanCommand, last: str) -> list[str]:
        fields, entries, bounds = command.fields, self._state.entries, bounds_of(command)

        def is_there(name: str) -> bool:
            return name in entries and (bounds == ALL_QUEUES or bounds.has(entries[name].schedule.work.queue))

        missing = [name for name in fields.get("names", ()) if not is_there(name) and name > last]
        if missing:
            raise NotFoundError(f"There is no schedule {missing[0]!r}.", hint="`scylla-spark schedule list` names all.")
        chosen = set(fields.get("names", ()))
        if "tag" in fields:
            chosen |= self.listeners.get(f"tag:{fields['tag']}", set())
        if "changedFrom" in fields:
            until_us = fields.get("changedUntil", 2**63)
            chosen |= {entry.name for entry in entries.values() if fields["changedFrom"] <= entry.changed_us < until_us}
        return sorted(name for name in chosen if name > last and (name not in entries or is_there(name)))

    def _check_expected(self, command: PlanCommand, last: str, given: Mapping[str, str] | None = None) -> None:
        """Refuses a change of what has changed since the caller read it, unless the text that is given is stored already."""
        for name, changed_us in command.fields.get("expect", {}).items():
            entry = self._state.entries.get(name)
            found = entry.changed_us if entry is not None else 0
            is_given = entry is not None and given is not None and given.get(name) == entry.text
            if found != changed_us and name > last and not is_given:
                raise ConflictError(f"The schedule {name!r} was changed meanwhile.", hint="Look at it, and ask again.")

    def _watch(self, change: Change) -> None:
        """Keeps the index of who listens to what."""
        self._listens = None if change[0] in ("put", "drop") else self._listens
        if change[0] in ("put", "drop"):
            for key in self._indexed.pop(change[1], ()):
                self.listeners[key].discard(change[1])
                if not self.listeners[key]:
                    del self.listeners[key]
        if change[0] == "put":
            self._add(change[1], tuple(change[2]["keys"]))

    def _add(self, name: str, keys: tuple[str, ...]) -> None:
        self._indexed[name] = keys
        self._listens = None
        for key in keys:
            self.listeners[key].add(name)


def bounds_of(command: PlanCommand) -> QueueBounds:
    """The queues into which a schedule must send, so that the caller of a command may change it."""
    return QueueBounds.of_wire(command.fields.get("bounds"))


def _check_start(entry: Entry) -> None:
    """Checks that a schedule begins with what comes from now on once it does not know how far its tables and topics were read.

    Raises:
        ArgumentError: it would begin at earlier versions or offsets.
    """
    for source in map(source_of, leaves(entry.schedule.trigger)):
        if source is not None and source.start != "now":
            name = source.table if isinstance(source, OnTable) else source.topic
            raise ArgumentError(
                f"The schedule {entry.name!r} begins to read {name!r} at {source.start!r}, so it cannot begin anew from now on.",
                hint="Put it with `start` left out, and resume it then.",
            )


def _keys(schedule: Schedule) -> list[str]:
    """Returns what it listens to and is found by."""
    calendars = {leaf.times.calendar for leaf in leaves(schedule.trigger) if isinstance(leaf, AtTimes)}
    keys = [*keys_of(schedule.trigger), f"runs:{schedule.work.handler}", *(f"tag:{tag}" for tag in schedule.tags)]
    keys += _rate_keys(schedule)
    keys += [
        key for one in schedule.constraints if isinstance(one, Check) for key in (CHECK_KEY, f"runs:{one.handler}")
    ]
    keys += [LOAD_KEY] if any(isinstance(one, MaxLoad) for one in schedule.constraints) else []
    keys += [f"calendar:{name}" for name in sorted(calendars) if name]
    keys += [f"owner:{schedule.owner}"] if schedule.owner else []
    keys += ["starts"] if any(key.startswith("start:") for key in keys) else []
    return keys + (["deadline"] if schedule.policies.expect_every_us else [])


def _rate_keys(schedule: Schedule) -> list[str]:
    """Returns a key for each tag whose rate a schedule limits."""
    tags = {one.tag for one in schedule.constraints if isinstance(one, Rate) and one.tag}
    return [f"{RATE_KEY}{tag}" for tag in sorted(tags)]


def text_of(definition: Mapping[str, Any]) -> str:
    """A definition as it is stored: two that are the same have the same text."""
    return json.dumps(definition, separators=(",", ":"), ensure_ascii=False, sort_keys=True)


def _leaves_kept(old: Entry | None, found: Mapping[int, int], keys: list[str]) -> list[list[tuple[int, int]]]:
    """Returns which leaves go on where one of before stands, if older readers would not find that by themselves."""
    if old is None or not old.tables:
        return []
    plain = {number: number for number in sorted(old.tables)} if list(old.keys) == keys else {}
    return [list(found.items())] if found != plain else []


def _read(value: Mapping[str, Any]) -> tuple[Schedule, str]:
    schedule = read_schedule(value)
    text = text_of(value)
    if len(text.encode()) > MAX_DEFINITION_BYTES:
        raise ArgumentError(f"The schedule {schedule.name!r} has more than {MAX_DEFINITION_BYTES} bytes.")
    return schedule, text
