"""Runs one command of the command line in a forked process; importing this module imports what commands need."""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from scylla_spark.cli import commands, main

# Commands import what they need when they need it; here it is there before the fork.
_NEEDED = ("scylla_spark.cli.one_command", "scylla_spark.client.scheduler", "scylla_spark.io.delta.table_reader")
for module in ("deltalake", "polars", *_NEEDED):
    importlib.import_module(module)
for found in pkgutil.iter_modules(commands.__path__):
    importlib.import_module(f"{commands.__name__}.{found.name}")


def run_command(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str], stdout: Path, stderr: Path
) -> None:
    """Becomes `scylla-spark ARGUMENTS`, and ends the process with its exit code.

    Args:
        arguments: after the program's name.
        folder: working directory.
        environment: the whole of it.
        stdout: file for its output.
        stderr: file for its errors.
    """
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    for number, path in ((1, stdout), (2, stderr)):
        os.dup2(os.open(path, flags, 0o600), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    main(arguments)
