"""Celery on Redis."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tests.benchmarks.peers.installed import PROGRAMS, pin, python_environment
from tests.benchmarks.peers.program import Program
from tests.benchmarks.peers.servers import Redis, redis, redis_programs


class Celery(Program):
    """Prefork workers; every task is acknowledged after its end, results are not kept."""

    name = "Celery"
    settings = (
        f"{pin('celery/requirements.txt', r'^celery==(.*)$')} on Redis (appendonly, fsync each second): prefork, 2 processes, acks_late, "
        "prefetch multiplier 64 for the drain and 4 (default) else, results ignored, no gossip, mingle, heartbeat; no call for many tasks"
    )
    drained = 10_000
    drained_ordered = "none"
    enqueued = 10_000
    polls = False
    programs: Path

    def install(self) -> None:
        redis_programs()
        self.programs = python_environment("celery")

    def server(self) -> AbstractContextManager[Redis]:
        return redis()

    def command(self, verb: str, options: Mapping[str, Any]) -> list[str]:
        if verb != "work":
            return [str(self.programs / "python"), "celery_peer.py", verb, json.dumps(options)]
        return [
            str(self.programs / "celery"), "-A", "celery_peer", "worker", "--pool", "prefork", "--concurrency", "2",
            "--loglevel", "ERROR", "--without-gossip", "--without-mingle", "--without-heartbeat", "-O", "fair",
            "--prefetch-multiplier", str(options["prefetch"]),
        ]  # fmt: skip

    def fast(self, *, ordered: bool) -> Mapping[str, Any]:
        return {"prefetch": 64}

    def quick(self, poll_ms: int | None) -> Mapping[str, Any]:
        return {"prefetch": 4}

    def left(self) -> int:
        return int(self.store.ask("LLEN", "celery")) + int(self.store.ask("HLEN", "unacked"))

    def env(self) -> Mapping[str, str]:
        return {"PEER_ADDRESS": self.address, "PEER_RECORDS": str(self.records), "PYTHONDONTWRITEBYTECODE": "1"}

    def folder(self) -> Path:
        return PROGRAMS / "celery"
