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
    """Sixteen hexadecimal digits, the same in every process, for errors whose messages differ in nothing but numbers and quoted values.

    Args:
        *texts: what tells errors apart, such as work and class, and at last the message; of each, the first 2,000 characters count.
            Names are taken as they are: `load_eu1` and `load_eu2` are different work.
    """
    *names, message = (text[:_MOST_CHARS] for text in texts)
    said = "\x00".join([*names, _CHANGES.sub("#", message)]).encode("utf-8", "replace")
    return sha256(said).hexdigest()[:_DIGITS]
