"""Start a command that cannot outlive the process that started it, not even when that one is killed with SIGKILL.

Run as a script: `python -I -S die_with_parent.py MODE PARENT_PID COMMAND…`. On Linux (mode `signal`) it asks the
kernel for SIGKILL on the parent's death and becomes the command. The kernel means the parent *thread*: the thread
that spawns this must live as long as the command. Elsewhere (mode `pipe`) it stays in between and kills the command
when its stdin, a pipe from the parent, is closed. It imports nothing but the standard library, because it runs before
every start.
"""

from __future__ import annotations

import os
import sys

_PR_SET_PDEATHSIG = 1
_ORPHANED = 113


def mode() -> str:
    """Returns how this system ties a child to its parent: "signal" on Linux, "pipe" elsewhere."""
    return "signal" if sys.platform == "linux" else "pipe"


def command(arguments: list[str], *, how: str | None = None) -> list[str]:
    """The command line that runs `arguments` bound to the calling process.

    Args:
        arguments: absolute path of the program, then its arguments.
        how: "signal" or "pipe"; default: what the system offers. For "pipe" pass a pipe as stdin and keep it open.
    """
    return [sys.executable, "-I", "-S", os.path.abspath(__file__), how or mode(), str(os.getpid()), *arguments]


def die_with(parent: int, number: int) -> None:
    """Has the kernel (of Linux) send a signal to this process when the thread that made it ends; exits if it has ended.

    Args:
        parent: process id of the parent, as the parent told it.
        number: the signal.

    Raises:
        OSError: the kernel refuses.
    """
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # it died before the request was made
        os._exit(_ORPHANED)


def _become(parent: int, arguments: list[str]) -> None:
    import signal

    die_with(parent, signal.SIGKILL)
    os.execv(arguments[0], arguments)


def _watch(arguments: list[str]) -> int:
    import signal
    import subprocess
    import threading

    child = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, close_fds=False)

    def kill_at_end_of_input() -> None:
        sys.stdin.buffer.read()
        child.kill()

    threading.Thread(target=kill_at_end_of_input, daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    return child.wait()


if __name__ == "__main__":
    if sys.argv[1] == "signal":
        _become(int(sys.argv[2]), sys.argv[3:])
    sys.exit(_watch(sys.argv[3:]))
