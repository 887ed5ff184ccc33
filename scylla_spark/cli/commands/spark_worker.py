"""The commands `scylla-spark spark-worker …`: they talk to the HTTP API, and to nothing else."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from scylla_spark.cli.commands.worker import Authority, TokenFile, Url, token_of
from scylla_spark.cli.context import context

app = typer.Typer(help="Look at Spark workers, and end one.", no_args_is_help=True)

_COLUMNS: Final = ("worker", "executor", "host", "state", "running", "tasks", "clock_error_ms", "silent_ms")


@app.callback()
def group() -> None:
    """Look at Spark workers, and end one."""


@app.command("list")
def list_(ctx: typer.Context, url: Url, token_file: TokenFile = None, ca: Authority = None) -> None:
    """List the Spark workers of all dispatchers."""
    from scylla_spark.worker.connection import site
    from scylla_spark.worker.operator_orders import spark_workers

    cli, told = context(ctx), spark_workers(site(url, token=token_of(token_file), ca=ca))
    for why in told["missing"]:
        cli.output.say(why)
    cli.output.rows(told["workers"], _COLUMNS, empty="There are no Spark workers.")


@app.command()
def drain(
    ctx: typer.Context,
    worker: Annotated[str, typer.Argument(help="Id, as `spark-worker list` shows it")],
    url: Url,
    token_file: TokenFile = None,
    ca: Authority = None,
) -> None:
    """Drain a Spark worker: it takes no more tasks, finishes the running ones, and ends. A new one starts if tasks wait."""
    from scylla_spark.worker.connection import site
    from scylla_spark.worker.operator_orders import order

    told = order(site(url, token=token_of(token_file), ca=ca), worker, "drain", kind="spark-worker")
    context(ctx).output.record(told)
