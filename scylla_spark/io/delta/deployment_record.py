"""What is fixed for the life of the tables, or must be the same for all parts, as stored in table `deployment`."""

from __future__ import annotations

import json
from typing import Any

from scylla_spark.config.settings import Settings
from scylla_spark.core.records.command import Rules
from scylla_spark.duration import duration_ms
from scylla_spark.errors import ConfigError
from scylla_spark.schemas import VERSION


def stored_rules(stored: dict[str, Any]) -> Rules:
    """The rules in a deployment's stored settings."""
    return Rules(stored["partitions"], stored["grace_ms"], stored["retention_ms"], stored["default_handler"])


def stored_version(stored: dict[str, Any]) -> int:
    """The version of the tables' columns in a deployment's stored settings."""
    return int(stored.get("schema_version", 1))


def stored_rows(fixed: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of table `deployment` that say what is fixed."""
    return [{"name": name, "value": json.dumps(value)} for name, value in fixed.items()]


def check_version(stored: dict[str, Any]) -> None:
    """For the one that writes: whether this code knows all that the tables hold.

    Raises:
        ConfigError: the tables were made or migrated by newer code.
    """
    version = stored_version(stored)
    if version > VERSION:
        raise ConfigError(
            f"These tables were made by a newer scylla-spark: their columns are of version {version}, this one writes {VERSION}.",
            hint="Upgrade this ingest, to the version that wrote them or a later one. Nothing was changed.",
        )


def check_partitions(stored: int, wanted: int) -> None:
    """Compares the partition count of a deployment with that of somebody's settings.

    Raises:
        ConfigError: they differ.
    """
    if stored != wanted:
        raise ConfigError(
            f"These tables were made with {stored} partitions; the settings say {wanted}.",
            hint=f"The count is fixed for the life of a deployment: set partitions = {stored}.",
        )


def check(stored: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Compares what must not change.

    Raises:
        ConfigError: the partition count differs, or a topic was deleted and made again.
    """
    check_partitions(stored["partitions"], wanted["partitions"])
    for name, identity in wanted["topic_ids"].items():
        if stored["topic_ids"].get(name) != identity:
            raise ConfigError(
                f"Topic {name!r} is not the one these tables were filled from: it was deleted and made again, or is of another cluster.",
                hint="Point the settings at the old cluster, or at a new folder for the tables.",
            )
    for name in ("grace_ms", "retention_ms", "default_handler"):
        if stored[name] != wanted[name]:
            raise ConfigError(
                f"These tables were made with {name} = {stored[name]!r}; the settings say {wanted[name]!r}.",
                hint="All parts must judge records alike, so it is fixed when the tables are made.",
            )


def deployment(settings: Settings, topic_ids: dict[str, str]) -> dict[str, Any]:
    """Returns what is to be stored when the tables are made.

    Args:
        settings: of this process.
        topic_ids: topic name → id.
    """
    return {
        "partitions": settings.partitions,
        "grace_ms": duration_ms(settings.ingest.grace),
        "retention_ms": duration_ms(settings.ingest.retention),
        "default_handler": settings.ingest.default_handler,
        "topic_ids": topic_ids,
        "schema_version": VERSION,
    }
