"""What must hold of every story of the planner, whatever went wrong in it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from typing import Any

from scylla_spark.clock import to_us
from scylla_spark.core.plan.state.plan_log import Group, encode
from scylla_spark.core.plan.state.plan_state import PlanState
from scylla_spark.core.tasks.key import TaskKey
from tests.simulation.plan_world import PACE_US, SECOND, START, PlanWorld, Table, counted, facts_of, message_of
from tests.support.planner_harness import assert_same

PERIOD = 10 * SECOND
MINUTE = 60 * SECOND
MOST_STEP_BYTES = 11_000
TIMED = ("skip", "caught", "all", "lane", "one", "two", "prompt")


class PlanViolation(AssertionError):
    """A promise was broken."""


def judge(world: PlanWorld) -> None:
    """Looks at a story that has ended.

    Raises:
        PlanViolation: something did not hold.
    """
    groups = [group for _, group in counted(world.log)]
    fires: dict[str, list[dict[str, Any]]] = {}
    puts: dict[str, int] = {}
    for group in groups:
        for change in group.changes:
            if change[0] == "fire":
                fires.setdefault(change[1], []).append(change[2])
            elif change[0] == "put":
                puts.setdefault(change[1], change[2]["changed_us"])
    _launched(world, fires)
    _added_up(world, groups, fires)
    _events(world, fires)
    _limits(world)
    _paces(fires)
    _troubles(groups)
    state = PlanState()
    for group in groups:
        state.fold(group)
    _ranges(world, fires, state)
    _times(world, fires, puts, state)
    _state(world, state)
    _room(state)
    _places(world, groups)
    _sizes(world, groups)
    _backfilled(world, groups, state)
    _backfill_pauses(world)
    _notices(world, state)
    _constraints(world, fires, state)
    _last_runs(groups)
    _promises(world, groups)
    _clocks(world)


def _times(world: PlanWorld, fires: dict[str, list[dict[str, Any]]], puts: dict[str, int], state: PlanState) -> None:
    """Each planned time is launched once, or a row says why not, unless it still waits for a place."""
    for name in (*TIMED, *(one["name"] for one in world.constrained)):
        rows = fires.get(name, [])
        launched = Counter(row["planned_us"] for row in rows if row["verdict"] == "launched")
        twice = [at for at, count in launched.items() if count > 1]
        _hold(not twice, f"{name}: planned times {twice} were launched twice")
        told = {row["planned_us"] for row in rows}
        spans = [(row["planned_us"], row["until_us"]) for row in rows if "until_us" in row]
        first = -(-(puts[name] + 1) // PERIOD) * PERIOD
        held = state.entries[name].cursor_us + 1 if state.entries[name].is_full else world.now
        for at in range(first, min(world.now - 20 * SECOND, held), PERIOD):
            _hold(at in told or any(a <= at <= b for a, b in spans), f"{name}: nothing says what became of {at}")


def _constraints(world: PlanWorld, fires: dict[str, list[dict[str, Any]]], state: PlanState) -> None:
    """No launch breaks the constraint of its schedule, what is waited for is not dropped for it, and what has waited waits no more."""
    for one in world.constrained:
        name, rows = one["name"], fires.get(one["name"], [])
        launches = [row for row in rows if row["verdict"] == "launched"]
        for row in launches:
            _hold(
                _is_met(name, row, rows),
                f"{name}: launched at {row['at_us']} for {row['planned_us']} in spite of its constraint",
            )
        last = {row["generation"]: row["verdict"] for row in rows if "generation" in row and row["verdict"] != "late"}
        left = {number for number, verdict in last.items() if verdict == "waiting"}
        _hold(
            left == set(state.entries[name].jobs),
            f"{name}: {sorted(left)} wait, and {sorted(state.entries[name].jobs)} are held",
        )
        if name.endswith("wait") and one["catchUp"] == "all" and one["overlap"] != "buffer_one":
            lost = ("skipped",) if "catchUpWindow" in one else ("skipped", "missed")
            dropped = [row["why"] for row in rows if row["verdict"] in lost]
            busy = [why for why in dropped if not why.endswith("active")]
            _hold(not busy, f"{name}: all its times are run, and it dropped some: {busy[:1]}")
        if name.endswith("wait") and one["overlap"] in ("buffer_all", "allow_all"):
            skipped = [row["why"] for row in rows if row["verdict"] == "skipped"]
            _hold(not skipped, f"{name}: each of its times has a job of its own, and it skipped some: {skipped[:1]}")
        if name.endswith("abort"):
            _hold("waiting" not in last.values() or one["overlap"] == "buffer_one", f"{name}: it waits, and is to drop")

    late = [
        job
        for job in state.entries["delay-wait"].jobs.values()
        if job.state == "pending_constraint" and job.first_us < world.now - 25 * SECOND
    ]
    _hold(not late, f"nobody looks any more at what was to wait for 15 s: {late[:1]}")


def _places(world: PlanWorld, groups: list[Any]) -> None:
    """No more jobs wait than may, and what has waited for a place among them is not missed, whoever planned then."""
    names = {one["name"] for one in world.constrained}
    state, full_us = PlanState(), dict.fromkeys(names, 0)
    for group in groups:
        state.number = group.number
        for change in group.changes:
            if change[0] == "fire" and change[1] in names:
                entry, fire = state.entries[change[1]], change[2]
                _hold(
                    fire["verdict"] != "missed" or fire["planned_us"] > full_us[entry.name],
                    f"{entry.name}: {fire['planned_us']} waited for a place, and is told of as missed",
                )
                if entry.is_full:
                    full_us[entry.name] = fire["at_us"]
            state.apply(change)
        waiting = {
            name: sum(job.state != "pending_trigger" for job in entry.jobs.values())
            for name, entry in state.entries.items()
        }
        _hold(max(waiting.values(), default=0) <= world.most_jobs, f"more jobs wait than may: {waiting}")


def _is_met(name: str, row: dict[str, Any], rows: list[dict[str, Any]]) -> bool:
    """Returns True if a launch is one that the constraint of a schedule lets through."""
    at_us, kind = row["at_us"], name.split("-")[0]
    if kind == "range":
        return MINUTE <= (at_us - START) % (24 * 60 * MINUTE) < 3 * MINUTE
    if kind == "delay":
        since = [one["at_us"] for one in rows if one["verdict"] == "waiting" and one["generation"] == row["generation"]]
        return bool(since) and min(since) + 15 * SECOND <= at_us
    if kind == "rate":
        within = [one for one in rows if one["verdict"] == "launched" and at_us - 30 * SECOND < one["at_us"] <= at_us]
        return len(within) <= 2
    return True


def _last_runs(groups: list[Any]) -> None:
    """No run of a handler is launched while one is active, or too soon after a success, of whichever of its schedules."""
    active: set[tuple[Any, ...]] = set()
    succeeded_us = -MINUTE
    for group in groups:
        for change in group.changes:
            if change[0] == "fire" and change[1].startswith("last-") and change[2]["verdict"] == "launched":
                _hold(not active, f"{change[1]}: launched at {change[2]['at_us']} though {active} is active")
                _hold(
                    succeeded_us + 20 * SECOND <= change[2]["at_us"], f"{change[1]}: launched too soon after a success"
                )
                active.add(tuple(change[2]["key"]))
            elif change[0] == "end" and change[1].startswith("last-"):
                active.discard(tuple(change[6]))
                succeeded_us = max(succeeded_us, change[5]) if change[3] == "succeeded" else succeeded_us


def _promises(world: PlanWorld, groups: list[Any]) -> None:
    """What is not kept is told of once, whoever plans; no start that was read is told of as missing, each late start and end is told of."""
    starts = {
        int(fact.key.uniqueness_key.rsplit("/", 1)[1]): (number, offset)
        for number, log in enumerate(world.outcomes)
        for offset, value in enumerate(log)
        for fact in facts_of(value)
        if fact.outcome == "started"
    }
    told: Counter[tuple[str, int]] = Counter()
    read: dict[int, int] = {}
    silent_us = 0
    for group in groups:
        for fire in [change[2] for change in group.changes if change[0] == "fire" and change[1] == "prompt"]:
            if fire["verdict"] == "silent":
                _hold(silent_us + 20 * SECOND <= fire["at_us"], f"silence was told of twice within 20 s: {fire}")
                silent_us = fire["at_us"]
            elif fire["verdict"] in ("late", "overdue"):
                told[fire["verdict"], fire["generation"]] += 1
                number, offset = starts.get(fire["generation"], (0, len(world.outcomes[0])))
                missing = fire["why"].startswith("it has not started")
                _hold(not missing or read.get(number, 0) <= offset, f"its start was read before: {fire}")
        read |= {number: position[0] for number, position in group.outcomes.items()}
    _hold(set(told.values()) <= {1}, f"promises were told of more than once: {told.most_common(3)}")
    for run in world.engine.runs:
        name, planned, generation = run.key.uniqueness_key.split("/")
        if name == "prompt" and run.end_us < world.now - 10 * SECOND:
            late, overdue = run.begin_us > at(planned) + 4 * SECOND, run.end_us > at(planned) + 8 * SECOND
            _hold(told["late", int(generation)] or not late, f"it started late, and nothing says so: {run}")
            _hold(told["overdue", int(generation)] or not overdue, f"it ended late, and nothing says so: {run}")


def _clocks(world: PlanWorld) -> None:
    """Nothing is decided by a clock that is ahead of the broker's."""
    for offset, group in counted(world.log):
        ahead_us = group.at_us - world.appended[offset]
        _hold(ahead_us <= SECOND, f"group {group.number} was decided {ahead_us / SECOND} s after it stood in the log")


