"""The command: measures the peers one after the other and writes their table."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from scylla_spark.errors import ExitCode
from tests.benchmarks.peers import table
from tests.benchmarks.peers.celery import Celery
from tests.benchmarks.peers.child import Missing, say
from tests.benchmarks.peers.figures import Absent, Figure
from tests.benchmarks.peers.graphile import Graphile
from tests.benchmarks.peers.ours import Ours
from tests.benchmarks.peers.peer import Peer
from tests.benchmarks.peers.procrastinate import Procrastinate
from tests.benchmarks.peers.river import River

PEERS: dict[str, Callable[[], Peer]] = {
    "scylla-spark": Ours, "graphile": Graphile, "river": River, "celery": Celery, "procrastinate": Procrastinate,
}  # fmt: skip
PAGE = Path(__file__).parents[3] / "docs" / "performance.md"
Results = dict[str, dict[str, Figure] | str]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures; 0, or 1 if a measure failed (a peer that this machine cannot run is no failure)."""
    given = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(ExitCode.INTERRUPTED))  # so that everything is tidied up
    measures = given.measures or list(table.COLUMNS)
    begun, load = time.monotonic(), os.getloadavg()[0]
    peers = [PEERS[name]() for name in given.only or PEERS]
    results: Results = {peer.name: _measured(peer, measures) for peer in peers}
    seconds = time.monotonic() - begun
    settings = {peer.name: peer.settings for peer in peers}
    print(json.dumps(_record(results, settings, load, seconds)) if given.json else table.plain(table.rows(results)))
    if given.write:
        table.replace_section(PAGE, _section(results, settings, load))
    broken = any(isinstance(figure, Absent) and figure.reason.startswith("failed") for figure in _figures(results))
    return int(broken)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.peers", description=__doc__)
    parser.add_argument("--only", type=_names(PEERS), metavar="NAMES", help=f"some of {','.join(PEERS)}")
    parser.add_argument(
        "--measures", type=_names(table.COLUMNS), metavar="NAMES", help=f"some of {','.join(table.COLUMNS)}"
    )
    parser.add_argument("--json", action="store_true", help="one object instead of the table")
    parser.add_argument(
        "--write", action="store_true", help=f"also replace the section of {PAGE.parent.name}/{PAGE.name}"
    )
    return parser


def _names(known: Mapping[str, object]) -> Callable[[str], list[str]]:
    def read(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; there are {', '.join(known)}")
        return names

    return read


def _measured(peer: Peer, measures: Sequence[str]) -> dict[str, Figure] | str:
    """The figures of a peer, or why it was skipped."""
    if reason := peer.available():
        say(f"{peer.name}: skipped, {reason}")
        return reason
    ways: dict[str, Callable[[], Figure]] = {
        "drain": peer.drain,
        "drain_ordered": peer.drain_ordered,
        "lateness": lambda: peer.lateness(None),
        "lateness_100ms": lambda: peer.lateness(100),
        "immediate": peer.immediate,
        "enqueue": peer.enqueue,
    }
    figures: dict[str, Figure] = {}
    try:
        with peer.site():
            for measure in measures:
                figures[measure] = _tried(ways[measure])
                say(
                    f"{peer.name}: {table.COLUMNS[measure]}: {table.cell(figures[measure])}  (load {os.getloadavg()[0]:.1f})"
                )
    except Missing as missing:
        return str(missing)
    return figures


def _tried(measure: Callable[[], Figure]) -> Figure:
    try:
        return measure()
    except Exception as error:  # one broken measure must not cost the others
        say(f"failed: {error}")
        return Absent(f"failed: {type(error).__name__}")


def _figures(results: Results) -> list[Figure]:
    return [figure for result in results.values() if not isinstance(result, str) for figure in result.values()]


def _record(results: Results, settings: Mapping[str, str], load: float, seconds: float) -> dict[str, object]:
    peers = {
        name: {"skipped": result}
        if isinstance(result, str)
        else {measure: asdict(figure) for measure, figure in result.items()}
        for name, result in results.items()
    }
    return {"peers": peers, "settings": settings, "load_before": round(load, 2), "seconds": round(seconds, 1),
            "cores": os.cpu_count(), "python": platform.python_version()}  # fmt: skip


def _section(results: Results, settings: Mapping[str, str], load: float) -> str:
    when = time.strftime("%Y-%m-%d", time.gmtime())
    notes = "\n".join(f"- {name} {text}.{table.sizes(results[name])}" for name, text in settings.items())
    told = f"Measured {when} with `make bench-peers`, load average before {load:.1f}."
    return f"{table.markdown(table.rows(results))}\n\n{told}\n\n{notes}"


if __name__ == "__main__":
    sys.exit(main())
