"""What children have beyond those of the local pool whose handlers get a session of Spark Connect.

The process that forks these children imports this module, and PySpark's client with it for all of them.
"""

from __future__ import annotations

import json
import os
from functools import partial
from typing import Final

import pyspark.sql.connect.session  # noqa: F401 - a second of imports, once instead of in every child

from scylla_spark.executors.connect.sessions import AttemptSession, Endpoint

VARIABLE: Final = "SCYLLASPARK_CONNECT_ENDPOINT"


def _endpoint() -> Endpoint:
    """The server, which handlers are not to find in their environment."""
    return Endpoint(*json.loads(os.environ.pop(VARIABLE)))


session_of = partial(AttemptSession, _endpoint())