def _launched(world: PlanWorld, fires: dict[str, list[dict[str, Any]]]) -> None:
    """What was launched reached the engine, and nothing else did."""
    wanted = {TaskKey(*row["key"]) for rows in fires.values() for row in rows if row["verdict"] == "launched"}
    known = set(world.engine.tasks) | world.engine.ended
    lost = sorted(key for key in wanted - known if key.time_us < world.now - 10 * SECOND)
    _hold(not lost, f"lost: {lost[:3]}")
    _hold(known <= wanted, f"never decided: {sorted(known - wanted)[:3]}")


def _added_up(world: PlanWorld, groups: list[Group], fires: dict[str, list[dict[str, Any]]]) -> None:
    """Launches less those that a row closes are the runs that began, and each run that ended unrun has one such row."""
    removed = {change[1] for group in groups for change in group.changes if change[0] == "drop"}
    begun = {run.key for run in world.engine.runs}
    ended = {TaskKey(*change[6]) for group in groups for change in group.changes if change[0] == "end"}
    for name in fires.keys() - removed:
        rows = [row for row in fires[name] if "key" in row]
        launched = Counter(TaskKey(*row["key"]) for row in rows if row["verdict"] == "launched")
        closed = Counter(TaskKey(*row["key"]) for row in rows if row["verdict"] in ("skipped", "obsolete"))
        wrong = sorted(key for key in ended & launched.keys() if launched[key] - closed[key] != (key in begun))
        _hold(not wrong, f"{name}: launches and rows that close them do not add up to what ran: {wrong[:3]}")
        _hold(closed.keys() <= ended, f"{name}: closed before they ended: {sorted(closed.keys() - ended)[:3]}")


