"""What a deployment knows of the duties that it runs, whichever they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from scylla_spark.config.settings import Metrics, Settings
from scylla_spark.services.metrics_server import MetricsServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Service(Protocol):
    """One duty of a process, from its start to its end.

    A session of Spark takes seconds to come up. So every service starts with what needs none, and is attached to the session when
    that is there; a service that needs none is never attached.
    """

    def start(self) -> None:
        """Begins with all that needs no session, and returns soon.

        Raises:
            SchedulerError: something is missing, or contradicts what is stored.
        """

    def attach(self, spark: SparkSession) -> None:
        """Begins with the rest.

        Raises:
            SchedulerError: as `start`.
        """

    def ready(self) -> bool:
        """Returns True if it does its duty by now."""

    def trouble(self) -> str | None:
        """Returns a sentence that says why it does not do its duty just now, for `/readyz`; None: it does.

        Raises:
            TimeoutError: it did not answer in time.
        """

    def alive(self) -> bool:
        """Returns True if all parts run that have begun.

        Raises:
            BaseException: what ended one.
        """

    def stop(self) -> None:
        """Drains and ends what has begun, however far that is."""


@runtime_checkable
class Finite(Protocol):
    """A service whose duty may be done; its process ends then."""

    def finished(self) -> bool:
        """Returns True once all is done."""


@runtime_checkable
class Serving(Protocol):
    """A service that others reach at an address of its own.

    Attributes:
        address: such as http://127.0.0.1:8080; None: nowhere.
    """

    address: str | None


class Role(NamedTuple):
    """A duty that a process may have.

    Attributes:
        make: from the settings, with the broker's address, and what shows metrics and state, to a service that is not started.
        needs_session: whether its service will want a session of Spark under these settings.
        own_port: from the settings to the port where a process serves metrics in which it is the first role; None: at
            `metrics.port`, like everything that runs in one process with it. Only one role may have none, so that one settings
            file serves processes of one role each on one machine.
    """

    make: Callable[[Settings, MetricsServer], Service]
    needs_session: Callable[[Settings], bool]
    own_port: Callable[[Metrics], int] | None
