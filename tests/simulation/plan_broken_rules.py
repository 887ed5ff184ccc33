"""Rules of the planner, each broken on purpose, to see that a story shows it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from scylla_spark.core.plan import backfilling, constraint, deadlines, ended_runs, handler_runs, launching
from scylla_spark.core.plan.commands import answers, definitions
from scylla_spark.core.plan.notices import gathering
from scylla_spark.core.plan.state import backfill_entry, group_writer, plan_state, schedule_entry, unwritten_changes
from scylla_spark.core.plan.tables import handing_over
from scylla_spark.core.plan.tables import watch as table_watch
from scylla_spark.core.plan.triggers import due_times, observations
from scylla_spark.core.records.fact import FenceLog
from scylla_spark.services.plan.planner_clock import PlannerClock
from tests.simulation import plan_world

Break = Callable[[pytest.MonkeyPatch], None]


def fences_are_ignored(patch: pytest.MonkeyPatch) -> None:
    """Groups of a planner that was fenced out are believed, by all who read."""

    def record(self: plan_world.Process, value: bytes, offset: int) -> None:
        if plan_world.plan_log.is_plan(value) and self.planner is None:
            self.fences = FenceLog(plan_world.group_of(value).fence)
        original(self, value, offset)

    original = plan_world.Process._record
    patch.setattr(plan_world.Process, "_record", record)


def launches_before_it_counts(patch: pytest.MonkeyPatch) -> None:
    """Tasks are sent with the group, not once it was read back."""

    def fly(self: plan_world.Process, value: bytes) -> None:
        original(self, value)
        if plan_world.plan_log.is_plan(value):
            for change in plan_world.group_of(value).changes:
                if change[0] == "send":
                    self.world.engine.take(change[1])

    original = plan_world.Process._fly
    patch.setattr(plan_world.Process, "_fly", fly)


def forgets_what_was_not_sent(patch: pytest.MonkeyPatch) -> None:
    """A new planner sends nothing again."""
    patch.setattr(plan_state, "_send", lambda state, change: None)
    patch.setitem(plan_state._WHOLE, "send", lambda state, change: None)


def positions_apart_from_changes(patch: pytest.MonkeyPatch) -> None:
    """Where commands were read to is written only when nothing else is."""

    def seal(self: Any, now: int, partly: Any = None, **more: Any) -> None:
        moved, self._commands_moved = self._commands_moved, False
        original(self, now, partly, **more)
        self._commands_moved = moved

    original = group_writer.GroupWriter.seal
    patch.setattr(group_writer.GroupWriter, "seal", seal)


def cursor_is_not_written(patch: pytest.MonkeyPatch) -> None:
    """A fire by time does not move the cursor of its schedule."""

    def fire(state: Any, entry: Any, change: Any) -> None:
        original(state, entry, [*change[:2], {**change[2], "timed": False}])

    original = plan_state._fire
    patch.setitem(plan_state._OF_ENTRY, "fire", fire)


def limits_per_schedule(patch: pytest.MonkeyPatch) -> None:
    """A limit of a handler counts the runs of one schedule only."""

    def situation(self: Any, entry: Any, job: Any, now: int) -> Any:
        return original(self, entry, job, now)._replace(active=len(entry.runs))

    original = handler_runs.HandlerRuns.situation
    patch.setattr(handler_runs.HandlerRuns, "situation", situation)


def runs_of_tags_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    """A limit of a tag sees the launches under it, but not which runs have not ended."""
    judge = constraint.Concurrency.judge

    def blind(self: Any, situation: Any, now: int) -> Any:
        return judge(self, situation._replace(tags={}), now)

    patch.setattr(constraint.Concurrency, "judge", blind)


def launches_under_tags_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    """A rate of a tag sees nothing of what was launched under it."""
    patch.setattr(plan_state.PlanState, "count_launches", lambda self, keys: None)


def runs_go_with_their_schedules(patch: pytest.MonkeyPatch) -> None:
    """Of which handler the runs of a schedule are that goes, or runs something else, is not kept in mind."""
    patch.setattr(launching.Launching, "outlive", lambda self, entry, **_: None)


def a_pause_leaves_what_is_ahead(patch: pytest.MonkeyPatch) -> None:
    """What was launched ahead of its time is not taken back."""
    patch.setattr(launching.Launching, "cancel_ahead", lambda self, entry, now, why: [])


def what_was_taken_back_stays_launched(patch: pytest.MonkeyPatch) -> None:
    """No row closes the launch of a run that was taken back and has never begun."""
    patch.setattr(ended_runs, "closes_launch", lambda entry, run, now: [])


def versions_are_handed_over_twice(patch: pytest.MonkeyPatch) -> None:
    """A table's cursor stays where it is when a run takes versions."""
    patch.setattr(launching, "handed_over", lambda entry, job, now: [])


