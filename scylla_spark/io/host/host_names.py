"""By which names a server may be asked.

A site that points its own name at our address, to read us with a visitor's browser, sends that name in the header Host. So names that are
not ours are refused.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit


class HostNames:
    """The names of one server: IP addresses, localhost, the name of this machine, and those of the settings.

    Args:
        host: where it listens.
        allowed: further names.
    """

    def __init__(self, host: str, allowed: Iterable[str] = ()) -> None:
        names = ("localhost", host, socket.gethostname(), *allowed)
        self._names = {name.lower() for name in names}

    def permits(self, header: str | None) -> bool:
        """Returns True if a Host header, with or without a port, is one of them; None: the request has none."""
        try:
            name = urlsplit(f"//{header or ''}").hostname or ""
        except ValueError:
            return False
        return bool(name) and (name in self._names or _is_address(name))


def unknown_host(header: str | None, setting: str) -> str:
    """Returns what is answered to a name that is not permitted.

    Args:
        header: the Host header.
        setting: the list of further names.
    """
    return f"Unknown host name {(header or '')[:100]!r}. Use the IP address, or add the name to {setting}."


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
