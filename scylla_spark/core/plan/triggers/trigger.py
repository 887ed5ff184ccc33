"""Triggers: what a schedule waits for, as a tree of times, data, events, runs, and logic over them. Plain records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from scylla_spark.core.plan.times.fire_times import FireTimes
from scylla_spark.core.tasks.tags import MAX_TAG_CHARS, is_tag
from scylla_spark.errors import ArgumentError
from scylla_spark.name import RULE, is_name
from scylla_spark.topic_names import check_topic_name

Scalar = str | int | float | bool
Comparison = Literal["=", "!=", "<", "<=", ">", ">="]
Operation = Literal["append", "update", "delete", "merge", "overwrite"]
Ended = Literal["succeeded", "failed", "cancelled", "started"]

MOST_NODES: Final = 1_000
MOST_DEPTH: Final = 50
_MOST: Final = 2**53
_LONGEST_US: Final = 36_525 * 86_400 * 1_000_000
_MOST_CHARS: Final = 1_024


@dataclass(frozen=True, slots=True)
class AtTimes:
    """Fires at times."""

    times: FireTimes


@dataclass(frozen=True, slots=True)
class Condition:
    """A column compared with a literal; conditions of a trigger hold all together."""

    column: str
    comparison: Comparison
    value: Scalar


@dataclass(frozen=True, slots=True)
class OnTable:
    """Fires when a Delta table has grown; each fire owns the versions after those of the fire before.

    Attributes:
        table: path or name.
        min_rows: at least so many new rows.
        min_commits: at least so many commits.
        min_bytes: the new files of these commits have at least so many bytes.
        operations: which commits count; empty: all that change data.
        where: which rows count.
        settle_us: the table must have been quiet for so long.
        throttle_us: not more often than this.
        overdue_us: so long after the last fire less is enough, if anything counts; 0: never.
        per: column of partitions, each of which fires for itself; empty: the table as a whole.
        start: "now", "earliest", or the last version that does not count.
    """

    table: str
    min_rows: int = 0
    min_commits: int = 1
    min_bytes: int = 0
    operations: tuple[Operation, ...] = ()
    where: tuple[Condition, ...] = ()
    settle_us: int = 0
    throttle_us: int = 0
    overdue_us: int = 0
    per: str = ""
    start: Literal["now", "earliest"] | int = "now"


@dataclass(frozen=True, slots=True)
class OnTopic:
    """Fires when a Kafka topic has grown; each fire owns the records after those of the fire before, in all partitions.

    Attributes:
        topic: name.
        records: at least so many new records, counted by offsets.
        bytes: their batches take at least so many bytes in the topic.
        throttle_us: not more often than this.
        overdue_us: so long after the last fire one record is enough; 0: never.
        start: whether records count that are there already ("earliest").
    """

    topic: str
    records: int = 1
    bytes: int = 0
    throttle_us: int = 0
    overdue_us: int = 0
    start: Literal["now", "earliest"] = "now"


@dataclass(frozen=True, slots=True)
class OnPartitions:
    """Fires when notifications of a dataset add up to so many partitions, rows and bytes; then counting begins anew."""

    dataset: str
    at_least: int = 1
    rows: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class OnEvent:
    """Fires on a pushed event of that name whose fields have these values."""

    name: str
    where: tuple[tuple[str, Scalar], ...] = ()


@dataclass(frozen=True, slots=True)
class OnAbsence:
    """Fires once when nothing came of a table, dataset or event for so long, or no run ended so; again only after it came.

    Attributes:
        of: the trigger that would have counted.
    """

    of: OnTable | OnPartitions | OnEvent | OnRuns
    within_us: int


@dataclass(frozen=True, slots=True)
class OnRuns:
    """Fires when so many runs of some work have begun, or have ended for good; then counting begins anew.

    Attributes:
        work: name of a handler or a schedule.
        on: which ends count, or "started" alone: begins do.
        at_least: how many.
    """

    work: str
    on: frozenset[Ended] = frozenset({"succeeded"})
    at_least: int = 1

    @property
    def on_start(self) -> bool:
        """Returns True if it counts begins of runs."""
        return "started" in self.on


@dataclass(frozen=True, slots=True)
class OnBatch:
    """Fires when so many tasks that carry a tag have ended, however they did; then counting begins anew.

    Attributes:
        tag: of the tasks.
        size: how many.
    """

    tag: str
    size: int


@dataclass(frozen=True, slots=True)
class OnRequest:
    """Never fires: a schedule with it runs when somebody asks for a run."""


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Holds when so many of its branches have fired since the last launch.

    Attributes:
        branches: each stays latched until the launch, which clears all.
        at_least: how many; as many as there are branches: all.
    """

    branches: tuple[Trigger, ...]
    at_least: int = 1


Trigger = AtTimes | OnTable | OnTopic | OnPartitions | OnEvent | OnAbsence | OnRuns | OnBatch | OnRequest | AnyOf


def nodes(trigger: Trigger) -> Iterator[tuple[Trigger, int]]:
    """All nodes of a tree with their depth from 0, parents before children; not recursive, so any depth is listed."""
    todo: list[tuple[Trigger, int]] = [(trigger, 0)]
    while todo:
        node, depth = todo.pop()
        yield node, depth
        if isinstance(node, AnyOf):
            todo += [(branch, depth + 1) for branch in reversed(node.branches)]


