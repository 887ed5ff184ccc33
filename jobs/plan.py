"""Planning as a process of its own: launches what schedules want, until SIGTERM or Ctrl-C; then it ends with 0.

./spark-submit.sh plan [--config FILE] [--set section.key=value]…

Any number at a time, once ingest has made the tables: one plans, the others stand by and take over when it is gone.
"""

import sys

from scylla_spark.config.settings import Settings
from scylla_spark.processes import process_main
from scylla_spark.processes.deployment import Deployment


def plan(settings: Settings) -> Deployment:
    """The plan service."""
    return Deployment(settings, roles=["plan"])


if __name__ == "__main__":
    if code := process_main.run(plan, __doc__):  # some platforms take any exit, also one with 0, for a failure
        sys.exit(code)
