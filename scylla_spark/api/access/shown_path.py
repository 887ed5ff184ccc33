"""The path of a request as logs and tables may hold it: tokens that stand in it are replaced, since a path is a place like any other."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

from scylla_spark.core.access.token_text import ID_PATTERN
from scylla_spark.core.leases.messages import digest_of_token

_SLASH: Final = "(?:/|%2f)"
_LEASE: Final = re.compile(f"({_SLASH}leases{_SLASH}+)([^/]+)", re.IGNORECASE)
_TOKEN: Final = re.compile(f"(ss_{ID_PATTERN}_)[0-9a-z_]+", re.IGNORECASE)


def shown_path(path: str) -> str:
    """A path with the digest of a lease in place of its token, and without the secret of a token of a client.

    It asks no route: what is refused before one is found, or is sent to a path that does not exist, may hold a token as well.

    Args:
        path: as it stands in the request line.
    """
    return _TOKEN.sub(r"\1…", _LEASE.sub(lambda found: found[1] + digest_of_token(unquote(found[2])), path))
