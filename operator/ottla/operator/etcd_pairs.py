"""The certificates that pods with a connection to etcd mount."""

from __future__ import annotations

from datetime import datetime

from ottla.operator.certificates import CLIENT, SERVER, Issued, Secret, issued, usable
from ottla.operator.succession import trusted

_PARTS = ("server.crt", "server.key", "client.crt", "client.key")


def pairs(by: Secret, found: Secret, name: str, hosts: list[str], now: datetime) -> Secret:
    """The data that pods mount: the pairs of members and clients, and the trusted certificates.

    The pairs that were `found` are kept if they are still usable; otherwise both are made anew.
    """
    kept = {part: found[part] for part in _PARTS} if _usable(by, found, hosts, now) else None
    if kept is None:
        # The server's pair is for clients, too: etcd's JSON gateway connects to etcd's own server with it.
        both = issued(by, f"{name} member", now, hosts=hosts, purposes=(CLIENT, SERVER))
        client = issued(by, f"{name} client", now)
        kept = dict(zip(_PARTS, (both.certificate, both.key, client.certificate, client.key), strict=True))
    return {"ca.crt": trusted(by), **kept}


def _usable(by: Secret, found: Secret, hosts: list[str], now: datetime) -> bool:
    """Whether both pairs are usable, the server's for these hosts."""
    return all(
        usable(by, Issued(found.get(f"{kind}.crt", b""), found.get(f"{kind}.key", b"")), now, hosts=names)
        for kind, names in (("server", hosts), ("client", []))
    )
