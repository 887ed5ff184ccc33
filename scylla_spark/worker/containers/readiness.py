"""Whether containers can run here as closed as they have to be. Asked before anything is leased; what cannot be had ends the runner."""

from __future__ import annotations

import resource
import sys
from typing import Any, Final

from scylla_spark.errors import SetupError
from scylla_spark.worker.containers.maker_identity import lives
from scylla_spark.worker.containers.options import RUNNER_LABEL, Bounds, Files, Mark, probe_options
from scylla_spark.worker.containers.podman import INSTALL, Podman

_NEEDED: Final = ("cpu", "memory", "pids")
_NOT_FOUND: Final = 127  # what podman exits with when all but the program was there
_PULL_S: Final = 900.0
_MOST_USER_PROCESSES: Final = 16_384  # of all containers together; podman itself may not be allowed more


def check_podman(podman: Podman) -> None:
    """Asks podman whether it works, and whether it can bound what containers take.

    Args:
        podman: to ask.

    Raises:
        SetupError: it cannot; the message says why.
    """
    if sys.platform != "linux":
        raise SetupError("Containers run on Linux only.", hint="Start the runner there.")
    done = podman.ask("info", "--format=json")
    if done.code != 0:
        raise SetupError(
            f"`podman info` fails, so no container can run: {done.told or 'it says nothing'}", hint=INSTALL
        )
    lacking = lacking_of(done.document)
    if lacking:
        raise SetupError(
            f"Podman on this machine has no {', '.join(lacking)}: containers would not be closed.",
            hint="Use cgroups of version 2 with these controllers delegated to this user, or run as root.",
        )


def lacking_of(info: Any) -> list[str]:
    """Returns what of `podman info` is missing for a container that is closed.

    Args:
        info: its document.
    """
    host = info.get("host") if isinstance(info, dict) else None
    if not isinstance(host, dict):
        return ["description of its host"]
    security = host.get("security") or {}
    controllers = host.get("cgroupControllers") or []
    if host.get("cgroupVersion") == "v1" and security.get("rootless"):
        controllers = []  # podman takes limits of such a user without a word, and ignores them
    missing = [f"limits of {name}" for name in _NEEDED if name not in controllers]
    return missing + ([] if security.get("seccompEnabled") else ["filter of system calls (seccomp)"])


def fetch_images(podman: Podman, images: tuple[str, ...]) -> list[str]:
    """Has all images on this machine, so that no task waits for one; returns those that were fetched.

    Args:
        podman: to ask.
        images: references.

    Raises:
        SetupError: one cannot be had.
    """
    missing = [image for image in images if podman.ask("image", "exists", image).code != 0]
    for image in missing:
        done = podman.ask("pull", "--quiet", image, within_s=_PULL_S)
        if done.code != 0:
            raise SetupError(
                f"The image {image} is not on this machine and cannot be fetched: {done.told}",
                hint="Is the name right? Try `podman pull` with it.",
            )
    return missing


def probe(podman: Podman, image: str, bounds: Bounds, mark: Mark, files: Files) -> None:
    """Starts a container with all options of tasks, in which there is only no program to run.

    Args:
        podman: to ask.
        image: to try.
        bounds: as of tasks.
        mark: how it is found again.
        files: that it is given.

    Raises:
        SetupError: it does not come that far.
    """
    done = podman.ask(*probe_options(image, bounds, mark, files, user_processes()))
    if done.code != _NOT_FOUND:
        podman.remove(mark.name)
        raise SetupError(
            f"Podman cannot run a container of {image} here: {done.told or f'exit code {done.code}'}",
            hint="Try `podman run --rm --network=none` with it; another --runtime in --podman may help (runc, crun).",
        )


def remove_leftovers(podman: Podman) -> list[str]:
    """Removes containers whose runners have ended without doing so, such as with the machine; returns their ids.

    Args:
        podman: to ask.

    Raises:
        SetupError: podman does not say which there are.
    """
    listed = podman.document("ps", "--all", "--no-trunc", f"--filter=label={RUNNER_LABEL}", "--format=json")
    if not isinstance(listed, list):
        raise SetupError("Podman does not say which containers there are.", hint="Try `podman ps --all`.")
    left = [one["Id"] for one in listed if not lives(str((one.get("Labels") or {}).get(RUNNER_LABEL)))]
    if left:
        podman.remove(*left)
    return left


def user_processes() -> int:
    """Most processes of the user of a container: as many as this process may ask for; podman would ask for more."""
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    return _MOST_USER_PROCESSES if hard == resource.RLIM_INFINITY else min(hard, _MOST_USER_PROCESSES)
