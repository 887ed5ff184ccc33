"""Removes the containers of a runner that has died, however it died. A script of its own, because the runner cannot do it then.

`python -I -S watchdog.py FOLDER LABEL PODMAN…`: it waits until its standard input ends, a pipe that only the runner holds open.
Then it removes all containers with that label and the folder. A container may appear a moment after its runner's death, so it
looks again until it has found none several times. It imports nothing but the standard library, so that it starts quickly.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping

DONE = b"done"
_EMPTY_LOOKS = 4
_MOST_LOOKS = 120
_PAUSE_S = 1.0
_PODMAN_S = 60.0


def labelled(podman: list[str], label: str) -> list[str] | None:
    """Ids of the containers with a label; None: podman does not say.

    Args:
        podman: how it is called.
        label: "name" or "name=value".
    """
    asked = [*podman, "ps", "--all", "--quiet", "--no-trunc", f"--filter=label={label}"]
    try:
        done = subprocess.run(asked, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PODMAN_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.split() if done.returncode == 0 else None


def remove(podman: list[str], containers: list[str]) -> None:
    """Kills and removes containers; those that are gone already do not matter.

    Args:
        podman: how it is called.
        containers: ids or names.
    """
    _call([*podman, "rm", "--force", "--time=0", *containers])


def remove_folder(podman: list[str], folder: str, environment: Mapping[str, str] | None = None) -> bool:
    """Removes a folder with all that programs have made in it; whether it is gone. Nothing is raised.

    The depth of it is theirs, and bounded by their memory alone: a program goes down there, and no calls of calls of ours. Where a runner
    is not root, folders in it belong to users that are his in podman's user namespace only.

    Args:
        podman: how it is called.
        folder: its path.
        environment: of what is called; None: that of this process.
    """
    for within in ([], [*podman, "unshare"]):
        _call([*within, "rm", "-rf", "--", folder], environment)
        if not os.path.lexists(folder):
            return True
    return False


def sweep(podman: list[str], label: str, empty_looks: int) -> bool:
    """Removes all containers with a label; whether none was left in the end.

    Args:
        podman: how it is called.
        label: "name=value".
        empty_looks: in a row that find none, before it is believed.
    """
    empty = 0
    for _ in range(_MOST_LOOKS):
        found = labelled(podman, label)
        empty = empty + 1 if found == [] else 0
        if empty >= empty_looks:
            return True
        if found:
            remove(podman, found)
        time.sleep(0.1 if found else _PAUSE_S)
    return False


def _call(command: list[str], environment: Mapping[str, str] | None = None) -> None:
    """Runs a command within its time; what it says is read by nobody: it may be a line for each of many files."""
    try:
        subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_PODMAN_S,
            env=environment,
            cwd="/",
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired):
        return


def main(folder: str, label: str, podman: list[str]) -> int:
    """Waits for the end of the runner, and cleans up behind it; its exit code.

    Args:
        folder: removed at the end.
        label: of the runner's containers, "name=value".
        podman: how it is called.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends when the runner does, and not before
    said = sys.stdin.buffer.read()
    clean = sweep(podman, label, 1 if said == DONE else _EMPTY_LOOKS)
    gone = remove_folder(podman, folder)
    return 0 if clean and gone else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
