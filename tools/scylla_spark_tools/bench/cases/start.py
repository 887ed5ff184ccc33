"""`start`: from a command to the line that says ready, in seconds and in CPU seconds.

First start of `up` on an empty folder, its restart on the same folder, and the restart of a dispatcher whose scans need no Spark,
by turns; medians. Floor: a process that does nothing but start a broker and open a session, both at the same time, on an empty
folder. The class archive of the broker and the operating system's cache are warm: one round before is not counted.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from scylla_spark.clock import now_us
from scylla_spark.config.settings import Settings
from scylla_spark.io.host.broker import EmbeddedBroker
from scylla_spark.io.kafka.topics import broker_folder
from scylla_spark_tools.bench import report
from scylla_spark_tools.bench.cli_process import Child, dispatcher, up
from scylla_spark_tools.bench.deployment_under_test import Options, say

_ROUNDS: Final = 3
_READER: Final = {"scan": "reader", "instance_id": "up"}


class Start(NamedTuple):
    """What one start took: seconds until ready, and CPU seconds of all its processes by then."""

    seconds: float
    cpu_seconds: float


Round = dict[str, Start]


def run(options: Options) -> dict[str, Any]:
    """Measures; default three rounds."""
    rounds = options.tasks or _ROUNDS
    if options.data is not None:
        options.data.mkdir(parents=True, exist_ok=True)
    say("a round that is not counted")
    _round(options)
    measured = []
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}")
        measured.append(_round(options))
    return _record(measured)


def _record(rounds: list[Round]) -> dict[str, Any]:
    half = {
        name: Start(*(statistics.median(values) for values in zip(*(one[name] for one in rounds), strict=True)))
        for name in rounds[0]
    }
    floor, first, again, alone = (half[name] for name in ("floor", "first", "restart", "dispatcher"))
    return report.seconds(
        "start", len(rounds), first.seconds, floor.seconds, violations=0, lost=0,
        restart_seconds=round(again.seconds, 3), restart_ratio=report.ratio(again.seconds, floor.seconds),
        dispatcher_seconds=round(alone.seconds, 3),
        cpu_seconds={name: round(start.cpu_seconds, 2) for name, start in half.items()},
        each={name: [round(one[name].seconds, 2) for one in rounds] for name in half},
    )  # fmt: skip


def _round(options: Options) -> Round:
    folder = Path(tempfile.mkdtemp(prefix="scylla-spark-bench-", dir=options.data))
    whole, changes = folder / "whole", options.changes or {}
    try:
        found = {"floor": _timed(lambda: Child(["scylla_spark_tools.bench.start_floor", str(folder / "bare")]))}
        found["first"] = _timed(lambda: up(whole, changes))
        found["restart"] = _timed(lambda: up(whole, changes))
        with EmbeddedBroker(broker_folder(Settings(_env_file=None, data_dir=whole))) as broker:
            dispatch = changes.get("dispatch", {}) | _READER
            changed = changes | {"kafka": {"bootstrap_servers": broker.bootstrap}, "dispatch": dispatch}
            found["dispatcher"] = _timed(lambda: dispatcher(whole, changed))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return found


def _timed(make: Callable[[], Child]) -> Start:
    with make() as child:
        child.told()
        return Start((now_us() - child.begun_us) / 1e6, child.cpu_seconds())
