"""The command `scylla-spark package`: the archive with what executors need."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from scylla_spark.cli.context import context
from scylla_spark.errors import ArgumentError


def register(app: typer.Typer) -> None:
    """Adds the command to the tree."""
    app.command()(package)


def package(
    ctx: typer.Context,
    handlers: Annotated[
        list[str] | None, typer.Option(help="Handler module or file, instead of those of the settings; repeatable")
    ] = None,
    include: Annotated[
        list[str] | None,
        typer.Option(help="A further distribution, such as one that handlers import in functions only; repeatable"),
    ] = None,
    to: Annotated[Path | None, typer.Option(help="Where to write it; default: only into the cache")] = None,
) -> None:
    """Make one archive for executors: this package, the handler modules, and the libraries that they import."""
    from scylla_spark.executors.spark.archive import archive, options_of

    if to is not None and (to.is_dir() or not to.parent.is_dir()):
        raise ArgumentError(
            f"--to {to} names no file that can be written.", hint="Name a file in a folder that exists."
        )
    cli = context(ctx)
    found = archive(handlers or cli.settings().handlers, include or ())
    if to is not None:
        shutil.copyfile(found, to)
        found = to
    row = {"archive": str(found), "mb": round(found.stat().st_size / 1e6, 1)}
    cli.output.rows([row | options_of(found)], ("archive", "mb"))
