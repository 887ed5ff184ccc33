"""Codes by which a browser logs in: no token has to stand in an address, where histories and logs would keep it."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from typing import Final

from scylla_spark.signed_text import Signer

CODE_S: Final = 60
_MOST_CODES: Final = 10_000


class LoginCodes:
    """Codes that stand for a token for a minute, at every process of the API; its user is one event loop.

    Each is worth something once. Of several processes, each knows only of those that were used there.

    Args:
        secret: that all processes of the deployment share.
    """

    def __init__(self, secret: str) -> None:
        self._signer = Signer(secret, "codes by which browsers log in")
        self._used: OrderedDict[str, None] = OrderedDict()

    def made(self, token_id: str, now: int) -> str:
        """A new code.

        Args:
            token_id: of the token that it stands for.
            now: microseconds since the epoch.
        """
        return self._signer.signed([secrets.token_hex(16), token_id, str(now)])

    def redeemed(self, code: str, now: int) -> str:
        """The id of the token of a code, which is worth nothing any more; empty: it was worth nothing before.

        Args:
            code: as it was made.
            now: microseconds since the epoch.
        """
        fields = self._signer.read(code)
        if fields is None or fields[0] in self._used or not 0 <= now - int(fields[2]) <= CODE_S * 1_000_000:
            return ""
        self._used[fields[0]] = None
        while len(self._used) > _MOST_CODES:
            self._used.popitem(last=False)
        return fields[1]
