"""Child processes that do not outlive the run, free ports, and waiting with a deadline."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scylla_spark.io.host import die_with_parent

_STOP_S = 15


class Missing(Exception):
    """Something that a peer needs is not on this machine; the text says what."""


def found(name: str, hint: str) -> str:
    """The absolute path of a command; Missing if there is none."""
    path = shutil.which(name)
    if path is None:
        raise Missing(f"no {name} ({hint})")
    return path


def wait(what: str, ready: Callable[[], bool], limit_s: float, pause_s: float = 0.02) -> bool:
    """Asks until it is so; False, with a word on stderr, when time is up."""
    deadline = time.monotonic() + limit_s
    while not ready():
        if time.monotonic() > deadline:
            say(f"gave up after {limit_s:g} s: {what}")
            return False
        time.sleep(pause_s)
    return True


@contextmanager
def running(command: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None,
            bound: bool = True) -> Iterator[subprocess.Popen[bytes]]:  # fmt: skip
    """A child process, ended with SIGTERM, then SIGKILL.

    Args:
        command: absolute path of the program, then its arguments.
        log: where its output goes.
        env: added to ours.
        cwd: its folder.
        bound: tie its life to ours; False where the command does so itself.
    """
    whole = die_with_parent.command(list(command)) if bound else list(command)
    with log.open("ab") as out:
        process = subprocess.Popen(
            whole, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env={**os.environ, **(env or {})}, cwd=cwd
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def answer(
    command: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None, limit_s: float = 300
) -> Any:
    """The JSON value on the last line that a command prints; its stderr is shown if it fails."""
    told = output(command, env=env, cwd=cwd, limit_s=limit_s)
    return json.loads(told.splitlines()[-1])


def output(
    command: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None, limit_s: float = 300
) -> str:
    """Returns what a command prints; RuntimeError with the end of its stderr if it fails."""
    whole = {**os.environ, **(env or {})}
    done = subprocess.run(command, env=whole, cwd=cwd, capture_output=True, text=True, timeout=limit_s, check=False)
    if done.returncode != 0:
        raise RuntimeError(
            f"{Path(command[0]).name} ended with {done.returncode}: {(done.stderr or done.stdout)[-800:].strip()}"
        )
    return done.stdout


def say(text: str) -> None:
    """A word on the progress."""
    import sys

    print(text, file=sys.stderr, flush=True)
