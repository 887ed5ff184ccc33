"""Podman with a storage of its own and an image of nothing but busybox, for tests: nothing of the machine's containers is touched."""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import shutil
import tarfile
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from scylla_spark.core.leases.messages import LeasedLine
from scylla_spark.errors import SchedulerError
from scylla_spark.worker.containers.container_slot import ContainerPlace, Yard
from scylla_spark.worker.containers.options import Bounds, bounds_of
from scylla_spark.worker.containers.podman import Podman, podman_of
from scylla_spark.worker.lease import Lease, Output
from tests.support.http_script import lease_view
from tests.support.missing_package import absent
from tests.support.waiting import eventually

BUSYBOX = Path("/bin/busybox")
PROGRAMS = (
    "cat", "dd", "echo", "env", "head", "ip", "kill", "ls", "mount", "nc", "ping", "ps", "sed", "seq", "sh",
    "sleep", "touch", "tr", "wget", "yes",
)  # fmt: skip
PROBE = ("--network=none", "--memory=64m", "--pids-limit=32", "--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024")
BOUNDS = bounds_of(memory="64MB", cpus=1, processes=32, tmp="8MB", out="4MB", timeout="60s")


class ContainerSite(NamedTuple):
    """A podman that runs containers.

    Attributes:
        words: how it is called, as `--podman` takes it.
        podman: the same.
        image: reference of the image, by digest.
    """

    words: str
    podman: Podman
    image: str

    def containers(self) -> list[str]:
        """Names of all containers that there are."""
        return self.podman.ask("ps", "--all", "--format={{.Names}}").out.split()


class NoContainers(Exception):
    """No container can run on this machine; the message says why."""


class Noted:
    """Takes what is said of leases; a `Reporter`."""

    def __init__(self) -> None:
        self.reports: list[dict[str, Any]] = []
        self.signs: list[dict[str, Any]] = []
        self.files: dict[str, tuple[str, bytes]] = {}
        self.lines_told: list[LeasedLine] = []
        self.refuses: SchedulerError | None = None

    def report(self, lease: Lease, text: str) -> None:
        self.reports.append(json.loads(text))

    def sign(self, lease: Lease, **fields: str) -> None:
        self.signs.append({name: json.loads(text) for name, text in fields.items()})

    def output(self, lease: Lease, output: Output) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.files[output.name] = (output.media_type, Path(output.file).read_bytes())

    def lines(self, lease: Lease, lines: Sequence[LeasedLine]) -> None:
        self.lines_told += lines

    def refuse(self) -> None:
        return None


@contextmanager
def container_site() -> Iterator[ContainerSite]:
    """Makes storage and image in a folder under /tmp (podman's sockets have short paths), and removes them.

    Raises:
        NoContainers: podman is missing, or cannot run anything here, with any runtime.
    """
    if shutil.which("podman") is None or not BUSYBOX.exists():
        raise NoContainers("podman or busybox-static is not installed")
    folder = Path(tempfile.mkdtemp(prefix="boxes-", dir="/tmp"))
    try:
        site = _site_of(folder)
        try:
            yield site
        finally:
            site.podman.ask("rm", "--all", "--force", "--time=0")
            eventually(lambda: not _used(folder), 30, "podman's own clean-up behind the last container has ended")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def container_site_or_skip() -> Iterator[ContainerSite]:
    """The same for tests; where no container can run, they are skipped and say why, and in CI they fail."""
    try:
        with container_site() as found:
            yield found
    except NoContainers as error:
        absent(f"no container can run on this machine: {error}")


def _used(folder: Path) -> bool:
    """Returns True if a process has a folder on its command line, such as podman's, which would make it anew."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(folder).encode() in file.read_bytes():
                return True
    return False


def _site_of(folder: Path) -> ContainerSite:
    """The first runtime that runs anything here, with limits and little else: what we add to that has to work, too."""
    (folder / "image.tar").write_bytes(_image())
    whys = []
    for runtime in ("", "runc", "crun"):
        words = shlex.join(
            ["podman", f"--root={folder}/root", f"--runroot={folder}/run", f"--tmpdir={folder}/tmp", "--storage-driver=vfs",
             "--cgroup-manager=cgroupfs", "--events-backend=file", *([f"--runtime={runtime}"] if runtime else [])]
        )  # fmt: skip
        podman = podman_of(words)
        podman.ask("import", str(folder / "image.tar"), "localhost/busybox:test")
        digest = podman.ask("images", "--digests", "--format={{.Digest}}").out.split()
        image = f"localhost/busybox@{digest[0] if digest else 'none'}"
        done = podman.ask("run", "--rm", *PROBE, image, "/bin/echo", "works")
        if done.out.strip() == "works":
            return ContainerSite(words, podman, image)
        whys.append(f"{runtime or 'default runtime'}: {done.told}")
    raise NoContainers(" | ".join(whys)[:2_000])


def _image() -> bytes:
    """A root file system with busybox and links to it."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, mode in {
            "bin": 0o755,
            "etc": 0o755,
            "proc": 0o755,
            "sys": 0o755,
            "dev": 0o755,
            "tmp": 0o1777,
            "open": 0o1777,
        }.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            archive.addfile(entry)
        archive.add(BUSYBOX, "bin/busybox")
        for name in PROGRAMS:
            entry = tarfile.TarInfo(f"bin/{name}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(entry)
    return file.getvalue()


class Attempt:
    """A task that runs in a container, in a thread.

    Args:
        yard: where.
        payload: of the task.
        number: of the task.
    """

    def __init__(self, yard: Yard, payload: Any, number: int) -> None:
        self.noted = Noted()
        self.lease = Lease(lease_view(number, payload=payload), self.noted)
        self.place = ContainerPlace(yard)
        self.thread = threading.Thread(target=self.place.work, args=(self.lease,))

    def ended(self) -> dict[str, Any] | None:
        """Its report, when it has ended; None: it made none."""
        self.thread.join(60)
        assert not self.thread.is_alive()
        return self.noted.reports[0] if self.noted.reports else None


def shell(text: str) -> dict[str, Any]:
    """The payload of a task that runs a script of the shell."""
    return {"command": ["/bin/sh", "-c", text]}


def with_bounds(yard: Yard, bounds: Bounds) -> Yard:
    """The same place with other bounds."""
    return Yard(yard.podman, yard.offer, bounds, yard.runner, yard.folder, yard.guard)