def leaves(trigger: Trigger) -> list[Trigger]:
    """The branches that fire by themselves, in the order in which they were written."""
    return [node for node, _ in nodes(trigger) if not isinstance(node, AnyOf)]


def table_of(leaf: Trigger) -> OnTable | None:
    """The trigger on a table that a leaf is, or whose absence it waits for; None: it watches no table."""
    found = leaf.of if isinstance(leaf, OnAbsence) else leaf
    return found if isinstance(found, OnTable) else None


def source_of(leaf: Trigger) -> OnTable | OnTopic | None:
    """The trigger on a table or topic that a leaf is, or the table whose absence it waits for; None: it watches neither."""
    return leaf if isinstance(leaf, OnTopic) else table_of(leaf)


def checked(trigger: Trigger) -> Trigger:
    """The trigger, if it can ever fire and its size is bounded.

    Raises:
        ArgumentError: it is too large, an AND or OR has no branches or asks for more than it has, or a limit cannot be met.
    """
    for count, (node, depth) in enumerate(nodes(trigger), start=1):
        if count > MOST_NODES or depth > MOST_DEPTH:
            raise ArgumentError(
                f"A trigger has at most {MOST_NODES} nodes and {MOST_DEPTH} levels.", hint="Split the schedule in two."
            )
        _check(node)
    return trigger


def _check(node: Trigger) -> None:
    match node:
        case AnyOf(branches, at_least):
            if not branches:
                raise ArgumentError("An AND or OR has no branches.", hint="Give it at least one trigger.")
            if any(isinstance(branch, OnRequest) for branch in branches):
                raise ArgumentError(
                    "A manual trigger stands alone: as a branch it would never fire.",
                    hint="Leave it out. Any schedule can be run by hand.",
                )
            _within("at_least", at_least, 1, len(branches))
        case OnTable():
            _text("table", node.table)
            _within("min_rows", node.min_rows, 0, _MOST)
            _within("min_commits", node.min_commits, 1, _MOST)
            _within("min_bytes", node.min_bytes, 0, _MOST)
            if node.min_bytes and node.where:
                raise ArgumentError(
                    "A trigger with `where` has no min_bytes: the log has the size of files, not of single rows.",
                    hint="Use min_rows, or leave `where` out.",
                )
            _within("settle", node.settle_us, 0, _LONGEST_US)
            _check_paces(node)
            if isinstance(node.start, int):
                _within("start", node.start, 0, _MOST)
            for condition in node.where:
                _text("where", condition.column)
        case OnTopic():
            check_topic_name(node.topic)
            _within("records", node.records, 1, _MOST)
            _within("bytes", node.bytes, 0, _MOST)
            _check_paces(node)
        case OnPartitions(dataset, at_least, rows, size):
            _text("dataset", dataset)
            _within("at_least", at_least, 1, _MOST)
            _within("rows", rows, 0, _MOST)
            _within("bytes", size, 0, _MOST)
        case OnEvent(name):
            _text("event", name)
        case OnAbsence(of, within_us):
            _check(of)
            if isinstance(of, OnRuns) and of.at_least > 1:
                raise ArgumentError(
                    "The absence of runs has no at_least: any end of a run that counts begins it anew.",
                    hint="Leave at_least out of the `after` in it.",
                )
            _within("within", within_us, 1_000_000, _LONGEST_US)
        case OnRuns(work, on, at_least):
            if not is_name(work):
                raise ArgumentError(f"{work[:100]!r} cannot be the name of a handler or schedule.", hint=f"Use {RULE}.")
            if "started" in on and len(on) > 1:
                raise ArgumentError(
                    "A trigger counts the starts of runs or their ends, not both.",
                    hint='Join two: after(work, on="started") | after(work).',
                )
            unknown = sorted(on - {"succeeded", "failed", "cancelled", "started"})
            if unknown or not on:
                raise ArgumentError(
                    f"A run cannot end as {', '.join(unknown) or 'nothing'} for good.",
                    hint="Choose among succeeded, failed and cancelled, or started alone.",
                )
            _within("at_least", at_least, 1, _MOST)
        case OnBatch(tag, size):
            if not is_tag(tag):
                raise ArgumentError(
                    f"{tag[:100]!r} cannot be a tag of tasks.",
                    hint=f"A tag has 1 to {MAX_TAG_CHARS} printable characters.",
                )
            _within("size", size, 1, _MOST)


def _check_paces(node: OnTable | OnTopic) -> None:
    _within("at_most_every", node.throttle_us, 0, _LONGEST_US)
    _within("at_least_every", node.overdue_us, 0, _LONGEST_US)
    if 0 < node.overdue_us < node.throttle_us:
        raise ArgumentError(
            "at_least_every is shorter than at_most_every: both cannot be met.",
            hint="Give at_least_every the longer time.",
        )


def _within(what: str, value: int, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise ArgumentError(f"{what} is {value!r}.", hint=f"It lies between {least} and {most}.")


def _text(what: str, text: str) -> None:
    if not text or len(text) > _MOST_CHARS or "\0" in text:
        raise ArgumentError(f"{what} is {text[:100]!r}.", hint=f"It has 1 to {_MOST_CHARS} characters.")
