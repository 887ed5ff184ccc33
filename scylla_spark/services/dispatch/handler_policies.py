"""How each task is run, by what its handler and its queue say.

Of retries counts, field by field, what the task itself says, then its handler, then its queue, then the deployment.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Final

from scylla_spark.config.settings import Settings
from scylla_spark.core.engine.bounds import LEASED, HandlerPolicy
from scylla_spark.core.queues.in_force import QueuesInForce
from scylla_spark.core.records.command import Command
from scylla_spark.core.tasks.state import NO_HANDLER
from scylla_spark.core.tasks.task import Retry
from scylla_spark.definitions.queue import Queue
from scylla_spark.duration import duration_ms
from scylla_spark.executors.unsandboxed import UNSANDBOXED
from scylla_spark.handlers.description import LOCAL, HandlerInfo
from scylla_spark.handlers.isolation import SANDBOX
from scylla_spark.services.dispatch.executor_catalog import turned_on_by

_UNKNOWN: Final = ""  # stands for all handlers that nobody knows: their names come from data


class HandlerPolicies:
    """How tasks are run.

    Args:
        settings: what holds where neither task nor queue nor handler say otherwise.
        queues: what is in force of them.
        children: of the local pool, and of each pool of a handler of its own; None: as the settings say.
    """

    def __init__(self, settings: Settings, queues: QueuesInForce, children: int | None = None) -> None:
        self._settings = settings
        self._children = settings.dispatch.max_children if children is None else children
        self._queues = queues
        dispatch = settings.dispatch
        self._retry = Retry(dispatch.max_retries, dispatch.retry_base, dispatch.retry_cap)
        self._retries: dict[str, Retry] = {}  # what handlers say themselves
        self._known: dict[str, HandlerPolicy] = {}
        self._boxed: set[str] = set()  # handlers that run in a sandbox
        self._default = replace(self._of_handler(HandlerInfo(_UNKNOWN)), executor=NO_HANDLER)
        self._for_workers = HandlerPolicy(LEASED, self._default.timeout_ms, self._default.retry)
        self._of_queues: dict[tuple[str | None, str], HandlerPolicy] = {}

    def know(self, handlers: Mapping[str, HandlerInfo], executors: Container[str]) -> None:
        """These handlers are here; tasks of those wait whose executor is not, since they never run elsewhere instead."""
        self._known = {name: self._of_handler(info) for name, info in handlers.items()}
        self._retries = {name: info.retry for name, info in handlers.items() if info.retry is not None}
        for name, policy in self._known.items():
            if policy.executor not in executors:
                runs_on = handlers[name].runs_on
                words = f"Handler {name!r} runs on {runs_on!r}, which is off here: {turned_on_by(runs_on)}."
                self._known[name] = replace(policy, executor=NO_HANDLER, missing=words)
        levels = {name: info.isolation.level for name, info in handlers.items() if info.isolation is not None}
        self._boxed = {name for name, level in levels.items() if level == SANDBOX}
        self._of_queues = {}

    def queues_changed(self) -> None:
        """Other definitions are in force than before."""
        self._of_queues = {}

    def of(self, command: Command) -> HandlerPolicy:
        """Returns how a task is run."""
        handler = command.handler
        if handler is not None and handler not in self._known:
            handler = _UNKNOWN
        queue = self._queues.of(command.queue)
        if queue is None:
            return self._plain(handler)
        found = self._of_queues.get((handler, command.queue))
        if found is None:
            found = self._of_queues[handler, command.queue] = self._of_queue(handler, queue)
        return found

    def _plain(self, handler: str | None) -> HandlerPolicy:
        return self._for_workers if handler is None else self._known.get(handler, self._default)

    def _of_handler(self, info: HandlerInfo) -> HandlerPolicy:
        dispatch = self._settings.dispatch
        timeout_ms = info.timeout_ms if info.timeout_ms is not None else duration_ms(dispatch.timeout)
        return HandlerPolicy(
            info.executor,
            timeout_ms,
            (info.retry or Retry()).filled(self._retry),
            info.max_batch or 1,
            rate_keys=info.rate_keys,
            children=self._children if info.runs_on == LOCAL and info.concurrency is None else 0,
        )

    def _of_queue(self, handler: str | None, queue: Queue) -> HandlerPolicy:
        instead = queue.default_handler if handler is None and queue.mode == "push" else None
        runs = instead if instead is not None else handler
        plain = self._plain(runs)
        alone = queue.redelivers
        most = 1 if alone else plain.max_batch
        here = plain.executor != NO_HANDLER
        refused = here and queue.isolation == SANDBOX and (instead or handler) not in self._boxed
        executor = UNSANDBOXED if refused else plain.executor
        retry = self._retries.get(runs or _UNKNOWN, Retry()).filled(retry_of(queue, self._retry))
        return replace(
            plain,
            executor=executor,
            retry=retry,
            max_batch=most,
            handler=instead or "",
            alone=alone,
            children=0 if refused else plain.children,
        )


def retry_of(queue: Queue, otherwise: Retry) -> Retry:
    """The retries of a queue; fields that it leaves out come from another policy."""
    count = otherwise.terms[0] if queue.max_retries == "deployment" else queue.max_retries
    base_ms = otherwise.base_ms if queue.retry_base is None else duration_ms(queue.retry_base)
    cap_ms = otherwise.cap_ms if queue.retry_cap is None else duration_ms(queue.retry_cap)
    return Retry.from_ms(count, base_ms, cap_ms)
