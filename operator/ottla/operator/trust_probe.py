"""Finds out which certificates the running brokers accept, and which ones they show: by connecting to them.

A broker reads its files again while it runs, some time after Kubernetes has replaced them. Nothing but the broker
itself knows when it has. So before an authority begins to sign, the operator connects to each broker with a certificate
that this authority has signed.

In TLS 1.2 a broker ends the handshake after it has verified the certificate. So a handshake that ends says that the
broker accepts the authority's certificates, also where it closes the connection afterwards, because its
ssl.principal.mapping.rules know no name for the probe. In TLS 1.3 the client's side of the handshake ends before. A
broker that speaks nothing else has to answer a request, or to close the connection without an alert; a reset says
nothing, because it may overtake an alert.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Iterable

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from ottla.net.admin import ask
from ottla.net.peer import Peer
from ottla.net.tls_streams import connect_tls
from ottla.operator.certificates import Issued, loaded_into
from ottla.operator.objects import OPERATOR
from ottla.operator.queue import why
from ottla.protocol.errors import ProtocolError

logger = logging.getLogger(__name__)

API_VERSIONS = (18, 0)
ANSWER_S_MAX = 10.0
_WITHOUT_TLS_1_2 = {"TLSV1_ALERT_PROTOCOL_VERSION", "SSLV3_ALERT_HANDSHAKE_FAILURE"}  # a broker's alerts


class TrustProbe:
    """Asks the listeners of any cluster's brokers."""

    async def accepted(self, hosts: Iterable[str], port: int, pair: Issued) -> bool:
        """Whether the listener of each broker accepts a client with this certificate."""
        return all(await asyncio.gather(*(self._accepts(host, port, pair) for host in hosts)))

    async def shown(self, hosts: Iterable[str], port: int, pair: Issued, authority: bytes) -> bool:
        """Whether the listener of each broker shows a certificate that this authority (PEM) has signed. `pair`: the
        certificate to connect with."""
        return all(await asyncio.gather(*(self._shows(host, port, pair, authority) for host in hosts)))

    async def _accepts(self, host: str, port: int, pair: Issued) -> bool:
        context = _context(pair)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                stream = await connect_tls(lambda: context)(host, port)
            stream.close()
        except (OSError, TimeoutError) as error:
            if getattr(error, "reason", None) in _WITHOUT_TLS_1_2:
                return await self._answers(host, port, pair)
            logger.debug("%s:%s doesn't accept the certificate yet: %s", host, port, why(error))
            return False
        return True

    async def _answers(self, host: str, port: int, pair: Issued) -> bool:
        context = _context(pair)
        peer = Peer(connect_tls(lambda: context), host, port, OPERATOR)
        try:
            await ask(peer, API_VERSIONS, {}, ANSWER_S_MAX)
        except ConnectionResetError as error:
            return error.errno is None  # the broker has closed the connection in order: no reset of the network
        except (OSError, ProtocolError) as error:
            logger.debug("%s:%s doesn't accept the certificate yet: %s", host, port, why(error))
            return False
        finally:
            peer.close()
        return True

    async def _shows(self, host: str, port: int, pair: Issued, authority: bytes) -> bool:
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                _, writer = await asyncio.open_connection(host, port, ssl=_context(pair))
        except (OSError, TimeoutError) as error:
            logger.debug("%s:%s doesn't show its certificate: %s", host, port, why(error))
            return False
        try:
            shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            x509.load_der_x509_certificate(shown).verify_directly_issued_by(x509.load_pem_x509_certificate(authority))
        except (ValueError, TypeError, InvalidSignature):
            return False
        finally:
            writer.close()
        return True


def _context(pair: Issued) -> ssl.SSLContext:
    """A context that accepts any server: a listener may have a certificate from elsewhere, and nothing secret is
    sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    loaded_into(context, pair)
    return context
