"""Dispatch as a process of its own: runs due tasks of its share of the partitions, until SIGTERM or Ctrl-C; then it drains and ends with 0.

./spark-submit.sh dispatch [--config FILE] [--set section.key=value]… [--handlers MODULE]…

Any number at a time, once ingest has made the tables: they share the partitions, and take over those of one that dies.
"""

import sys

from scylla_spark.config.settings import Settings
from scylla_spark.processes import process_main
from scylla_spark.processes.deployment import Deployment


def dispatch(settings: Settings) -> Deployment:
    """The dispatch service."""
    return Deployment(settings, roles=["dispatch"])


if __name__ == "__main__":
    if code := process_main.run(dispatch, __doc__):  # some platforms take any exit, also one with 0, for a failure
        sys.exit(code)
