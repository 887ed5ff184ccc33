"""Looks step by step why brokers do not let us in: name, port, certificate, login. kafka-python itself only says that time is over."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, TypeVar

from kafka.errors import KafkaError
from kafka.net.sasl import get_sasl_mechanism

from scylla_spark.config.settings import Settings
from scylla_spark.io.host.resolving import resolved
from scylla_spark.io.kafka.access import python_options

_LIMIT_S: Final = 5.0
_HANDSHAKE, _AUTHENTICATE, _METADATA = 17, 36, 3  # Kafka's numbers of requests
_UNSUPPORTED_MECHANISM: Final = 33
_MOST_BYTES: Final = 1 << 20

T = TypeVar("T")


class Fault(Exception):
    """What is wrong at a broker, and what to do about it.

    Args:
        step: at which it was met.
        detail: what was seen.
        mend: what to do about it.
    """

    def __init__(self, step: str, detail: str, mend: str) -> None:
        super().__init__(f"{step}: {detail}")
        self.step, self.detail, self.mend = step, detail, mend


class Entry(NamedTuple):
    """One broker address: as it was given, host and port."""

    text: str
    host: str
    port: int


def entries(bootstrap: str) -> Iterator[Entry]:
    """The addresses of kafka.bootstrap_servers.

    Raises:
        Fault: one is not host:port.
    """
    for text in filter(None, (part.strip() for part in bootstrap.split(","))):
        host, _, port = text.rpartition(":")
        if not host or not port.isdigit():
            raise Fault(
                "address", f"{text!r} is not host:port", "correct kafka.bootstrap_servers, such as kafka-1:9092"
            )
        yield Entry(text, host.strip("[]"), int(port))


def first_fault(settings: Settings, limit_s: float = _LIMIT_S) -> Fault | None:
    """Returns why nobody lets us in: the fault of the first address; None if one of them does."""
    found: Fault | None = None
    try:
        for entry in entries(settings.kafka.bootstrap_servers):
            try:
                examine(settings, entry, limit_s)
            except Fault as fault:
                found = found or fault
            else:
                return None
    except Fault as fault:
        return fault
    return found


def examine(settings: Settings, entry: Entry, limit_s: float = _LIMIT_S) -> None:
    """Goes in as far as the login.

    Args:
        settings: with login and certificates.
        entry: which broker.
        limit_s: seconds for each step.

    Raises:
        Fault: at the first step that fails.
        ConfigError: a file of certificates or secrets cannot be read.
    """
    options = python_options(settings.kafka)
    line = _reached(entry, limit_s)
    try:
        if "SSL" in options["security_protocol"]:
            line = _encrypted(line, entry, options)
        if options["security_protocol"].startswith("SASL_"):
            _log_in(line, entry, options)
        else:
            _understood(line, options)
    finally:
        line.close()


def _reached(entry: Entry, limit_s: float) -> socket.socket:
    try:
        resolved(entry.host, entry.port, limit_s)
    except TimeoutError:
        raise Fault(
            "DNS", f"no answer about the name {entry.host!r} in time", "look at the DNS of this machine"
        ) from None
    except OSError as error:
        told = getattr(error, "strerror", None) or error
        raise Fault(
            "DNS", f"the name {entry.host!r} is not known ({told})", "correct the name, or the DNS of this machine"
        ) from None
    try:
        return socket.create_connection((entry.host, entry.port), timeout=limit_s)
    except TimeoutError:
        raise Fault("TCP", f"{entry.text} does not answer", "look for a firewall between here and the broker") from None
    except OSError as error:
        raise Fault(
            "TCP", f"{entry.text}: {error.strerror or error}", "start the broker, or correct host and port"
        ) from None


def _encrypted(line: socket.socket, entry: Entry, options: dict[str, Any]) -> socket.socket:
    context = _context(options)
    try:
        secured = context.wrap_socket(line, server_hostname=entry.host)
        # with TLS 1.3 a server says only after the handshake that it does not take our certificate
        secured.settimeout(line.gettimeout())
        return secured
    except ssl.SSLCertVerificationError as error:
        if "ostname" in error.verify_message or "IP address" in error.verify_message:
            mend = "use a name that the broker's certificate lists, or have it list this one"
            raise Fault("TLS host name", error.verify_message, mend) from None
        mend = "set kafka.ca_file to the certificates of the authority that signed the broker's"
        raise Fault("TLS authority", error.verify_message, mend) from None
    except (OSError, ValueError) as error:
        told = getattr(error, "reason", None) or type(error).__name__
        raise Fault(
            "TLS", f"{entry.text} does not speak TLS ({told})", "use the broker's TLS port, or set kafka.tls = false"
        ) from None


def _context(options: dict[str, Any]) -> ssl.SSLContext:
    given: ssl.SSLContext | None = options.get("ssl_context")
    if given is not None:
        return given
    context = ssl.create_default_context(cafile=None)
    if options.get("ssl_cafile"):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _loaded("kafka.ca_file", lambda: context.load_verify_locations(options["ssl_cafile"]))
    context.check_hostname = bool(options.get("ssl_check_hostname", True))
    if options.get("ssl_certfile"):
        files = (options["ssl_certfile"], options.get("ssl_keyfile"), options.get("ssl_password") or "")
        _loaded("kafka.client_cert_file and its key", lambda: context.load_cert_chain(*files))
    return context


def _loaded(what: str, load: Callable[[], T]) -> T:
    try:
        return load()
    except (ssl.SSLError, OSError, ValueError) as error:
        told = getattr(error, "reason", None) or type(error).__name__
        mend = "files must be PEM, and a key must belong to its certificate"
        raise Fault("TLS files", f"{what} cannot be used ({told})", mend) from None


def _understood(line: socket.socket, options: dict[str, Any]) -> None:
    """Asks for the brokers (and no topics): one that wants a login, another protocol or a certificate closes instead."""
    _asked(line, _METADATA, 1, struct.pack(">i", 0), options)


def _log_in(line: socket.socket, entry: Entry, options: dict[str, Any]) -> None:
    mechanism = options["sasl_mechanism"]
    try:
        _offered(line, mechanism, options)
        dialogue = get_sasl_mechanism(mechanism)(host=entry.host, **options)
        while not dialogue.is_done():
            dialogue.receive(_authenticated(line, dialogue.auth_bytes(), options))
    except KafkaError as error:
        raise Fault(
            "login", str(error), "look at kafka.oauth_token_url, kafka.username and kafka.password_file"
        ) from None
    except (ValueError, LookupError, struct.error):
        raise Fault("protocol", f"{entry.text} answers nonsense", "is it a Kafka broker?") from None
    if not dialogue.is_authenticated():
        raise Fault("login", f"{entry.text} does not take our login", _MEND_LOGIN)


def _offered(line: socket.socket, mechanism: str, options: dict[str, Any]) -> None:
    name = mechanism.encode()
    answer = _asked(line, _HANDSHAKE, 1, struct.pack(">h", len(name)) + name, options)
    (code,) = struct.unpack_from(">h", answer)
    if code == _UNSUPPORTED_MECHANISM:
        raise Fault(
            "login", f"the broker does not offer {mechanism}, but {', '.join(_texts(answer[2:])) or 'nothing'}",
            "set kafka.auth (and kafka.scram_mechanism) to what it offers",
        )  # fmt: skip


_MEND_LOGIN: Final = "correct kafka.username and kafka.password (or its file), and ask whether the broker knows them"


def _authenticated(line: socket.socket, token: bytes, options: dict[str, Any]) -> bytes:
    answer = _asked(line, _AUTHENTICATE, 0, struct.pack(">i", len(token)) + token, options)
    (code,) = struct.unpack_from(">h", answer)
    (length,) = struct.unpack_from(">h", answer, 2)
    if code != 0:
        told = answer[4 : 4 + max(length, 0)].decode("utf-8", "replace") or f"error {code}"
        raise Fault("login", f"the broker refuses {options.get('sasl_plain_username') or 'us'}: {told}", _MEND_LOGIN)
    start = 4 + max(length, 0)
    (size,) = struct.unpack_from(">i", answer, start)
    return answer[start + 4 : start + 4 + max(size, 0)]


def _asked(line: socket.socket, key: int, version: int, body: bytes, options: dict[str, Any]) -> bytes:
    """One request and its answer, without the header."""
    request = struct.pack(">hhih", key, version, 1, 6) + b"doctor" + body
    try:
        line.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", _read(line, 4))
        if 6 <= size <= _MOST_BYTES:
            return _read(line, size)[4:]
    except TimeoutError:
        raise Fault(
            "protocol", "the broker took our bytes and does not answer", "is it a TLS port? then set kafka.tls = true"
        ) from None
    except (OSError, EOFError) as error:
        raise _closed(options, error) from None
    raise Fault(
        "protocol",
        "what answers is no Kafka broker",
        "correct kafka.bootstrap_servers; a TLS port needs kafka.tls = true",
    )


def _closed(options: dict[str, Any], error: BaseException) -> Fault:
    told = getattr(error, "reason", None) or "it closed the connection"
    if "SSL" in options["security_protocol"]:
        mend = (
            "it may want a client certificate that its authority signed: kafka.client_cert_file; or another kafka.auth"
        )
        return Fault("TLS client certificate", f"the broker does not go on after the TLS handshake ({told})", mend)
    mend = "it may want TLS (kafka.tls = true) or a login (kafka.auth)"
    return Fault("protocol", f"the broker does not take this way of access ({told})", mend)


def _read(line: socket.socket, size: int) -> bytes:
    parts = b""
    while len(parts) < size:
        part = line.recv(size - len(parts))
        if not part:
            raise EOFError
        parts += part
    return parts


def _texts(body: bytes) -> Iterator[str]:
    (count,) = struct.unpack_from(">i", body)
    at = 4
    for _ in range(max(0, min(count, 100))):
        (length,) = struct.unpack_from(">h", body, at)
        yield body[at + 2 : at + 2 + length].decode("utf-8", "replace")
        at += 2 + length
