"""Which addresses a webhook may be sent to. A host is resolved once, and what was judged is what is connected to."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final, NamedTuple

from scylla_spark.errors import SchedulerError
from scylla_spark.io.host.resolving import resolved

_Address = IPv4Address | IPv6Address
_NEVER: Final = tuple(
    map(
        ip_network,
        (
            "169.254.0.0/16",  # link-local, and where most clouds keep the credentials of a machine
            "fe80::/10",
            "fd00:ec2::/32",  # the same of AWS over IPv6
            "fd20:ce::254/128",  # of Google
            "fd00:42::42/128",  # of Scaleway
            "100.100.100.200/32",  # of Alibaba
            "192.0.0.192/32",  # of Oracle
            "168.63.129.16/32",  # of Azure, although it is a public address
        ),
    )
)
_CARRYING: Final = {
    ip_network("64:ff9b::/96"): (96,),  # translated by NAT64
    ip_network("64:ff9b:1::/48"): (
        48,
        56,
        64,
        96,
    ),  # the same within one network, which says how long its own prefix in there is
    ip_network("::ffff:0:0:0/96"): (96,),  # translated by SIIT
    ip_network("::/96"): (96,),  # IPv4-compatible
}
"""Networks whose addresses carry one of IPv4, besides those that Python knows, and behind how many bits, as RFC 6052 says."""
_OF_IPV6: Final = (IPv6Address("::"), IPv6Address("::1"))
_NOBODY: Final = ip_network("0.0.0.0/8")  # what bits are that carry no address
_SHARED: Final = ip_network("100.64.0.0/10")
_LOW_32: Final = 2**32 - 1
_LOW_56: Final = 2**56 - 1


class AddressRefusedError(SchedulerError):
    """A webhook would go to an address that it may not go to."""


class Place(NamedTuple):
    """Where to connect.

    Attributes:
        family: of the socket.
        address: as `socket.connect` takes it.
    """

    family: int
    address: tuple[str, int]


def places(host: str, port: int, *, private: bool, within_s: float) -> list[Place]:
    """Addresses of a host, all of which may be connected to; asks the resolver once.

    Args:
        host: name or address.
        port: of TCP.
        private: whether addresses of private networks and of this machine are allowed.
        within_s: longest that the resolver may take, seconds.

    Raises:
        AddressRefusedError: one of them is not allowed.
        OSError: there is no such host.
        TimeoutError: the resolver did not answer in time.
    """
    found: list[Place] = []
    for family, _, _, _, address in resolved(host, port, within_s):
        text = str(address[0])
        if not is_allowed(ip_address(text.partition("%")[0]), private=private):
            raise AddressRefusedError(
                f"The host of the webhook is at {text}, where webhooks are not sent.",
                hint="notify.private_addresses allows private networks and this machine.",
            )
        found.append(Place(family, (text, port)))
    if not found:
        raise OSError("the host has no address")
    return found


def is_allowed(address: _Address, *, private: bool) -> bool:
    """Returns True if webhooks may go to an address.

    Args:
        address: any; one of IPv6 that stands for one of IPv4 is judged as that, and as all that it may stand for.
        private: whether private networks and this machine are allowed; link-local addresses and those where clouds tell a
            machine its credentials never are.
    """
    meant = _meant(address)
    return bool(meant) and all(_is_fine(one, private=private) for one in meant)


def _is_fine(address: _Address, *, private: bool) -> bool:
    if address.is_multicast or address.is_unspecified or any(address in network for network in _NEVER):
        return False
    is_private = address.is_private or address.is_loopback or address in _SHARED or _is_site_local(address)
    return private if is_private else address.is_global


def _meant(address: _Address) -> Sequence[_Address]:
    """Returns what an address may stand for: mostly itself; nothing where it carries an address, and that is nobody's."""
    if isinstance(address, IPv4Address) or address in _OF_IPV6:
        return [address]
    if inner := address.ipv4_mapped or address.sixtofour:
        return [inner]
    for network, lengths in _CARRYING.items():
        if address in network:
            return [one for one in (_carried(address, bits) for bits in lengths) if one not in _NOBODY]
    return [address]


def _carried(address: IPv6Address, behind_bits: int) -> IPv4Address:
    """The address of IPv4 behind a prefix; of a shorter one, its bits go around the eight from the 64th on."""
    whole, length = int(address), 128
    if behind_bits < 96:
        whole, length = whole >> 64 << 56 | whole & _LOW_56, 120
    return IPv4Address(whole >> (length - behind_bits - 32) & _LOW_32)


def _is_site_local(address: _Address) -> bool:
    """Returns True if it is of fec0::/10, which was for private networks before fc00::/7 was; Python takes it for a public one."""
    return isinstance(address, IPv6Address) and address.is_site_local
