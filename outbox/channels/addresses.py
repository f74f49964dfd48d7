"""Which addresses a webhook may go to: whoever chooses the URL must not reach what only this machine can reach.

A name is resolved once and checked, and the connection goes to the address that was checked. Otherwise a name that
resolves differently the second time (DNS rebinding) would pass.
"""

import ipaddress
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from outbox.channels import lookups

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

# All of IPv6 that was ever given out as global unicast (RFC 4291, IANA). Beyond it Python takes much for public that is
# not: site-local addresses, and prefixes that carry an IPv4 address past the checks on IPv4, such as NAT64's.
_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
# Within it, and within IPv4: 6to4, Teredo, the relays of 6to4, and what newer Pythons know to be documentation.
_NOT_PUBLIC = [ipaddress.ip_network(n) for n in ("2002::/16", "2001::/32", "192.88.99.0/24", "3fff::/20")]


class ForbiddenAddress(ValueError):
    """The host's address is not a public one, and not on the allow-list."""


def networks(allowed: Iterable[str]) -> list[Network]:
    """The allow-list as networks; ValueError for what is none."""
    return [ipaddress.ip_network(network) for network in allowed]


def resolve(
    host: str, port: int, allowed: Sequence[Network], *, public: bool = True, seconds: float = 15.0
) -> list[tuple[str, int]]:
    """The addresses and ports to connect to, best first. OSError when none was found within `seconds`.

    ForbiddenAddress when one of them is neither public nor on the allow-list; without `public`, not on the allow-list.
    """
    found = lookups.addresses(host, port, seconds)
    addresses = [(str(sockaddr[0]), int(sockaddr[1])) for *_, sockaddr in found]
    for address, _ in addresses:
        parsed = ipaddress.ip_address(address.partition("%")[0])
        if not is_listed(parsed, allowed) and not (public and is_public(parsed)):
            kind = "not public" if public else "reached without TLS"
            raise ForbiddenAddress(
                f"{host} has the address {address}, which is {kind} and not in the networks of allow_private"
            )
    return addresses


def is_listed(address: Address, networks: Iterable[Network]) -> bool:
    """Whether the address is in one of the networks."""
    address = _unmapped(address)
    return any(address.version == network.version and address in network for network in networks)


def is_public(address: Address) -> bool:
    """Whether anybody on the internet could reach it as well."""
    address = _unmapped(address)
    if address.version == 6 and address not in _GLOBAL_UNICAST:
        return False
    return address.is_global and not address.is_multicast and not is_listed(address, _NOT_PUBLIC)


def _unmapped(address: Address) -> Address:
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
