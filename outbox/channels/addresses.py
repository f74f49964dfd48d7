"""Which addresses a webhook may go to: whoever chooses the URL must not reach what only this machine can reach.

A name is resolved once and checked, and the connection goes to the address that was checked. Otherwise a name that
resolves differently the second time (DNS rebinding) would pass.
"""

import ipaddress
import socket
from collections.abc import Iterable, Sequence
from typing import TypeAlias

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

# IPv6 prefixes that carry an IPv4 address past the checks on IPv4: NAT64 (RFC 6052, RFC 8215), 6to4, Teredo.
_TUNNELS = [ipaddress.ip_network(n) for n in ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32")]


class ForbiddenAddress(ValueError):
    """The host's address is not a public one, and not on the allow-list."""


def networks(allowed: Iterable[str]) -> list[Network]:
    """The allow-list as networks; ValueError for what is none."""
    return [ipaddress.ip_network(network) for network in allowed]


def resolve(host: str, port: int, allowed: Sequence[Network], *, public: bool = True) -> tuple[str, int]:
    """One address and port to connect to. OSError when there is none.

    ForbiddenAddress when one of them is neither public nor on the allow-list; without `public`, not on the allow-list.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [(str(sockaddr[0]), int(sockaddr[1])) for *_, sockaddr in found]
    for address, _ in addresses:
        parsed = ipaddress.ip_address(address.partition("%")[0])
        if not is_listed(parsed, allowed) and not (public and is_public(parsed)):
            kind = "not public and" if public else "reached without TLS and"
            raise ForbiddenAddress(f"{host} has the address {address}, which is {kind} not on the allow-list")
    return addresses[0]


def is_listed(address: Address, networks: Iterable[Network]) -> bool:
    """Whether the address is in one of the networks."""
    address = _unmapped(address)
    return any(address.version == network.version and address in network for network in networks)


def is_public(address: Address) -> bool:
    """Whether anybody on the internet could reach it as well."""
    address = _unmapped(address)
    return address.is_global and not address.is_multicast and not is_listed(address, _TUNNELS)


def _unmapped(address: Address) -> Address:
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
