"""64 bits that stand for a text or a tuple of texts and numbers within this process.

Producers choose the names that we remember by these, so no client may be able to compute two that collide. Python's own hash is
keyed with a secret of the process, unless the environment fixes its seed, as spark-submit does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from hashlib import blake2b
from typing import Final

_SECRET: Final = os.urandom(16)


def _keyed(value: Hashable) -> int:
    return int.from_bytes(blake2b(repr(value).encode(), digest_size=8, key=_SECRET).digest(), "big", signed=True)


def chosen(seed: str) -> Callable[[Hashable], int]:
    """The function for a value of PYTHONHASHSEED; empty: unset."""
    return hash if seed in ("", "random") else _keyed


fingerprint: Final = chosen(os.environ.get("PYTHONHASHSEED", ""))
