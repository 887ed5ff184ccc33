"""When versions of a watched table belong to a run: with its launch, not before. What is not launched leaves them where they are.

A job only claims versions while it waits; more that comes goes on with its claim. So whatever is skipped, paused, changed or too
old in between, ranges of consecutive launches touch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scylla_spark.core.plan.state.entry import Entry, Handed, Job, Latch
from scylla_spark.core.plan.state.plan_log import TABLE_PART, Change

TABLE = "table"
"""Name under which latches and templates know of versions."""


def handed_over(entry: Entry, job: Job, now: int) -> list[Change]:
    """What says that the versions of a job are a run's own from now on; to be written together with its launch.

    Args:
        entry: of the schedule.
        job: that is launched.
        now: microseconds since the epoch.
    """
    claims = ((leaf, claim_of(latch)) for leaf, latch in job.latches.items())
    return [moved(entry, leaf, claim, now) for leaf, claim in claims if claim and is_open(entry, leaf, claim)]


def moved(entry: Entry, leaf: int, claim: Mapping[str, Any], now: int) -> Change:
    """The change by which what comes later begins after a claim.

    Args:
        entry: of the schedule.
        leaf: number of the leaf on the table.
        claim: the versions, as `claim_of` gives them.
        now: microseconds since the epoch.
    """
    to_version, part = claim["to_version"], claim["partition"]
    known = entry.tables[leaf].parts.values()
    if part is None or (claim["alone"] and all(version <= to_version for version, _ in known)):
        return "table", entry.name, leaf, Handed(claim["table_id"], to_version, now)
    return TABLE_PART, entry.name, leaf, part, to_version, now


def claim_of(latch: Latch | None) -> Mapping[str, Any] | None:
    """The versions that a leaf has seen, as templates know them; None: it is of no table, or has seen none."""
    found: Mapping[str, Any] | None = (latch.values or {}).get(TABLE) if latch is not None else None
    return found


def is_open(entry: Entry, leaf: int, claim: Mapping[str, Any]) -> bool:
    """Whether no run has the versions of a claim yet: they are of the table that is watched, and go on from where it stands."""
    handed = entry.tables.get(leaf)
    if handed is None or handed.table_id != claim["table_id"]:
        return False
    stands: int = handed.of_part(claim["partition"] or "")[0]
    return bool(claim["from_version"] <= stands < claim["to_version"])


def goes_on(entry: Entry, leaf: int, before: Latch | None, latch: Latch) -> bool:
    """Whether what a leaf has seen now goes on with what a job claims there already.

    Args:
        entry: of the schedule.
        leaf: its number.
        before: what the job holds of the leaf.
        latch: what has come.
    """
    old, new = claim_of(before), claim_of(latch)
    return bool(old and new and old["partition"] == new["partition"] and is_open(entry, leaf, old))


def gone_on(before: Latch, latch: Latch) -> Latch:
    """A claim with what has come since; what was told before it changes nothing.

    Args:
        before: the claim.
        latch: counted from the same version, or a later one before which nothing has come.
    """
    old, new = claim_of(before), claim_of(latch)
    if old is None or new is None or new["to_version"] <= old["to_version"]:
        return before
    return latch._replace(values={TABLE: {**new, "from_version": min(old["from_version"], new["from_version"])}})
