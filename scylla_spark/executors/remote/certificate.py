"""The certificate of a process that Spark workers connect to: made for this process, known to its jobs by its SHA-256."""

from __future__ import annotations

import hashlib
import ssl
import tempfile
from datetime import timedelta
from typing import Final

from scylla_spark.clock import from_us, now_us
from scylla_spark.errors import SetupError

_VALID: Final = timedelta(days=3650)
_NAME: Final = "scylla-spark"


def server_context() -> tuple[ssl.SSLContext, bytes]:
    """A context for TLS 1.3 with a new certificate, and the SHA-256 of that.

    Raises:
        SetupError: the package cryptography is not installed.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID
    except ImportError as error:
        raise SetupError(
            f"Spark workers on a cluster need cryptography ({error}).", hint="Run: pip install 'scylla-spark[spark]'."
        ) from error
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _NAME)])
    now = from_us(now_us())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + _VALID)
        .sign(key, hashes.SHA256())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with tempfile.NamedTemporaryFile(prefix="scylla-spark-") as file:  # readable by this user alone; gone at once
        file.write(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        file.write(certificate.public_bytes(serialization.Encoding.PEM))
        file.flush()
        context.load_cert_chain(file.name)
    return context, hashlib.sha256(certificate.public_bytes(serialization.Encoding.DER)).digest()
