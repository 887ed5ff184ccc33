"""The commands `scylla-spark worker …`: they talk to the HTTP API, and to nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from scylla_spark.cli.context import Context, context
from scylla_spark.errors import ArgumentError

_CHECK_S = 5.0

app = typer.Typer(help="Run a worker, look at workers.", no_args_is_help=True)

Url = Annotated[str, typer.Option("--url", envvar="SCYLLASPARK_URL", help="Of the API, such as https://sched:8080")]
TokenFile = Annotated[Path | None, typer.Option("--token-file", help="File with the token that is shown to the API")]
Authority = Annotated[str | None, typer.Option("--ca", help="File of certificates to trust")]
Queues = Annotated[list[str], typer.Option("--queue", help="To lease from; repeatable, the preferred first")]
Name = Annotated[str | None, typer.Option(help="Of this worker; default: host, process and a random word")]
WorkerName = Annotated[str, typer.Argument(help="As `worker list` shows it")]
LeaseTime = Annotated[
    str | None, typer.Option(help="How long a lease lasts without a sign of life; default: as the queue says")
]
Grace = Annotated[str, typer.Option(help="How long what runs may go on after SIGTERM")]


@app.callback()
def group() -> None:
    """Run a worker, look at workers."""


@app.command()
def run(
    ctx: typer.Context,
    url: Url,
    handlers: Annotated[list[str], typer.Option("--handlers", help="Module or .py file of @handler functions; repeatable")],
    queue: Queues,
    slots: Annotated[int, typer.Option(help="Tasks at once")] = 4,
    processes: Annotated[bool, typer.Option("--processes", help="In child processes instead of threads")] = False,
    spans: Annotated[bool, typer.Option("--spans", help="Each attempt is a span of OpenTelemetry; OTEL_… says where they go")] = False,
    logs: Annotated[bool, typer.Option(help="What handlers print goes to the logs of their tasks, too")] = True,
    name: Name = None,
    lease: LeaseTime = None,
    grace: Grace = "30s",
    token_file: TokenFile = None,
    ca: Authority = None,
) -> None:  # fmt: skip
    """Lease tasks of pull queues over HTTP and run their handlers, until SIGTERM or Ctrl-C."""
    from scylla_spark.handlers.registry import look_in_current_folder
    from scylla_spark.worker.worker import Worker

    cli = context(ctx)
    look_in_current_folder()
    worker = Worker(
        url, queues=queue, name=name, token=token_of(token_file), slots=slots, lease=lease, ca=ca
    )  # fmt: skip
    cli.output.say(f"worker {worker.name} leases from {', '.join(queue)} at {url}")
    _say_what_hinders(cli, url, queue, token_file, ca)
    worker.run(handlers, processes=processes, spans=spans, lines=logs, grace=grace)


@app.command()
def containers(
    ctx: typer.Context,
    url: Url,
    image: Annotated[list[str], typer.Option("--image", help="name@sha256:… that payloads may name; repeatable, the first is the default")],
    queue: Queues,
    handler: Annotated[list[str] | None, typer.Option("--handler", help="Lease only tasks of this handler; repeatable")] = None,
    slots: Annotated[int, typer.Option(help="Containers at once")] = 4,
    command: Annotated[str | None, typer.Option(help="Arguments of the image where a payload has none, as a shell reads them")] = None,
    memory: Annotated[str, typer.Option(help="Of a container, /tmp included")] = "512MB",
    cpus: Annotated[float, typer.Option(help="Cores' time of a container")] = 1.0,
    max_processes: Annotated[int, typer.Option(help="Processes and threads of a container")] = 64,
    tmp: Annotated[str, typer.Option(help="Size of /tmp, and of /dev/shm, in memory")] = "64MB",
    out: Annotated[str, typer.Option(help="Bytes of files in /out, in memory, that are kept; 0: no such folder")] = "64MB",
    timeout: Annotated[str, typer.Option(help="How long a container may run")] = "1h",
    network: Annotated[str, typer.Option(help="As podman's --network")] = "none",
    user: Annotated[str, typer.Option(help="Number of the user inside, or user:group; not root")] = "65534:65534",
    allow_tags: Annotated[bool, typer.Option("--allow-tags", help="Take images without a digest, too")] = False,
    podman: Annotated[str, typer.Option(help="How podman is called, such as 'podman --runtime runc'")] = "podman",
    name: Name = None,
    lease: LeaseTime = None,
    grace: Grace = "30s",
    token_file: TokenFile = None,
    ca: Authority = None,
) -> None:  # fmt: skip
    """Lease tasks of pull queues over HTTP and run each in a container (podman), until SIGTERM or Ctrl-C."""
    from functools import partial

    from scylla_spark.worker.containers.container_slot import ContainerPlace
    from scylla_spark.worker.containers.options import bounds_of
    from scylla_spark.worker.containers.podman import podman_of
    from scylla_spark.worker.containers.request import arguments_of, offer_of
    from scylla_spark.worker.containers.runner_setup import opened_yard
    from scylla_spark.worker.worker import Worker

    cli = context(ctx)
    offer = offer_of(image, arguments_of(command), allow_tags=allow_tags)
    bounds = bounds_of(
        memory=memory, cpus=cpus, processes=max_processes, tmp=tmp, out=out, timeout=timeout, network=network, user=user
    )
    worker = Worker(url, queues=queue, name=name, token=token_of(token_file), slots=slots, lease=lease, ca=ca)
    with opened_yard(podman_of(podman), offer, bounds) as yard:
        cli.output.say(f"worker {worker.name} leases from {', '.join(queue)} at {url} and runs containers")
        _say_what_hinders(cli, url, queue, token_file, ca)
        worker.run_at(partial(ContainerPlace, yard), handlers=handler or None, grace=grace)


@app.command("list")
def list_(ctx: typer.Context, url: Url, token_file: TokenFile = None, ca: Authority = None) -> None:
    """List the workers of the last ten minutes."""
    from scylla_spark.worker.connection import site
    from scylla_spark.worker.operator_orders import workers

    rows = [_row(one) for one in workers(site(url, token=token_of(token_file), ca=ca))]
    context(ctx).output.rows(rows, ("worker", "leases", "slots", "waits", "silent_ms", "order", "host"))


@app.command()
def drain(ctx: typer.Context, name: WorkerName, url: Url, token_file: TokenFile = None, ca: Authority = None) -> None:
    """Drain a worker: it takes no more tasks, finishes its leases, and ends."""
    _order(ctx, name, "drain", url, token_file, ca)


@app.command()
def stop(ctx: typer.Context, name: WorkerName, url: Url, token_file: TokenFile = None, ca: Authority = None) -> None:
    """Stop a worker: it gives back its leases, and ends."""
    _order(ctx, name, "stop", url, token_file, ca)


def _say_what_hinders(cli: Context, url: str, queues: list[str], token_file: Path | None, ca: str | None) -> None:
    """Says what keeps a worker that starts from leasing: it would wait for that without a word, as it should later on."""
    from scylla_spark.errors import UnreachableError
    from scylla_spark.worker.connection import asked, segment, site

    api = site(url, token=token_of(token_file), ca=ca)
    for queue in queues:
        try:
            reply = asked(api, "GET", f"/v1/queues/{segment(queue)}", within_s=_CHECK_S)
        except UnreachableError as error:
            cli.output.say(f"warning: {error.message} It is asked again until it answers.")
            return
        put = f"`scylla-spark queue put {queue} --mode pull` makes it a queue of workers."
        if reply.status == 404 and reply.problem == "not-found":
            cli.output.say(f"warning: queue {queue!r} is not defined, so workers get none of its tasks. {put}")
        elif reply.status in (200, 404):
            fields = reply.document.get("fields") if isinstance(reply.document, dict) else None
            if not isinstance(fields, dict):
                cli.output.say(f"warning: what answers at {api.url} is not the API of scylla-spark. Check --url.")
                return
            if fields.get("mode") != "pull":
                cli.output.say(f"warning: dispatchers run the tasks of queue {queue!r}, and workers get none. {put}")


def _order(ctx: typer.Context, name: str, what: str, url: str, token_file: Path | None, ca: str | None) -> None:
    from scylla_spark.worker.connection import site
    from scylla_spark.worker.operator_orders import order

    context(ctx).output.record(order(site(url, token=token_of(token_file), ca=ca), name, what))


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