def _events(world: PlanWorld, fires: dict[str, list[dict[str, Any]]]) -> None:
    """No event is lost, and none is counted twice."""
    launches = sum(row["verdict"] == "launched" for row in fires.get("count", []))
    _hold(launches == world.events // 3, f"{world.events} partitions made {launches} launches by three")
    ends = Counter(run.key.uniqueness_key.split("/")[0] for run in world.engine.runs)
    follow = sum(row["verdict"] == "launched" for row in fires.get("after", []))
    _hold(ends["count"] - 1 <= follow <= ends["count"], f"{ends['count']} ends made {follow} launches after them")


def _limits(world: PlanWorld) -> None:
    """No limit is exceeded."""
    narrow = [run for run in world.engine.runs if run.handler == "narrow"]
    _hold(_most(narrow) <= 1, "two runs of a handler of which one may run")
    tagged = [run for run in world.engine.runs if run.handler.startswith("tagged-")]
    _hold(_most(tagged) <= 1, "two runs of a tag of which one may run")
    for name, most in (("skip", 1), ("caught", 1), ("one", 1), ("lane", 1), ("two", 2)):
        runs = [run for run in world.engine.runs if run.key.uniqueness_key.startswith(f"{name}/")]
        _hold(_most(runs) <= most, f"{name}: more than {most} at once")


def _paces(fires: dict[str, list[dict[str, Any]]]) -> None:
    """No more is launched under a tag than its rate lets through, and what waits for it is not forgotten."""
    rows = [row for name in ("paced-a", "paced-b") for row in fires.get(name, [])]
    launches = sorted(row["at_us"] for row in rows if row["verdict"] == "launched")
    early = [at for before, at in zip(launches, launches[2:], strict=False) if at - before < PACE_US]
    _hold(not early, f"launched under a tag before its rate has room: {early}")


def _most(runs: list[Any]) -> int:
    level = most = 0
    for _, step in sorted([(run.begin_us, 1) for run in runs] + [(run.end_us, -1) for run in runs]):
        level += step
        most = max(most, level)
    return most


def _ranges(world: PlanWorld, fires: dict[str, list[dict[str, Any]]], state: PlanState) -> None:
    """Each version of a table belongs to one launch, and ranges touch, whatever is skipped, paused, changed or too old between.

    A table that takes the place of another one is told of once, and counts from its beginning; nothing of the other is launched after that.
    One that is replaced in place is the same, and so is one that has come for a schedule that was there before.
    """
    for name in ("table", "both", *(one["name"] for one in world.watching)):
        lying, found = None, list[tuple[Table, list[dict[str, Any]]]]()
        for row in fires.get(name, []):
            if row["verdict"] == "trouble" and row["why"].startswith("replaced"):
                other = _table_of(world, row["why"].split()[-1])
                _hold(all(other is not one for one, _ in found), f"{name}: told of twice: {row['why']}")
                lying = other
            elif row["verdict"] == "launched" and "table" in (seen := json.loads(row.get("values", "{}"))):
                lying = lying or _table_of(world, seen["table"]["table_id"])
                is_of_version = lying.ids[seen["table"]["to_version"]] == seen["table"]["table_id"]
                _hold(is_of_version, f"{name}: launched with {seen}, though {lying.ids} lies there")
                if not found or found[-1][0] is not lying:
                    found.append((lying, []))
                found[-1][1].append(seen["table"])
        for table, launches in found:
            _ranges_of(name, launches, table.parts, from_before=world.is_missing and table is found[0][0])
    stands = state.entries["table"].tables[0]
    _hold(stands.version == world.table.newest, f"{world.table.newest} versions were not launched")
    _hold(stands.table_id == world.table.ids[-1], "nobody has seen which table lies there")


def _table_of(world: PlanWorld, table_id: str) -> Table:
    return next(table for table in world.tables if table_id in table.ids)


def _ranges_of(name: str, found: list[dict[str, Any]], parts: list[str], *, from_before: bool) -> None:
    if name in ("t-per", "t-parts"):
        _partitions(parts, name, found)
        return
    edges = [(one["from_version"], one["to_version"]) for one in found]
    _hold(all(a[1] == b[0] for a, b in pairwise(edges)), f"{name}: ranges do not touch: {edges}")
    first = (-1, 0) if from_before else (0,)
    _hold(not edges or edges[0][0] in first, f"{name}: the first range begins at {edges[:1]}")


def _partitions(parts: list[str], name: str, found: list[dict[str, Any]]) -> None:
    """Each version belongs to one launch of its partition, up to the last of these."""
    for part in "abc":
        spans = [(one["from_version"], one["to_version"]) for one in found if one["partition"] == part]
        last = max((to for _, to in spans), default=0)
        owners = {
            version: sum(after < version <= to for after, to in spans)
            for version in range(1, last + 1)
            if parts[version] == part
        }
        wrong = {version: count for version, count in owners.items() if count != 1}
        _hold(not wrong, f"{name}: versions of {part} and how many runs they have: {wrong}, of {spans}")


def _troubles(groups: list[Any]) -> None:
    """What is wrong with a table is told of once by each planner for each state of a schedule, however often it looks."""
    told: set[tuple[Any, ...]] = set()
    begun: Counter[str] = Counter()
    for group in groups:
        for change in group.changes:
            if change[0] in ("put", "set"):
                begun[change[1]] += 1
            elif change[0] == "fire" and change[2]["verdict"] == "trouble":
                trouble = group.fence, change[1], begun[change[1]], change[2]["why"]
                _hold(trouble not in told, f"trouble was told of twice: {trouble}")
                told.add(trouble)


def pauses(world: PlanWorld) -> None:
    """Nothing of a schedule begins that was planned for the time after its pause was answered, or after it was deleted.

    Raises:
        PlanViolation: something did.
    """
    _stops(world, "stopped", "pause", "resume")
    _stops(world, "gone", "delete", "put")


def _stops(world: PlanWorld, name: str, stop: str, begin: str) -> None:
    answered: dict[int, int] = {}  # number of the command → when it was answered
    for _, group, number in _answers(world):
        answered[number] = group.at_us
    commands = [json.loads(text) for text in world.commands]
    kinds = [one["type"] if name in _names_of(one) else "" for one in commands]
    spans: list[tuple[int, int]] = []
    for number in sorted(answered):
        if kinds[number] == stop:
            after = [answered[later] for later in answered if later > number and kinds[later] == begin]
            spans.append((answered[number] + 1, min(after, default=world.now)))
    for run in world.engine.runs:
        if run.key.uniqueness_key.startswith(f"{name}/"):
            planned = at(run.key.uniqueness_key.split("/")[1])
            inside = [span for span in spans if span[0] < planned < span[1]]
            _hold(not inside, f"{run.key} began at {run.begin_us} in spite of a {stop} {inside}")


def _names_of(command: dict[str, Any]) -> list[str]:
    return [*command.get("names", ()), *(one["name"] for one in command.get("schedules", ()))]


def _state(world: PlanWorld, state: PlanState) -> None:
    """What the last planner holds is what the log says."""
    live = world.processes[-1].planner
    if live is not None and not world.processes[-1].under_way:
        assert_same(live.state, state)


def _room(state: PlanState) -> None:
    """What waits for a run to end waits for one that has not ended, whatever has become of its schedule."""
    entries = [
        entry for entry in state.entries.values() if entry.handler == "narrow" and not entry.name.startswith("t-")
    ]
    waiting = [entry.name for entry in entries for job in entry.jobs.values() if job.state == "pending_constraint"]
    active = [
        key for key, (name, _) in state.runs.items() if state.handlers.get(key, state.entries[name].handler) == "narrow"
    ]
    left = [key for key, handler in state.handlers.items() if handler == "narrow" and key not in state.runs]
    _hold(not waiting or bool(active or left), f"nothing runs that {waiting} wait for")


def _notices(world: PlanWorld, state: PlanState) -> None:
    """Each end is told of once by a rule without a digest, and counted once by one with it; no window outlasts its end."""
    all_facts = (fact for log in world.outcomes for value in log for fact in facts_of(value))
    facts = {fact.key: fact for fact in all_facts if fact.outcome != "too_late"}
    ends = {str(key): fact for key, fact in facts.items() if fact.outcome in ("failed", "succeeded")}
    told = Counter(one["key"] for one in world.engine.messages.values() if one["rule"] == "each")
    _hold(all(count == 1 for count in told.values()), f"told of twice: {told.most_common(1)}")
    _hold(told.keys() <= ends.keys(), f"never ended: {sorted(told.keys() - ends.keys())[:3]}")
    known = [key for key, fact in ends.items() if fact.finished_us < world.now - 10 * SECOND]
    _hold(set(known) <= told.keys(), f"never told of: {sorted(set(known) - told.keys())[:3]}")
    under_way = [text for _, text in world.engine.unread] + [text for texts in state.unsent.values() for text in texts]
    sent = world.engine.messages | {read[0]: read[1] for text in under_way if (read := message_of(text)) is not None}
    gathered = [one for one in sent.values() if one["rule"] == "gathered"]
    incidents = state.notices.incidents.get("gathered", {}).values()
    counted_in = sum(one["count"] for one in gathered if one["notice"] == "resolved") + sum(
        one.total for one in incidents
    )
    failures = [fact.finished_us for fact in facts.values() if fact.outcome == "failed"]
    least = sum(at < world.now - 10 * SECOND for at in failures)
    _hold(least <= counted_in <= len(failures), f"{len(failures)} failures were counted {counted_in} times")
    late = [
        one
        for each in state.notices.incidents.values()
        for one in each.values()
        if 0 < one.window_us < world.now - 10 * SECOND
    ]
    _hold(not late, f"windows that never ended: {late[:1]}")


def _sizes(world: PlanWorld, groups: list[Any]) -> None:
    """A group of the first planner ends with the step that makes it large; later ones may have to go on with an input first."""
    for group in groups:
        if group.fence != groups[0].fence:
            break
        size = len(
            encode(group._replace(changes=[one for one in group.changes if one[0] != "entry"]))
        )  # a schedule is one step
        _hold(size <= world.group_bytes + MOST_STEP_BYTES, f"group {group.number} has {size} bytes")


def _backfilled(world: PlanWorld, groups: list[Any], state: PlanState) -> None:
    """Each past time of a backfill runs once or is left, unless that was cancelled; and no more at once than were asked for."""
    asked: dict[int, list[int]] = {}
    cancelled: set[int] = set()
    for change in (change for group in groups for change in group.changes):
        if change[0] == "backfill" and change[2] not in asked:
            asked[change[2]] = [item[1] for item in change[3]["left"]]
        elif change[0] == "backfill_stands" and change[3] == "cancelled":
            cancelled.add(change[2])
    _hold(len(asked) == world.backfills, f"{world.backfills} backfills were asked for, and {sorted(asked)} began")
    past = state.entries["past"]
    runs: dict[int, list[Any]] = {}
    for run in world.engine.runs:
        if run.key.ordering_id.startswith("backfill/"):
            runs.setdefault(int(run.key.ordering_id.split("/")[2]), []).append(run)
    for number, planned in asked.items():
        mine = runs.get(number, [])
        found = Counter(at(run.key.uniqueness_key.split("/")[1]) for run in mine)
        twice = [one for one, count in found.items() if count > 1]
        _hold(not twice, f"backfill {number}: {twice} ran twice")
        _hold(_most(mine) <= 3, f"backfill {number}: more at once than were asked for")
        if number not in cancelled:
            left = past.backfills.get(number)
            kept = [item.planned_us for item in (*left.left, *left.running.values())] if left is not None else []
            _hold(
                sorted({*found, *kept}) == sorted(planned),
                f"backfill {number}: of {len(planned)} times some neither ran nor are left",
            )
    ends = [change for group in groups for change in group.changes if change[0] == "end" and change[1] == "past"]
    just_now = {
        change[6][1].split("/")[2]
        for change in ends
        if change[5] > world.now - SECOND and change[6][1].startswith("backfill/")
    }
    idle = [one.number for one in past.backfills.values() if one.may_launch and str(one.number) not in just_now]
    _hold(not idle, f"nobody launches what is left of backfills {idle}")


def _backfill_pauses(world: PlanWorld) -> None:
    """Nothing of a backfill begins after the answer to its pause, before it goes on."""
    paused: dict[int, int] = {}  # number of a backfill → when its pause was answered
    resumed: dict[int, int] = {}  # number of a backfill → number of the last command by which it went on
    spans: list[tuple[int, int, int]] = []
    commands = [json.loads(text) for text in world.commands]
    for offset, _, number in _answers(world):
        kind, backfill = commands[number]["type"], commands[number].get("backfill", 0)
        if kind == "resume_backfill":
            resumed[backfill] = number
            if backfill in paused:
                spans.append((backfill, paused.pop(backfill), world.appended[offset]))
        elif kind == "pause_backfill" and resumed.get(backfill, 0) < number:
            paused[backfill] = world.appended[offset]
    spans += [(backfill, since, world.now) for backfill, since in paused.items()]
    for run in world.engine.runs:
        if run.key.ordering_id.startswith("backfill/"):
            of = int(run.key.ordering_id.split("/")[2])
            inside = [span for span in spans if span[0] == of and span[1] < run.begin_us < span[2]]
            _hold(not inside, f"{run.key} began at {run.begin_us} while its backfill was paused {inside}")


def _answers(world: PlanWorld) -> Iterator[tuple[int, Group, int]]:
    """The first answer that each command was carried out, since snapshots repeat answers: offset, group, and number of the command."""
    seen: set[str] = set()
    for offset, group in counted(world.log):
        for change in group.changes:
            if change[0] == "answer" and change[2] == "ok" and change[1] not in seen:
                seen.add(change[1])
                yield offset, group, int(change[1][1:])


def _hold(condition: object, what: str) -> None:
    if not condition:
        raise PlanViolation(what)


def at(text: str) -> int:
    """Microseconds of an instant in a key."""
    return to_us(datetime.fromisoformat(text))
