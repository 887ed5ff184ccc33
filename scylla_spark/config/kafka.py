"""How to reach the brokers: one way to say who we are, for both Kafka clients that we use (kafka-python and Spark's Java client)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, model_validator

from scylla_spark.config.home_folder import FilePath
from scylla_spark.config.section import Duration, Option, Section
from scylla_spark.duration import duration

# Only how we connect may be tuned from outside: how records are written and read is part of the protocol.
_PYTHON_OPTIONS = re.compile(
    r"(ssl_|sasl_|socket_|socks5_|proxy_|reconnect_|client_|api_version|security_protocol|retry_backoff_|receive_buffer_|send_buffer_|"
    r"connections_max_|metadata_max_)\w*"
)
_JAVA_OPTIONS = re.compile(
    r"(ssl|sasl|security|socket|reconnect|client|retry|receive\.buffer|send\.buffer|connections|metadata|request\.timeout|"
    r"default\.api)\.[a-z0-9._]+"
)
_WORDS = ("plain", "scram", "oauth")  # who we are is a name and a secret
_SASL = (*_WORDS, "aws")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Kafka(Section):
    """How to reach the brokers."""

    bootstrap_servers: str = Field(
        "", description="host:port[,host:port]; empty: the embedded broker of `up` and `demo`"
    )
    auth: Literal["none", "plain", "scram", "mtls", "oauth", "aws"] = Field(
        "none",
        description="login; none, plain, scram, mtls, oauth (client credentials) or aws (IAM of Amazon MSK, with the credentials "
        "that the AWS libraries find)",
    )
    tls: bool = Field(False, description="encrypt connections, and check the brokers' certificates and host names")
    username: str | None = Field(None, description="user of plain and scram; client id of oauth")
    password: SecretStr | None = Field(None, description="its password, or the client's secret")
    password_file: FilePath | None = Field(None, description="or the file that holds it")
    scram_mechanism: Literal["SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    ca_file: FilePath | None = Field(
        None, description="PEM file of the authorities to trust; unset: those of the system"
    )
    client_cert_file: FilePath | None = Field(None, description="PEM file of our certificate and its chain, for mtls")
    client_key_file: FilePath | None = Field(
        None, description="PEM file of its key (PKCS 8, no password); unset: in client_cert_file"
    )
    oauth_token_url: str | None = Field(None, description="where oauth gets its tokens; https, or http on loopback")
    oauth_scope: str | None = Field(None, description="scope to ask for")
    python_options: dict[str, Option] = Field(
        {}, description="more connection options of kafka-python, by their own names; they win"
    )
    java_options: dict[str, Option] = Field(
        {}, description="more connection options of Spark's Kafka client, by their own names; they win"
    )
    request_timeout: Duration = Field(duration("10s"), description="how long one request to a broker may take")
    isolation_level: Literal["read_committed", "read_uncommitted"] = Field(
        "read_committed",
        description="records of transactions count once committed, and hold back what stands behind them; or at once, even if aborted",
    )

    @property
    def security_protocol(self) -> str:
        """Returns what Kafka calls the combination of `auth` and `tls`."""
        return ("SASL_" if self.auth in _SASL else "") + ("SSL" if self.tls else "PLAINTEXT")

    @model_validator(mode="after")
    def _check(self) -> Kafka:
        for fault in self._faults():
            raise ValueError(fault)
        return self

    def _faults(self) -> Iterator[str]:
        yield from self._missing()
        yield from self._useless()
        yield from _unknown("python_options", self.python_options, _PYTHON_OPTIONS)
        yield from _unknown("java_options", self.java_options, _JAVA_OPTIONS)

    def _missing(self) -> Iterator[str]:
        """Yields what the chosen way needs and does not have."""
        named = f'kafka.auth = "{self.auth}"'
        if (self.auth != "none" or self.tls) and not self.bootstrap_servers:
            yield "kafka.auth and kafka.tls are for brokers of yours: set kafka.bootstrap_servers (the embedded broker has broker.auth)"
        if self.auth in _WORDS:
            if not self.username:
                yield f"{named} needs kafka.username"
            if self.password is None and self.password_file is None:
                yield f"{named} needs kafka.password_file or kafka.password"
        if self.auth == "mtls" and not (self.tls and self.client_cert_file):
            yield f"{named} needs kafka.tls = true and kafka.client_cert_file"
        if self.auth == "aws" and not self.tls:
            yield f"{named} needs kafka.tls = true"
        if self.auth == "oauth" and not _is_safe(self.oauth_token_url):
            yield f"{named} needs kafka.oauth_token_url, an https address (http on loopback only)"

    def _useless(self) -> Iterator[str]:
        """Yields what was set and would silently have no effect."""
        if self.password is not None and self.password_file is not None:
            yield "kafka.password and kafka.password_file exclude each other: unset one"
        if self.auth not in _WORDS and (self.username or self.password or self.password_file):
            yield f'kafka.auth = "{self.auth}" uses no user and no password: unset them, or set kafka.auth to plain, scram or oauth'
        if not self.tls and (self.ca_file or self.client_cert_file):
            yield "kafka.ca_file and kafka.client_cert_file need kafka.tls = true"
        if self.client_key_file and not self.client_cert_file:
            yield "kafka.client_key_file needs kafka.client_cert_file"
        if self.auth != "oauth" and (self.oauth_token_url or self.oauth_scope):
            yield 'kafka.oauth_token_url and kafka.oauth_scope need kafka.auth = "oauth"'


def _unknown(setting: str, options: dict[str, Option], known: re.Pattern[str]) -> Iterator[str]:
    for name in options:
        if not known.fullmatch(name):
            yield f"kafka.{setting} takes options of connections only (such as ssl… and sasl…), not {name!r}"


def _is_safe(url: str | None) -> bool:
    parts = urlsplit(url or "")
    return bool(parts.hostname) and (
        parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)
    )
