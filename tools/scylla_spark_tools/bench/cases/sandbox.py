"""`sandbox`: from the hand-over of a task to the start of its handler in a new child, in a sandbox and without, by turns.

Every task gets a child of its own, because the one before has ended its. There is no dispatcher.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Final

from scylla_spark.clock import now_us
from scylla_spark.core.tasks.task import SUCCEEDED
from scylla_spark.errors import SetupError
from scylla_spark.executors.local.pool import LocalPool
from scylla_spark.executors.local.sandbox import Sandboxed
from scylla_spark.handlers.isolation import SANDBOX, Wishes, asked_by
from scylla_spark_tools.bench import report
from scylla_spark_tools.bench.deployment_under_test import Options
from scylla_spark_tools.bench.executor_handlers import BEGUN, END, MODULE
from scylla_spark_tools.bench.lone_executor import LoneExecutor, alone

_COUNT: Final = 100


def run(options: Options) -> dict[str, Any]:
    """Measures; default 100 starts of each.

    Raises:
        ConfigError: this machine has no sandbox.
        SetupError: a task did not succeed.
    """
    count = options.tasks or _COUNT
    isolation = asked_by(BEGUN, Wishes(SANDBOX, None, None, None, None, None))
    assert isolation is not None
    apart = Sandboxed(BEGUN, isolation, (MODULE,), [], [])
    with ExitStack() as ends:
        plain = ends.enter_context(alone(LocalPool([MODULE], min_children=0, max_children=1)))
        boxed = ends.enter_context(alone(LocalPool([MODULE], min_children=0, max_children=1, apart=apart)))
        rounds = [(_start_us(boxed), _start_us(plain)) for _ in range(count + 1)][1:]
    starts, floor = [one for one, _ in rounds], [one for _, one in rounds]
    return report.latency("sandbox", starts, floor, sent=count, early=0, cpu_cores=0.0, violations=0)


def _start_us(executor: LoneExecutor) -> int:
    """Microseconds from the hand-over of a task to its start in a new child, which has ended afterwards."""
    handed_over = now_us()
    (outcome,) = executor.run(BEGUN, [{}])
    if outcome.outcome != SUCCEEDED:
        raise SetupError(f"A task did not succeed: {outcome.failure}", hint="See docs/isolation.md.")
    executor.run(END, [{}])
    return int(outcome.result or 0) - handed_over
