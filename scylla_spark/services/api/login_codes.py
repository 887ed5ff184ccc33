"""Codes by which a browser logs in: no token has to stand in an address, where histories and logs would keep it."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from typing import Final

CODE_S: Final = 60
_MOST_CODES: Final = 1_000


class LoginCodes:
    """Codes that stand for a token for a minute, so that none has to stand in an address; its user is one event loop."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[str, int]] = OrderedDict()

    def made(self, token: str, now: int) -> str:
        """A new code.

        Args:
            token: that it stands for.
            now: microseconds of a clock that never steps.
        """
        code = secrets.token_urlsafe(32)
        self._known[code] = (token, now)
        while len(self._known) > _MOST_CODES:
            self._known.popitem(last=False)
        return code

    def redeemed(self, code: str, now: int) -> str:
        """The token of a code, which is worth nothing any more; empty: it was worth nothing before.

        Args:
            code: as it was made.
            now: microseconds of a clock that never steps.
        """
        token, made = self._known.pop(code, ("", 0))
        return token if now - made <= CODE_S * 1_000_000 else ""
