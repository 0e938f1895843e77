"""Clients' addresses as Java writes them, because the hosts of ACLs are compared with that text. Pure.

Java's `InetAddress.getHostAddress` writes an IPv6 address in eight groups without leading zeros, and takes an IPv4
address that is mapped into IPv6 for the IPv4 address.
"""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address


def as_java(host: str) -> str:
    """The address as Java writes it. A text that isn't an address is returned as it is."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    packed = address.packed
    groups = ":".join(f"{packed[at] << 8 | packed[at + 1]:x}" for at in range(0, 16, 2))
    return f"{groups}%{address.scope_id}" if address.scope_id else groups
