"""Sets of schedules: what would become of them, and storing them in parts that fit into records."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from scylla_spark.client.stored_definitions import parts_of
from scylla_spark.core.plan.commands.removal import Loss, losses
from scylla_spark.core.plan.state.plan_state import PlanState
from scylla_spark.errors import ArgumentError, ConflictError, SchedulerError

if TYPE_CHECKING:
    from scylla_spark.client.planner_interface import PlannerLink
    from scylla_spark.client.schedules.schedule import Schedule

_REMOVED_AT_ONCE: Final = 1_000


def put(
    plan: PlannerLink, schedules: Sequence[Schedule], prune: str | None, author: str, *, only_new: bool = False
) -> dict[str, str]:
    """Stores schedules; name → what became of it.

    Args:
        plan: asks the planner.
        schedules: all of the set.
        prune: an owner whose other schedules are removed.
        author: who changes them.
        only_new: those that are stored stay as they are, whatever they say.

    Raises:
        ArgumentError: one is refused, or two are of one name, or one waits for a schedule that is removed; then nothing is done.
        ConflictError: only new ones are to be stored, and one that was new is stored by now.
    """
    names = _names(schedules)
    _check_owner(schedules, prune)
    if prune is not None:
        _check_removals(plan.state(), schedules, prune, only_new=only_new)
    done: dict[str, str] = {}
    if only_new:
        known = compared(plan.state(), schedules, None, only_new=True)
        done = {name: verdict for name, verdict in known.items() if verdict != "added"}
    parts = list(parts_of(schedule.definition for schedule in schedules if schedule.name not in done))
    for number, part in enumerate(parts):
        try:
            done |= plan.ask("put", schedules=part, author=author or None, ifAbsent=True if only_new else None).done
        except (ArgumentError, ConflictError) as error:
            raise _stopped(error, parts, number) from error
    if prune is not None:
        gone = _pruned(plan.state(), names, prune)
        for first in range(0, len(gone), _REMOVED_AT_ONCE):
            done |= plan.ask("delete", names=gone[first : first + _REMOVED_AT_ONCE], author=author or None).done
    return done


def compared(
    state: PlanState, schedules: Sequence[Schedule], prune: str | None, *, only_new: bool = False
) -> dict[str, str]:
    """Returns what would become of each; name → "added", "changed", "unchanged", "removed", or "kept" where another definition is stored.

    What is removed takes others with it: see `lost`.

    Args:
        state: what the planner knows.
        schedules: all of the set.
        prune: an owner whose other schedules are removed.
        only_new: those that are stored stay as they are.

    Raises:
        ArgumentError: two are of one name, or one waits for a schedule that is removed.
    """
    _check_removals(state, schedules, prune, only_new=only_new)
    names = _names(schedules)
    _check_owner(schedules, prune)
    done, differs = {}, "kept" if only_new else "changed"
    for schedule in schedules:
        entry = state.entries.get(schedule.name)
        same = entry is not None and json.loads(entry.text) == schedule.definition
        done[schedule.name] = "unchanged" if same else differs if entry is not None else "added"
    if prune is not None:
        done |= dict.fromkeys(_pruned(state, names, prune), "removed")
        done |= {name: loss.becomes for name, loss in lost(state, schedules, prune, only_new=only_new).items()}
    return done


def lost(
    state: PlanState, schedules: Sequence[Schedule], prune: str | None, *, only_new: bool = False
) -> dict[str, Loss]:
    """Returns what schedules lose that are not removed for themselves, but wait for one that is; by name.

    Args:
        state: what the planner knows.
        schedules: all of the set.
        prune: an owner whose other schedules are removed.
        only_new: those that are stored stay as they are.
    """
    names = {schedule.name for schedule in schedules}
    kept = names & state.entries.keys() if only_new else set[str]()
    given = {schedule.name: schedule.definition for schedule in schedules if schedule.name not in kept}
    gone = [] if prune is None else _pruned(state, names, prune)
    return losses(state.entries, gone, given) if gone else {}


def changes(before: Any, after: Any, place: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yields what differs between two definitions, field by field: its place, and both values.

    Args:
        before: a JSON value.
        after: another one.
        place: where both stand; empty: they are the definitions themselves.
    """
    if isinstance(before, dict) and isinstance(after, dict):
        for name in sorted(before.keys() | after.keys()):
            yield from changes(before.get(name), after.get(name), f"{place}.{name}" if place else name)
    elif before != after:
        yield place, before, after


def _names(schedules: Sequence[Schedule]) -> set[str]:
    names = [schedule.name for schedule in schedules]
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise ArgumentError(f"The schedule {twice[0]!r} is defined twice.", hint="Give each a name of its own.")
    return set(names)


def _pruned(state: PlanState, names: Collection[str], owner: str) -> list[str]:
    """Schedules of an owner that are not of the set."""
    mine = f"owner:{owner}"
    return [name for name, entry in sorted(state.entries.items()) if mine in entry.keys and name not in names]


def _check_removals(
    state: PlanState, schedules: Sequence[Schedule], prune: str | None, *, only_new: bool = False
) -> None:
    """Refuses a set that would not be what is stored in the end."""
    given = {schedule.name for schedule in schedules}
    for name, loss in lost(state, schedules, prune, only_new=only_new).items():
        if name in given:
            raise ArgumentError(
                f"The schedule {name!r} of the set waits for {loss.work!r}, which is removed since it is not of the set.",
                hint=f"Change the `after` of {name!r}, or keep {loss.work!r}.",
            )


def _stopped(error: SchedulerError, parts: Sequence[Sequence[Any]], number: int) -> SchedulerError:
    """Returns what was refused, and what of the set had been stored before; a set of one part is stored whole or not at all."""
    if not number:
        return error
    stored = sum(len(part) for part in parts[:number])
    said = f"{error.message} Of the set {stored} schedules were looked at before, and are stored; nothing was removed."
    return type(error)(said, hint=error.hint)


def _check_owner(schedules: Sequence[Schedule], prune: str | None) -> None:
    foreign = [schedule.name for schedule in schedules if prune is not None and schedule.owner != prune]
    if foreign:
        raise ArgumentError(
            f"The schedule {foreign[0]!r} is not of the owner {prune!r} whose set is put.",
            hint=f"Say owner={prune!r} in each: the next time it would be removed.",
        )
