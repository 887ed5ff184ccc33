"""The HTTP API as a process of its own, until SIGTERM or Ctrl-C; then it ends with 0.

./spark-submit.sh api [--config FILE] [--set section.key=value]…

Any number at a time, once ingest has made the tables: it only sends commands, and reads tables and logs.
"""

import sys

from scylla_spark.config.settings import Settings
from scylla_spark.processes import process_main
from scylla_spark.processes.deployment import Deployment


def api(settings: Settings) -> Deployment:
    """The HTTP API."""
    return Deployment(settings, roles=["api"])


if __name__ == "__main__":
    if code := process_main.run(api, __doc__):  # some platforms take any exit, also one with 0, for a failure
        sys.exit(code)