def versions_go_with_what_has_fired(patch: pytest.MonkeyPatch) -> None:
    """A table's cursor moves when the trigger holds, whether or not a run comes of it."""

    def fired(self: Any, entry: Any, job: Any, now: int, *more: Any, **timed: Any) -> None:
        for change in launching.handed_over(entry, job, now):
            self._journal.note(*change)
        original(self, entry, job, now, *more, **timed)

    original = launching.Launching.fired
    patch.setattr(launching.Launching, "fired", fired)


def a_change_forgets_where_tables_stand(patch: pytest.MonkeyPatch) -> None:
    """Where a table stands is kept only if a schedule goes on listening to all that it listened to, such as its tags."""
    patch.setattr(definitions, "_leaves_kept", lambda old, schedule, keys: [])


def a_claim_must_begin_where_its_table_stands(patch: pytest.MonkeyPatch) -> None:
    """A partition that waits loses its claim when another one, which was alone before it, is handed over with the whole table."""

    def is_open(entry: Any, leaf: int, claim: Any) -> bool:
        return bool(entry.tables[leaf].of_part(claim["partition"] or "")[0] == claim["from_version"])

    patch.setattr(handing_over, "is_open", is_open)


def a_partition_alone_takes_back_what_others_have(patch: pytest.MonkeyPatch) -> None:
    """The whole table stands where a partition does that was alone when it was told of, whatever others were given meanwhile."""

    def moved(entry: Any, leaf: int, claim: Any, now: int) -> Any:
        alone = entry.tables[leaf]._replace(parts={}) if claim["alone"] else entry.tables[leaf]
        return original(dataclasses.replace(entry, tables={leaf: alone}), leaf, claim, now)

    original = handing_over.moved
    patch.setattr(handing_over, "moved", moved)


def any_version_is_believed(patch: pytest.MonkeyPatch) -> None:
    """What a table is said to have need not begin where the trigger stands."""

    def grew(self: Any, place: Any, growth: Any, now: int) -> None:
        entry = self._entry(place)
        if entry is not None and place.leaf in entry.tables:
            later = growth._replace(from_version=entry.tables[place.leaf].version + (growth.to_version % 2))
            entry.tables[place.leaf] = entry.tables[place.leaf]._replace(version=later.from_version)
            original(self, place, later, now)

    original = table_watch.TableWatch.grew
    patch.setattr(table_watch.TableWatch, "grew", grew)


def a_group_counts_when_it_is_sent(patch: pytest.MonkeyPatch) -> None:
    """After a doubt a process goes on as if all it sent had landed."""

    def step(self: plan_world.Process) -> None:
        try:
            original(self)
        except plan_world.Doubt:
            self.under_way.clear()

    original = plan_world.Process.step
    patch.setattr(plan_world.Process, "step", step)


def missed_times_are_dropped(patch: pytest.MonkeyPatch) -> None:
    """What was due while nobody planned is passed over in silence."""

    def catch_up(self: Any, entry: Any, schedule: Any, first: Any, now: int) -> Any:
        return self._next(schedule, self._since_us)

    patch.setattr(due_times.Timing, "_catch_up", catch_up)


def what_waits_for_a_place_was_missed(patch: pytest.MonkeyPatch) -> None:
    """All that came before somebody planned again was missed, also what had waited for a place."""
    patch.setattr(due_times.Timing, "_is_missed", lambda self, entry, due: due.starts_us < self._since_us)


def starts_are_not_written(patch: pytest.MonkeyPatch) -> None:
    """That a run has started in time is known to the planner alone that has read it."""

    def started(self: Any, entry: Any, run: Any, started_us: int, now: int) -> None:
        if run.start_by_us >= started_us:
            entry.runs[run.generation] = run._replace(start_by_us=0)
        else:
            original(self, entry, run, started_us, now)

    original = deadlines.Deadlines.started
    patch.setattr(deadlines.Deadlines, "started", started)


def what_was_told_is_told_again(patch: pytest.MonkeyPatch) -> None:
    """Nobody keeps in mind which promises were told of as broken."""
    patch.setattr(plan_state, "_told_of", lambda entry, generation, verdict: None)


def there_is_always_a_place(patch: pytest.MonkeyPatch) -> None:
    """A time makes a job, however many wait."""
    patch.setattr(due_times.Timing, "_waits_for_room", lambda self, entry, schedule, due: False)


def overlap_is_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    """Runs of one schedule each have a lane, whatever its policy."""
    patch.setattr(launching, "is_parallel", lambda schedule: True)


