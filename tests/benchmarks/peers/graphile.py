"""graphile-worker."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.benchmarks.peers.installed import node_modules, pin
from tests.benchmarks.peers.on_postgres import OnPostgres


class Graphile(OnPostgres):
    """One Node process; key order by its `queueName`."""

    name = "graphile-worker"
    settings = (
        f"{pin('graphile/package.json', r'graphile-worker.: .([0-9.]+)')}: one process; drain with 24 jobs at once, local queue of 500, "
        "completions in batches; in key order (`queueName`) the same; else 10 jobs at once, no batches, poll every 2 s by default"
    )
    drained = 100_000
    drained_ordered = 20_000
    enqueued = 100_000
    unfinished = "select count(*) from graphile_worker._private_jobs"
    node: str
    program: Path

    def install(self) -> None:
        super().install()
        self.node, self.program = node_modules("graphile")

    def command(self, verb: str, options: Mapping[str, Any]) -> list[str]:
        return [self.node, str(self.program), verb, json.dumps(options)]

    def fast(self, *, ordered: bool) -> Mapping[str, Any]:
        batches = {"localQueue": {"size": 500}, "completeJobBatchDelay": 0, "failJobBatchDelay": 0}
        return {"worker": {"concurrentJobs": 24, "maxPoolSize": 12, **batches}}

    def quick(self, poll_ms: int | None) -> Mapping[str, Any]:
        return {"worker": {"concurrentJobs": 10, **({} if poll_ms is None else {"pollInterval": poll_ms})}}
