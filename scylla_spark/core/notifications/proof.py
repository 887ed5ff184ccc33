"""The proof that the planner has written a message: whoever may enqueue tasks can copy one, and make none.

Everything on the topic `tasks` may come from anybody who may write there. What is sent in our name, and signed for its receivers, must not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b, sha512
from hmac import compare_digest
from typing import Any, Final

PROOF: Final = "proof"
"""The field of a message that holds it."""
_DIGEST_BYTES: Final = 32
_PERSON: Final = b"ss notice"


def notice_key(secret: str) -> bytes:
    """The key of proofs, 64 bytes.

    Args:
        secret: that planner and dispatchers know, and nobody else.
    """
    return sha512(secret.encode()).digest()


def proof_of(message: Mapping[str, Any], key: bytes) -> str:
    """The proof of a message, over all of its fields but the proof itself.

    Args:
        message: JSON values.
        key: of `notice_key`.
    """
    told = {name: value for name, value in message.items() if name != PROOF}
    text = json.dumps(told, sort_keys=True, separators=(",", ":")).encode()
    return blake2b(text, key=key, digest_size=_DIGEST_BYTES, person=_PERSON).hexdigest()


def is_proven(message: Mapping[str, Any], key: bytes) -> bool:
    """Returns True if somebody who has the key has written a message; never, where there is no key."""
    given = message.get(PROOF)
    return (
        bool(key)
        and isinstance(given, str)
        and compare_digest(given.encode(errors="replace"), proof_of(message, key).encode())
    )
