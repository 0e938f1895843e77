"""The public keys that check tokens: fetched from a file or a URL, kept, and fetched anew.

The document is fetched in a thread, so a slow server delays only the logins that wait for it. It is fetched at the
start, then at the interval of `sasl.oauthbearer.jwks.endpoint.refresh.ms`, and when a token names a key that isn't
known, but for unknown keys at most once in `…retry.backoff.max.ms`: otherwise anybody could make a broker ask the
server for each token. After a failure the present keys stay, and the next attempt follows after a pause that doubles.
Source: Kafka's RefreshingHttpsJwks.
"""

from __future__ import annotations

import asyncio
import json
import logging
import urllib.request
from collections.abc import Awaitable, Callable
from typing import Any

from ottla.security.listener_logins import TokenSource
from ottla.security.signed_tokens import keys_of

logger = logging.getLogger(__name__)

_FETCH_S = 10.0
_DOCUMENT_BYTES_MAX = 1 << 20


class TokenKeys:
    """The keys of one source. The owner runs `run` as a task."""

    def __init__(self, source: TokenSource) -> None:
        self._source = source
        self._keys: dict[str | None, Any] = {}
        self._fetching: asyncio.Task[bool] | None = None
        self._missed_at = float("-inf")  # the time of the last fetch because of an unknown key

    async def run(self) -> None:
        """Fetches the keys now, and again at each interval, until cancelled."""
        failures = 0
        while True:
            fetched = await self.fetch()
            failures = 0 if fetched else failures + 1
            source = self._source
            pause_s = source.refresh_s if fetched else source.backoff_s * 2.0 ** min(failures - 1, 30)
            await asyncio.sleep(pause_s if fetched else min(pause_s, source.backoff_max_s))

    def of(self, key_id: str | None) -> Any:
        """See `signed_tokens.Keys`."""
        if key_id is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(key_id)

    def wanted(self, key_id: str | None) -> Callable[[], Awaitable[None]] | None:
        """See `signed_tokens.Keys`."""
        now = asyncio.get_running_loop().time()
        if self._fetching is None and now < self._missed_at + self._source.backoff_max_s:
            return None
        if self._fetching is None:
            self._missed_at = now
        fetch = self._begun()

        async def fetched() -> None:
            await asyncio.shield(fetch)

        return fetched

    async def fetch(self) -> bool:
        """Fetches the keys. Returns whether it succeeded."""
        return await asyncio.shield(self._begun())

    def _begun(self) -> asyncio.Task[bool]:
        """The fetch under way, which all callers share; a new one if there is none."""
        if self._fetching is None:
            self._fetching = asyncio.ensure_future(self._fetch_once())
            self._fetching.add_done_callback(self._done)
        return self._fetching

    def _done(self, _task: asyncio.Task[bool]) -> None:
        self._fetching = None

    async def _fetch_once(self) -> bool:
        try:
            self._keys = keys_of(json.loads(await asyncio.to_thread(_read, self._source.url)))
        except (OSError, ValueError, RecursionError) as error:
            logger.warning("the keys for tokens can't be fetched from %s: %s", self._source.url, error)
            return False
        if not self._keys:
            logger.warning("%s has no key that can check tokens", self._source.url)
        return True


def _read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=_FETCH_S) as answer:  # `listener_logins` has checked the scheme
        document: bytes = answer.read(_DOCUMENT_BYTES_MAX + 1)
    if len(document) > _DOCUMENT_BYTES_MAX:
        raise ValueError(f"the document has more than {_DOCUMENT_BYTES_MAX} bytes")
    return document
