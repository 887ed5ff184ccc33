"""The tour: everything on one machine, thousands of tasks with all kinds of trouble, and a check of what happened."""

from __future__ import annotations

from pathlib import Path


def main(*, as_json: bool = False, data: Path | None = None, limit_s: float = 900.0) -> int:
    """Runs the demo and checks it; progress goes to stderr, the summary to stdout.

    Args:
        as_json: the last line of stdout is the summary as one JSON object, instead of a table.
        data: new or empty folder that is kept; default: a temporary one that is removed at the end, unless a check fails.
        limit_s: after this many seconds it has failed.

    Returns:
        Exit code: 0 if every check held, else 1.

    Raises:
        SchedulerError: it could not run: something is missing, or `data` is in use.
    """
    from scylla_spark_tools.demo.tour import run

    return run(as_json=as_json, data=data, limit_s=limit_s)
