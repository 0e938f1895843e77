"""The rules for other certificates of a listener that is open: which key and trust stores may take the place of which.

A mistake would cut off clients or brokers at their next connection, so it is refused before. Source: `SslFactory`,
`CertificateEntries.ensureCompatible` and `SslEngineValidator` of Apache Kafka 4.3.
"""

from __future__ import annotations

import ssl
from dataclasses import replace

from ottla.security.contexts import client_context, server_context
from ottla.security.distinguished_names import java_text, subject_name
from ottla.security.stores import Identity, Stores
from ottla.security.tls_settings import InvalidTls, TlsSettings


def check_renewal(old: Stores, new: Stores, *, dn_changes: bool, san_changes: bool) -> None:
    """Raises InvalidTls unless `new` may take the place of `old`. The two flags are ssl.allow.dn.changes and
    ssl.allow.san.changes."""
    for kind, had, has in (
        ("key", bool(old.identities), bool(new.identities)),
        ("trust", old.trusted is not None, new.trusted is not None),
    ):
        if had and not has:
            raise InvalidTls(f"the {kind} store can't be removed while the listener is open")
        if has and not had:
            raise InvalidTls(f"a {kind} store can't be added while the listener is open")
    if len(old.identities) != len(new.identities):
        raise InvalidTls(
            "Keystore entries do not match, existing store contains "
            f"{len(old.identities)} entries, new store contains {len(new.identities)} entries"
        )
    for before, after in zip(old.identities, new.identities, strict=True):
        _check_names(before, after, dn_changes=dn_changes, san_changes=san_changes)


def check_trust(stores: Stores, settings: TlsSettings) -> None:
    """Raises InvalidTls unless brokers with these stores accept one another."""
    if not _shake_hands(stores, settings, stores, settings):
        raise InvalidTls("brokers with this key store don't trust one another by this trust store")


def check_both_ways(old: tuple[Stores, TlsSettings], new: tuple[Stores, TlsSettings]) -> None:
    """Raises InvalidTls unless a broker that has the new stores and one that has the old ones accept each other."""
    for server, client, who in ((new, old, "with the old stores"), (old, new, "with the new stores")):
        if not _shake_hands(*server, *client):
            raise InvalidTls(f"a broker {who} couldn't connect to one with the others")


def _check_names(old: Identity, new: Identity, *, dn_changes: bool, san_changes: bool) -> None:
    if not dn_changes and old.subject.public_bytes() != new.subject.public_bytes():
        names = [java_text(subject_name(each.chain[0])) for each in (old, new)]
        raise InvalidTls(f"Keystore DistinguishedName does not match: existing={names[0]}, new={names[1]}")
    if not san_changes and not old.alternative_names <= new.alternative_names:
        missing = ", ".join(sorted(str(name.value) for name in old.alternative_names - new.alternative_names))
        raise InvalidTls(f"Keystore SubjectAltNames do not match: the new certificate lacks {missing}")


def _shake_hands(
    server_stores: Stores, server_settings: TlsSettings, client_stores: Stores, client_settings: TlsSettings
) -> bool:
    """Whether a handshake succeeds in which both sides show their certificates; names of hosts aren't compared."""
    client_settings = replace(client_settings, endpoint_identification=False)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_context(server_settings, server_stores, "required").wrap_bio(to_server, to_client, server_side=True)
    client = client_context(client_settings, client_stores).wrap_bio(to_client, to_server)
    waiting = [client, server]
    for _ in range(10):  # more than the flights of any handshake
        for side in list(waiting):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError:
                return False
            waiting.remove(side)
        if not waiting:
            return True
    return False
