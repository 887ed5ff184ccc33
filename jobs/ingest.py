"""Ingest as a process of its own: both topics into the Delta tables, until SIGTERM or Ctrl-C; then it drains and ends with 0.

./spark-submit.sh ingest [--config FILE] [--set section.key=value]…

With `--set ingest.available_now=true` it writes what the topics hold now, and ends.
One at a time: it is the only writer of the tables. Makes missing topics and tables, and refuses those of another deployment.
"""

import sys

from scylla_spark.config.settings import Settings
from scylla_spark.processes import process_main
from scylla_spark.processes.deployment import Deployment


def ingest(settings: Settings) -> Deployment:
    """The ingest service."""
    return Deployment(settings, roles=["ingest"])


if __name__ == "__main__":
    if code := process_main.run(ingest, __doc__):  # some platforms take any exit, also one with 0, for a failure
        sys.exit(code)
