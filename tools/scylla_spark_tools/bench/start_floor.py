"""`python -m scylla_spark_tools.bench.start_floor FOLDER`: a broker and a Spark session on a folder, nothing else: the floor of a start."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from scylla_spark.config.settings import Settings
from scylla_spark.io.host.broker import EmbeddedBroker
from scylla_spark.io.host.private_files import make_folder
from scylla_spark.io.host.session import launch_jvm, open_session
from scylla_spark.io.kafka.topics import broker_folder


def main(folder: Path) -> None:
    """Starts both at the same time, as a deployment does, says so, and stays until its input ends."""
    settings = Settings(_env_file=None, data_dir=folder)
    make_folder(folder)
    launch_jvm(settings, services=True)
    with EmbeddedBroker(broker_folder(settings)) as broker:
        spark = open_session(settings, "bare", services=True)
        sys.stdout.write(json.dumps({"ready": True, "kafka": broker.bootstrap, "data": str(folder)}) + "\n")
        sys.stdout.flush()
        sys.stdin.read()
        spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
