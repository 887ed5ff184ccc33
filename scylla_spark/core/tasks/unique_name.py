"""The name of a task: what may be unique among the open tasks of a deployment, whatever their times."""

from __future__ import annotations

from typing import NamedTuple

from scylla_spark.core.tasks.key import TaskKey


class Name(NamedTuple):
    """A uniqueness key in its lane. Tasks of a name lie in one partition, whose owner sees all of their records in one order."""

    lane: str
    unique: str


def name_of(key: TaskKey) -> Name:
    """The name that a task bears."""
    return Name(key.ordering_id, key.uniqueness_key)
