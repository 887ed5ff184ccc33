"""How every partition stands: how far the tables are behind its logs, who owns it, and what its owner holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from scylla_spark.client.tasks.explain import ask_partitions
from scylla_spark.clock import iso
from scylla_spark.core.tables.progress import ALL_FOLDED_US, Mark
from scylla_spark.core.tasks.key import HOUR_US
from scylla_spark.errors import UnreachableError

if TYPE_CHECKING:
    from scylla_spark.client.connection import Connection


def partition_rows(connection: Connection) -> tuple[list[dict[str, Any]], str]:
    """One row per partition, and why Kafka could not be asked (empty: it could).

    Args:
        connection: to the deployment.

    Returns:
        Rows with `partition`, `tasks_behind` and `outcomes_behind` (records; None: not known), `folded_until`, `closed_until`,
        `open_hours`, and of the owner `state`, `epoch`, `lanes`, `loaded`, `in_flight` and `owner` (None: nobody answers).
    """
    marks, numbers = connection.readers.marks(), range(connection.rules.partitions)
    try:
        ends, why = _ends(connection, list(numbers)), ""
    except UnreachableError as error:
        ends, why = {}, str(error)
    answers: dict[str, dict[int, Any]] = {}
    rows = []
    for number in numbers:
        address = connection.owner_address(number) if ends else ""
        if address and address not in answers:
            answers[address] = ask_partitions(address)
        held = answers.get(address, {}).get(number, {})
        rows.append(
            _how_far(number, marks, ends)
            | {name: held.get(name) for name in ("state", "epoch", "lanes", "loaded", "in_flight")}
            | {"owner": address.removeprefix("http://") or None}
        )
    return rows, why


def _ends(connection: Connection, numbers: list[int]) -> dict[str, dict[int, int]]:
    """Name of a topic → partition → end of its log."""
    from scylla_spark.io.kafka.topics import WAIT_MS, end_offsets

    located = connection.located
    return {
        name: end_offsets(located, getattr(located.topics, name), numbers, WAIT_MS) for name in ("tasks", "outcomes")
    }


def _how_far(
    number: int, marks: Mapping[tuple[str, int], Mark], ends: Mapping[str, Mapping[int, int]]
) -> dict[str, Any]:
    tasks, outcomes = marks.get(("tasks", number), Mark()), marks.get(("outcomes", number), Mark())
    return {
        "partition": number,
        "tasks_behind": ends["tasks"][number] - tasks.tasks_offset if ends else None,
        "outcomes_behind": ends["outcomes"][number] - outcomes.outcomes_offset if ends else None,
        "folded_until": iso(tasks.folded_until_us) if tasks.folded_until_us < ALL_FOLDED_US else None,
        "closed_until": iso(tasks.closed_hour * HOUR_US) if tasks.closed_hour else None,
        "open_hours": len(tasks.open_hours),
    }
