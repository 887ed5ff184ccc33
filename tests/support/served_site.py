"""The API of `api_site` on a port of this machine, for clients that need a network: browsers and the command line."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from uvicorn import Config, Server

from scylla_spark.services.api.app import guarded
from scylla_spark.services.api.service import listening
from tests.support.api_site import Site
from tests.support.waiting import holds


@contextmanager
def served(site: Site) -> Iterator[str]:
    """The address at which it is served."""
    listener = listening("127.0.0.1", 0)
    app = guarded(site.app, site.settings)
    running = Server(Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        assert holds(lambda: running.started)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        running.should_exit = True
        thread.join()
        listener.close()
