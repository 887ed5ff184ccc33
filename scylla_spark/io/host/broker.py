"""A real single-node Kafka 3.9 (KRaft) as a child process, for one machine, notebooks and tests.

It listens on loopback only, keeps its records between runs, and cannot outlive the process that started it. Durable
against the death of processes, not of the machine: like any Kafka with one replica it leaves the flush to disk to the
operating system.
"""

from __future__ import annotations

import atexit
import base64
import fcntl
import os
import secrets
import signal
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Self

from kafka.admin import KafkaAdminClient, ScramMechanism, UserScramCredentialUpsertion
from kafka.errors import KafkaError

from scylla_spark.errors import BrokerError, ConflictError
from scylla_spark.io.host import broker_files as files
from scylla_spark.io.host import die_with_parent, private_files
from scylla_spark.io.host.java import jvm_environment
from scylla_spark.io.host.process_limits import refuse_optimized_python

_START_LIMIT_S = 90.0
_STOP_LIMIT_S = 20.0
_POLL_S = 0.03
_LOCK_PATIENCE_S = 2.0  # a broker whose parent was just killed needs a moment to die
_PORT_ATTEMPTS = 3


class EmbeddedBroker:
    """The broker of one data folder; a context manager.

    Starting is refused while another broker lives on the folder. After kill -9 of the broker, or of its parent, it
    starts again on the same records (about three seconds later than usual, because Kafka first waits for its old
    session to end).

    Args:
        data_dir: folder of its records, ports and logs; made if missing.
        port: port for clients; default: one that is free at the first start, kept for later starts. Once clients know it, it never changes.
        heap: largest Java heap.
        auth: whether clients must know the secret in `secret_file`; without, every user of this machine may send and read.
        overrides: Kafka settings on top of ours, for experiments and tests.
    """

    def __init__(
        self,
        data_dir: Path | str,
        *,
        port: int | None = None,
        heap: str = "512m",
        auth: bool = False,
        overrides: Mapping[str, str] | None = None,
    ) -> None:
        self._layout = files.Layout(Path(data_dir).absolute())
        self._port = port
        self._heap = heap
        self._auth = auth
        self._node_password: str | None = None
        self._secret: str | None = None
        self._overrides = dict(overrides or {})
        self._ports: files.Ports | None = None
        self._child: _Child | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def bootstrap(self) -> str:
        """The address for clients, "127.0.0.1:PORT"; known once started, and still after a stop.

        Raises:
            BrokerError: it was never started.
        """
        if self._ports is None:
            raise BrokerError(
                "the embedded broker was not started.", hint="Call start(), or use it in a with statement."
            )
        return f"{files.HOST}:{self._ports.broker}"

    @property
    def secret_file(self) -> Path | None:
        """The file with the password of the SCRAM user `broker_files.CLIENT_USER`; None where access is open."""
        return self._layout.secret if self._auth else None

    @property
    def pid(self) -> int | None:
        """Process id of the broker, None while it does not run."""
        return self._child.pid if self._child and self._child.alive else None

    @property
    def alive(self) -> bool:
        """Returns True if the process runs; False also after it was killed from outside."""
        return self.pid is not None

    @property
    def data_dir(self) -> Path:
        """The folder of its records, ports and logs."""
        return self._layout.root

    @property
    def log_file(self) -> Path:
        """Returns where the broker reports what it does."""
        return self._layout.log

    def start(self, timeout: float = _START_LIMIT_S) -> Self:
        """Start it and wait until it answers clients; formats the storage the first time. Does nothing while it runs.

        Args:
            timeout: seconds until it must answer.

        Raises:
            ConflictError: another broker lives on this data folder.
            ConfigError: others may enter the data folder, and it is not ours to close.
            BrokerError: it ended or did not answer in time; the message carries the end of its log.
            SetupError: Java or the broker's jars are missing and cannot be had, or Python leaves out assertions.
        """
        if self.alive:
            return self
        refuse_optimized_python()
        deadline = time.monotonic() + timeout
        private_files.close_folder(self._layout.root)
        if self._auth:
            self._secret, self._node_password = (
                private_files.kept_secret(self._layout.secret),
                secrets.token_urlsafe(32),
            )
        java = files.jvm(self._layout, self._heap)
        lock = self._take_lock()
        try:
            for attempt in range(1, _PORT_ATTEMPTS + 1):
                if self._launch(java, lock, deadline, last_try=attempt == _PORT_ATTEMPTS):
                    break
        except BaseException:  # also Ctrl-C: what was started half must not stay
            self.stop(timeout=2)
            raise
        finally:
            os.close(lock)  # the broker has it now, and gives it back by ending, however it ends
        assert self._ports is not None
        self._port = self._ports.broker  # clients know it by now
        atexit.register(self.stop)
        return self

    def stop(self, timeout: float = _STOP_LIMIT_S) -> None:
        """End it: SIGTERM, and SIGKILL after `timeout` seconds. Does nothing if it does not run, or after a fork."""
        atexit.unregister(self.stop)
        child, self._child = self._child, None
        if child is not None:
            child.stop(timeout)

    def _take_lock(self) -> int:
        lock = os.open(self._layout.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        patience = time.monotonic() + _LOCK_PATIENCE_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() < patience:
                    time.sleep(_POLL_S)
                    continue
                os.close(lock)
                raise ConflictError(
                    f"a broker already runs on {self._layout.root}.",
                    hint="Stop the process that started it, or use another data folder.",
                    data_dir=str(self._layout.root),
                ) from error
            return lock

    def _launch(self, java: list[str], lock: int, deadline: float, *, last_try: bool) -> bool:
        """One try; False if somebody took a port between our look and Kafka's bind, so that another try can help."""
        self._ports = files.choose_ports(self._layout, self._port)
        files.write_configuration(self._layout, self._ports, self._overrides, node_password=self._node_password)
        if not self._layout.formatted:
            self._format(java, lock)
        self._child = _Child(java, self._layout, lock)
        problem = self._await_answer(self._child, deadline)
        if not problem:
            return True
        self.stop(timeout=2)
        told = files.tail(self._layout)
        if "BindException" in told and self._port is None and not last_try:
            return False
        raise BrokerError(
            f"the embedded broker {problem}. The end of its log:\n{told}\n",
            hint=f"All of it: {self._layout.log}",
            data_dir=str(self._layout.root),
        )

    def _format(self, java: list[str], lock: int) -> None:
        cluster_id = (
            base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "x").replace("_", "y")
        )
        arguments = ["kafka.tools.StorageTool", "format", "--ignore-formatted", "-t", cluster_id]
        done = subprocess.run(
            [*java, *arguments, "-c", self._layout.properties.name],
            cwd=self._layout.root,
            env=jvm_environment(),
            capture_output=True,
            text=True,
            pass_fds=(lock,),
            start_new_session=True,  # see `_Child`
            check=False,
        )
        if done.returncode != 0:
            told = (done.stdout + done.stderr)[-2000:]
            raise BrokerError(
                f"the broker's storage in {self._layout.records} could not be formatted:\n{told}\n",
                hint="Look at the free space and the permissions of the data folder: scylla-spark doctor",
            )

    def _await_answer(self, child: _Child, deadline: float) -> str:
        while not child.ended(within=_POLL_S):
            if self._answers():
                return ""
            if time.monotonic() > deadline:
                return "did not answer in time"
        return f"ended with code {child.code} before it answered"

    def _answers(self) -> bool:
        host, _, port = self.bootstrap.partition(":")
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
        except OSError:
            return False  # not even listening: spare kafka-python the noise
        try:
            if self._secret is not None:
                self._tell_secret(self._secret)
            with self._admin(files.client_access(self._secret)) as admin:
                return bool(admin.describe_cluster()["brokers"])
        except KafkaError:
            return False

    def _admin(self, access: Mapping[str, str]) -> KafkaAdminClient:
        return KafkaAdminClient(
            bootstrap_servers=self.bootstrap, bootstrap_timeout_ms=5000, request_timeout_ms=5000, **access
        )

    def _tell_secret(self, secret: str) -> None:
        """Makes the secret good for clients; repeating it changes nothing."""
        wanted = UserScramCredentialUpsertion(files.CLIENT_USER, ScramMechanism.SCRAM_SHA_512, secret)
        with self._admin(files.node_access(self._node_password)) as admin:
            admin.alter_user_scram_credentials([wanted])


