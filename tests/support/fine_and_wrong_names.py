"""Names that handlers and queues may have, and names that they may not: what every judge of names is asked."""

from __future__ import annotations

FINE_NAMES = ["a", "mail.send", "a.b:c/1-d_e", "charge@2", "x" * 200, "0", "A"]
WRONG_NAMES = ["", "größe", "a b", "a\n", "\na", "x" * 201, "x" * 300, "a٣", "a,b", 'a"b', "a\x00", "漢"]
