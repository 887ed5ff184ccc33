"""The executor of handlers with `runs_on="connect"`: child processes, and for each attempt a session of Spark Connect.

The server is the Spark application of this dispatcher, or one that is configured. Handlers run in children beside the dispatcher, as
others do; what they ask of their sessions runs in Spark. What an attempt has running there ends with it, however that ends.
"""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from scylla_spark.clock import now_us
from scylla_spark.config.connect import OWN
from scylla_spark.core.tasks.attempt_note import WorkNote
from scylla_spark.core.tasks.output import OutputTerms
from scylla_spark.core.tasks.task import FAILED, Failure, Invocation, Outcome
from scylla_spark.errors import SetupError
from scylla_spark.executors.connect.releases import Releases
from scylla_spark.executors.connect.sessions import RELEASE_S, Endpoint, release
from scylla_spark.executors.interface import Kind, LogKeeper, Sink
from scylla_spark.executors.local.pool import LocalPool
from scylla_spark.handlers.description import HandlerInfo
from scylla_spark.io.host.connect_server import ConnectServer, ServerAddress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from scylla_spark.config.settings import Settings

UNAVAILABLE: Final = "connect_unavailable"
_NAME: Final = "connect"
_log = logging.getLogger(__name__)
_ROOM: Final = 1_000  # to refuse takes no time
_BEGIN_S: Final = 10.0  # what is about to begin when it is to stop; if it takes longer, it ends itself
_RELEASES_S: Final = RELEASE_S + 1.0  # of all that have begun
_SESSIONS: Final = "scylla_spark.executors.connect.child"
_NEEDED: Final = ("pyspark", "grpc", "grpc_status", "google.rpc", "zstandard", "pandas")


