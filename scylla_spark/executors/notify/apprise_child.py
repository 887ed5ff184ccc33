"""Sends one message by Apprise, in a process of its own: what its plug-ins connect to knows no time limit, and its log knows URLs.

Run as a script: `python -P apprise_child.py SECONDS`, with the message as JSON on standard input. Its exit status says what became of it.
It ends by itself at the latest after so many seconds, also if nobody is left who would kill it. Of ours it imports nothing.
"""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import sys

SENT = 0
REFUSED = 3
UNSENT = 4
RAISED = 5
_MOST_BYTES = 2 << 30  # of memory: an answer may have no end


def main(within_s: float) -> int:
    """Sends it; returns what became of it.

    Args:
        within_s: longest that it may take, seconds.
    """
    signal.setitimer(signal.ITIMER_REAL, within_s)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
    message = json.load(sys.stdin)
    import apprise

    sender = apprise.Apprise()
    try:
        if not sender.add(message["url"]):
            return REFUSED
        done = sender.notify(title=message["title"], body=message["body"])
    except Exception:  # a plug-in of Apprise may raise anything
        return RAISED
    return SENT if done else UNSENT


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
