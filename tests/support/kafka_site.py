"""A broker with every kind of listener, a private authority that signs its certificate and ours, and a token endpoint."""

from __future__ import annotations

import base64
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

from kafka.admin import KafkaAdminClient, ScramMechanism, UserScramCredentialUpsertion

from scylla_spark.config.settings import Settings
from scylla_spark.io.host import broker_files
from scylla_spark.io.host.broker import EmbeddedBroker
from scylla_spark.io.host.broker_files import free_port

USER, PASSWORD = "scheduler", 'p"a\\s s%:;wörd'  # letters that each of the formats on the way must escape
LISTENERS = {"scram": "SASL_SSL", "plain": "SASL_SSL", "mtls": "SSL", "oauth": "SASL_SSL"}
_MODULE = "org.apache.kafka.common.security"


class Authority:
    """Signs certificates; files below a folder.

    Args:
        folder: where to.
        name: of the authority.
    """

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self.folder = folder
        self.file = folder / f"{name}.pem"
        self._key = folder / f"{name}.key"
        self._openssl("req", "-x509", *self._new(self._key, name), "-out", self.file, "-days", "2")

    def sign(self, name: str, alternative: str = "") -> Path:
        """A PEM file with a key and a certificate for it."""
        key, request, certificate = (self.folder / f"{name}.{ending}" for ending in ("key", "csr", "crt"))
        self._openssl("req", *self._new(key, name), "-out", request)
        extensions = self.folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={alternative}\n" if alternative else "keyUsage=digitalSignature\n")
        signing = ("-CA", self.file, "-CAkey", self._key, "-CAcreateserial", "-days", "2", "-extfile", extensions)
        self._openssl("x509", "-req", "-in", request, "-out", certificate, *signing)
        both = self.folder / f"{name}.pem"
        both.write_text(key.read_text() + certificate.read_text())
        return both

    def _new(self, key: Path, name: str) -> tuple[Any, ...]:
        return ("-newkey", "rsa:2048", "-nodes", "-keyout", key, "-subj", f"/CN={name}")

    def _openssl(self, *words: object) -> None:
        subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, cwd=self.folder)


TOKEN_SECRET = "token-secret+7%"


class Issuer:
    """Issues signed tokens to who knows the secret; the broker finds the key in a file.

    Args:
        folder: where key and `jwks.json` go.
    """

    def __init__(self, folder: Path) -> None:
        self.served = 0
        self._key = folder / "issuer.key"
        words = ["openssl", "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", str(self._key)]
        subprocess.run(words, check=True, capture_output=True)
        told = subprocess.run(
            ["openssl", "rsa", "-modulus", "-noout", "-in", str(self._key)], check=True, capture_output=True, text=True
        ).stdout
        modulus = bytes.fromhex(told.strip().partition("=")[2])
        key = {"kty": "RSA", "use": "sig", "alg": "RS256", "kid": "1", "n": _url64(modulus), "e": "AQAB"}
        (folder / "jwks.json").write_text(json.dumps({"keys": [key]}))

    def token(self) -> str:
        """A token that is good for five minutes."""
        now = int(time.time())
        parts = {"alg": "RS256", "kid": "1"}, {"sub": USER, "iat": now, "exp": now + 300, "scope": "kafka"}
        text = ".".join(_url64(json.dumps(part).encode()) for part in parts)
        words = ["openssl", "dgst", "-sha256", "-sign", str(self._key)]
        signature = subprocess.run(words, input=text.encode(), check=True, capture_output=True).stdout
        return f"{text}.{_url64(signature)}"

    def handler(self) -> type[BaseHTTPRequestHandler]:
        """Of its HTTP endpoint."""
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                given = base64.b64decode(self.headers.get("Authorization", "").removeprefix("Basic ")).decode()
                known = given == f"{USER}:{quote_plus(TOKEN_SECRET)}" and "grant_type=client_credentials" in body
                issuer.served += known
                answer = {"access_token": issuer.token(), "expires_in": 300} if known else {"error": "no"}
                self.send_response(200 if known else 401)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode())

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler


def _url64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