class ConnectPool:
    """An Executor whose handlers have sessions of Spark Connect, in `ctx.spark`.

    Args:
        modules: handler modules (see `registry.load`).
        server: which one; None: that of the session it is attached to.
        sessions: how many tasks run at most at once.
        pass_environment: further environment variables that handlers get.
        longest_s: how long a call may run at most if it asks for longer than its timeout.
        kill_grace_s: from SIGTERM to SIGKILL for a call that exceeds its timeout.
        spans: whether each call is a span of OpenTelemetry.
    """

    def __init__(
        self,
        modules: Sequence[str],
        *,
        server: ServerAddress | None,
        sessions: int,
        pass_environment: Sequence[str] = (),
        longest_s: float,
        kill_grace_s: float = 1.0,
        spans: bool = False,
    ) -> None:
        self._server = server
        self._sessions = sessions
        self._own: ConnectServer | None = None
        self._make = partial(
            LocalPool,
            modules,
            min_children=0,
            max_children=sessions,
            pass_environment=pass_environment,
            longest_s=longest_s,
            kill_grace_s=kill_grace_s,
            spans=spans,
        )
        self._keeper: LogKeeper | None = None
        self._outputs: OutputTerms | None = None
        self._pool: LocalPool | None = None
        self._releases: Releases | None = None
        self._beginning: threading.Thread | None = None
        self._lock = threading.Lock()
        self._stopped = False
        self._refusal = ""
        self._sink: Sink

    def keep_logs(self, keeper: LogKeeper) -> None:
        """Hands what handlers write to a keeper; before `start`."""
        self._keeper = keeper

    def keep_outputs(self, terms: OutputTerms) -> None:
        """Says where files are kept that attempts leave behind; before `start`."""
        self._outputs = terms

    def start(self, sink: Sink) -> None:
        """Begins to start its children, where it need not wait for a session."""
        self._sink = sink
        if self._server is not None:
            self._begin(None)

    def attach(self, spark: SparkSession) -> None:
        """Serves sessions from this application, unless another server is configured; returns at once."""
        if self._server is None:
            self._begin(spark)

    def handlers(self) -> dict[str, HandlerInfo]:
        """None: the pool that all share names them."""
        return {}

    def rooms(self) -> dict[str, int]:
        """Returns how many more tasks would run; none until there is a server, and always some where all are refused.

        What a session has not been released of takes room still, so a server that does not answer is not given more and more.
        """
        if self._refusal:
            return {_NAME: _ROOM}
        if self._pool is None or self._releases is None:
            return {_NAME: 0}
        unreleased = self._releases.unreleased
        if unreleased >= self._sessions:  # whatever room there is behind attempts that were fast so far
            return {_NAME: 0}
        return {_NAME: max(0, self._pool.rooms()[_NAME] - unreleased)}

    def running(self) -> Mapping[int, int]:
        """Returns which tasks run, and since when."""
        return self._pool.running() if self._pool is not None else {}

    def notes(self) -> Mapping[int, WorkNote]:
        """Returns what they say of their work."""
        return self._pool.notes() if self._pool is not None else {}

    def submit(self, batch: Sequence[Invocation]) -> None:
        """Takes invocations, or reports a failure of kind `connect_unavailable` for each."""
        if self._pool is not None:
            self._pool.submit(batch)
            return
        now = now_us()
        why = self._refusal or "It has no session of Spark yet."
        failure = Failure(UNAVAILABLE, f"There is no Spark Connect here. {why}")
        self._sink([Outcome(item.id, FAILED, now, now, failure=failure) for item in batch])

    def kill(self, ids: Sequence[int], *, grace_ms: int = 0) -> None:
        """Ends invocations, and what they have running in Spark."""
        if self._pool is not None:
            self._pool.kill(ids, grace_ms=grace_ms)

    def stop(self, *, drain_s: float) -> None:
        """Stops the children, then what their attempts have left in Spark, then the server if it is ours."""
        with self._lock:
            self._stopped = True
        if self._beginning is not None:
            self._beginning.join(_BEGIN_S)
        if self._pool is not None:
            self._pool.stop(drain_s=drain_s)
        if self._releases is not None:
            self._releases.stop(_RELEASES_S)
            self._releases = None
        if self._own is not None:
            self._own.stop()
            self._own = None

    def _begin(self, spark: SparkSession | None) -> None:
        """In a thread of its own: the imports of handlers may take long."""
        self._beginning = threading.Thread(target=self._open, args=(spark,), name="connect-pool-start", daemon=True)
        self._beginning.start()

    def _open(self, spark: SparkSession | None) -> None:
        try:
            _check_packages()
            pool, releases = self._started(self._endpoint(spark))
        except Exception as error:  # whatever it is: the tasks of these handlers say so, and all others go on
            self._refusal = str(error) or type(error).__name__
            _log.warning("there is no Spark Connect; tasks that ask for it will fail: %s", error)
            return
        with self._lock:
            if not self._stopped:
                self._releases, self._pool = releases, pool
                return
        pool.stop(drain_s=0)
        releases.stop(0)

    def _endpoint(self, spark: SparkSession | None) -> Endpoint:
        salt = str(uuid.uuid4())
        if self._server is not None:
            return Endpoint(*self._server, salt, own=False)
        assert spark is not None
        self._own = ConnectServer(spark)
        return Endpoint(*self._own.start(), salt, own=True)

    def _started(self, endpoint: Endpoint) -> tuple[LocalPool, Releases]:
        variables = {"SCYLLASPARK_CONNECT_ENDPOINT": json.dumps(endpoint), "SPARK_CONNECT_MODE_ENABLED": "1"}
        pool = self._make(executor=_NAME, sessions=_SESSIONS, variables=variables)
        if self._keeper is not None:
            pool.keep_logs(self._keeper)
        if self._outputs is not None:
            pool.keep_outputs(self._outputs)
        releases = Releases(partial(release, endpoint), self._sink, sessions=self._sessions)
        releases.start()
        pool.start(releases.put)
        return pool, releases


def _check_packages() -> None:
    missing = [name for name in _NEEDED if not _there(name)]
    if missing:
        raise SetupError(f"{', '.join(missing)} cannot be imported.", hint="pip install 'scylla-spark[spark,connect]'.")


def _there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _from_settings(settings: Settings) -> ConnectPool:
    connect, dispatch = settings.connect, settings.dispatch
    token = connect.token.get_secret_value() if connect.token is not None else ""
    return ConnectPool(
        settings.handlers,
        server=None if connect.url == OWN else ServerAddress(connect.url, token),
        sessions=connect.sessions,
        pass_environment=dispatch.pass_environment,
        longest_s=dispatch.longest_run.total_seconds(),
        spans=settings.otel.enabled,
    )


KIND: Final = Kind(
    _from_settings,
    wanted=lambda settings: bool(settings.connect.url),
    turned_on_by='set connect.url to "own" or to the address of a server of Spark Connect for the dispatchers',
    needs_session=lambda settings: settings.connect.url == OWN,
)
