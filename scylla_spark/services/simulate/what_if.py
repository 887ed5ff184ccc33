"""What would have been: a past window of the tables played twice, under what is in force of queues, and with some of that changed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple

from scylla_spark.clock import boot_us
from scylla_spark.config.settings import Settings
from scylla_spark.core.engine.queue import QueueLimits
from scylla_spark.definitions.queue import Queue
from scylla_spark.errors import SchedulerError, WaitTimeoutError
from scylla_spark.io.delta.forecast_material import past
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.io.host.die_with_parent import die_with
from scylla_spark.services.dispatch.engine_settings import limits_of
from scylla_spark.services.simulate.forecast_beside_history import outlook
from scylla_spark.services.simulate.replay_of_window import forecast, model_of

CAPACITY: Final = 8_000  # tasks a second that a dispatcher releases


class Question(NamedTuple):
    """Which window, and what would be different.

    Attributes:
        start_us: scheduled at or after this, microseconds since the epoch.
        stop_us: scheduled before this.
        changes: queue → fields of its definition that are different, JSON values. That a queue is
            paused counts only where it stands here: a pause of today says nothing of the past.
        slots: tasks that run at once; None: `dispatch.max_children`.
        fact_delay_us: how long a recorded outcome takes to count, microseconds.
        capacity: tasks a second that dispatchers release; 0: any number.
        lanes: how many of the worst lanes to show.
    """

    start_us: int
    stop_us: int
    changes: Mapping[str, Mapping[str, Any]]
    slots: int | None = None
    fact_delay_us: int = 5_000
    capacity: int = CAPACITY
    lanes: int = 5


class WhatIf(NamedTuple):
    """A window under the limits of today beside the same under changed ones.

    Attributes:
        tasks: that were played.
        unfinished: that had not ended, and were left out.
        unrun: that ended without a run, and were left out.
        slots: tasks that ran at once under changed limits.
        seconds: that it took to play.
        rows: as `forecast_beside_history.outlook` gives them.
    """

    tasks: int
    unfinished: int
    unrun: int
    slots: int
    seconds: float
    rows: list[dict[str, Any]]


def what_if(settings: Settings, question: Question) -> WhatIf:
    """Plays the window under the limits of today, and again under changed ones.

    Tasks of queues that workers lease from are played as if they were pushed: how many workers there were, nobody knows.

    Args:
        settings: of the deployment.
        question: what to play.

    Raises:
        ArgumentError: the window is empty, or a change is none.
        NotFoundError: there are no tables, or nothing ran in that window.
    """
    readers = TableReader.of(settings)
    in_force, queues = (limits_in_force(settings, readers, changes) for changes in ({}, question.changes))
    found = past(readers, question.start_us, question.stop_us)
    today = replace(
        model_of(settings, readers.rules().partitions), fact_delay_us=question.fact_delay_us, queues=in_force,
        cost_us=1_000_000 // question.capacity if question.capacity else 0,
    )  # fmt: skip
    changed = replace(today, slots=question.slots or today.slots, queues=queues)
    begun = boot_us()
    was = forecast(found.tasks, today)
    would_be = was if changed == today else forecast(found.tasks, changed)
    seconds = (boot_us() - begun) / 1e6
    rows = outlook(found.tasks, was, would_be, lanes=question.lanes)
    return WhatIf(len(found.tasks), found.unfinished, found.unrun, changed.slots, seconds, rows)


def limits_in_force(
    settings: Settings, readers: TableReader, changes: Mapping[str, Mapping[str, Any]]
) -> dict[str, QueueLimits]:
    """The limits of all queues: what is stored of them, else what the settings say, with changes; none is paused but by these.

    Args:
        settings: with start values.
        readers: the tables; a definition that was put in the last seconds may not be there yet.
        changes: queue → fields that are different.

    Raises:
        ArgumentError: a change is none.
    """
    start = {name: queue.definition for name, queue in settings.queues.items()}
    stored = readers.queue_definitions().items()
    now = start | {name: json.loads(text) for name, (_, text) in stored if text is not None}
    now |= {
        name: Queue.by_name(now.get(name, {})) | Queue.by_name(fields) | {"name": name}
        for name, fields in changes.items()
    }
    limits = {name: replace(limits_of(Queue.of(definition)), pull=False) for name, definition in now.items()}
    return {
        name: limit if "paused" in changes.get(name, {}) else replace(limit, paused=False)
        for name, limit in limits.items()
    }


def what_if_apart(settings: Settings, question: Question, timeout_s: float) -> WhatIf:
    """The same in a process of its own, so that nothing else waits for it; it ends with the thread that asks.

    Args:
        settings: of the deployment.
        question: what to play.
        timeout_s: longest time.

    Raises:
        ArgumentError: as `what_if`. NotFoundError: likewise.
        WaitTimeoutError: it takes longer.
        SchedulerError: the process died, for want of memory perhaps.
    """
    context = get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(theirs, os.getpid(), settings, question), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(timeout_s):
            raise WaitTimeoutError(
                f"It takes longer than {timeout_s:g} s.",
                hint="Ask for a shorter window, or use `scylla-spark simulate`.",
            )
        kind, *said = ours.recv()
    except EOFError:
        raise SchedulerError(
            "The process that simulated died.", hint="Ask for a shorter window: it may have wanted too much memory."
        ) from None
    finally:
        process.kill()
        process.join()
        ours.close()
    if kind is not WhatIf:
        raise kind(said[0], hint=said[1])
    return WhatIf(*said)


def _answer(asked: Connection, parent: int, settings: Settings, question: Question) -> None:
    die_with(parent, signal.SIGKILL)
    try:
        asked.send((WhatIf, *what_if(settings, question)))
    except SchedulerError as error:
        asked.send((type(error), error.message, error.hint))
