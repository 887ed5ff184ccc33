"""Serves `/metrics` of a process, and what else it shows, over HTTP where the settings say."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from scylla_spark.config.settings import Metrics
from scylla_spark.errors import ConfigError
from scylla_spark.services.read_only_http_server import ReadOnlyServer, Reply, Route

PREFIX = "scyllaspark_"
"""What the names of all our metrics begin with."""


class MetricsServer:
    """Answers read-only questions about this process; its services add what they show.

    Args:
        settings: where to listen, and by which names it may be asked.

    Attributes:
        address: where it listens, such as http://127.0.0.1:9000.

    Raises:
        ConfigError: it cannot listen there.
    """

    def __init__(self, settings: Metrics) -> None:
        self._registries: list[CollectorRegistry] = []
        self._routes = {"/metrics": Route(lambda _query: Reply(CONTENT_TYPE_LATEST, self._metrics()))}
        try:
            self._server = ReadOnlyServer((settings.host, settings.port), self._routes, hosts=settings.allowed_hosts)
        except OSError as error:
            raise ConfigError(
                f"Metrics cannot be served at {settings.host}, port {settings.port}: {error.strerror or error}.",
                hint="Set metrics.host to an address of this machine, and metrics.port to a free port or to 0.",
            ) from None
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        self.address = f"http://{host}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="state-server", daemon=True)

    def show(self, registry: CollectorRegistry) -> None:
        """Serves further metrics."""
        self._registries.append(registry)

    def answer(self, routes: Mapping[str, Route]) -> None:
        """Serves further routes: path → route."""
        self._routes.update(routes)

    def hide(self, registry: CollectorRegistry) -> None:
        """Serves these metrics no longer: what they tell of has stopped, and may be started again."""
        if registry in self._registries:
            self._registries.remove(registry)

    def _metrics(self) -> bytes:
        return b"".join(generate_latest(registry) for registry in list(self._registries))

    def start(self) -> None:
        """Begins to serve."""
        self._thread.start()

    def stop(self) -> None:
        """Ends serving."""
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()
