"""Fetches tokens from an identity provider's endpoint, and keeps each until it is to be renewed.

A token is fetched when a login needs one and there is none, or when the present one is due for its renewal: logins
follow often enough, since a session ends with its token and begins anew before that. If a renewal fails, the present
token is used as long as it lasts, and the next renewal begins `sasl.login.retry.backoff.max.ms` later at the earliest.
Without a present token, a failure is told to all who ask within `FAILURE_REMEMBERED_S`. Attempts are repeated, with
pauses that double, for at most `sasl.login.retry.backoff.max.ms`, except after an answer that another attempt wouldn't
change. A fetch waits for the network, so it has a thread of its own: a pool's threads have other work, such as that of
the disks. Redirections aren't followed: they would send the client's secret elsewhere.
"""

from __future__ import annotations

import asyncio
import http.client
import logging
import random
import ssl
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import lru_cache
from urllib.parse import urlsplit

from ottla.protocol.sasl import LoginRefused
from ottla.security.tls_settings import InvalidTls
from ottla.security.token_endpoint import ANSWER_BYTES_MAX, Fetched, TokenEndpoint, TokenRefused, read_answer

logger = logging.getLogger(__name__)

FAILURE_REMEMBERED_S = 1.0

Ask = Callable[[TokenEndpoint], tuple[int, bytes]]
"""Asks an endpoint once: returns (status of HTTP, body). Raises OSError, http.client.HTTPException."""


class TokenCache:
    """The token of one endpoint. Threads and tasks may share it: there is one fetch at a time, in a thread of its own,
    and its result counts for all who wait for it."""

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
        self._under_way: Future[str] | None = None
        self._failure: tuple[float, str] | None = None  # when the last fetch failed, and why

    @property
    def fresh(self) -> bool:
        """Whether the next login takes the present token, without a fetch."""
        return self._present is not None and self._now_s() < self._renewed_at_s

    def token(self) -> str:
        """A token that hasn't expired. Waits for the network. Raises LoginRefused."""
        found = self._found()
        return found if isinstance(found, str) else found.result()

    async def token_soon(self) -> str:
        """As `token`, for a task of an event loop."""
        found = self._found()
        return found if isinstance(found, str) else await asyncio.wrap_future(found)

    def _found(self) -> str | Future[str]:
        """The token for a login, or the fetch whose result it will be. Raises LoginRefused."""
        with self._lock:
            present, now_s = self._present, self._now_s()
            if present is not None:
                lasts = present.expires_s is not None and now_s < present.expires_s
                pauses = self._under_way is not None or self._failed_within(self._endpoint.backoff_max_s, now_s)
                if self.fresh or (lasts and pauses):
                    return present.token
            if self._under_way is None:
                if self._failure is not None and self._failed_within(FAILURE_REMEMBERED_S, now_s):
                    raise LoginRefused(self._failure[1])
                begun: Future[str] = Future()
                begun.set_running_or_notify_cancel()  # so nobody who stops waiting cancels it for the others
                threading.Thread(target=self._renew, args=(begun,), name="ottla-token", daemon=True).start()
                self._under_way = begun
            return self._under_way

    def _failed_within(self, seconds: float, now_s: float) -> bool:
        return self._failure is not None and 0 <= now_s - self._failure[0] < seconds

    def _renew(self, begun: Future[str]) -> None:
        """Fetches a token for all who wait for `begun`."""
        try:
            fetched = self._fetch()
        except TokenRefused as refused:
            self._renewal_failed(begun, f"no token can be fetched from {self._endpoint.name}: {refused}")
            return
        except BaseException as error:  # a bug mustn't let the others wait for ever
            self._under_way = None
            begun.set_exception(error)
            return
        with self._lock:
            now_s = self._now_s()
            self._present, self._failure, self._under_way = fetched, None, None
            if fetched.expires_s is None:
                self._renewed_at_s = now_s  # it serves those who wait for it alone, because its end isn't known
            else:
                self._renewed_at_s = self._endpoint.renewal.at(now_s, fetched.expires_s, random.random())
        begun.set_result(fetched.token)

    def _renewal_failed(self, begun: Future[str], why: str) -> None:
        with self._lock:
            present, now_s = self._present, self._now_s()
            self._failure, self._under_way = (now_s, why), None
        if present is None or present.expires_s is None or present.expires_s <= now_s:
            begun.set_exception(LoginRefused(why))
            return
        logger.warning("%s; the present one is used as long as it lasts", why)
        begun.set_result(present.token)

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
