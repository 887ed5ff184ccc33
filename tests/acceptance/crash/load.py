"""A load generator in a process of its own: sends tasks until it is killed, and writes down each key that Kafka has acknowledged.

Arguments: the data directory of the deployment, the file to append acknowledged keys to.
"""

import json
import random
import sys
import time
from pathlib import Path

from scylla_spark import TaskKey
from tests.acceptance.place import SECOND, Foreign, now

LANES = 20


def main(data: Path, acknowledged: Path) -> None:
    rng = random.Random()
    foreign = Foreign.of(data, linger_ms=5)
    with acknowledged.open("a", buffering=1) as file:
        for number in range(1_000_000):
            key = TaskKey(now() + rng.randrange(0, 6 * SECOND), f"kill-{rng.randrange(LANES)}", f"{number:06}")
            sent = foreign.put(key, {"ms": rng.choice([0, 0, 20, 100])})
            sent.add_callback(lambda _, key=key: file.write(json.dumps(key) + "\n"))
            time.sleep(0.005)  # the pace of the load


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
