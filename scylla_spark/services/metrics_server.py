"""Serves `/metrics` of a process, and what else it shows, over HTTP where the settings say."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from scylla_spark.config.settings import Metrics
from scylla_spark.errors import ConfigError
from scylla_spark.services.http_server import ReadOnlyServer, Reply, Route

PREFIX = "scyllaspark_"
"""What the names of all our metrics begin with."""


class MetricsServer:
    """Answers read-only questions about this process.

    Args:
        settings: where to listen, and by which names it may be asked.
        registry: the metrics.
        routes: what else is answered: path → route.

    Attributes:
        address: where it listens, such as http://127.0.0.1:9000.

    Raises:
        ConfigError: it cannot listen there.
    """

    def __init__(
        self, settings: Metrics, registry: CollectorRegistry, routes: Mapping[str, Route] | None = None
    ) -> None:
        metrics = Route(lambda _query: Reply(CONTENT_TYPE_LATEST, generate_latest(registry)))
        names = (*settings.allowed_hosts, socket.gethostname())
        try:
            self._server = ReadOnlyServer(
                (settings.host, settings.port), {"/metrics": metrics, **(routes or {})}, hosts=names
            )
        except OSError as error:
            raise ConfigError(
                f"Metrics cannot be served at {settings.host}, port {settings.port}: {error.strerror or error}.",
                hint="Set metrics.host to an address of this machine, and metrics.port to a free port or to 0.",
            ) from None
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        self.address = f"http://{host}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="state-server", daemon=True)

    def start(self) -> None:
        """Begins to serve."""
        self._thread.start()

    def stop(self) -> None:
        """Ends serving."""
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()
