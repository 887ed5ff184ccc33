"""Tokens as clients show them, `ss_<id>_<secret>`: made, read strictly, and compared by their digests.

Only whoever made a token knows its secret, which has 256 random bits. What is stored is a digest of it, keyed with the id, so that a
digest is worth nothing under another id; as nobody can guess such a secret, the digest needs to be neither slow nor peppered.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from typing import Final, NamedTuple

ID_PATTERN: Final = "[a-z0-9]{12}"
DIGEST_PATTERN: Final = "[0-9a-f]{64}"
_TOKEN: Final = re.compile(f"ss_({ID_PATTERN})_([0-9a-f]{{64}})")
_PERSON: Final = b"ss token 1"
_LENGTH: Final = 3 + 12 + 1 + 64


class TokenText(NamedTuple):
    """A token in two parts.

    Attributes:
        id: tells which it is; no secret.
        secret: proves it.
    """

    id: str
    secret: str

    def __repr__(self) -> str:
        return f"TokenText(id={self.id!r})"

    @property
    def text(self) -> str:
        """As clients show it."""
        return f"ss_{self.id}_{self.secret}"


def new_token() -> TokenText:
    """A token that nobody else has."""
    return TokenText(secrets.token_hex(6), secrets.token_hex(32))


def read_token(text: str) -> TokenText | None:
    """The parts of a token; None: it is none."""
    if len(text) != _LENGTH:
        return None
    found = _TOKEN.fullmatch(text)
    return TokenText(found[1], found[2]) if found is not None else None


def digest_of(token: TokenText) -> str:
    """Returns what is stored of the secret of a token."""
    return hashlib.blake2b(token.secret.encode(), digest_size=32, key=token.id.encode(), person=_PERSON).hexdigest()


def proves(token: TokenText, digest: str) -> bool:
    """Returns True if a token is the one of a digest; takes as long whatever differs."""
    return hmac.compare_digest(digest_of(token).encode(), digest.encode())
