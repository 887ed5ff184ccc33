"""Has a message sent by Apprise within a time, in a child that is killed when it is over."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from scylla_spark.executors.environment import handler_environment
from scylla_spark.executors.notify import apprise_child

APPRISE_S: Final = 20.0
_ALONE_S: Final = 1.0  # how much longer a child goes on whose parent is not there to end it


def is_installed() -> bool:
    """Returns True if there is an Apprise here."""
    return importlib.util.find_spec("apprise") is not None


def send(url: str, title: str, body: str, within_s: float) -> int:
    """Sends a message; what became of it, as `apprise_child` says, or another exit status.

    Its output goes nowhere, since Apprise writes URLs to it. The URL goes in by a pipe, where nobody else on this machine sees it.

    Args:
        url: as Apprise writes them.
        title: of the message.
        body: likewise.
        within_s: longest that it may take, seconds.

    Raises:
        TimeoutError: it took longer.
        OSError: the child could not be started.
    """
    words = [sys.executable, "-P", os.path.abspath(apprise_child.__file__), str(within_s + _ALONE_S)]
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    try:
        done = subprocess.run(
            words, input=json.dumps({"url": url, "title": title, "body": body}).encode(), timeout=within_s, check=False,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            env=handler_environment(os.environ, ("*",)) | {"PYTHONPATH": path},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise TimeoutError from None  # whose text would be the command
    return done.returncode
