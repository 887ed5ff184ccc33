"""Benchmarks that ship: each measures a whole deployment beside a floor of its own, taken in the same run."""

from __future__ import annotations

from collections.abc import Sequence


def main(name: str, args: Sequence[str]) -> int:
    """Runs a benchmark, or "all"; see `run.main`."""
    from scylla_spark_tools.bench.run import main as run

    return run(name, args)