def windows_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A new planner does not go on with what was being gathered."""
    patch.setattr(gathering.Gathering, "_index", lambda self, rule, fingerprint, incident: None)


def messages_share_a_key(patch: pytest.MonkeyPatch) -> None:
    """The key of a message is made of the moment alone, so that one of two is lost."""

    def task_of(message: Any, rule: Any, channels: Any, now: int) -> Any:
        command = original(message, rule, channels, now)
        return command._replace(key=command.key._replace(uniqueness_key="notice/now"))

    original = gathering.task_of
    patch.setattr(gathering, "task_of", task_of)


def watchers_are_called_between_changes(patch: pytest.MonkeyPatch) -> None:
    """Of changes that belong together each is made when those who keep indexes know of the one before."""

    def make(self: Any, changes: Any, size: int) -> None:
        for change in changes:
            original(self, (change,), unwritten_changes.change_bytes(change))

    original = unwritten_changes.Journal._make
    patch.setattr(unwritten_changes.Journal, "_make", make)


def a_group_never_ends_in_the_midst(patch: pytest.MonkeyPatch) -> None:
    """However much an input decides, it is one group."""
    patch.setattr(group_writer.GroupWriter, "part", lambda self, at, now: None)


def constraints_are_not_asked(patch: pytest.MonkeyPatch) -> None:
    """What has fired is launched, whatever is said of it."""
    patch.setattr(launching, "decide", lambda constraints, situation, now: constraint.Decision(True, False, None, ()))


def what_is_to_wait_is_dropped(patch: pytest.MonkeyPatch) -> None:
    """A constraint that does not hold drops the job, though it is to be waited for."""

    def decide(*args: Any) -> Any:
        found = original(*args)
        return found._replace(drop=bool(found.unmet))

    original = launching.decide
    patch.setattr(launching, "decide", decide)


def what_is_to_be_dropped_waits(patch: pytest.MonkeyPatch) -> None:
    """A constraint that does not hold makes the job wait, though it is not to be waited for."""

    def decide(*args: Any) -> Any:
        return original(*args)._replace(drop=False)

    original = launching.decide
    patch.setattr(launching, "decide", decide)


def what_waits_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A new planner does not look at jobs that waited when the one before it ended."""
    patch.setattr(launching.Launching, "load", lambda self, entry: None)


def launches_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    """A rate sees no launches."""
    judge = constraint.Rate.judge
    patch.setattr(
        constraint.Rate, "judge", lambda self, situation, now: judge(self, situation._replace(launches_us=()), now)
    )


def a_success_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """When the last success of a handler was is not kept in mind."""
    patch.setattr(plan_state.PlanState, "note_success", lambda self, handler, at_us: None)


def a_delay_is_over_at_once(patch: pytest.MonkeyPatch) -> None:
    """A delay counts from long ago."""
    judge = constraint.Delay.judge
    patch.setattr(
        constraint.Delay, "judge", lambda self, situation, now: judge(self, situation._replace(first_event_us=0), now)
    )


def a_set_clock_goes_unnoticed(patch: pytest.MonkeyPatch) -> None:
    """Nobody sees that the clock was set: its time is decided by, until an append time differs."""

    def now(self: PlannerClock) -> int:
        wall, boot = self._read()
        self._offset_us = wall - boot
        return original(self)

    original = PlannerClock.now
    patch.setattr(PlannerClock, "now", now)


def a_fence_shows_nothing_of_the_clock(patch: pytest.MonkeyPatch) -> None:
    """Append times are not looked at."""
    patch.setattr(PlannerClock, "check", lambda self, append_ms, sent_us, received_us, proves=False: None)


def claims_of_a_replaced_table_are_kept(patch: pytest.MonkeyPatch) -> None:
    """A job goes on with versions of a table in whose place another one lies."""
    patch.setattr(table_watch.TableWatch, "_drop_claims", lambda self, entry, leaf, why, now: None)


def a_table_that_was_missing_is_not_believed(patch: pytest.MonkeyPatch) -> None:
    """What comes to a table that was still to be written when counting began is held against an id that nobody knew."""
    patch.setattr(schedule_entry.Handed, "is_of", lambda self, *table_ids: self.table_id in table_ids)


def versions_keep_the_id_of_before(patch: pytest.MonkeyPatch) -> None:
    """Of a table that is replaced in place versions are handed over under the id that it had."""

    def moved(entry: Any, leaf: int, claim: Any, now: int) -> Any:
        return original(entry, leaf, {**claim, "table_id": entry.tables[leaf].table_id or claim["table_id"]}, now)

    original = handing_over.moved
    patch.setattr(handing_over, "moved", moved)


def a_claim_is_of_one_id(patch: pytest.MonkeyPatch) -> None:
    """A job loses what it claims of a table that is replaced in place."""

    def is_open(entry: Any, leaf: int, claim: Any) -> bool:
        return entry.tables[leaf].is_of(claim["table_id"]) and original(entry, leaf, claim)

    original = handing_over.is_open
    patch.setattr(handing_over, "is_open", is_open)
    patch.setattr(observations, "is_open", is_open)


