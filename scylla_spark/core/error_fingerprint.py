"""What makes two errors the same one: class and message without the parts that change from one occurrence to the next."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final

_CHANGES: Final = re.compile(
    r"0x[0-9a-fA-F]+"  # addresses
    r"|\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"  # UUIDs
    r"|\b(?=[0-9a-fA-F]*[0-9])[0-9a-fA-F]{8,}\b"  # digests
    r"|[0-9]+"  # counts, ids, times
    r"|'[^']{0,200}'|\"[^\"]{0,200}\""  # values that are quoted
)
_MOST_CHARS: Final = 2_000
_DIGITS: Final = 16


def fingerprint_of(*texts: str) -> str:
    """Sixteen hexadecimal digits, the same in every process, for texts that differ in nothing but numbers and quoted values.

    Args:
        *texts: what tells errors apart, such as work, class and message; of each, the first 2,000 characters count.
    """
    plain = [_CHANGES.sub("#", text[:_MOST_CHARS]) for text in texts]
    said = "\x00".join(plain).encode("utf-8", "replace")
    return sha256(said).hexdigest()[:_DIGITS]