class _Child:
    """The Java process, bound to a thread of its own, since the kernel's death signal follows the parent thread."""

    def __init__(self, java: list[str], layout: files.Layout, lock: int) -> None:
        self._archive = files.class_archive(java[0])
        self._draft = self._archive.with_suffix(f".{os.getpid()}-{uuid.uuid4().hex[:8]}")
        self._owner = os.getpid()
        self._ended = threading.Event()
        spawned: Future[subprocess.Popen[bytes]] = Future()
        arguments = [java[0], *self._class_flags(), *java[1:], "kafka.Kafka", layout.properties.name]
        threading.Thread(
            target=self._keep, args=(arguments, layout, lock, spawned), name="embedded-broker", daemon=True
        ).start()
        self._process = spawned.result()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def code(self) -> int | None:
        return self._process.returncode

    @property
    def alive(self) -> bool:
        return not self._ended.is_set()

    def ended(self, within: float) -> bool:
        return self._ended.wait(within)

    def stop(self, timeout: float) -> None:
        if os.getpid() != self._owner or not self.alive:
            return
        self._process.send_signal(signal.SIGTERM)
        if self._ended.wait(timeout):
            self._keep_archive()
            return
        self._process.kill()
        self._ended.wait()

    def _keep(
        self, arguments: list[str], layout: files.Layout, lock: int, spawned: Future[subprocess.Popen[bytes]]
    ) -> None:
        bound = die_with_parent.mode()
        try:
            with layout.console.open("wb") as console:
                process = subprocess.Popen(
                    die_with_parent.command(arguments, how=bound),
                    cwd=layout.root,
                    env=jvm_environment(),
                    stdin=subprocess.PIPE if bound == "pipe" else subprocess.DEVNULL,
                    stdout=console,
                    stderr=subprocess.STDOUT,
                    pass_fds=(lock,),
                    start_new_session=True,  # Ctrl-C is for the parent, which then stops the broker last
                )
        except BaseException as error:
            self._ended.set()
            spawned.set_exception(error)
            return
        spawned.set_result(process)
        process.wait()
        self._ended.set()

    def _class_flags(self) -> list[str]:
        # Application class data sharing: written once at the end of a run, read by every later one.
        if self._archive.is_file():
            return [f"-XX:SharedArchiveFile={self._archive}"]
        return [f"-XX:ArchiveClassesAtExit={self._draft}"] if os.access(self._archive.parent, os.W_OK) else []

    def _keep_archive(self) -> None:
        if self._draft.is_file():
            self._draft.replace(self._archive)
