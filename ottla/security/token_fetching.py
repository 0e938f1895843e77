"""Fetches tokens from an identity provider's endpoint, and keeps each until it is to be renewed.

A token is fetched when a login needs one and there is none, or when the present one is due for its renewal: logins
follow often enough, since a session ends with its token and begins anew before that. If a renewal fails, the present
token is used as long as it lasts. Attempts are repeated, with pauses that double, for at most
`sasl.login.retry.backoff.max.ms`, except after an answer that another attempt wouldn't change. A fetch waits for the
network, so a task of an event loop calls it in a thread. Redirections aren't followed: they would send the client's
secret elsewhere.
"""

from __future__ import annotations

import http.client
import logging
import random
import ssl
import threading
import time
from collections.abc import Callable
from functools import lru_cache
from urllib.parse import urlsplit

from ottla.protocol.sasl import LoginRefused
from ottla.security.tls_settings import InvalidTls
from ottla.security.token_endpoint import ANSWER_BYTES_MAX, Fetched, TokenEndpoint, TokenRefused, read_answer

logger = logging.getLogger(__name__)

Ask = Callable[[TokenEndpoint], tuple[int, bytes]]
"""Asks an endpoint once: returns (status of HTTP, body). Raises OSError, http.client.HTTPException."""


class TokenCache:
    """The token of one endpoint. Threads may share it: while one fetches, the others wait."""

    def __init__(
        self,
        endpoint: TokenEndpoint,
        ask: Ask,
        now_s: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._endpoint = endpoint
        self._ask = ask
        self._now_s = now_s
        self._sleep = sleep
        self._lock = threading.Lock()
        self._present: Fetched | None = None
        self._renewed_at_s = 0.0

    @property
    def fresh(self) -> bool:
        """Whether the next login takes the present token, without a fetch."""
        return self._present is not None and self._now_s() < self._renewed_at_s

    def token(self) -> str:
        """A token that hasn't expired. Raises LoginRefused."""
        with self._lock:
            present = self._present
            if present is None or not self.fresh:
                try:
                    present = self._renew()
                except TokenRefused as refused:
                    why = f"no token can be fetched from {self._endpoint.name}: {refused}"
                    if present is None or present.expires_s is None or present.expires_s <= self._now_s():
                        raise LoginRefused(why) from None
                    logger.warning("%s; the present one is used as long as it lasts", why)
            return present.token

    def _renew(self) -> Fetched:
        fetched, now_s = self._fetch(), self._now_s()
        self._present = fetched
        if fetched.expires_s is None:
            self._renewed_at_s = now_s  # it serves one login, because its end isn't known
        else:
            self._renewed_at_s = self._endpoint.renewal.at(now_s, fetched.expires_s, random.random())
        return fetched

    def _fetch(self) -> Fetched:
        endpoint = self._endpoint
        ends_s, pause_s = self._now_s() + endpoint.backoff_max_s, endpoint.backoff_s
        while True:
            try:
                status, body = self._ask(endpoint)
                return read_answer(status, body, self._now_s())
            except TokenRefused as refused:
                failure = refused
            except (OSError, http.client.HTTPException) as error:
                failure = TokenRefused(_reason(error), final=False)
            left_s = ends_s - self._now_s()
            if failure.final or left_s <= 0:
                raise failure
            self._sleep(min(pause_s, left_s))
            pause_s *= 2


@lru_cache(maxsize=16)
def cache_of(endpoint: TokenEndpoint) -> TokenCache:
    """The process's cache for an endpoint. Other settings, such as another secret, are another endpoint."""
    return TokenCache(endpoint, ask_over_http)


def ask_over_http(endpoint: TokenEndpoint) -> tuple[int, bytes]:
    """See `Ask`."""
    parts = urlsplit(endpoint.url)
    assert parts.hostname is not None
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        connection = http.client.HTTPSConnection(
            parts.hostname, endpoint.port, timeout=endpoint.connect_s, context=_context(endpoint)
        )
    else:
        connection = http.client.HTTPConnection(parts.hostname, endpoint.port, timeout=endpoint.connect_s)
    try:
        connection.connect()
        connection.sock.settimeout(endpoint.read_s)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("POST", target, endpoint.body(), endpoint.headers())
        answer = connection.getresponse()
        body = answer.read(ANSWER_BYTES_MAX + 1)
        if len(body) > ANSWER_BYTES_MAX:
            raise http.client.HTTPException(f"the answer has more than {ANSWER_BYTES_MAX} bytes")
        return answer.status, body
    finally:
        connection.close()


def _context(endpoint: TokenEndpoint) -> ssl.SSLContext:
    # Imported only here, because the library for certificates takes memory.
    from ottla.security.contexts import client_context
    from ottla.security.stores import read_stores

    assert endpoint.tls is not None
    try:
        return client_context(endpoint.tls, read_stores(endpoint.tls))
    except InvalidTls as error:
        raise OSError(str(error)) from error


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate isn't trusted: {error.verify_message}"
    return (error.strerror if isinstance(error, OSError) else "") or str(error) or type(error).__name__
