"""Valid names of handlers and queues: one rule for registered functions, records, frames, arguments and settings.

A name is part of records, tables and labels of metrics, and is typed by people. So it is short and plain ASCII.
"""

from __future__ import annotations

import re
from typing import Final

PATTERN: Final = "[A-Za-z0-9_.:@/-]{1,200}"
"""The rule as a regular expression that Python, Java and Rust read alike; it has no anchors."""
RULE: Final = "1 to 200 ASCII letters, digits and _ . : @ / -"
"""The rule for people."""
_NAME: Final = re.compile(PATTERN)


def is_name(text: object) -> bool:
    """Checks a name of a handler or a queue."""
    return isinstance(text, str) and _NAME.fullmatch(text) is not None
