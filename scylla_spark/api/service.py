"""The API as a duty of a process: a child that serves HTTP, started again when it dies.

The socket belongs to the parent, so the address stays the same whatever becomes of the child, and who comes meanwhile waits.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import pickle
import socket
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from scylla_spark.clock import boot_us
from scylla_spark.config.settings import Api, Settings
from scylla_spark.defaults import API_PORT
from scylla_spark.errors import ConfigError
from scylla_spark.io.host import die_with_parent
from scylla_spark.io.kafka.topics import announced
from scylla_spark.log import get_logger
from scylla_spark.services.metrics_server import MetricsServer
from scylla_spark.services.service import Role

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = get_logger("api")

READY: Final = b"ready\n"
_BACKLOG: Final = 512
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 30.0
_LIVED_US: Final = 60_000_000  # who has lived so long is started again at once
_STOP_S: Final = 8.0


class ApiService:
    """Serves HTTP from a child process.

    Args:
        settings: with the broker's address.
        server: shows metrics of this process; the child shows its own.

    Attributes:
        address: where it listens, such as http://127.0.0.1:8080; None before the start, or where the packages are missing.
    """

    def __init__(self, settings: Settings, server: MetricsServer) -> None:
        self.address: str | None = None
        self._settings = settings
        self._socket: socket.socket | None = None
        self._stop = threading.Event()
        self._missing: list[str] = []
        self._settled = threading.Event()  # it serves, or has failed once
        self._serves = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="api-parent", daemon=True)

    def start(self) -> None:
        """Listens, and starts the child.

        Raises:
            ConfigError: it cannot listen there, or others would reach it.
        """
        self._missing = [name for name in ("fastapi", "jinja2", "uvicorn") if find_spec(name) is None]
        if self._missing:
            log.warning("no HTTP API and no dashboard: pip install 'scylla-spark[api]'", missing=self._missing)
            self._settled.set()
            return
        check_address(self._settings.api)
        self._socket = self._listening()
        host = f"[{self._settings.api.host}]" if ":" in self._settings.api.host else self._settings.api.host
        self.address = f"http://{host}:{self._socket.getsockname()[1]}"
        self._thread.start()

    def _listening(self) -> socket.socket:
        """A socket at the port of the settings; without one at the port of the run before, at the default port, or at a free one."""
        api = self._settings.api
        if api.port is not None:
            return listening(api.host, api.port)
        before = urlsplit(str(announced(self._settings.data_dir).get("api", ""))).port
        for port in filter(None, (before, API_PORT)):
            with contextlib.suppress(ConfigError):
                return listening(api.host, port)
        return listening(api.host, 0)

    def attach(self, spark: SparkSession) -> None:
        """It needs no session."""

    def ready(self) -> bool:
        """Returns whether the API serves or has failed once. A failed API does not keep the process from being ready."""
        return self._settled.is_set()

    def trouble(self) -> str | None:
        """Returns a sentence that says why it does not serve just now; None: it does."""
        if self._missing:
            return f"{', '.join(self._missing)} cannot be imported: pip install 'scylla-spark[api]'."
        return None if self._serves.is_set() else "Its process starts, or starts again: see the log."

    def alive(self) -> bool:
        """Always: a child that dies is started again, and the rest of the process goes on."""
        return True

    def stop(self) -> None:
        """Ends the child, once it has answered what it was asked."""
        self._stop.set()
        with self._lock:
            if self._process is not None:
                self._process.terminate()
        if self._thread.ident is not None:
            self._thread.join(timeout=_STOP_S)
            if self._thread.is_alive() and self._process is not None:
                self._process.kill()
                self._thread.join(timeout=_STOP_S)
        if self._socket is not None:
            self._socket.close()

    # -- the thread that is the child's parent: the kernel ends the child with it ------------------------------------------

    def _run(self) -> None:
        pause = _FIRST_PAUSE_S
        while not self._stop.is_set():
            begun = boot_us()
            try:
                code: int | str = self._serve()
            except OSError as error:  # no process, descriptor or memory is left just now
                code = repr(error)
            if self._stop.is_set():
                return
            self._settled.set()
            if boot_us() - begun > _LIVED_US:
                pause = _FIRST_PAUSE_S
            log.error("the API ended; it is started again", code=code, after_s=pause)
            self._stop.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _serve(self) -> int:
        """Runs one child to its end; its exit code."""
        assert self._socket is not None
        told, ours = os.pipe()
        try:
            with self._lock:
                if self._stop.is_set():
                    return 0
                self._process = _child(self._socket.fileno(), told)
        except OSError:
            os.close(ours)
            raise
        finally:
            os.close(told)
        with contextlib.suppress(BrokenPipeError), open(ours, "wb") as pipe:
            pipe.write(pickle.dumps(self._settings.model_dump()))  # not as arguments: it may hold passwords
        assert self._process.stdout is not None
        with self._process.stdout as said:
            if said.readline() == READY:
                self._serves.set()
                self._settled.set()
            said.read()
        self._serves.clear()
        return self._process.wait()


def check_address(settings: Api) -> None:
    """Refuses an address that others reach without a token, or to which tokens would travel in clear.

    TLS cannot be seen from here, because a proxy ends it, so that there is one has to be said: by an `https` address at which
    people reach the API, or by `trusted_network`.

    Raises:
        ConfigError: it is no loopback address, nothing is said to stand before it, and tokens are not always needed or no TLS is
            declared.
    """
    try:
        loopback = settings.host == "localhost" or ipaddress.ip_address(settings.host).is_loopback
    except ValueError:
        loopback = False
    if loopback or settings.trusted_network:
        return
    if settings.tokens != "always":
        raise ConfigError(
            f"The API would listen at {settings.host}, where every client could do everything while no token is stored.",
            hint='Leave api.host on loopback, or require tokens: api.tokens = "always", with an https api.public_url; or declare that '
            "a proxy with TLS and a login stands before it: api.trusted_network = true.",
        )
    if urlsplit(settings.public_url or "").scheme != "https":
        raise ConfigError(
            f"The API would listen at {settings.host}, and TLS is not declared: tokens would be sent unencrypted.",
            hint='Set the https address of the API: api.public_url = "https://tasks.example.com"; or that the network between '
            "it and its clients is trusted: api.trusted_network = true.",
        )


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises:
        ConfigError: it cannot.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        found = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"The API cannot be served at {host}, port {port}: {error.strerror or error}.",
            hint="Set api.host to an address of this machine, and api.port to a free port or to 0.",
        ) from None
    found.setblocking(False)
    return found


def _child(listener: int, told: int) -> subprocess.Popen[bytes]:
    """Starts the child; it reads its settings from the descriptor `told`."""
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    words = [sys.executable, "-P", "-m", "scylla_spark.api", str(listener), str(told)]
    return subprocess.Popen(
        die_with_parent.command(words),
        stdin=subprocess.PIPE if die_with_parent.mode() == "pipe" else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        pass_fds=(listener, told),
        env=os.environ | {"PYTHONPATH": path},
        start_new_session=True,  # Ctrl-C is for the parent, who says what to do
    )


API: Final = Role(ApiService, lambda settings: False, lambda metrics: metrics.api_port)
