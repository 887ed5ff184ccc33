"""The API of `api_site` behind a real server, for clients that need a network: browsers and the command line."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from scylla_spark.api.app import guarded
from tests.support.api_site import Site
from tests.support.waiting import eventually


@contextmanager
def served(site: Site) -> Iterator[str]:
    """Serves a site; its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        guarded(site.app, site.settings), ws="none", lifespan="off", log_config=None, timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        eventually(lambda: server.started, within=20, what="the server")
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=10)
        listener.close()
