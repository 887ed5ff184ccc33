"""Who we are and whom we trust, in the words of both Kafka clients: kafka-python and the Java client inside Spark."""

from __future__ import annotations

import base64
import json
import os
import threading
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote_plus, urlencode
from urllib.request import Request

from kafka import KafkaConsumer
from kafka.errors import KafkaError
from kafka.net.sasl.oauth import AbstractTokenProvider
from pydantic import SecretStr

from scylla_spark.clock import boot_us
from scylla_spark.config.kafka import Kafka
from scylla_spark.errors import ConfigError, SetupError
from scylla_spark.io.host.http_get import AnswerError, fetch
from scylla_spark.io.host.process_limits import refuse_optimized_python

_MODULES: Final = {
    "plain": "plain.PlainLoginModule",
    "scram": "scram.ScramLoginModule",
    "oauth": "oauthbearer.OAuthBearerLoginModule",
}
_OAUTH_HANDLER: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
_AWS: Final = "software.amazon.msk.auth.iam."
_SHADED: Final = {"org": "kafkashaded.", "software": "shadedmskiam."}
"""Before the names of classes of Kafka and of Amazon in the runtime of Databricks, which sets DATABRICKS_RUNTIME_VERSION."""
_RENEW_AT: Final = 0.8  # of a token's life
_SHORTEST_LIFE_S: Final = 10.0
_TOKEN_LIMIT_S: Final = 10.0


def python_options(kafka: Kafka) -> dict[str, Any]:
    """Access options of kafka-python.

    Raises:
        ConfigError: a file cannot be read, or an option does not exist.
        SetupError: Python leaves out assertions, or a library that the login needs is missing.
    """
    refuse_optimized_python()
    if kafka.auth == "aws" and find_spec("botocore") is None:
        raise SetupError('kafka.auth = "aws" needs botocore.', hint="pip install 'scylla-spark[aws]'")
    options: dict[str, Any] = {"security_protocol": kafka.security_protocol}
    if kafka.ca_file is not None:
        options["ssl_cafile"] = _readable("kafka.ca_file", kafka.ca_file)
    if kafka.client_cert_file is not None:
        options["ssl_certfile"] = _readable("kafka.client_cert_file", kafka.client_cert_file)
        options["ssl_keyfile"] = str(_key_file(kafka))
    if kafka.auth in ("plain", "scram"):
        options["sasl_mechanism"] = mechanism(kafka)
        options["sasl_plain_username"] = kafka.username
        options["sasl_plain_password"] = password(kafka)
    elif kafka.auth == "aws":
        options["sasl_mechanism"] = mechanism(kafka)
    elif kafka.auth == "oauth":
        options["sasl_mechanism"] = mechanism(kafka)
        options["sasl_oauth_token_provider"] = _tokens(
            kafka.oauth_token_url or "", kafka.username or "", kafka.password, kafka.password_file, kafka.oauth_scope
        )
    return options | {name: _typed(name, value.get_secret_value()) for name, value in kafka.python_options.items()}


def java_options(kafka: Kafka) -> dict[str, str]:
    """Access options of the Java client, without Spark's prefix "kafka.".

    With `aws` its library must be among the jars of the session.

    Raises:
        ConfigError: a file cannot be read.
    """
    options: dict[str, str] = {}
    if kafka.security_protocol != "PLAINTEXT":
        options["security.protocol"] = kafka.security_protocol
    if kafka.ca_file is not None:
        # the certificates themselves, not the file's name: executors on other machines need no copy
        options |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": _text("kafka.ca_file", kafka.ca_file)}
    if kafka.client_cert_file is not None:
        options |= _java_keystore(kafka, kafka.client_cert_file)
    if kafka.auth in _MODULES:
        options |= {"sasl.mechanism": mechanism(kafka), "sasl.jaas.config": _jaas(kafka)}
    if kafka.auth == "aws":
        options["sasl.mechanism"] = mechanism(kafka)
        options["sasl.jaas.config"] = f"{_shaded(_AWS + 'IAMLoginModule')} required;"
        options["sasl.client.callback.handler.class"] = _shaded(_AWS + "IAMClientCallbackHandler")
    if kafka.auth == "oauth":
        options["sasl.login.callback.handler.class"] = _shaded(_OAUTH_HANDLER)
        options["sasl.oauthbearer.token.endpoint.url"] = kafka.oauth_token_url or ""
        options["sasl.oauthbearer.header.urlencode"] = "true"  # as RFC 6749 has it, and as we do for kafka-python
    return options | {name: _java_text(value.get_secret_value()) for name, value in kafka.java_options.items()}


def mechanism(kafka: Kafka) -> str:
    """The name of the SASL mechanism; "" without SASL."""
    return {"plain": "PLAIN", "scram": kafka.scram_mechanism, "oauth": "OAUTHBEARER", "aws": "AWS_MSK_IAM"}.get(
        kafka.auth, ""
    )


def password(kafka: Kafka) -> str:
    """The password, or the secret of the oauth client, from its file or the settings.

    Raises:
        ConfigError: the file cannot be read or is empty.
    """
    return _secret(kafka.password, kafka.password_file)


