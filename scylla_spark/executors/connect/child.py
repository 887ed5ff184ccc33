"""The process in which handlers with a session of Spark Connect run; otherwise it is one of the local pool.

Whoever imports this module, the process that forks these children, has PySpark's client imported for all of them.
"""

from __future__ import annotations

import json
import os
from functools import partial
from typing import Final

import pyspark.sql.connect.session  # noqa: F401 - a second of imports, once instead of in every child

from scylla_spark.executors.connect.sessions import AttemptSession, Endpoint
from scylla_spark.executors.local import child

VARIABLE: Final = "SCYLLASPARK_CONNECT_ENDPOINT"


def _endpoint() -> Endpoint:
    """The server, which handlers are not to find in their environment."""
    return Endpoint(*json.loads(os.environ.pop(VARIABLE)))


run = partial(child.run, session_of=partial(AttemptSession, _endpoint()))
