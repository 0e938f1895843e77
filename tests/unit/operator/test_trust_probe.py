"""Which answers of a listener say that it accepts a certificate, with TLS servers on this machine."""

from __future__ import annotations

import asyncio
import ssl
from datetime import UTC, datetime

import pytest

from ottla.operator import certificates
from ottla.operator.certificates import SERVER
from ottla.operator.trust_probe import TrustProbe

NOW = datetime.now(UTC)


def asked(trusted: certificates.Secret, shown: certificates.Secret, versions: tuple[ssl.TLSVersion, ...] = ()) -> bool:
    """Whether the probe finds that a listener which trusts one authority accepts a certificate of the `shown` one. The
    listener closes each connection after the handshake, as a broker does whose mapping rules know no such name."""
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.verify_mode = ssl.CERT_REQUIRED
    served.load_verify_locations(cadata=trusted["tls.crt"].decode())
    certificates.loaded_into(served, certificates.issued(trusted, "broker", NOW, purposes=(SERVER,)))
    if versions:
        served.minimum_version, served.maximum_version = versions

    async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def run() -> bool:
        listener = await asyncio.start_server(close, "127.0.0.1", 0, ssl=served)
        async with listener:
            pair = certificates.issued(shown, "k-probe", NOW, days=1)
            port = listener.sockets[0].getsockname()[1]
            return await TrustProbe().accepted(["127.0.0.1"], port, pair)

    return asyncio.run(run())


def test_a_listener_that_closes_the_connection_after_the_handshake_has_accepted_the_certificate() -> None:
    trusted, other = (certificates.authority(name, NOW) for name in ("a", "b"))
    assert asked(trusted, trusted)
    assert not asked(trusted, other)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_an_untrusted_certificate_is_told_apart_in_each_version_of_tls(version: ssl.TLSVersion) -> None:
    trusted, other = (certificates.authority(name, NOW) for name in ("a", "b"))
    assert not asked(trusted, other, (version, version))


def test_nobody_who_listens_accepts_nothing() -> None:
    pair = certificates.issued(certificates.authority("a", NOW), "k-probe", NOW, days=1)
    assert not asyncio.run(TrustProbe().accepted(["127.0.0.1"], 1, pair))