@dataclass(frozen=True)
class Site:
    """The running broker and how to reach it; `ports` by way of access."""

    folder: Path
    broker: EmbeddedBroker
    ports: dict[str, int]
    authority: Authority
    issuer: Issuer
    token_url: str

    def kafka(self, way: str, **changes: Any) -> dict[str, Any]:
        """Settings of the section kafka, right unless changed; None takes one away."""
        word = {"username": USER, "password": PASSWORD}
        token = {"username": USER, "password": TOKEN_SECRET, "oauth_token_url": self.token_url, "oauth_scope": "kafka"}
        certificate = {"client_cert_file": self.folder / f"{USER}.pem"}
        access: dict[str, dict[str, Any]] = {"scram": word, "plain": word, "oauth": token, "mtls": certificate}
        given = {
            "bootstrap_servers": f"127.0.0.1:{self.ports[way]}",
            "auth": way,
            "tls": True,
            "ca_file": self.authority.file,
        }
        whole = given | {"request_timeout": "10s"} | access[way] | changes
        return {name: value for name, value in whole.items() if value is not None}

    def settings(self, way: str, **changes: Any) -> Settings:
        """The same as settings of a deployment of one partition, with topics of its own."""
        topics = {"tasks": f"tasks-{way}", "outcomes": f"outcomes-{way}"}
        kafka = self.kafka(way, **changes)
        return Settings(_env_file=None, data_dir=self.folder, partitions=1, topics=topics, kafka=kafka)

    def admin(self) -> KafkaAdminClient:
        """As somebody who may do everything."""
        return KafkaAdminClient(bootstrap_servers=self.broker.bootstrap)


@contextmanager
def running(folder: Path) -> Iterator[Site]:
    """The site in a folder; rights are enforced, and the user and the certificate of the site may do everything."""
    authority, issuer = Authority(folder), Issuer(folder)
    server = authority.sign("server", "IP:127.0.0.1")
    authority.sign(USER)
    with ExitStack() as stack:
        endpoint = ThreadingHTTPServer(("127.0.0.1", 0), issuer.handler())
        thread = threading.Thread(target=endpoint.serve_forever, args=(0.05,))
        thread.start()
        stack.callback(lambda: (endpoint.shutdown(), endpoint.server_close(), thread.join()))
        (folder / "kafka").mkdir()
        ports = broker_files.choose_ports(broker_files.Layout(folder / "kafka"))
        more = {name: free_port() for name in LISTENERS}
        broker = stack.enter_context(
            EmbeddedBroker(folder / "kafka", overrides=_overrides(ports, more, server, authority))
        )
        site = Site(folder, broker, more, authority, issuer, f"http://127.0.0.1:{endpoint.server_address[1]}/token")
        with site.admin() as admin:
            admin.alter_user_scram_credentials(
                [UserScramCredentialUpsertion(USER, ScramMechanism.SCRAM_SHA_512, PASSWORD)]
            )
        yield site


def _overrides(ports: broker_files.Ports, more: dict[str, int], server: Path, authority: Authority) -> dict[str, str]:
    own = {"client": ports.broker} | more
    listeners = [f"{name.upper()}://127.0.0.1:{port}" for name, port in own.items()]
    protocols = {"CLIENT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT"} | {
        name.upper(): how for name, how in LISTENERS.items()
    }
    return {
        "listeners": ",".join([*listeners, f"CONTROLLER://127.0.0.1:{ports.controller}"]),
        "advertised.listeners": ",".join(listeners),
        "listener.security.protocol.map": ",".join(f"{name}:{how}" for name, how in protocols.items()),
        "ssl.keystore.type": "PEM", "ssl.keystore.location": str(server),
        "ssl.truststore.type": "PEM", "ssl.truststore.location": str(authority.file),
        "listener.name.mtls.ssl.client.auth": "required",
        "listener.name.scram.sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.scram.scram-sha-512.sasl.jaas.config": f"{_MODULE}.scram.ScramLoginModule required;",
        "listener.name.plain.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.plain.plain.sasl.jaas.config": _property(
            f'{_MODULE}.plain.PlainLoginModule required user_{USER}="{_quoted(PASSWORD)}";'
        ),
        "listener.name.oauth.sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.oauth.oauthbearer.sasl.jaas.config": f"{_MODULE}.oauthbearer.OAuthBearerLoginModule required;",
        "listener.name.oauth.oauthbearer.sasl.server.callback.handler.class":
            f"{_MODULE}.oauthbearer.OAuthBearerValidatorCallbackHandler",
        "sasl.oauthbearer.jwks.endpoint.url": (authority.folder / "jwks.json").as_uri(),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:ANONYMOUS;User:CN={USER};User:{USER}",
    }  # fmt: skip


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _property(text: str) -> str:
    """For Java's files of properties, which are Latin-1 with escapes."""
    return "".join(letter if letter.isascii() else f"\\u{ord(letter):04x}" for letter in text.replace("\\", "\\\\"))
