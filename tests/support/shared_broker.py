"""One Kafka broker for all test processes of a run, and settings that keep the tests on it apart."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any
from uuid import uuid4

from scylla_spark.config.settings import Settings
from scylla_spark.io.host.broker import EmbeddedBroker
from scylla_spark.io.kafka.topics import with_broker


class SharedBroker:
    """Starts a broker when the first process asks for its address.

    It lives in the process that started the run. The serving thread starts it, because a broker ends with the thread that started it.
    """

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="scylla-spark-tests-"))
        self.socket = str(self._folder / "socket")
        self._listener = Listener(self.socket, "AF_UNIX")
        self._thread = threading.Thread(target=self._serve, name="shared-broker", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.ExitStack() as stack:
            broker: EmbeddedBroker | None = None
            while True:
                with self._listener.accept() as connection:
                    if connection.recv() == "stop":
                        return
                    broker = broker or self._start(stack, connection)
                    if broker is not None:
                        connection.send(broker.bootstrap)

    def _start(self, stack: contextlib.ExitStack, connection: Connection) -> EmbeddedBroker | None:
        try:
            return stack.enter_context(EmbeddedBroker(self._folder / "kafka"))
        except Exception as error:
            connection.send(error)
            return None

    def stop(self) -> None:
        """Ends the broker, if one was started, and deletes its records."""
        with Client(self.socket, "AF_UNIX") as connection:
            connection.send("stop")
        self._thread.join()
        self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def ask(socket: str) -> str:
    """The address of the broker behind a `SharedBroker`.

    Raises:
        SchedulerError: the broker does not start.
    """
    with Client(socket, "AF_UNIX") as connection:
        connection.send("address")
        answer = connection.recv()
    if isinstance(answer, Exception):
        raise answer
    return str(answer)


def settings_on(broker: str, folder: Path, **options: Any) -> Settings:
    """Settings of a deployment whose topics and consumer groups no other test has.

    Args:
        broker: address of the shared broker.
        folder: its data directory.
        options: sections and fields of the settings; they win.
    """
    name = uuid4().hex[:12]
    topics = {kind: f"{name}-{kind}" for kind in ("tasks", "outcomes", "schedules", "logs")}
    own = {
        "topics": topics | options.pop("topics", {}),
        "dispatch": {"group_id": f"{name}-dispatch"} | options.pop("dispatch", {}),
    }
    return with_broker(Settings(_env_file=None, data_dir=folder, **own, **options), broker)


def as_words(settings: Settings) -> list[str]:
    """Command-line options that give a process the place of these settings: broker, folder, partitions, topics and group."""
    texts = [
        f"kafka.bootstrap_servers={settings.kafka.bootstrap_servers}",
        f"data_dir={settings.data_dir}",
        f"partitions={settings.partitions}",
        f"dispatch.group_id={settings.dispatch.group_id}",
        *(f"topics.{kind}={getattr(settings.topics, kind)}" for kind in ("tasks", "outcomes", "schedules", "logs")),
    ]
    return [word for text in texts for word in ("--set", text)]
