"""How commands ask the HTTP API: where it is, with which token, and what becomes of its refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scylla_spark.cli.commands.worker import Authority, TokenFile, token_of
from scylla_spark.errors import ArgumentError, ConflictError

if TYPE_CHECKING:
    from scylla_spark.cli.context import Context
    from scylla_spark.worker.connection import Site

__all__ = ["ApiUrl", "Authority", "TokenFile", "called", "site_of"]

ApiUrl = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="SCYLLASPARK_URL",
        help="Of the API; default: api.public_url, api.port on this machine, or where `up` serves it",
    ),
]


def site_of(cli: Context, url: str | None, token_file: Path | None, ca: str | None) -> Site:
    """Where the API is.

    Args:
        cli: the global options, for the settings.
        url: as it was given; None: as the settings say.
        token_file: with the token that is shown.
        ca: file of certificates to trust.

    Raises:
        ArgumentError: no address is given, and no `up` runs on the data folder.
    """
    from scylla_spark.worker.connection import site

    settings = cli.settings()
    api = settings.api
    known = url or api.public_url or (f"http://127.0.0.1:{api.port}" if api.port else None)
    if known is None:
        from scylla_spark.io.kafka.topics import announced_by_running

        known = announced_by_running(settings.data_dir).get("api")
    if known is None:
        raise ArgumentError(
            f"No --url is given, and no `up` with an API runs on {settings.data_dir}.",
            hint="Pass --data DIR as `up` has it, or --url with the address that `up` shows as `api`.",
        )
    return site(known, token=token_of(token_file), ca=ca)


def called(site: Site, method: str, path: str, body: Any = None) -> Any:
    """What an operation answers.

    Args:
        site: where the API is.
        method: of HTTP.
        path: of the operation, with its query.
        body: a JSON value; None: there is none.

    Raises:
        SchedulerError: the API does not answer, or refuses.
    """
    from scylla_spark.worker.connection import asked, refusal

    reply = asked(site, method, path, None if body is None else json.dumps(body).encode())
    if reply.status in (401, 403):
        raise ConflictError(
            f"The API at {site.url} refuses: {reply.detail}", hint="Pass --token-file with a token that may."
        )
    if not 200 <= reply.status < 300:
        raise refusal(reply, site)
    return reply.document
