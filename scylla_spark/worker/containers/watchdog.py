"""Removes the containers of a runner that has died, however it died. A script of its own, because the runner cannot do it then.

`python -I -S watchdog.py FOLDER LABEL PODMAN…`: it waits until its standard input ends, a pipe that only the runner holds open.
Then it removes all containers with that label and the folder. A container may appear a moment after its runner's death, so it
looks again until it has found none several times. It imports nothing but the standard library, so that it starts quickly.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time

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
    asked = [*podman, "rm", "--force", "--time=0", *containers]
    try:
        subprocess.run(
            asked, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=_PODMAN_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return


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
    shutil.rmtree(folder, ignore_errors=True)
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
