"""The command line of `podman run` for one task: all that a container may, and may not. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from scylla_spark.duration import duration_ms
from scylla_spark.errors import ArgumentError, shown
from scylla_spark.handlers.isolation import LEAST_MEMORY, size_bytes
from scylla_spark.worker.containers.out_folder import OUT_PATH
from scylla_spark.worker.containers.request import Box

RUNNER_LABEL: Final = "scylla-spark.runner"
LEASE_LABEL: Final = "scylla-spark.lease"
INPUT_PATH: Final = "/task.json"
OPEN_FILES: Final = 1024
_SPARE_S: Final = 10  # podman's own time-out comes this much after ours: it is for a runner that is gone
_USER: Final = re.compile(r"([1-9][0-9]{0,8})(?::([1-9][0-9]{0,8}))?")
_NETWORK: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:=,/-]{0,199}")
_OURS: Final = ("host", "container:", "ns:")


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a container may take.

    Attributes:
        memory: bytes of all its processes together, with what lies in /tmp; there is no swap beyond it.
        cpus: how many cores' time.
        processes: processes and threads together.
        tmp: bytes of /tmp, and of /dev/shm.
        timeout_ms: how long it may run.
        out: most bytes of all files in /out that are kept; 0: there is no such folder.
        network: as podman's `--network`; "none": there is none.
        user: numbers of user and group, neither root's.
    """

    memory: int
    cpus: float
    processes: int
    tmp: int
    timeout_ms: int
    out: int = 0
    network: str = "none"
    user: str = "65534:65534"


class Mark(NamedTuple):
    """How a container is found again.

    Attributes:
        runner: names the process that made it; see `identity`.
        lease: digest of the lease's token.
    """

    runner: str
    lease: str

    @property
    def name(self) -> str:
        """Of the container."""
        return f"scylla-spark-{self.lease}"


class Files(NamedTuple):
    """Files of this machine that a container is given.

    Attributes:
        task: absolute path of what becomes /task.json.
        environment: absolute path of its variables, a line each.
        out: absolute path of the folder, in memory, that becomes /out where there is one.
    """

    task: str
    environment: str
    out: str


def bounds_of(
    *,
    memory: str,
    cpus: float,
    processes: int,
    tmp: str,
    timeout: str,
    out: str = "0",
    network: str = "none",
    user: str = "65534",
) -> Bounds:
    """The bounds that a command line asks for.

    Args:
        memory: a size, such as 512MB, from 16 MB.
        cpus: from 0.01 to 1,024.
        processes: from 1 to 1,000,000.
        tmp: a size.
        timeout: a duration, from a second.
        out: a size; "0": none.
        network: as podman's `--network`, but not this machine's own.
        user: number of the user, or of user and group as 1000:1000.

    Raises:
        ArgumentError: one of them cannot be, or would open the container to this machine.
    """
    numbers = _USER.fullmatch(user)
    if numbers is None:
        raise ArgumentError(f"{shown(user)} is no user for containers.", hint="Write a number above 0, or 1000:1000.")
    if not _NETWORK.fullmatch(network) or network.startswith(_OURS):
        raise ArgumentError(
            f"{shown(network)} is no network for containers.", hint="Write none, bridge, slirp4netns or a name."
        )
    sizes, limit_ms = (size_bytes(memory), size_bytes(tmp)), duration_ms(timeout)
    left_behind = 0 if out == "0" else size_bytes(out)
    if not (0.01 <= cpus <= 1024 and 1 <= processes <= 1_000_000 and limit_ms >= 1_000):
        raise ArgumentError(
            f"{cpus:g} CPUs, {processes} processes or {shown(timeout)} are no bounds of a container.",
            hint="Pass --cpus from 0.01, --processes from 1, --timeout from 1s.",
        )
    if sizes[0] < LEAST_MEMORY or sizes[1] < 1:
        raise ArgumentError("A container needs 16 MB of memory and a byte of /tmp at least.")
    return Bounds(
        sizes[0], cpus, processes, sizes[1], limit_ms, left_behind, network, f"{numbers[1]}:{numbers[2] or numbers[1]}"
    )


def run_options(box: Box, bounds: Bounds, mark: Mark, files: Files, user_processes: int) -> list[str]:
    """The arguments behind `podman`, to run a task and wait for it.

    Each default that a configuration of this machine could widen is said here again.

    Args:
        box: what runs.
        bounds: what it may take.
        mark: how it is found again.
        files: what it is given.
        user_processes: most processes of the user, as this process may have them; podman would ask for more than that.
    """
    options = [*_closed(bounds), *_bounded(bounds, user_processes), *_known(mark), *_given(files)]
    return ["run", *options, *_left_behind(bounds, files), box.image, *box.command]


def probe_options(image: str, bounds: Bounds, mark: Mark, files: Files, user_processes: int) -> list[str]:
    """The same for a program that no image has: podman says 127 if everything but that worked.

    Args:
        image: to try.
        bounds: as of tasks.
        mark: how it is found again.
        files: what it would be given.
        user_processes: as of `run_options`.
    """
    run = run_options(Box(image), bounds, mark, files, user_processes)
    return [run[0], "--rm", "--entrypoint=/scylla-spark-probe", *run[1:]]


def _closed(bounds: Bounds) -> list[str]:
    """Returns what keeps a container apart."""
    hosts = ["--no-hosts"] if bounds.network == "none" else []
    return [
        f"--network={bounds.network}",
        *hosts,
        "--hostname=box",
        "--read-only",
        "--read-only-tmpfs=false",
        "--image-volume=ignore",
        "--cap-drop=all",
        "--security-opt=no-new-privileges",
        "--pid=private",
        "--ipc=private",
        "--uts=private",
        "--cgroupns=private",
        "--privileged=false",
        "--http-proxy=false",
        "--env-host=false",
        f"--user={bounds.user}",
    ]


def _bounded(bounds: Bounds, user_processes: int) -> list[str]:
    """Returns what it may take."""
    timeout_s = -(-bounds.timeout_ms // 1000) + _SPARE_S
    return [
        f"--memory={bounds.memory}",
        f"--memory-swap={bounds.memory}",
        f"--cpus={bounds.cpus:g}",
        f"--pids-limit={bounds.processes}",
        f"--tmpfs=/tmp:rw,nosuid,nodev,size={bounds.tmp},mode=1777",
        f"--shm-size={bounds.tmp}b",
        f"--ulimit=nofile={OPEN_FILES}:{OPEN_FILES}",
        "--ulimit=core=0:0",
        f"--ulimit=nproc={user_processes}:{user_processes}",
        f"--timeout={timeout_s}",
        "--stop-timeout=0",
    ]


def _known(mark: Mark) -> list[str]:
    return [f"--name={mark.name}", f"--label={RUNNER_LABEL}={mark.runner}", f"--label={LEASE_LABEL}={mark.lease}"]


def _given(files: Files) -> list[str]:
    """Returns what comes in, and that nothing of it stays on this machine."""
    task = f"--mount=type=bind,source={files.task},destination={INPUT_PATH},ro=true,relabel=private"
    return [
        task,
        f"--env-file={files.environment}",
        "--interactive",
        "--sig-proxy=false",
        "--log-driver=none",
        "--pull=never",
        "--no-healthcheck",
        "--restart=no",
    ]


def _left_behind(bounds: Bounds, files: Files) -> list[str]:
    """Returns where it leaves files behind."""
    mount = f"--mount=type=bind,source={files.out},destination={OUT_PATH},noexec,nosuid,nodev,relabel=private"
    return [mount] if bounds.out else []
