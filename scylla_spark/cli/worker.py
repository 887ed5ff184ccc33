"""The commands `scylla-spark worker …`: they talk to the HTTP API, and to nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from scylla_spark.cli.context import context
from scylla_spark.errors import ArgumentError

app = typer.Typer(help="Run a worker, look at workers.", no_args_is_help=True)

Url = Annotated[str, typer.Option("--url", envvar="SCYLLASPARK_URL", help="Of the API, such as https://sched:8080")]
TokenFile = Annotated[Path | None, typer.Option("--token-file", help="File with the token that is shown to the API")]
Authority = Annotated[str | None, typer.Option("--ca", help="File of certificates to trust")]


@app.callback()
def group() -> None:
    """Run a worker, look at workers."""


@app.command()
def run(
    ctx: typer.Context,
    url: Url,
    handlers: Annotated[list[str], typer.Option("--handlers", help="Module or .py file of @handler functions; repeatable")],
    queue: Annotated[list[str], typer.Option("--queue", help="To lease from; repeatable, the preferred first")],
    slots: Annotated[int, typer.Option(help="Tasks at once")] = 4,
    processes: Annotated[bool, typer.Option("--processes", help="In child processes instead of threads")] = False,
    name: Annotated[str | None, typer.Option(help="Of this worker; default: host, process and a random word")] = None,
    lease: Annotated[str | None, typer.Option(help="How long a lease lasts without a sign of life; default: as the queue says")] = None,
    grace: Annotated[str, typer.Option(help="How long what runs may go on after SIGTERM")] = "30s",
    token_file: TokenFile = None,
    ca: Authority = None,
) -> None:  # fmt: skip
    """Lease tasks of pull queues over HTTP and run their handlers, until SIGTERM or Ctrl-C."""
    from scylla_spark.worker.worker import Worker

    cli = context(ctx)
    worker = Worker(
        url, queues=queue, name=name, token=token_of(token_file), slots=slots, lease=lease, ca=ca
    )  # fmt: skip
    cli.output.say(f"worker {worker.name} leases from {', '.join(queue)} at {url}")
    worker.run(handlers, processes=processes, grace=grace)


@app.command("list")
def list_(ctx: typer.Context, url: Url, token_file: TokenFile = None, ca: Authority = None) -> None:
    """List the workers that have called in the last ten minutes."""
    from scylla_spark.worker.connection import site
    from scylla_spark.worker.listing import workers

    rows = [_row(one) for one in workers(site(url, token=token_of(token_file), ca=ca))]
    context(ctx).output.rows(rows, ("worker", "leases", "slots", "waits", "silent_ms", "host"))


def _row(one: dict[str, Any]) -> dict[str, Any]:
    about = one["about"] if isinstance(one["about"], dict) else {}
    return {name: value for name, value in one.items() if name != "about"} | {
        "slots": about.get("slots"), "host": about.get("host"), "about": about,
    }  # fmt: skip


def token_of(file: Path | None) -> str | None:
    """The token that stands in a file; None: no file was given.

    Raises:
        ArgumentError: it cannot be read.
    """
    if file is None:
        return None
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"The token in {file} cannot be read: {error}.") from None
