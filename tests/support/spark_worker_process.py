"""A Spark worker without Spark, as a process of its own: `python -m tests.support.spark_worker_process`, a `Ticket` and modules on stdin.

It prints why it has ended.
"""

import json
import sys
from functools import partial

from scylla_spark.executors.remote.handshake import Ticket
from scylla_spark.executors.remote.resident import Resident
from scylla_spark.executors.remote.watchdog import Watchdog
from scylla_spark.executors.spark.worker import WorkerConfig, pool_of

if __name__ == "__main__":
    told = json.load(sys.stdin)
    worker_id, key, host, port, certificate, lease_us = told["ticket"]
    ticket = Ticket(worker_id, bytes.fromhex(key), host, port, bytes.fromhex(certificate), lease_us)
    config = WorkerConfig(tuple(told["modules"]), 2, told["kill_grace_s"])
    watchdog = partial(Watchdog, grace_us=round(told["kill_grace_s"] * 1e6) + 500_000)
    print(Resident(ticket, pool_of(config, None, "1"), executor_id="1", watchdog=watchdog).run(), flush=True)
