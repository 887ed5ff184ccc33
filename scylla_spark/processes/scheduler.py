"""The public `Scheduler`: the client, and a whole deployment in this process."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from scylla_spark.client import scheduler as client
from scylla_spark.config.settings import Settings
from scylla_spark.errors import ConflictError, WaitTimeoutError

_local: Final = threading.Lock()  # held while a local deployment runs


class Scheduler(client.Scheduler):
    """A client of a deployment; `local` also starts one."""

    @classmethod
    @contextmanager
    def local(
        cls, path: str | Path | None = None, *, handlers: Iterable[str] = (), **overrides: Any
    ) -> Iterator[Scheduler]:
        """A whole deployment in this process, with embedded Kafka; for notebooks and tests.

        Args:
            path: folder to keep it in; default: a temporary one that is removed at the end.
            handlers: modules or .py files whose `@handler` functions may run.
            **overrides: settings, nested sections as dicts.

        Raises:
            ConflictError: a local deployment runs in this process already.
            WaitTimeoutError: it was not ready within two minutes.
        """
        from scylla_spark.processes.deployment import Deployment

        if not _local.acquire(blocking=False):
            raise ConflictError(
                "A local deployment already runs in this process, and a process has one Spark session only.",
                hint="End its `with` block first, or run the other one in a process of its own, such as `scylla-spark up --data DIR`.",
            )
        with ExitStack() as stack:
            stack.callback(_local.release)
            folder = (
                path if path is not None else stack.enter_context(tempfile.TemporaryDirectory(prefix="scylla-spark-"))
            )
            named: dict[str, Any] = {"data_dir": Path(folder), "handlers": tuple(handlers)}
            settings = Settings.load(**named | overrides)
            deployment = stack.enter_context(Deployment(settings))
            if not deployment.await_ready():
                raise WaitTimeoutError(
                    "The local deployment was not ready within two minutes.", hint="See the log above."
                )
            yield stack.enter_context(cls(deployment.settings, spark=deployment.spark))
