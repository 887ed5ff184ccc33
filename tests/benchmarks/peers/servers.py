"""PostgreSQL and Redis as children on the loopback interface, with their data in a folder that goes with them."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from scylla_spark.io.host.broker_files import free_port
from tests.benchmarks.peers.child import Missing, found, output, running, wait

POSTGRES_SETTINGS = {"shared_buffers": "512MB", "max_wal_size": "4GB"}
_START_S = 30


class Store(Protocol):
    """Where a peer keeps its tasks."""

    def fresh(self) -> str:
        """The address of an empty store."""


@dataclass
class Postgres:
    """One server; every measure has a database of its own."""

    programs: Path
    port: int
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def fresh(self) -> str:
        name = f"measure{next(self.numbers)}"
        self.ask(self._address("postgres"), f"create database {name}")
        return self._address(name)

    def ask(self, address: str, statement: str) -> str:
        return output([str(self.programs / "psql"), "-X", "-q", "-A", "-t", "-c", statement, address]).strip()

    def _address(self, name: str) -> str:
        return f"postgres://postgres@127.0.0.1:{self.port}/{name}"


@dataclass
class Redis:
    """One server; every measure begins with it emptied."""

    client: str
    port: int

    def fresh(self) -> str:
        self.ask("FLUSHALL")
        return f"redis://127.0.0.1:{self.port}/0"

    def ask(self, *words: str) -> str:
        return output([self.client, "-h", "127.0.0.1", "-p", str(self.port), *words]).strip()


def postgres_programs() -> Path:
    """The folder of initdb, postgres and psql, the newest version that Debian's packages installed, else that of PATH."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    path = debian[-1] if debian else Path(found("initdb", "apt-get install postgresql"))
    return path.resolve().parent


def redis_programs() -> tuple[str, str]:
    """The paths of redis-server and redis-cli."""
    hint = "apt-get install redis-server"
    return found("redis-server", hint), found("redis-cli", hint)


@contextmanager
def postgres() -> Iterator[Postgres]:
    """A running PostgreSQL with its own durable defaults (fsync and synchronous_commit on)."""
    programs, port = postgres_programs(), free_port()
    with _folder() as place:
        data, log, become = place / "data", place / "log", _other_user(place)
        output(
            [*become, str(programs / "initdb"), "-D", str(data), "-U", "postgres", "-A", "trust", "-E", "UTF8"],
            cwd=place,
        )
        options = {"listen_addresses": "127.0.0.1", "port": port, "unix_socket_directories": "", **POSTGRES_SETTINGS}
        settings = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        command = [*become, str(programs / "postgres"), "-D", str(data), *settings]
        with running(command, log=log, cwd=place, bound=not become):
            ask = [str(programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
            _await("PostgreSQL", ask, log)
            yield Postgres(programs, port)


@contextmanager
def redis() -> Iterator[Redis]:
    """A running Redis that appends every change to its file, flushed each second."""
    server, client, port = *redis_programs(), free_port()
    with _folder() as place:
        command = [
            server,
            "--bind",
            "127.0.0.1",
            "--port",
            str(port),
            "--dir",
            str(place),
            "--save",
            "",
            "--appendonly",
            "yes",
        ]
        with running(command, log=place / "log"):
            _await("Redis", [client, "-h", "127.0.0.1", "-p", str(port), "PING"], place / "log")
            yield Redis(client, port)


@contextmanager
def _folder() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="scylla-spark-peers-"))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _other_user(place: Path) -> list[str]:
    """The start of a command that PostgreSQL accepts: it refuses to run as root. The folder becomes that user's.

    A change of user clears the signal that ties a child to its parent, so setpriv sets it after the change.
    """
    if os.getuid() != 0:
        return []
    user = next((name for name in ("postgres", "nobody") if _known(name)), "nobody")
    shutil.chown(place, user)
    return [found("setpriv", "apt-get install util-linux"), "--reuid", user, "--regid", str(pwd.getpwnam(user).pw_gid),
            "--init-groups", "--pdeathsig", "QUIT", "--"]  # fmt: skip


def _known(user: str) -> bool:
    return any(entry.pw_name == user for entry in pwd.getpwall())


def _await(name: str, question: list[str], log: Path) -> None:
    """Returns when the question is answered with exit code 0."""
    if not wait(f"{name} answers", lambda: subprocess.run(question, capture_output=True).returncode == 0, _START_S):
        raise Missing(f"{name} did not start: {log.read_text()[-400:]}")
