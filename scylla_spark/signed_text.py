"""Short texts that one process of a deployment gives away, and another of the same deployment knows to be ours when they come back."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Final

_VERSION: Final = "1"
_MOST_CHARS: Final = 500


class Signer:
    """Signs texts, and reads only what was signed by the same secret for the same purpose.

    Args:
        secret: that all processes of the deployment share.
        purpose: what the texts are for; those of another purpose are not believed.
    """

    def __init__(self, secret: str, purpose: str) -> None:
        self._key = hmac.new(secret.encode(), f"scylla-spark signs: {purpose}".encode(), hashlib.sha256).digest()

    def signed(self, fields: Sequence[str]) -> str:
        """The fields as one text.

        Args:
            fields: none is empty, and none has a dot.
        """
        text = ".".join((_VERSION, *fields))
        return f"{text}.{self.digest(text)}"

    def read(self, text: str) -> list[str] | None:
        """The fields of a text; None: it has no signature of this deployment, or an unknown version."""
        body, _, given = text[:_MOST_CHARS].rpartition(".")
        if not hmac.compare_digest(self.digest(body).encode(), given.encode(errors="replace")):
            return None
        version, *fields = body.split(".")
        return fields if version == _VERSION else None

    def digest(self, text: str) -> str:
        """Returns the digest of a text for this purpose, keyed with the secret, in hexadecimal digits."""
        return hmac.new(self._key, text.encode(errors="replace"), hashlib.sha256).hexdigest()