def what_is_ahead_of_others_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Where all partitions have come up to a version, nobody knows any more which of them are beyond."""

    def all_up_to(self: Any, table_id: str, version: int, since_us: int) -> Any:
        return original(self, table_id, version, since_us)._replace(parts={})

    original = schedule_entry.Handed.all_up_to
    patch.setattr(schedule_entry.Handed, "all_up_to", all_up_to)


def trouble_is_told_with_every_look(patch: pytest.MonkeyPatch) -> None:
    """Nobody keeps in mind what was told of a table."""

    def trouble(self: Any, place: Any, *more: Any) -> None:
        self._told.clear()
        original(self, place, *more)

    original = table_watch.TableWatch.trouble
    patch.setattr(table_watch.TableWatch, "trouble", trouble)


def a_delete_leaves_what_is_ahead(patch: pytest.MonkeyPatch) -> None:
    """What a schedule that is removed has launched ahead of its time is not taken back."""

    def drop(self: Any, *args: Any) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(launching.Launching, "cancel_ahead", lambda self, entry, now, why: [])
            return original(self, *args)

    original = definitions.Definitions._drop
    patch.setattr(definitions.Definitions, "_drop", drop)


def a_delete_is_answered_at_once(patch: pytest.MonkeyPatch) -> None:
    """Who deletes is told that it is done before what was taken back has ended."""

    def ended(self: answers.Answers, to: Any, keys: Any, done: Any, now: int) -> None:
        original(self, to, set() if "removed" in done.values() else keys, done, now)

    original = answers.Answers.done_when_ended
    patch.setattr(answers.Answers, "done_when_ended", ended)


def a_paused_backfill_goes_on(patch: pytest.MonkeyPatch) -> None:
    """The next run of a backfill is launched when one has ended, whether or not it is paused."""

    def may_launch(self: backfill_entry.BackfillEntry) -> bool:
        return not self.is_over and bool(self.left) and len(self.running) < self.most

    patch.setattr(backfill_entry.BackfillEntry, "may_launch", property(may_launch))


def a_pause_of_a_backfill_is_answered_at_once(patch: pytest.MonkeyPatch) -> None:
    """Who pauses a backfill is told that it is done before what was launched has begun or was taken back."""

    def steer(self: Any, *args: Any) -> list[Any]:
        original(self, *args)
        return []

    original = backfilling.Backfilling.steer
    patch.setattr(backfilling.Backfilling, "steer", steer)


def what_a_pause_has_taken_back_is_lost(patch: pytest.MonkeyPatch) -> None:
    """A run that a paused backfill has taken back is one that was cancelled."""

    def ended(self: Any, *args: Any, taken_back: bool) -> Any:
        return original(self, *args, taken_back=False)

    original = backfill_entry.BackfillEntry.ended
    patch.setattr(backfill_entry.BackfillEntry, "ended", ended)


RULES: dict[str, Break] = {
    rule.__name__: rule
    for rule in (
        fences_are_ignored, launches_before_it_counts, forgets_what_was_not_sent, positions_apart_from_changes,
        cursor_is_not_written, limits_per_schedule, runs_of_tags_are_not_counted, launches_under_tags_are_not_counted,
        runs_go_with_their_schedules,
        a_pause_leaves_what_is_ahead, what_was_taken_back_stays_launched, versions_are_handed_over_twice,
        versions_go_with_what_has_fired, a_change_forgets_where_tables_stand,
        a_claim_must_begin_where_its_table_stands, a_partition_alone_takes_back_what_others_have,
        any_version_is_believed, a_group_counts_when_it_is_sent, missed_times_are_dropped, overlap_is_not_looked_at,
        windows_are_forgotten, messages_share_a_key, a_group_never_ends_in_the_midst, constraints_are_not_asked,
        what_is_to_wait_is_dropped, what_is_to_be_dropped_waits, what_waits_is_forgotten, launches_are_not_counted,
        a_success_is_forgotten, a_delay_is_over_at_once, watchers_are_called_between_changes,
        what_waits_for_a_place_was_missed, there_is_always_a_place, starts_are_not_written, what_was_told_is_told_again,
        a_set_clock_goes_unnoticed, a_fence_shows_nothing_of_the_clock, claims_of_a_replaced_table_are_kept,
        trouble_is_told_with_every_look, a_delete_leaves_what_is_ahead, a_delete_is_answered_at_once,
        a_paused_backfill_goes_on, a_pause_of_a_backfill_is_answered_at_once, what_a_pause_has_taken_back_is_lost,
        a_table_that_was_missing_is_not_believed, versions_keep_the_id_of_before, a_claim_is_of_one_id,
        what_is_ahead_of_others_is_forgotten,
    )
}  # fmt: skip
