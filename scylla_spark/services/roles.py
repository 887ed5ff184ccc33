"""Every role that a process may have, in the order in which they start.

They are attached to Spark, and stop, in the opposite order: what makes the tables starts first, so that all others find them, and
is attached last, so that what is due by then starts before batches compete for the cores.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from scylla_spark.services.api.service import API
from scylla_spark.services.dispatch.service import DISPATCH
from scylla_spark.services.ingest.service import INGEST
from scylla_spark.services.plan.service import PLAN
from scylla_spark.services.service import Role

ROLES: Final[Mapping[str, Role]] = {
    "ingest": INGEST,
    "dispatch": DISPATCH,
    "plan": PLAN,
    "api": API,
}
