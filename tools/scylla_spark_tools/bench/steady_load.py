"""A steady load and what became of it: the measurement that `lateness`, `pending`, `stuck` and `soak` share.

Load generator, observer and a bare timer run in processes of their own. Warm-up tasks come first in the same schedule and
are left out of every figure. CPU is measured from the first measured task to the last, so it is that of the steady state.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from scylla_spark.clock import now_us
from scylla_spark.config.settings import Settings
from scylla_spark_tools.bench.deployment_under_test import Costs, Options, say
from scylla_spark_tools.bench.floor_measurements import wait_until
from scylla_spark_tools.bench.handlers import STAMP
from scylla_spark_tools.bench.helper_process import Helper
from scylla_spark_tools.bench.outcomes_observer import violations

AHEAD_US: Final = 5_000_000
LEAD_US: Final = 500_000  # from the word to the first of a schedule
_PATIENCE_S: Final = 60
_IDLE_S: Final = 20


@dataclass(frozen=True, slots=True)
class Load:
    """So many tasks, one per period, over so many lanes, each due 5 s after it is sent; the first `warm` do not count.

    With `together_us` they fall due at whole multiples of it only, many at once.
    Each prints so many `lines`, and has this handler.
    """

    count: int
    period_us: int
    lanes: int
    warm: int
    together_us: int = 1
    lines: int = 0
    handler: str = STAMP

    @classmethod
    def of(cls, options: Options, *, rate: float, seconds: float, lanes: int = 1_000, warm_s: float = 10) -> Load:
        """Returns what the command line asks for, or else this.

        Args:
            options: of the command line; what they name wins.
            rate: tasks per second.
            seconds: how long they come.
            lanes: over how many ordering ids.
            warm_s: seconds of the same load before, which are not measured.
        """
        per_s = options.rate or rate
        count = options.tasks or int((options.seconds or seconds) * per_s)
        warm = options.warm if options.warm is not None else int(warm_s * per_s)
        return cls(count, round(1e6 / per_s), options.lanes or lanes, warm)

    @property
    def total(self) -> int:
        """Tasks, those of the warm-up included."""
        return self.count + self.warm


@dataclass(frozen=True, slots=True)
class Result:
    """What was seen of a load, its warm-up left out.

    Attributes:
        late: (scheduled time, how late its handler began) per task that ran, by time; microseconds.
        floor: how late the bare timer woke up for each of the same instants, microseconds.
        lost: tasks that did not run, those of the warm-up included.
        cores: cores in use on average, without helpers.
        cpu_seconds: the same per part of the system, as seconds.
        violations: in the whole log of outcomes.
        behind_ms: how late the load generator itself was at worst.
    """

    late: list[tuple[int, int]]
    floor: list[int]
    lost: int
    cores: float
    cpu_seconds: dict[str, float]
    violations: int
    behind_ms: float

    @property
    def late_us(self) -> list[int]:
        """The latenesses alone."""
        return [late for _, late in self.late]

    @property
    def early(self) -> int:
        """Returns how many began before their time."""
        return sum(late < 0 for late in self.late_us)


def joined(results: Sequence[Result]) -> Result:
    """Returns what was seen of the same load several times on one deployment, as one: the machine changes its state within minutes.

    Args:
        results: at least one, in the order in which they were taken.
    """
    parts: Counter[str] = Counter()
    for one in results:
        parts.update(one.cpu_seconds)
    return Result(
        late=[pair for one in results for pair in one.late],
        floor=[late for one in results for late in one.floor],
        lost=sum(one.lost for one in results),
        cores=sum(one.cores for one in results) / len(results),
        cpu_seconds={name: round(seconds, 2) for name, seconds in parts.items()},
        violations=results[-1].violations,
        behind_ms=max(one.behind_ms for one in results),
    )


def measure(settings: Settings, load: Load, *, before: int | None = 0) -> Result:
    """Puts a load on a running deployment.

    Args:
        settings: with the broker's address.
        load: what to put on it.
        before: tasks that have succeeded on it already; None: others, due earlier, end meanwhile, and the end is known by silence.
    """
    schedule = {"count": load.total, "period_us": load.period_us}
    limit_s = (load.total * load.period_us + AHEAD_US) / 1e6 + _PATIENCE_S
    expected = before + load.total if before is not None else sys.maxsize
    wanted = {"expected": expected, "limit_s": limit_s, "idle_s": _IDLE_S, "keep": True}
    with Helper("facts", settings, **wanted) as observer:
        observer.answer()
        with (
            Helper(
                "steady",
                settings,
                lanes=load.lanes,
                ahead_us=AHEAD_US,
                together_us=load.together_us,
                lines=load.lines,
                handler=load.handler,
                **schedule,
            ) as sender,
            Helper("timer", settings, **schedule) as timer,
        ):
            say(f"{load.total} tasks, {1e6 / load.period_us:g} a second, due {AHEAD_US / 1e6:g} s ahead")
            sender.answer()
            timer.answer()
            begin = now_us() + LEAD_US
            sender.send(begin)
            timer.send(begin + AHEAD_US)
            first = begin + AHEAD_US + load.warm * load.period_us
            wait_until(first)
            costs = Costs(observer.pid, sender.pid, timer.pid)
            wait_until(first + load.count * load.period_us)
            cores, parts = costs.read()
            behind_ms = sender.answer(limit_s)["behind_ms"]
            floor = timer.answer(limit_s)
            seen = observer.answer(limit_s + _PATIENCE_S)
    if behind_ms * 1000 > AHEAD_US / 2:
        say(f"the load came up to {behind_ms:.0f} ms late: this machine is too busy for the numbers to mean much")
    ran = [(due, json.loads(result)[0] - due) for due, _, result in seen["results"] if due >= begin + AHEAD_US]
    late = sorted(pair for pair in ran if pair[0] >= first)
    return Result(late, floor[load.warm :], load.total - len(ran), cores, parts, violations(seen), behind_ms)
