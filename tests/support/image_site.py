"""Our images, built as a user builds them, on a base made from Debian packages: no image registry can be reached where tests run."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.support.missing_package import absent

ROOT = Path(__file__).parents[2]
HARDENED = (  # as in deploy/docker/compose.yaml; Docker mounts a tmpfs with these options, and runs programs of it only when told so
    "--read-only", "--read-only-tmpfs=false", "--cap-drop=ALL", "--security-opt=no-new-privileges",
    "--tmpfs=/tmp:rw,nosuid,nodev,noexec,mode=1777",
)  # fmt: skip
HERE = (
    "--network=host",
    "--ulimit=nofile=4096:4096",
    "--ulimit=nproc=4096:4096",
    "--rm",
)  # no bridge, limits that root here may set
_AUTHORITIES = "/usr/local/share/ca-certificates"
_HOOK = (  # what python:3.11-slim-bookworm has besides, and the certificates that this machine trusts
    f'mkdir -p "$1{_AUTHORITIES}"; cp {_AUTHORITIES}/*.crt "$1{_AUTHORITIES}/" 2>/dev/null; chroot "$1" update-ca-certificates >&2;'
    ' rm -f "$1"/usr/lib/python3*/EXTERNALLY-MANAGED; ln -s python3 "$1/usr/bin/python"'
)
_BASE = (
    "--quiet", "--variant=minbase", "--include=python3,python3-pip,ca-certificates", f"--customize-hook={_HOOK}",
    *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "locale")),
)  # fmt: skip
_LIMIT_S = 1_800


class ImageSite(NamedTuple):
    """A podman with a storage of its own, which has `localhost/base`.

    Attributes:
        folder: of everything.
        podman: how it is called.
    """

    folder: Path
    podman: tuple[str, ...]

    def ask(self, *words: str) -> str:
        """Runs podman to its end; what it printed."""
        done = subprocess.run(
            [*self.podman, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_LIMIT_S
        )
        assert done.returncode == 0, f"podman {words}: {done.stdout[-3000:]}{done.stderr[-6000:]}"
        return done.stdout

    def build(self, target: str) -> str:
        """Builds a target of the Dockerfile; the name of the image."""
        image = f"localhost/scylla-spark:{target}"
        self.ask(
            "build", "--isolation=chroot", "--format=docker", "--build-arg=PYTHON=localhost/base", f"--target={target}",
            f"--file={ROOT}/deploy/docker/Dockerfile", f"--tag={image}", str(ROOT),
        )  # fmt: skip
        return image

    def compressed_bytes(self, image: str) -> int:
        """The size of an image in a registry: its layers, as gzip packs them."""
        with tempfile.TemporaryDirectory(dir=self.folder) as layers:
            self.ask("push", "--quiet", "--compress", image, f"dir:{layers}")
            return sum(file.stat().st_size for file in Path(layers).iterdir())


@contextlib.contextmanager
def image_site_or_skip() -> Iterator[ImageSite]:
    """Makes the storage and the base under /tmp, and removes them; skips tests where a program is missing, and fails in CI."""
    podman = shutil.which("podman")
    missing = [program for program in ("podman", "runc", "mmdebstrap") if shutil.which(program) is None]
    if podman is None or missing:
        absent(f"these programs build images from Debian packages and are not installed here: {', '.join(missing)}")
    folder = Path(tempfile.mkdtemp(prefix="images-", dir="/tmp"))
    words = (podman, f"--root={folder}/root", f"--runroot={folder}/run", f"--tmpdir={folder}/tmp", "--storage-driver=overlay",
             "--cgroup-manager=cgroupfs", "--events-backend=file", "--runtime=runc")  # fmt: skip
    site = ImageSite(folder, words)
    try:
        base = folder / "base.tar"
        subprocess.run(["unshare", "--mount", "mmdebstrap", *_BASE, "bookworm", base], check=True, timeout=_LIMIT_S)
        site.ask("import", str(base), "localhost/base")
        base.unlink()
        yield site
        site.ask("rm", "--all", "--force", "--time=0")
    finally:
        with contextlib.suppress(AssertionError):
            site.ask("system", "reset", "--force")
        shutil.rmtree(folder, ignore_errors=True)