class Tokens(AbstractTokenProvider):  # type: ignore[misc] # kafka-python has no types
    """Fetches OAuth tokens by client credentials (RFC 6749, 4.4) and keeps each until it is near its end.

    Args:
        url: the token endpoint.
        client: id of the client.
        secret: gives its secret, anew for each token, so that a changed file counts.
        scope: to ask for; "" for none.
    """

    def __init__(self, url: str, client: str, secret: Callable[[], str], scope: str = "") -> None:
        super().__init__()
        self._url, self._client, self._secret, self._scope = url, client, secret, scope
        self._lock = threading.Lock()
        self._token = ""
        self._until_us = 0

    def token(self) -> str:
        """A token that is still good.

        Raises:
            KafkaError: the endpoint does not give one.
        """
        with self._lock:
            if boot_us() >= self._until_us:
                self._token, life_s = self._fetch()
                self._until_us = boot_us() + int(max(life_s * _RENEW_AT, _SHORTEST_LIFE_S) * 1e6)
            return self._token

    def _fetch(self) -> tuple[str, float]:
        who = f"{quote_plus(self._client)}:{quote_plus(self._secret())}"
        form = {"grant_type": "client_credentials"} | ({"scope": self._scope} if self._scope else {})
        headers = {
            "Authorization": "Basic " + base64.b64encode(who.encode()).decode(),
            "Content-Type": "application/x-www-form-urlencoded",
            "Accept": "application/json",
        }
        request = Request(self._url, urlencode(form).encode(), headers, method="POST")
        try:
            answer = json.loads(fetch(request, timeout_s=_TOKEN_LIMIT_S))
            return str(answer["access_token"]), float(answer.get("expires_in", 60))
        except (AnswerError, ValueError, KeyError, TypeError, AttributeError) as error:
            # the answer itself is not told: it may be, or hold, a token
            reason = str(error) if isinstance(error, AnswerError) else "its answer holds no access_token"
        raise KafkaError(f"No OAuth token from {self._url}: {reason}")


@cache
def _tokens(url: str, client: str, secret: SecretStr | None, file: Path | None, scope: str | None) -> Tokens:
    """One provider for all connections of one identity, so that they share a token."""
    return Tokens(url, client, lambda: _secret(secret, file), scope or "")


def _secret(given: SecretStr | None, file: Path | None) -> str:
    if file is None:
        return given.get_secret_value() if given is not None else ""
    found = _text("kafka.password_file", file).strip()
    if not found:
        raise ConfigError(f"kafka.password_file: {file} is empty.", hint="Write the password into it.")
    return found


def _jaas(kafka: Kafka) -> str:
    names = ("clientId", "clientSecret") if kafka.auth == "oauth" else ("username", "password")
    values = {names[0]: kafka.username or "", names[1]: password(kafka)}
    if kafka.auth == "oauth" and kafka.oauth_scope:
        values["scope"] = kafka.oauth_scope
    told = " ".join(f'{name}="{_quoted(value)}"' for name, value in values.items())
    return f"{_shaded('org.apache.kafka.common.security.' + _MODULES[kafka.auth])} required {told};"


def _shaded(name: str) -> str:
    """The name of a class of the Java client, as the runtime of this process calls it."""
    return (_SHADED[name.partition(".")[0]] if "DATABRICKS_RUNTIME_VERSION" in os.environ else "") + name


def _java_keystore(kafka: Kafka, cert_file: Path) -> dict[str, str]:
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": _only(_text("kafka.client_cert_file", cert_file), "CERTIFICATE"),
        "ssl.keystore.key": _only(_key_file(kafka).read_text(), "PRIVATE KEY"),
    }


def _key_file(kafka: Kafka) -> Path:
    """The file of our key, in the one form that both clients read.

    Raises:
        ConfigError: it holds no key, or one in another form.
    """
    path = kafka.client_key_file or kafka.client_cert_file or Path()
    if "-----BEGIN PRIVATE KEY-----" not in _text("kafka.client_key_file", path):
        raise ConfigError(
            f"kafka.client_key_file: {path} holds no key that Spark's Kafka client can read.",
            hint="It must be PKCS 8 without a password (BEGIN PRIVATE KEY): openssl pkcs8 -topk8 -nocrypt -in OLD -out NEW; "
            "let only the owner read it.",
        )
    return path


def _only(pem: str, what: str) -> str:
    """The blocks of a PEM text whose label ends in `what`."""
    kept, inside = [], False
    for line in pem.splitlines():
        inside = inside or (line.startswith("-----BEGIN ") and line.rstrip("-").endswith(what))
        if inside:
            kept.append(line)
        if line.startswith("-----END "):
            inside = False
    return "\n".join(kept) + "\n"


def _readable(setting: str, path: Path) -> str:
    _text(setting, path)
    return str(path)


def _text(setting: str, path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        told = getattr(error, "strerror", None) or "it is not text"
        raise ConfigError(f"{setting}: {path} cannot be read: {told}.", hint="Check the path and its owner.") from None


def _typed(name: str, value: bool | int | float | str) -> Any:
    """The value as kafka-python wants it; flags and environment variables give text only."""
    if name not in KafkaConsumer.DEFAULT_CONFIG:
        raise ConfigError(f"kafka.python_options: kafka-python has no option {name!r}.", hint="Check its spelling.")
    wanted = KafkaConsumer.DEFAULT_CONFIG[name]
    if isinstance(value, str) and isinstance(wanted, bool | int | float):
        try:
            return json.loads(value)
        except ValueError:
            raise ConfigError(
                f"kafka.python_options.{name} is not a {type(wanted).__name__}.", hint=f"Its default is {wanted}."
            ) from None
    return value


def _java_text(value: bool | int | float | str) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
