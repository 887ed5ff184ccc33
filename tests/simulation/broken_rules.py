"""Rules of the protocol, broken on purpose, one switch for each; a test of the tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import PropertyMock, patch

from scylla_spark.core.engine import action, feed, recently_ended
from scylla_spark.core.engine.external_rate_limits import RateLimits
from scylla_spark.core.engine.lane import NEVER_EXPIRES_US as NEVER
from scylla_spark.core.engine.lane import Entry, Lane
from scylla_spark.core.engine.leases.worker_session import Lease
from scylla_spark.core.engine.partition import Partition
from scylla_spark.core.engine.queue import Gate
from scylla_spark.core.engine.waiting import Waiting
from scylla_spark.core.records.fact import Fence
from scylla_spark.core.tables.progress import Basis
from scylla_spark.core.tasks.key import HOUR_US, TaskKey
from scylla_spark.core.tasks.task import Invocation
from scylla_spark.services.dispatch.tasks_tail import TasksTail
from scylla_spark.services.ingest.progress import Progress
from tests.simulation.records import SECOND

if TYPE_CHECKING:
    from scylla_spark.core.tasks.stored_records import Known
    from tests.simulation.process import Process

RULES = {
    "a fence is sent without reading the log to its end": "takes_unread",
    "facts of fenced-off owners are written to the tables": "ingest_ignores_fences",
    "a stored position forgets which fence holds there": "bare_positions",
    "an owner acts on a fact when its send returned": "acts_on_sends",
    "a failed send is believed to have failed": "trusts_failed_sends",
    "tasks start without fresh membership": "starts_without_membership",
    "children of a frozen dispatcher start what it handed them": "late_starts",
    "a revoked partition is given away at once": "revokes_at_once",
    "children outlive their dispatcher": "orphans",
    "a set clock goes unnoticed": "ignores_clock_steps",
    "a fence that came late shows that the clock is right": "believes_late_fences",
    "tasks start before the tail has caught up": "starts_behind_the_tail",
    "progress is read before the horizon is raised": "horizon_after_progress",
    "a look-ahead scan does not wait for far records": "scan_ignores_far_records",
    "completed keys are forgotten at once": "forgets_ended",
    "overdue keys are not looked up": "no_lookup",
    "cancelled keys of the tables are not remembered": "forgets_cancelled",
    "lanes that were cut count as loaded": "ignores_cuts",
    "lanes that were left in the tables count as empty": "forgets_left_lanes",
    "a round by an earlier time forgets which hours are open": "forgets_open_hours",
    "a lane's timer is forgotten": "forgets_timers",
    "a lane is let go of while it is read": "unloads_what_is_read",
    "what is known of attempts is let go of with their task": "forgets_attempts",
    "offers of other partitions are taken": "offers_of_other_partitions",
    "answers to an earlier tenure count": "answers_outlive_tenures",
    "answers of tables older than what was forgotten count": "old_answers_count",
    "what was forgotten is not looked up": "forgets_for_good",
    "work that waits in the executor counts as started": "counts_waiting_as_started",
    "the end of an attempt is lost where its start is known": "forgets_back_off",
    "an owner that owes caution resigns": "resigns_owing_caution",
    "the tail waits although a partition waits for it": "chokes_while_taking",
    "nothing is left to the tables where memory is short": "never_lets_go",
    "a lane is read again from tables that lack what it let go of": "reads_too_early",
    "a second fence of one's own takes the partition away": "drops_its_own_fence",
    "of two cancels at once only the last is answered": "answers_one",
    "queues and groups are always open": "ignores_limits",
    "the tail ends at the last record": "waits_for_a_record",
}
"""What may be broken on purpose → the switch that breaks it (`Profile.broken`)."""

LEASE_RULES = {
    "an owner that may have lost its partitions answers workers": "promises_blindly",
    "a lease is told before its fact counts": "tells_before_the_fact",
    "leases of an earlier owner are forgotten": "forgets_leases",
    "leased tasks are read only when their turn comes": "reads_leased_in_turn",
    "a lease that is known from the log alone blocks nothing": "no_stubs",
    "leases run out although their worker calls": "ignores_calls",
}
"""The same for worlds with workers."""


FOLLOW_UP_RULES = {
    "follow-ups are sent before their moment counts": "sends_before_the_moment",
    "the moment of follow-ups is forgotten": "forgets_the_moment",
    "a task ends before its follow-ups are acknowledged": "ends_before_follow_ups",
}
"""The same for worlds in which handlers enqueue tasks."""


EXPIRY_RULES = {
    "what has expired starts": "starts_expired",
    "what has begun expires": "expires_what_has_begun",
    "executors are not told until when a task may start": "starts_whenever",
}
"""The same for worlds in which tasks expire."""


LIMIT_RULES = {
    "what shares a rate limit starts": "ignores_rate_limits",
    "what waits for a rate limit does not queue up again": "forgets_what_is_limited",
}
"""The same for worlds in which tasks run into rate limits."""


UNIQUE_RULES = {
    "nobody looks for duplicates": "looks_for_no_duplicates",
    "the tables are not asked who bears a name": "asks_no_tables",
    "names are looked for in tables that lack what was not kept": "asks_too_early",
    "an owner believes that the one before has found all duplicates": "trusts_the_owner_before",
    "what ended as a duplicate before its time is not remembered": "forgets_duplicates",
    "the newest enqueue of a task counts as its first": "forgets_the_first",
    "a task whose record came again counts as open": "believes_what_comes_again",
}
"""The same for worlds in which names are unique."""


AIMED_RULES = {
    "what the tail has not come to is taken from any scan": "takes_what_is_ahead",
    "slots of forgotten lanes are offered to nobody": "forgets_vacancies",
    "keys of closed hours are not looked up": "forgets_closed_hours",
}
"""The same for worlds that are aimed at tables ahead of tails, at groups of one slot, and at hours of standing still."""


LONE_RULES = {
    "what is noted of an attempt stays when its task is loaded": "keeps_notes_of_loaded",
    "the cut of a lane that was left makes it anew": "cuts_what_was_left",
    "where the fact of an attempt stands is not known": "forgets_places",
}
"""The same for an engine alone, among answers in any order."""


def apply(broken: Iterable[str], process: Process) -> None:
    """Breaks those rules that are broken inside of a process."""
    for switch in broken:
        if switch in _BREAKS:
            _BREAKS[switch](process)


@contextmanager
def of_classes(broken: frozenset[str]) -> Iterator[None]:
    """Breaks those rules that are broken for all processes of this one together."""
    with ExitStack() as stack:
        if "forgets_back_off" in broken:
            stack.enter_context(patch.object(Entry, "note_attempt", _by_number_only))
        if "waits_for_a_record" in broken:
            stack.enter_context(patch.object(TasksTail, "_pass_over", lambda *_args: None))
        if "forgets_open_hours" in broken:
            stack.enter_context(patch.object(Progress, "closed", _whatever_stood_before(Progress.closed)))
        if "forgets_attempts" in broken:
            stack.enter_context(patch.object(Partition, "keep_in_mind", lambda *_args: None))
        if "keeps_notes_of_loaded" in broken:
            stack.enter_context(patch.object(Waiting, "insert", _noting_again(Waiting.insert)))
        if "cuts_what_was_left" in broken:
            stack.enter_context(patch.object(feed.Feed, "_cut", _by_the_frontier(feed.Feed._cut)))
        if "forgets_places" in broken:
            stack.enter_context(patch.object(Entry, "place", property(lambda _entry: -1, lambda _entry, _place: None)))
        if "unloads_what_is_read" in broken:
            stack.enter_context(patch.object(Partition, "unload", _whatever_is_asked(Partition.unload)))
        if "ignores_limits" in broken:
            for asks in ("is_open", "admits", "has_slot", "admits_more"):
                stack.enter_context(patch.object(Gate, asks, lambda *_args: True))
        if "ignores_rate_limits" in broken:
            stack.enter_context(patch.object(RateLimits, "holds", lambda *_args: False))
        if "forgets_what_is_limited" in broken:
            stack.enter_context(patch.object(RateLimits, "let_go", lambda _limits, _now: ()))
        if "starts_expired" in broken:
            stack.enter_context(patch.object(Entry, "expires_us", NEVER))
        if "expires_what_has_begun" in broken:
            stack.enter_context(
                patch.object(Entry, "expires_us", property(lambda entry: entry.data.expires_us or NEVER))
            )
        if "starts_whenever" in broken:
            stack.enter_context(patch.object(Invocation, "in_time", lambda item, _offset: item))
        if "looks_for_no_duplicates" in broken:
            stack.enter_context(patch.object(Entry, "undecided", property(lambda _entry: False)))
        if "asks_too_early" in broken:
            stack.enter_context(patch.object(Partition, "let_go_of", lambda _partition, _name: -1))
        if "ignores_calls" in broken:
            stack.enter_context(patch.object(Lease, "extend", lambda _lease, _now: None))
        if "forgets_vacancies" in broken:
            stack.enter_context(patch.object(Gate, "vacancies", lambda _gate: []))
        if "resigns_owing_caution" in broken:
            stack.enter_context(patch.object(Partition, "owes_caution", new_callable=PropertyMock, return_value=False))
        yield


@contextmanager
def remembering(seconds: int) -> Iterator[None]:
    """No rule is broken: ended keys are remembered for so long instead of a minute, as if more time passed."""
    generation_us = min(recently_ended.GENERATION_US, seconds * SECOND // 3)
    with (
        patch.object(feed, "REMEMBER_US", seconds * SECOND),
        patch.object(recently_ended, "GENERATION_US", generation_us),
    ):
        yield


def _wrap(name: str, around: Callable[..., Any], part: str = "") -> Callable[[Process], None]:
    """Replaces a method of the engine, or of a part of it: `around(process, the method, *arguments)`."""

    def apply(process: Process) -> None:
        owner = getattr(process.engine, part) if part else process.engine
        method = getattr(owner, name)
        setattr(owner, name, lambda *args, **options: around(process, method, *args, **options))

    return apply


def _late_horizon(process: Process, method: Callable[..., Any], tenure: Any, until: int) -> int:
    partition = process.engine.partitions[tenure.partition]
    if not partition.horizon_us or until <= partition.horizon_us:
        found: int = method(tenure, until)
        return found
    process.later(process.world.jitter(50, 900), lambda: process.engine.held(tenure) and method(tenure, until))
    return partition.far_offset


def _forget_ended(process: Process, method: Callable[..., Any], tenure: Any, *args: Any, **options: Any) -> Any:
    found = method(tenure, *args, **options)
    partition = process.engine.held(tenure)
    if partition is not None:
        since = partition.ended.since_us
        partition.ended.forget(1 << 62, 1 << 62)
        partition.ended.since_us = since
    return found


def _any_hour(process: Process, method: Callable[..., Any], tenure: Any, *args: Any, **options: Any) -> Any:
    partition = process.engine.held(tenure)
    since = partition.ended.since_us if partition is not None else 0
    found = method(tenure, *args, **options)
    if partition is not None and partition.ended.since_us == partition.mark.closed_hour * HOUR_US:
        partition.ended.since_us = since
    return found


def _no_floor(_process: Process, method: Callable[..., Any], partition: Partition, *args: Any) -> None:
    method(partition, *args)
    partition.floor = Basis()


def _for_good(_process: Process, method: Callable[..., Any], partition: Partition, *args: Any) -> None:
    since = partition.ended.since_us
    method(partition, *args)
    partition.ended.since_us = since


def _choke(process: Process, method: Callable[..., Any], *args: Any) -> None:
    method(*args)
    process.engine._unloading.choked = process.engine._unloading.pressed


def _whatever_is_asked(unload: Callable[[Partition, Lane], bool]) -> Callable[[Partition, Lane], bool]:
    def unloaded(partition: Partition, lane: Lane) -> bool:
        asked, lane.reloading = lane.reloading, False
        gone = unload(partition, lane)
        lane.reloading = asked
        return gone

    return unloaded


def _noting_again(insert: Callable[..., None]) -> Callable[..., None]:
    def inserted(self: Waiting, partition: Partition, entry: Entry, now: int) -> None:
        tried = partition.attempts.get(entry.key)
        insert(self, partition, entry, now)
        if tried is not None:
            partition.note_attempt(entry.key, tried)

    return inserted


def _by_the_frontier(cut: Callable[..., None]) -> Callable[..., None]:
    def patched(self: feed.Feed, partition: Partition, ordering_id: str, frontier: TaskKey, *times: int) -> None:
        if not partition.left(frontier):
            partition.lane(ordering_id)  # so that it is cut
        cut(self, partition, ordering_id, frontier, *times)

    return patched


def _know_one_fence(
    _process: Process, method: Callable[..., Any], partition: Partition, fence: Fence, now: int
) -> None:
    method(partition, fence if fence == partition.mine else Fence(fence.epoch, "of somebody else"), now)


def _answer_last(
    _process: Process, method: Callable[..., Any], partition: Any, key: Any, requests: Any, now: int
) -> None:
    method(partition, key, tuple(requests)[1:], now)


def _certain(process: Process) -> None:
    process.tasks.certain_until_us = lambda: 1 << 62  # type: ignore[method-assign]


def _blind_to_clocks(process: Process) -> None:
    process.dispatcher._hold_clock_against = lambda *_: None  # type: ignore[method-assign]
    process.engine.doubt = lambda _now: None  # type: ignore[method-assign]


def _hoard(process: Process) -> None:
    process.engine._unloading._trim_all = lambda _now: None  # type: ignore[method-assign]
    process.engine._unloading._unload = lambda _target, _now: None  # type: ignore[method-assign]
    process.engine._unloading.leave_to_tables = lambda *_: False  # type: ignore[method-assign]


def _hasty(process: Process) -> None:
    questions = process.dispatcher._questions
    reload = questions.reload
    questions.reload = lambda item: reload(item._replace(covering=-1))  # type: ignore[method-assign]


def _any_tenure(process: Process) -> None:
    process.engine._state.held = lambda tenure: process.engine.partitions.get(tenure.partition)  # type: ignore[method-assign]


def _told_at_once(process: Process, method: Callable[..., Any], lease: Lease, now: int) -> None:
    method(lease, now)
    process.engine._book._begin(lease, now)


def _before_the_moment(process: Process) -> None:
    follow_ups = process.engine._outcomes._follow_ups
    record = follow_ups._record

    def sent_at_once(run: Any, now: int) -> None:
        record(run, now)
        found = follow_ups._runs.returned[run.entry.key]
        if not found.asked:
            follow_ups._runs.returned[run.entry.key] = found._replace(asked=True)
            asked = action.SendFollowUps(run.invocation.id, run.entry.key, found.decided_us, found.outcome.follow_ups)
            process.engine._state.ask(asked)

    follow_ups._record = sent_at_once  # type: ignore[method-assign]


def _new_moments(process: Process) -> None:
    runs = process.engine._runs
    hold = runs.hold
    runs.hold = lambda run, outcome, _: hold(run, outcome, process.world.now + process.skew)  # type: ignore[method-assign]


def _unacknowledged(process: Process) -> None:
    sender = process.dispatcher._follow_ups
    send, done = sender.send, sender._done

    def sent(producer: Any, asked: Any, now: int) -> None:
        send(producer, asked, now)
        done(asked.number, None)

    sender.send = sent  # type: ignore[method-assign]


def _trusting(process: Process) -> None:
    names = process.engine._names

    def trust(partition: Partition) -> None:
        partition.names.settled = True
        for lane in partition.lanes.values():
            for entry in (*lane.entries.values(), *lane.beyond.values()):
                entry.sole = True

    names.ask_all = trust  # type: ignore[method-assign]


def _believing(process: Process) -> None:
    process.engine._names._is_doubtful = lambda _partition, _known: False  # type: ignore[method-assign]


_BREAKS: dict[str, Callable[[Process], None]] = {
    "trusts_the_owner_before": _trusting,
    "believes_what_comes_again": _believing,
    "tells_before_the_fact": _wrap("announce", _told_at_once, "_book"),
    "forgets_leases": _wrap("adopt", lambda *_: None, "_book"),
    "no_stubs": _wrap("load_stubs", lambda *_: None, "_book"),
    "horizon_after_progress": _wrap("raise_horizon", _late_horizon),
    "scan_ignores_far_records": _wrap("raise_horizon", lambda _p, method, *args: (method(*args), -2)[1]),
    "takes_what_is_ahead": _wrap("_is_for_the_tail", lambda _p, method, *args, **_: method(*args, whole=True), "_feed"),
    "forgets_closed_hours": _wrap("scanned", _any_hour),
    "forgets_ended": _wrap("scanned", _forget_ended),
    "trusts_failed_sends": _wrap("sent", lambda _p, method, *args, ok, now: method(*args, ok=True, now=now)),
    "starts_without_membership": _certain,
    "ignores_clock_steps": _blind_to_clocks,
    "believes_late_fences": _wrap("fence_again", lambda *_: None),
    "offers_of_other_partitions": _wrap("_ours", lambda *_: True, "_feed"),
    "answers_outlive_tenures": _any_tenure,
    "old_answers_count": _wrap("_forget", _no_floor, "_feed"),
    "forgets_for_good": _wrap("_forget", _for_good, "_feed"),
    "chokes_while_taking": _wrap("relieve", _choke, "_unloading"),
    "never_lets_go": _hoard,
    "reads_too_early": _hasty,
    "drops_its_own_fence": _wrap("fence_read", _know_one_fence, "_ownership"),
    "sends_before_the_moment": _before_the_moment,
    "forgets_the_moment": _new_moments,
    "ends_before_follow_ups": _unacknowledged,
    "answers_one": _wrap("answer", _answer_last, "_recorder"),
}


def _whatever_stood_before(closed: Callable[..., None]) -> Callable[..., None]:
    def patched(self: Progress, limit: int, still: dict[int, list[int]]) -> None:
        self._marks |= {source: mark._replace(open_hours=()) for source, mark in self._marks.items()}
        closed(self, limit, still)

    return patched


def _by_number_only(self: Entry, told: Known) -> bool:
    if told.attempt <= self.attempt:
        return False
    self.attempt, self.used, self.work, self.error, self.place = (
        told.attempt,
        told.used,
        told.work,
        told.error,
        told.place,
    )
    self.next_us = max(told.next_us, self.key.time_us)
    return True
