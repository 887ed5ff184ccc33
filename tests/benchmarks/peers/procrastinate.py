"""Procrastinate."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.benchmarks.peers.installed import PROGRAMS, pin, python_environment
from tests.benchmarks.peers.on_postgres import OnPostgres


class Procrastinate(OnPostgres):
    """One asyncio worker; key order by its `lock`."""

    name = "Procrastinate"
    settings = (
        f"{pin('procrastinate/requirements.txt', r'^procrastinate==(.*)$')}: one asyncio worker, concurrency 10, coroutine tasks; "
        "key order by `lock`; poll every 5 s by default"
    )
    drained = 5_000
    drained_ordered = 3_000
    enqueued = 50_000
    unfinished = "select count(*) from procrastinate_jobs where status in ('todo', 'doing')"
    programs: Path

    def install(self) -> None:
        super().install()
        self.programs = python_environment("procrastinate")

    def command(self, verb: str, options: Mapping[str, Any]) -> list[str]:
        program = str(PROGRAMS / "procrastinate/procrastinate_peer.py")
        return [str(self.programs / "python"), program, verb, json.dumps(options)]

    def fast(self, *, ordered: bool) -> Mapping[str, Any]:
        return self.quick(None)

    def quick(self, poll_ms: int | None) -> Mapping[str, Any]:
        poll = {} if poll_ms is None else {"fetch_job_polling_interval": poll_ms / 1000}
        return {"worker": {"concurrency": 10, **poll}}
