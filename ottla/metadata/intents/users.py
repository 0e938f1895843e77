"""Users' SCRAM credentials, as administrators change them, and the secret that brokers share for logins."""

from __future__ import annotations

from collections.abc import Callable

from ottla.metadata import keys
from ottla.metadata.image import Image
from ottla.metadata.model.users import LoginSecret, ScramKeys
from ottla.metadata.settling import Settling, within
from ottla.metadata.store import Committed, Delete, Guard, Put, Store, UnknownOutcome
from ottla.protocol.errors import ErrorCode, KafkaError

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


def _without(user: str, mechanism: str, revision: int) -> Callable[[Image], bool | None]:
    """A condition of images: the credential isn't the one that was written at `revision`, nor an older one."""

    def find(image: Image) -> bool | None:
        present = image.scram.get((user, mechanism))
        return True if present is None or present.revision > revision else None

    return find
