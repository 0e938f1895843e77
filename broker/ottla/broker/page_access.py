"""Who may read the HTTP pages of a broker or controller.

The pages' listener has a protocol like any other listener (`ottla.http.security.protocol`), and settings under the
prefix `listener.name.http.`. From the protocol follows who a reader is:

1. PLAINTEXT: nobody is asked anything.
2. SSL: the name in the reader's certificate, by the listener's mapping rules; User:ANONYMOUS without a certificate.
3. SASL_SSL, SASL_PLAINTEXT: the user of HTTP's basic authentication. The user logs in by the listener's own mechanisms:
   both sides of the exchange are here, since the reader's program sends the password itself.

Where an authorizer runs, known readers need DESCRIBE on the cluster, by which Kafka's clients see all topics, replicas
and log directories. `/healthz` and `/readyz` are open to everybody, because Kubernetes' probes can't log in; so TLS
only requests a certificate. If `ssl.client.auth` is `required`, a reader of other pages without one is refused before
its login.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import secrets
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ottla.broker.authorizer import Authorizer
from ottla.broker.login.conversation import Mechanism
from ottla.broker.login.gate import LoginCounters
from ottla.broker.login.mechanisms import Mechanisms
from ottla.metadata.image import Image
from ottla.net.http import Request, Response
from ottla.protocol.rights import CLUSTER_NAME, AclOperation, ResourceType
from ottla.protocol.sasl import PLAIN, ClientExchange, LoggedIn, LoginRefused
from ottla.security.listener_logins import page_logins
from ottla.security.plain import PlainClient
from ottla.security.scram import ScramClient
from ottla.security.tls_listeners import TlsListeners
from ottla.settings.config import BrokerConfig
from ottla.settings.listeners import ENCRYPTED, PAGES, WITH_LOGIN

logger = logging.getLogger(__name__)

OPEN = frozenset({"/healthz", "/readyz"})
LOGINS_MAX = 16
"""Logins under way, refused ones until their answer included. They must leave the probes of Kubernetes some of the
connections of `ottla.net.http`."""
_LOGINS_AT_ONCE = 2  # each takes a thread for some ms of computations
_LOGIN_WANTED = {"WWW-Authenticate": 'Basic realm="ottla", charset="UTF-8"'}


@dataclass(frozen=True, slots=True)
class Reader:
    """A reader of a page, as the authorizer sees it."""

    principal: str
    client_host: str
    request_name: str


class _Refused(Exception):
    """A reader isn't who it must be. `status` and the message are the answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class PageAccess:
    """Decides about each request for a page; see `ottla.net.http.Door`. `config` returns the present configuration."""

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        tls: TlsListeners,
        mechanisms: Mechanisms,
        authorizer: Authorizer,
        image: Callable[[], Image],
    ) -> None:
        self.counters = LoginCounters()
        self._config = config
        self._tls = tls
        self._mechanisms = mechanisms
        self._authorizer = authorizer
        self._image = image
        self._known: tuple[BrokerConfig, Mapping[str, Mechanism]] | None = None
        self._logging_in = 0
        self._turns = asyncio.Semaphore(_LOGINS_AT_ONCE)

    @property
    def logs_in(self) -> bool:
        """Whether readers give a user and a password."""
        return self._config().listeners.pages in WITH_LOGIN

    def context(self) -> ssl.SSLContext | None:
        """TLS of a connection that begins now; None if the pages aren't encrypted."""
        if self._config().listeners.pages not in ENCRYPTED:
            return None
        listener = self._tls.of(PAGES)
        assert listener is not None, "the certificates of the pages are read before the pages are served"
        return listener.context()

    async def refusal(self, request: Request) -> Response | None:
        """The answer to a reader who may not read the page; None if the page is to be served."""
        config = self._config()
        if config.listeners.pages == "PLAINTEXT" or request.path in OPEN:
            return None
        if self._image().cluster is None:  # users, rights and changed settings aren't known yet
            return Response(503, b"the metadata isn't read yet\n")
        try:
            self._check_certificate(config, request)
            principal = await self._user(config, request) if self.logs_in else self._certified(request)
        except _Refused as refused:
            headers = _LOGIN_WANTED if refused.status == 401 else {}
            return Response(refused.status, f"{refused}\n".encode(), headers=headers)
        reader = Reader(principal, request.client_host, request.path)
        if not self._authorizer.allows(reader, AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
            return Response(403, b"not authorized to describe the cluster\n")
        return None

    def _check_certificate(self, config: BrokerConfig, request: Request) -> None:
        if request.certificate is not None or config.listeners.pages not in ENCRYPTED:
            return
        listener = self._tls.of(PAGES)
        assert listener is not None
        if listener.loaded.settings.client_auth == "required":
            raise _Refused(403, "a client certificate is required")

    def _certified(self, request: Request) -> str:
        listener = self._tls.of(PAGES)
        assert listener is not None
        try:
            return listener.principal_of(request.certificate)
        except ValueError as error:
            logger.info("the certificate of a page's reader at %s is refused: %s", request.client_host, error)
            raise _Refused(403, "the certificate is refused") from None

    async def _user(self, config: BrokerConfig, request: Request) -> str:
        given = _credentials(request)
        if given is None:
            raise _Refused(401, "authentication is required")
        if self._logging_in >= LOGINS_MAX:
            raise _Refused(503, "too many logins are under way")
        self._logging_in += 1
        try:
            user, refused = await self._logged_in(config, *given)
            if user is not None:
                self.counters.succeeded += 1
                return f"User:{user}"
            self.counters.failed += 1
            logger.info("the login of a page's reader at %s is refused: %s", request.client_host, refused)
            await asyncio.sleep(config.get_int("connection.failed.authentication.delay.ms") / 1000)
            raise _Refused(401, "authentication failed")
        finally:
            self._logging_in -= 1

    async def _logged_in(self, config: BrokerConfig, user: str, password: str) -> tuple[str | None, str]:
        """(the user who is logged in by some mechanism, or None; why the mechanisms refused)."""
        reasons = []
        for name, mechanism in self._of_pages(config).items():
            server, client = mechanism.begin(), _client(name, user, password)
            try:
                answer = server.respond(client.first())
                while not isinstance(answer, LoggedIn):
                    async with self._turns:
                        message = await asyncio.to_thread(client.next, answer)
                    assert message is not None
                    answer = server.respond(message)
                return answer.user, ""
            except LoginRefused as refused:
                reasons.append(f"{name}: {refused.why}")
        return None, "; ".join(reasons) or "the settings of the listener's logins can't be used"

    def _of_pages(self, config: BrokerConfig) -> Mapping[str, Mechanism]:
        """The mechanisms of the pages by this configuration, without those whose settings can't be used."""
        if self._known is None or self._known[0] is not config:
            logins, problems = page_logins(config)
            for problem in problems:
                logger.error("logins are refused: %s", problem)
            self._known = config, {} if logins is None else self._mechanisms.of(logins)
        return self._known[1]


def _credentials(request: Request) -> tuple[str, str] | None:
    """The user and the password in the request's head; None if it has none that can be read."""
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, separator, password = base64.b64decode(given.strip(), validate=True).decode().partition(":")
    except ValueError:  # also for bytes that are no base64, or no UTF-8
        return None
    return (user, password) if separator and user and password else None


def _client(mechanism: str, user: str, password: str) -> ClientExchange:
    if mechanism == PLAIN:
        return PlainClient(user, password)
    return ScramClient(mechanism, user, password, secrets.token_hex(), kept=False)
