"""The planner's log: one record holds a group of changes that belong together, and up to where its inputs were read for them.

It stands on the last partition of `outcomes`, under fences as any owner's. State is nothing but these records, folded in order; no
decision is ever made twice. A *snapshot* is the state once more, in records that may stand among others: whoever begins where one
began, and reads to the end, knows everything. Which one that is, stands in every record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple, Required

from pydantic import ConfigDict, FailFast, Field, TypeAdapter, ValidationError, with_config
from pydantic_core import from_json, to_json
from typing_extensions import TypedDict

from scylla_spark.core.records import rejection_reason
from scylla_spark.core.records.fact import Fence, Unreadable

VERSION: Final = 13
"""The newest version of groups. 3: schedules and watched tables told in parts. 4: runs that outlive their schedule; a definition that
takes the place of another, and says which leaves go on where one of before stands with its table. 5: runs of times that were missed,
which later ones do not cancel. 6: triggers that count ends of runs, or wait for their absence. 7: by when runs are
to start and end, and which have started in time; of a schedule that is told again, when its silence was told of, and which times wait for
a place. 8: triggers that wait for a batch. 9: backfills of which a few runs at a time are launched.
10: when handlers succeeded last. 11: definitions that change words only. 12: tables that are to grow by so many bytes,
and schedules that run by request. 13: schedules whose jobs run after their job timeout, or that keep what comes during a
pause; triggers on starts and on topics, and tables that are run at least so often; constraints on the load, on answers of a handler, or
on a tag, and what was launched under a tag. A group is written as the lowest version that knows all its changes, at least 2; older
readers read it, and stop before a newer one."""
_COMMON: Final = 2
PLAN: Final = "plan"
MAX_GROUP_BYTES: Final = 1024 * 1024
SOFT_GROUP_BYTES: Final = 128 * 1024  # a group ends here; the step that goes beyond it takes up to 0.8 MiB more
MOST_RECORD_BYTES: Final = 2_000_000  # a little less than Kafka takes: the envelope and the positions need room, too
MAX_READ_BYTES: Final = (
    2 * 1024 * 1024
)  # as much as a producer of ours sends; compressed records of others can be far larger
ENTRY_PART: Final = "entry_part"
"""Kind of the change that repeats a schedule without its jobs and partitions of tables; these follow, each as one change."""
ENTRY_JOB: Final = "entry_job"
TABLE_PART: Final = "table_part"
"""Kind of the change by which versions of one partition of a table are handed over."""
RUNS_OF: Final = "runs_of"
"""Kind of the change that says of which handler runs are whose schedule goes, or gets another handler, before they have ended."""
END: Final = "end"
"""Kind of the change by which a run ends; at its end stands true if the run goes back to what its backfill has left."""
RUN_ENDED: Final = "run_ended"
"""Kind of the change by which such a run of a schedule that is gone has ended; at its end stands when, if it has succeeded."""
SUCCEEDED: Final = "succeeded"
"""Kind of the change of a snapshot that says when a handler succeeded last, of whichever schedule."""
UNJUDGED: Final = "unjudged"
"""Field of a fire: which constraints held only because they could not be judged."""
RATED: Final = "rated"
"""Kind of the change by which a run is launched under tags whose launches are counted."""
LAUNCHES: Final = "launches"
"""Kind of the change of a snapshot that says when runs were launched under a tag."""
CAUGHT_UP: Final = "caught_up"
"""Field of a fire whose run no later one cancels, and of a schedule that is told again: numbers of such runs."""
PROMISED: Final = "promised"
"""Field of a launch: by when its run is to start and to end, 0 for what nobody looks at; of a schedule that is told again: the same of
its runs, each behind its number."""
BEGUN: Final = "begun"
"""Kind of the change by which a task has begun and was reported to triggers on starts (true), or has ended after that (false)."""
STARTED: Final = "started"
"""Kind of the change by which a run that is to start by some time has done so."""
SILENT_US: Final = "silent_us"
"""Field of a schedule that is told again: when it was told of last that no run has succeeded."""
BACKFILL: Final = "backfill"
"""Kind of the change by which a backfill begins, or is told again as a part of a snapshot."""
BACKFILL_STANDS: Final = "backfill_stands"
"""Kind of the change by which a backfill is paused, goes on, or is cancelled."""
BACKFILL_OF: Final = "backfill"
"""Field of the fire of a run of a backfill: the number of that."""
HELD_US: Final = "held_us"
"""Field of a schedule that is told again: up to when its times wait for a place."""
GOES_ON: Final = "goes_on"
"""Field of a definition that takes the place of one that runs the same work at the same times: what waits and what has been seen stays."""
_SINCE: Final = {
    ENTRY_PART: 3,
    ENTRY_JOB: 3,
    TABLE_PART: 3,
    RUNS_OF: 4,
    RUN_ENDED: 4,
    SUCCEEDED: 10,
    STARTED: 7,
    BEGUN: 13,
    BACKFILL: 9,
    BACKFILL_STANDS: 9,
    RATED: 13,
    LAUNCHES: 13,
}
_SINCE_FIELD: Final = {CAUGHT_UP: 5, PROMISED: 7, SILENT_US: 7, HELD_US: 7, BACKFILL_OF: 9, GOES_ON: 11}
_END_FIELDS: Final = 7
_LEAVES_KEPT: Final = 4
_ENDS_COUNTED: Final = 6
_BATCHES: Final = 8
_RUNS_LATER: Final = 9
_BYTES_AND_REQUESTS: Final = 12
_POLICIES_AND_STARTS: Final = 13
_NEW_FIELDS: Final = frozenset({"onJobTimeout", "onPause"})
"""Fields of definitions that older planners cannot read."""
_NEW_CONSTRAINTS: Final = ('"tag":', '"kind":"load"', '"kind":"check"')
"""Texts in definitions that have a constraint that older planners cannot read."""
_NEW_WORDS: Final = tuple(map('"{}"'.format, ("batch", "manual", "minBytes", "started", "topic", "atLeastEvery")))
"""One of them stands in each definition whose trigger older planners cannot read, beside those that count ends of runs."""
_TAGS_OF_RUNS: Final = 3  # where they stand in a change

Change = Sequence[Any]
"""What changed: its kind, and fields as `plan_state` reads them; JSON values only."""
Position = tuple[int, int, str]
"""Next offset in a partition of `outcomes`, and epoch and nonce of the fence in force there."""


class Partly(NamedTuple):
    """An input that touches many schedules and is not through.

    Attributes:
        source: number of the partition of `outcomes`, or -1 for `schedules`.
        offset: of its record.
        item: number of the fact in it.
        name: the schedules up to this one have had it.
    """

    source: int
    offset: int
    item: int
    name: str


class Group(NamedTuple):
    """One record of the planner.

    Attributes:
        fence: under which it was written.
        number: of the group; they grow by one.
        at_us: when it was decided.
        commands: next offset of `schedules`; None: as before.
        outcomes: partition → position; what is missing is as before.
        partly: of the input at these positions, what is done.
        sent: what groups up to this number asked to be sent was sent.
        snapshot: offset at which the last complete snapshot begins; -1: at the beginning of the log.
        changes: in order.
        begins: it begins a snapshot.
    """

    fence: Fence
    number: int
    at_us: int
    commands: int | None = None
    outcomes: Mapping[int, Position] = {}
    partly: Partly | None = None
    sent: int = 0
    snapshot: int = -1
    changes: Sequence[Change] = ()
    begins: bool = False


@with_config(ConfigDict(strict=True, extra="ignore", allow_inf_nan=False))
class _Fields(TypedDict, total=False):
    v: Required[int]
    kind: Required[str]
    epoch: Required[int]
    nonce: Required[str]
    number: Required[Annotated[int, Field(ge=0)]]
    at_us: Required[int]
    commands: int
    outcomes: dict[str, tuple[int, int, str]]
    partly: tuple[int, int, int, str]
    sent: Required[int]
    snapshot: Required[int]
    changes: Required[
        Annotated[list[list[Any]], FailFast()]
    ]  # else each of a million wrong ones is an error of its own
    begins: bool


_read = TypeAdapter(_Fields).validator.validate_json
_BEGINS: Final = tuple(f'{{"v":{version},"kind":"{PLAN}",'.encode() for version in range(_COMMON, VERSION + 1))


def is_plan(value: bytes | None) -> bool:
    """Returns True if a record is one of ours, and no fence."""
    return value is not None and value.startswith(_BEGINS)


def encode(group: Group) -> bytes:
    """The record of a group."""
    fields: dict[str, Any] = {
        "v": max(map(_version_of, group.changes), default=_COMMON),
        "kind": PLAN, "epoch": group.fence.epoch, "nonce": group.fence.nonce, "number": group.number,
        "at_us": group.at_us, "sent": group.sent, "snapshot": group.snapshot,
    }  # fmt: skip
    if group.commands is not None:
        fields["commands"] = group.commands
    if group.outcomes:
        fields["outcomes"] = {str(number): position for number, position in group.outcomes.items()}
    if group.partly is not None:
        fields["partly"] = group.partly
    if group.begins:
        fields["begins"] = True
    return to_json(fields | {"changes": group.changes})


def _version_of(change: Change) -> int:
    """The version of groups that a change needs."""
    kind = change[0]
    fields = change[2] if kind in ("fire", "put") else change[1] if kind in ("entry", ENTRY_PART) else {}
    version = _SINCE.get(kind, _COMMON)
    if kind == "put" and len(change) > 3:
        version = _LEAVES_KEPT
    if kind == END and len(change) > _END_FIELDS:
        version = _RUNS_LATER
    if kind == RUNS_OF and len(change) > _TAGS_OF_RUNS:
        version = _POLICIES_AND_STARTS
    if kind != "fire":
        version = max(version, _version_of_definition(fields.get("text", "")))
    return max([version, *(since for field, since in _SINCE_FIELD.items() if field in fields)])


def _version_of_definition(text: str) -> int:
    """The version that a definition needs because older planners cannot read it.

    Args:
        text: the definition, a JSON object; empty: there is none.
    """
    if any(f'"{name}"' in text for name in _NEW_FIELDS) and not _NEW_FIELDS.isdisjoint(from_json(text)):
        return _POLICIES_AND_STARTS
    if _has_new_constraint(text):
        return _POLICIES_AND_STARTS
    counts = '"after"' in text and ('"atLeast"' in text or '"absent"' in text)
    if not counts and not any(word in text for word in _NEW_WORDS):
        return _COMMON  # there may be a hundred thousand of them
    version, todo = _COMMON, [from_json(text).get("trigger")]
    while todo:
        node = todo.pop()
        if isinstance(node, list):
            todo += node
        elif isinstance(node, dict):
            kind, of = node.get("kind"), node.get("of")
            if kind == "topic" or (kind == "table" and "atLeastEvery" in node):
                return _POLICIES_AND_STARTS
            if kind == "after" and "started" in node.get("on", ()):
                return _POLICIES_AND_STARTS
            if kind == "manual" or (kind == "table" and "minBytes" in node):
                return _BYTES_AND_REQUESTS
            if kind == "batch":
                version = max(version, _BATCHES)
            of_runs = kind == "absent" and isinstance(of, dict) and of.get("kind") == "after"
            if of_runs or (kind == "after" and "atLeast" in node):
                version = max(version, _ENDS_COUNTED)
            todo.append(of)
    return version


def _has_new_constraint(text: str) -> bool:
    held = from_json(text).get("constraints", ()) if any(one in text for one in _NEW_CONSTRAINTS) else ()
    return any("tag" in one or one.get("kind") in ("load", "check") for one in held)


def change_bytes(change: Change) -> int:
    """Returns how many bytes a change takes in the record of its group."""
    return len(to_json(change)) + 1


def decode(value: bytes) -> Group | Unreadable:
    """Reads a record that `is_plan`; never raises, whatever the bytes are."""
    if len(value) > MAX_READ_BYTES:
        return Unreadable("too_large", f"The record has {len(value)} bytes; {MAX_READ_BYTES} are read.")
    try:
        found = _read(value)
        partly = found.get("partly")
        return Group(
            Fence(found["epoch"], found["nonce"]), found["number"], found["at_us"], found.get("commands"),
            {int(number): position for number, position in found.get("outcomes", {}).items()},
            Partly(*partly) if partly is not None else None, found["sent"], found["snapshot"], found["changes"],
            found.get("begins", False),
        )  # fmt: skip
    except ValidationError as error:
        return Unreadable(*rejection_reason.of_form(error))
    except MemoryError:
        raise
    except Exception as error:
        return Unreadable(*rejection_reason.of_defect(error))
