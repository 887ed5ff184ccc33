"""Signatures of webhooks as Standard Webhooks 1.0.0 describes them (https://www.standardwebhooks.com)."""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Mapping
from typing import Final

from scylla_spark.errors import ConfigError

_PREFIX: Final = "whsec_"
_LEAST_BYTES: Final = 16


def key_of(secret: str) -> bytes:
    """The key that a secret stands for.

    Args:
        secret: `whsec_` and base64, as the specification writes it.

    Raises:
        ConfigError: it is none, or too short to keep anybody out.
    """
    try:
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except (ValueError, binascii.Error):
        key = b""
    if not secret.startswith(_PREFIX) or len(key) < _LEAST_BYTES:
        raise ConfigError(
            "The secret of a channel is none.",
            hint=f'Set notify.channels.NAME.secret to "{_PREFIX}" and {_LEAST_BYTES} to 64 random bytes in base64.',
        )
    return key


def signed(id: str, at_s: int, body: bytes, key: bytes) -> Mapping[str, str]:
    """The three headers by which a receiver knows who sent a body, and when.

    Args:
        id: of the message; the same when it is sent again.
        at_s: of this attempt, seconds since the epoch.
        body: as it is sent.
        key: see `key_of`.
    """
    digest = hmac.digest(key, f"{id}.{at_s}.".encode() + body, "sha256")
    signature = base64.b64encode(digest).decode()
    return {**unsigned(id, at_s), "webhook-signature": f"v1,{signature}"}


def unsigned(id: str, at_s: int) -> Mapping[str, str]:
    """The same without a signature, for channels that have no secret.

    Args:
        id: of the message.
        at_s: of this attempt, seconds since the epoch.
    """
    return {"webhook-id": id, "webhook-timestamp": str(at_s)}
