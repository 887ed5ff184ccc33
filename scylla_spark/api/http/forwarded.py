"""The address of a client behind a proxy: `Forwarded` (RFC 7239) and `X-Forwarded-For`, believed of trusted proxies only."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import Final

from starlette.types import Scope

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_MOST_HOPS: Final = 32
_FOR: Final = re.compile(r'(?:^|;)\s*for\s*=\s*"?([^";]*)"?', re.IGNORECASE)
_WITH_PORT: Final = re.compile(r"\[([^]]*)\](?::\d+)?|([^:]*):\d+")


def is_trusted(host: str, proxies: Sequence[Network]) -> bool:
    """Returns True if a connection comes from a trusted proxy.

    Args:
        host: address of its other end.
        proxies: networks of the proxies.
    """
    address = _address(host)
    return address is not None and any(address in one for one in proxies)


def client_address(scope: Scope, proxies: Sequence[Network]) -> str | None:
    """The address of the client that a trusted proxy has sent a request for.

    Each proxy adds the address from which it was asked at the end. So the client is the last one that is no trusted proxy
    itself: what stands before it comes from the client, who may write anything there. A proxy usually sets one of the two
    headers and passes the other on, so both are believed only if they agree.

    Args:
        scope: of the request.
        proxies: networks of the proxies.

    Returns:
        None: the request comes from no trusted proxy, or its headers name no client.
    """
    peer = scope.get("client")
    if not proxies or not peer or not is_trusted(peer[0], proxies):
        return None
    told = {_last(hops, proxies) for hops in (_hops(scope, b"x-forwarded-for"), _hops(scope, b"forwarded")) if hops}
    return str(found) if len(told) == 1 and (found := told.pop()) is not None else None


def _hops(scope: Scope, header: bytes) -> list[str]:
    """The addresses that a header names, as texts, the last ones of very many."""
    text = ",".join(value.decode("latin-1") for name, value in scope["headers"] if name == header)
    parts = text.rsplit(",", _MOST_HOPS)[-_MOST_HOPS:] if text else []
    if header == b"forwarded":
        return [found[1] if (found := _FOR.search(part)) else "" for part in parts]
    return parts


def _last(hops: Sequence[str], proxies: Sequence[Network]) -> Address | None:
    for hop in reversed(hops):
        address = _address(hop)
        if address is None or not any(address in one for one in proxies):
            return address
    return None


def _address(text: str) -> Address | None:
    """An address of a header or a socket, perhaps with a port; IPv4 within IPv6 is IPv4."""
    plain = text.strip()
    if found := _WITH_PORT.fullmatch(plain):
        plain = found[1] or found[2] or ""
    try:
        address = ipaddress.ip_address(plain)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
