"""River, the free edition."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.benchmarks.peers.installed import go_program, pin
from tests.benchmarks.peers.on_postgres import OnPostgres


class River(OnPostgres):
    """One Go process; key order is in the paid edition."""

    name = "River"
    settings = (
        f"{pin('river/go.mod', r'riverqueue/river v(.*)$')}: one process; drain with 2,000 workers, fetch cooldown 2 ms, poll 20 ms; "
        "else 100 workers, default cooldown 100 ms, poll every 1 s by default"
    )
    drained = 100_000
    drained_ordered = "paid edition"
    enqueued = 200_000
    unfinished = "select count(*) from river_job where state <> 'completed'"
    program: str

    def install(self) -> None:
        super().install()
        self.program = go_program("river")

    def command(self, verb: str, options: Mapping[str, Any]) -> list[str]:
        return [self.program, verb, json.dumps(options)]

    def fast(self, *, ordered: bool) -> Mapping[str, Any]:
        return {"max_workers": 2_000, "cooldown_ms": 2, "poll_ms": 20}

    def quick(self, poll_ms: int | None) -> Mapping[str, Any]:
        return {"max_workers": 100, "poll_ms": poll_ms or 0}
