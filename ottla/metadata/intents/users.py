"""Users' SCRAM credentials and delegation tokens, as requests change them, and the secret that brokers share for
logins.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.metadata import keys
from ottla.metadata.image import Image
from ottla.metadata.model.users import LoginSecret, ScramKeys, Token
from ottla.metadata.settling import Settling, within
from ottla.metadata.store import Committed, Delete, Guard, Put, Store, UnknownOutcome, Write
from ottla.protocol.errors import ErrorCode, KafkaError

TokenEdit = Callable[[Token], Token | None]
ABSENT = "Attempt to delete a user credential that does not exist"


class UserIntents:
    """Administrators' requests about users."""

    def __init__(self, settling: Settling) -> None:
        self._settling = settling

    async def put_scram(self, user: str, mechanism: str, given: ScramKeys, timeout_s: float = 30.0) -> None:
        """Sets a user's credential for one mechanism, new or not. Waits until this broker's image has it."""
        async with within(timeout_s):
            known = self._settling.image.scram.get((user, mechanism))
            key, revision = keys.scram(user, mechanism), 0 if known is None else known.revision
            while True:
                result = await self._settling.surely([Guard(key, revision)], [Put(key, given.encode())])
                if isinstance(result, Committed):
                    return await self._settling.until_revision(result.revision)
                entry = result.failed[key]
                revision = 0 if entry is None else entry.mod_revision

    async def delete_scram(self, user: str, mechanism: str, timeout_s: float = 30.0) -> None:
        """Deletes a user's credential for one mechanism. Raises KafkaError RESOURCE_NOT_FOUND if there is none."""
        async with within(timeout_s):
            known = self._settling.image.scram.get((user, mechanism))
            key, revision = keys.scram(user, mechanism), 0 if known is None else known.revision
            while True:
                if revision:
                    result = await self._settling.surely([Guard(key, revision)], [Delete(key)])
                    if isinstance(result, Committed):
                        return await self._settling.until(_without(user, mechanism, revision))
                else:  # the guard alone asks the store whether the image is right that there is no credential
                    asked = await self._settling.attempt([Guard(key, 0)], [])
                    if isinstance(asked, Committed):
                        raise KafkaError(ErrorCode.resource_not_found, ABSENT)
                    if asked is None:
                        continue
                    result = asked
                entry = result.failed[key]
                revision = 0 if entry is None else entry.mod_revision

    async def put_token(self, token_id: str, token: Token, timeout_s: float = 30.0) -> None:
        """Writes a new delegation token. Waits until this broker's image has it."""
        async with within(timeout_s):
            key = keys.token(token_id)
            result = await self._settling.surely([Guard(key, 0)], [Put(key, token.encode())])
            if not isinstance(result, Committed):
                raise KafkaError(ErrorCode.unknown_server_error, "A delegation token has this random id already")
            await self._settling.until_revision(result.revision)

    async def change_token(self, token_id: str, edit: TokenEdit, timeout_s: float = 30.0) -> Token | None:
        """Replaces a token by `edit(token)`, or deletes it if that is None. Returns the result.

        `edit` may raise KafkaError, and is called again if another process has changed the token meanwhile. Raises
        KafkaError DELEGATION_TOKEN_NOT_FOUND.
        """
        async with within(timeout_s):
            key, token = keys.token(token_id), self._settling.image.tokens.get(token_id)
            while token is not None:
                changed = edit(token)
                write: Write = Delete(key) if changed is None else Put(key, changed.encode())
                result = await self._settling.surely([Guard(key, token.revision)], [write])
                if isinstance(result, Committed):
                    await self._settling.until(_newer_token(token_id, token.revision))
                    return changed
                entry = result.failed[key]
                token = None if entry is None else Token.decode(entry)
            raise KafkaError(ErrorCode.delegation_token_not_found)


async def share_login_secret(store: Store, drawn: bytes) -> None:
    """Writes the secret that brokers share for logins, unless the store has one: the first broker's `drawn` bytes
    count. Raises StoreUnavailable."""
    while True:
        try:
            await store.transact(
                [Guard(keys.login_secret.key, 0)], [Put(keys.login_secret.key, LoginSecret(drawn).encode())]
            )
            return
        except UnknownOutcome:
            continue


def _newer_token(token_id: str, revision: int) -> Callable[[Image], bool | None]:
    """A condition of images: the token isn't the one that was written at `revision`, nor an older one."""

    def find(image: Image) -> bool | None:
        present = image.tokens.get(token_id)
        return True if present is None or present.revision > revision else None

    return find


def _without(user: str, mechanism: str, revision: int) -> Callable[[Image], bool | None]:
    """A condition of images: the credential isn't the one that was written at `revision`, nor an older one."""

    def find(image: Image) -> bool | None:
        present = image.scram.get((user, mechanism))
        return True if present is None or present.revision > revision else None

    return find
