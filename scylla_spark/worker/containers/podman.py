"""Podman as this runner calls it: with an environment of few variables, and answers that come in time or not at all."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from typing import IO, Any, Final, NamedTuple

from scylla_spark.errors import ArgumentError, SetupError
from scylla_spark.io.host import die_with_parent

ANSWER_S: Final = 60.0
INSTALL: Final = "Install it, such as by `apt-get install podman`, or say where it is with --podman."
_PASSED: Final = (
    "PATH",
    "HOME",
    "USER",
    "LANG",
    "TMPDIR",
    "XDG_RUNTIME_DIR",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "DBUS_SESSION_BUS_ADDRESS",
    "CONTAINERS_CONF",
    "CONTAINERS_STORAGE_CONF",
    "CONTAINERS_REGISTRIES_CONF",
    "REGISTRY_AUTH_FILE",
    "DOCKER_CONFIG",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
)
_TOLD_CHARS: Final = 1_000


class Done(NamedTuple):
    """What a call of podman came to.

    Attributes:
        code: exit code; -1: it gave no answer in time, or could not be started.
        out: what it wrote.
        told: the end of what it wrote to its standard error.
    """

    code: int
    out: str
    told: str

    @property
    def document(self) -> Any:
        """Returns what it has answered as JSON; None: it has not."""
        try:
            return json.loads(self.out) if self.code == 0 else None
        except ValueError:
            return None


class Podman(NamedTuple):
    """How podman is called.

    Attributes:
        command: absolute path of the program, and global options.
        environment: of its process; containers get nothing of it.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]

    def ask(self, *arguments: str, within_s: float = ANSWER_S) -> Done:
        """Calls it, and waits. Nothing is raised.

        Args:
            arguments: behind the global options.
            within_s: most seconds.
        """
        try:
            done = subprocess.run(
                [*self.command, *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=within_s,
                env=dict(self.environment),
                start_new_session=True,
                cwd="/",
            )
        except subprocess.TimeoutExpired:
            return Done(-1, "", f"podman {arguments[0]} gave no answer within {within_s:g} s")
        except (OSError, ValueError) as error:
            return Done(-1, "", f"podman cannot be started: {error}")
        told = done.stderr.decode(errors="replace").strip()[-_TOLD_CHARS:]
        return Done(done.returncode, done.stdout.decode(errors="replace"), told)

    def document(self, *arguments: str) -> Any:
        """Returns what it answers as JSON; None: it does not."""
        return self.ask(*arguments).document

    def state(self, container: str) -> Any:
        """`State` of a container; None: there is none, or podman does not say."""
        found = self.document("container", "inspect", container)
        return found[0].get("State") if isinstance(found, list) and found and isinstance(found[0], dict) else None

    def remove(self, *containers: str) -> bool:
        """Kills and removes containers; whether podman says that they are gone."""
        return self.ask("rm", "--force", "--time=0", *containers).code == 0

    def started(self, arguments: list[str], given: IO[bytes]) -> subprocess.Popen[bytes]:
        """Begins a call that is killed when the calling thread ends.

        Args:
            arguments: behind the global options.
            given: its standard input.

        Raises:
            OSError: it cannot be started.
        """
        return subprocess.Popen(
            die_with_parent.command([*self.command, *arguments]),
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(self.environment),
            start_new_session=True,
            cwd="/",
        )


def podman_of(text: str) -> Podman:
    """Podman, as a command line says how to call it.

    Args:
        text: program and global options, as a shell would read them.

    Raises:
        ArgumentError: it is no command line.
        SetupError: there is no such program.
    """
    try:
        program, *options = shlex.split(text)
    except ValueError as error:
        raise ArgumentError(
            f"{text!r} is no command line: {error}.", hint='Write "podman", perhaps with options.'
        ) from None
    found = shutil.which(program)
    if found is None:
        raise SetupError(f"There is no {program!r} on this machine, so no container can run.", hint=INSTALL)
    known = {name: os.environ[name] for name in _PASSED if name in os.environ}
    return Podman((os.path.abspath(found), *options), known)
