"""OpenSSL's contexts for TLS, from settings and stores.

A context never changes after it was made: other certificates are another context, which later connections get. Keys
reach OpenSSL by a file in memory, never by a file on a disk.
"""

from __future__ import annotations

import os
import ssl
from typing import Literal

from ottla.security.ciphers import TLS13, openssl_name
from ottla.security.stores import Identity, Stores
from ottla.security.tls_settings import InvalidTls, TlsSettings

ClientAuth = Literal["none", "requested", "required"]
_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_VERIFY = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


def server_context(settings: TlsSettings, stores: Stores, client_auth: ClientAuth) -> ssl.SSLContext:
    """A context for connections that clients open. Raises InvalidTls."""
    if not stores.identities:
        raise InvalidTls("a listener needs a certificate: ssl.keystore.location or ssl.keystore.key names none")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _prepare(context, settings, stores)
    context.verify_mode = _VERIFY[client_auth]
    return context


def client_context(settings: TlsSettings, stores: Stores) -> ssl.SSLContext:
    """A context for connections to brokers, which must have a certificate that is trusted. Raises InvalidTls."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _prepare(context, settings, stores)
    context.check_hostname = settings.endpoint_identification
    return context


def _prepare(context: ssl.SSLContext, settings: TlsSettings, stores: Stores) -> None:
    enabled = [_VERSIONS[name] for name in settings.enabled_protocols]
    if settings.cipher_suites:
        by_hand = [name for name in settings.cipher_suites if name not in TLS13]
        allowed = ([_VERSIONS["TLSv1.3"]] if TLS13.intersection(settings.cipher_suites) else []) + (
            [_VERSIONS["TLSv1.2"]] if by_hand else []
        )
        enabled = [version for version in enabled if version in allowed]
        if not enabled:
            raise InvalidTls("ssl.cipher.suites has no suite of the versions in ssl.enabled.protocols")
        if by_hand:
            _set_ciphers(context, by_hand)
    context.minimum_version, context.maximum_version = min(enabled), max(enabled)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
    # As in Java, each certificate in the trust store is trusted, also one that isn't the root of its chain.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    for identity in stores.identities:
        _load(context, identity)
    try:
        if stores.trusted is None:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        else:
            context.load_verify_locations(cadata=b"".join(stores.trusted))
    except ssl.SSLError as error:
        raise InvalidTls(f"OpenSSL refuses a certificate of the trust store: {error.reason}") from None


def _set_ciphers(context: ssl.SSLContext, names: list[str]) -> None:
    wanted = [openssl_name(name) or "" for name in names]
    try:
        context.set_ciphers(":".join(wanted))
    except ssl.SSLError:
        raise InvalidTls(f"ssl.cipher.suites has no suite that this OpenSSL supports: {', '.join(names)}") from None


def _load(context: ssl.SSLContext, identity: Identity) -> None:
    pem = b"".join(
        [_pem("PRIVATE KEY", identity.key), *(_pem("CERTIFICATE", certificate) for certificate in identity.chain)]
    )
    file = os.memfd_create("key", os.MFD_CLOEXEC)
    try:
        os.write(file, pem)
        context.load_cert_chain(f"/proc/self/fd/{file}")
    except ssl.SSLError as error:
        raise InvalidTls(f"OpenSSL refuses the key store: {error.reason or error}") from None
    finally:
        os.close(file)


def _pem(label: str, der: bytes) -> bytes:
    return ssl.DER_cert_to_PEM_cert(der).replace("CERTIFICATE", label).encode()
