"""Delegation tokens of one broker: the requests about them, and the deletion of tokens that have expired.

A change is answered when it is in force at every registered broker, so that a new token logs in anywhere at once. Each
broker looks for expired tokens at an interval; only the one with the lowest id among the registered brokers deletes
them, and a login by an expired token fails in any case.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from uuid import UUID

from ottla.broker.applied_revisions import AppliedRevisions
from ottla.broker.in_force import TIMEOUT_S, in_force
from ottla.broker.login.token_index import TokenIndex
from ottla.broker.login.tokens import (
    Asking,
    TokenSettings,
    check_allowed,
    check_creation,
    created,
    credentials_of,
    expired,
    hmac_of,
    renewed,
)
from ottla.broker.request import Request
from ottla.metadata.image import Image
from ottla.metadata.intents.facade import Intents
from ottla.metadata.model.users import Token
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.settings.config import BrokerConfig
from ottla.uuids import uuid_text

_SALT_BYTES = 16


class TokenService:
    """Answers the requests about tokens. Its methods raise KafkaError. `changed` is a listener of the metadata's image,
    by which the service knows the tokens."""

    def __init__(
        self,
        broker_id: int,
        config: Callable[[], BrokerConfig],
        image: Callable[[], Image],
        intents: Intents,
        applied: Callable[[], AppliedRevisions],
        now_ms: Callable[[], int],
        random: Random,
    ) -> None:
        self._id = broker_id
        self._config = config
        self._image = image
        self._intents = intents
        self._applied = applied
        self._now_ms = now_ms
        self._random = random
        self._index = TokenIndex(lambda token_id: hmac_of(self.settings, token_id))
        self._being_made: Counter[str] = Counter()
        self._turns = asyncio.Semaphore(1)  # one thread at a time computes credentials
        self.changed = self._index.changed

    @property
    def settings(self) -> TokenSettings:
        """The settings of tokens, as they are now."""
        config = self._config()
        return TokenSettings(
            config.get_secret("delegation.token.secret.key"),
            config.get_int("delegation.token.max.lifetime.ms"),
            config.get_int("delegation.token.expiry.time.ms"),
        )

    def check(self, request: Request) -> Asking:
        """The client of a request, if it may ask about tokens at all."""
        protocols = {endpoint.listener: endpoint.protocol for endpoint in self._config().listeners.opened}
        connection = request.connection
        asking = Asking(request.principal, protocols.get(request.listener, "PLAINTEXT"), connection.by_token)
        check_allowed(self.settings, asking)
        return asking

    async def create(
        self,
        asking: Asking,
        owner: str,
        renewers: list[tuple[str, str]],
        life_ms: int,
        may_create: Callable[[str], bool],
    ) -> tuple[str, Token]:
        """Makes a token; see `check_creation` and `created`. Returns (its id, the token). Raises KafkaError
        POLICY_VIOLATION if the owner has too many tokens."""
        settings, named = self.settings, check_creation(asking, owner, renewers, may_create)
        token_id = uuid_text(UUID(int=self._random.getrandbits(128), version=4))
        salt = self._random.randbytes(_SALT_BYTES)
        with self._room(owner):
            async with self._turns:
                credentials = await asyncio.to_thread(credentials_of, settings, token_id, salt)
            token = created(settings, asking, owner, named, life_ms, self._now_ms(), credentials)
            async with in_force(self._applied()):
                await self._intents.put_token(token_id, token, TIMEOUT_S)
        return token_id, token

    @contextmanager
    def _room(self, owner: str) -> Iterator[None]:
        """Keeps room for one more token of the owner. Raises KafkaError if the owner has too many."""
        most = self._config().get_int("ottla.delegation.tokens.per.owner.max")
        if self._index.count(owner) + self._being_made[owner] >= most:
            raise KafkaError(ErrorCode.policy_violation)
        self._being_made[owner] += 1
        try:
            yield
        finally:
            self._being_made[owner] -= 1
            if not self._being_made[owner]:
                del self._being_made[owner]

    async def renew(self, asking: Asking, hmac: bytes, period_ms: int) -> int:
        """Moves a token's expiry time. Returns the new one, in ms since the Unix epoch."""
        settings, now_ms = self.settings, self._now_ms()
        token_id = self._index.found(hmac)
        return await self._change(
            token_id, lambda token: renewed(settings, token, asking.principal, period_ms, now_ms), now_ms
        )

    async def expire(self, asking: Asking, hmac: bytes, period_ms: int) -> int:
        """Moves a token's expiry time, or deletes the token. Returns the expiry time, in ms since the Unix epoch."""
        now_ms = self._now_ms()
        token_id = self._index.found(hmac)
        return await self._change(token_id, lambda token: expired(token, asking.principal, period_ms, now_ms), now_ms)

    async def delete_expired(self) -> None:
        """Deletes expired tokens at an interval, until cancelled."""
        while True:
            await asyncio.sleep(self._config().get_int("delegation.token.expiry.check.interval.ms") / 1000)
            image, now_ms = self._image(), self._now_ms()
            if min(image.brokers, default=self._id) != self._id:
                continue
            for token_id, token in list(image.tokens.items()):
                if token.expiry_ms < now_ms:
                    await self._delete(token_id, now_ms)

    async def _delete(self, token_id: str, now_ms: int) -> None:
        try:
            await self._intents.change_token(token_id, lambda token: None if token.expiry_ms < now_ms else token)
        except KafkaError:
            return  # the store can't be reached, or another process was faster: the next round looks again

    async def _change(self, token_id: str, edit: Callable[[Token], Token | None], now_ms: int) -> int:
        async with in_force(self._applied()):
            changed = await self._intents.change_token(token_id, edit, TIMEOUT_S)
        return now_ms if changed is None else changed.expiry_ms
