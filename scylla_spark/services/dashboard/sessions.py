"""Who is logged in: a bounded memory of this process, from the random text in a cookie to the token that was shown once."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from typing import Final

MOST_SESSIONS: Final = 1_000
IDLE_US: Final = 12 * 3_600_000_000
LONGEST_US: Final = 7 * 24 * 3_600_000_000


class Sessions:
    """The sessions of this process; its user is one event loop."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)
        self._known: OrderedDict[str, tuple[str, int, int]] = (
            OrderedDict()
        )  # token, begun, seen; the longest silent first

    def begin(self, token: str, now: int) -> str:
        """A new session of a token; the one that was silent for longest ends where there are too many.

        Args:
            token: that the API has let in.
            now: microseconds of a clock that never steps.
        """
        name = secrets.token_urlsafe(32)
        self._known[name] = (token, now, now)
        while len(self._known) > MOST_SESSIONS:
            self._known.popitem(last=False)
        return name

    def token(self, name: str, now: int) -> str:
        """The token of a session; empty: it is over, or there was none.

        Args:
            name: of the session.
            now: microseconds of a clock that never steps.
        """
        token, begun, seen = self._known.pop(name, ("", 0, 0))
        if not token or now - seen > IDLE_US or now - begun > LONGEST_US:
            return ""
        self._known[name] = (token, begun, now)
        return token

    def end(self, name: str) -> None:
        """Forgets a session."""
        self._known.pop(name, None)

    def form_token(self, name: str) -> str:
        """What the forms of a session carry, so that no other site can send them; where no session is needed, `name` is empty."""
        return hmac.new(self._secret, b"form " + name.encode(errors="replace"), hashlib.sha256).hexdigest()

    def is_form_token(self, name: str, given: str) -> bool:
        """Whether a form came from a page that was made for this session."""
        return hmac.compare_digest(self.form_token(name), given.encode("ascii", "replace").decode())
