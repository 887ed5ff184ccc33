"""How a child process ended, in words."""

from __future__ import annotations

import signal


def exit_text(status: int) -> str:
    """Returns what an exit status says: negative is a signal."""
    if status >= 0:
        return f"exited with code {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = "signal"
    hint = " (out of memory?)" if -status == signal.SIGKILL else ""
    return f"was killed by {name} ({-status}){hint}"
