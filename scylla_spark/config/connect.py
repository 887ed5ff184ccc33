"""Where handlers with `runs_on="connect"` have their sessions of Spark."""

from __future__ import annotations

from typing import Final

from pydantic import Field, SecretStr, field_validator

from scylla_spark.config.section import Section

OWN: Final = "own"
_SCHEME: Final = "sc://"
_CHARS: Final = frozenset(";=\n\r")


class Connect(Section):
    """Spark Connect: sessions for handlers that work with tables and DataFrames."""

    url: str = Field(
        "",
        description='server of Spark Connect: "own": the Spark application of the dispatcher itself; sc://host:port: another one; '
        "empty: none",
    )
    token: SecretStr | None = Field(None, description="that the other server asks for; needs TLS there")
    sessions: int = Field(2, ge=1, le=100, description="most tasks of such handlers that run at once")

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        if url in ("", OWN):
            return url
        address = url.removeprefix(_SCHEME)
        if address == url or not address.strip("/") or "/" in address.rstrip("/") or _CHARS & set(address):
            raise ValueError(
                'connect.url is "own", or sc://host:port without parameters; a token stands in connect.token'
            )
        return url

    @field_validator("token")
    @classmethod
    def _check_token(cls, token: SecretStr | None) -> SecretStr | None:
        if token is not None and (not token.get_secret_value() or _CHARS & set(token.get_secret_value())):
            raise ValueError("connect.token is empty, or holds ; or = or the end of a line")
        return token
