"""Sessions of browsers: signed cookies that every process of the API can verify.

A session names a token and never contains it: whether the token holds, and what it allows, is looked up with every call. So a session ends
with its token, in every process. It is short: a browser that goes on asking is given a new text, up to a bound.
"""

from __future__ import annotations

import hmac
import secrets
from collections import OrderedDict
from typing import Final, NamedTuple

from scylla_spark.signed_text import Signer

SESSION: Final = "session"
"""The content of a session cookie."""
IDLE_US: Final = 12 * 3_600_000_000
LONGEST_US: Final = 7 * 24 * 3_600_000_000
RENEWED_US: Final = 900_000_000
"""A text that is so old is replaced by one of now, so that whoever goes on stays."""
MOST_ENDED: Final = 10_000
_NAME_DIGITS: Final = 8


class Session(NamedTuple):
    """A browser that has logged in.

    Attributes:
        id: random.
        token_id: of the token in whose name it asks.
        begun_us: when it logged in, microseconds since the epoch.
        seen_us: when its text was made, likewise.
    """

    id: str
    token_id: str
    begun_us: int
    seen_us: int


class Sessions:
    """Begins, reads and ends sessions; its user is one event loop.

    Args:
        secret: that all processes of the deployment share.
    """

    def __init__(self, secret: str) -> None:
        self._signer = Signer(secret, "sessions of the dashboard")
        self._forms = Signer(secret, "forms of the dashboard")
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._name = self._signer.digest("whose cookie it is")[:_NAME_DIGITS]

    def cookie(self, of: str) -> str:
        """The name of a cookie of this deployment: browsers send those of all ports of a host to each of them.

        Args:
            of: what it holds.
        """
        return f"scylla_spark_{of}_{self._name}"

    def begun(self, token_id: str, now: int) -> Session:
        """A new session.

        Args:
            token_id: of a token that the API has let in.
            now: microseconds since the epoch.
        """
        return Session(secrets.token_hex(16), token_id, now, now)

    def text(self, session: Session, now: int) -> str:
        """Returns the new text of a session cookie."""
        return self._signer.signed([session.id, session.token_id, str(session.begun_us), str(now)])

    def read(self, text: str, now: int) -> Session | None:
        """The session of a cookie; None: it is over, or there was none.

        Args:
            text: as it stands in the cookie.
            now: microseconds since the epoch.
        """
        fields = self._signer.read(text)
        if fields is None:
            return None
        session = Session(fields[0], fields[1], int(fields[2]), int(fields[3]))
        return session if self.holds(session, now) else None

    def holds(self, session: Session, now: int) -> bool:
        """Returns whether a session is valid: it was not logged out here, and neither its text nor the session is too old."""
        lasts = now - session.seen_us <= IDLE_US and now - session.begun_us <= LONGEST_US
        return lasts and session.id not in self._ended

    def end(self, session: Session) -> None:
        """Believes it no more, whoever has kept its text; other processes learn of that only when it is over by itself."""
        self._ended[session.id] = None
        while len(self._ended) > MOST_ENDED:
            self._ended.popitem(last=False)

    def form_token(self, session: Session | None) -> str:
        """Returns the token for the forms of a session, which keeps other sites from sending them. None: no session is needed."""
        return self._forms.digest(session.id if session is not None else "")

    def is_form_token(self, session: Session | None, given: str) -> bool:
        """Returns whether a form came from a page of this session."""
        return hmac.compare_digest(self.form_token(session), given.encode("ascii", "replace").decode())
