"""The command `scylla-spark ui`: the dashboard in the browser, logged in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlencode

import typer

from scylla_spark.cli.api_call import ApiUrl, Authority, TokenFile, called, site_of
from scylla_spark.cli.context import context

if TYPE_CHECKING:
    from scylla_spark.worker.connection import Site


def register(app: typer.Typer) -> None:
    """Adds the command to the tree."""
    app.command()(ui)


def ui(
    ctx: typer.Context,
    url: ApiUrl = None,
    token_file: TokenFile = None,
    ca: Authority = None,
    print_: Annotated[bool, typer.Option("--print", help="Print the link instead of opening it")] = False,
) -> None:
    """Open the dashboard. Where tokens are needed, the link shows a button that logs in, once and within a minute."""
    import webbrowser

    cli = context(ctx)
    link = link_to(site_of(cli, url, token_file, ca))
    if print_ or not webbrowser.open(link):
        cli.output.value("url", link)
        return
    cli.output.say("The dashboard is open in the browser.")


def link_to(site: Site) -> str:
    """A link to the dashboard: with a code where a token is needed, so that the token itself stands in no history.

    Raises:
        SchedulerError: the API does not answer, or the token does not hold.
    """
    if not called(site, "GET", "/v1/me")["id"]:
        return f"{site.url}/ui/now"
    code = called(site, "POST", "/v1/login_codes")["code"]
    return f"{site.url}/ui/login?{urlencode({'code': code})}"
