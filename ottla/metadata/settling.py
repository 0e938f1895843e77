"""Writes whose outcome is found out, and waits for what they bring, within the time that an administrator gives.

A write of unknown outcome is sent again with the same guards, or the key is read and what is missing is sent again.
One of two with the same guards comes to be at most. If the second is refused because the key holds what the first was
to write, or is gone as it was to be, then what was asked for is there. Where somebody else may have undone the first in
between, the guards say so (`create_topic`), or the key is read.

A request takes no longer than its time-out, whatever it waits for: the store, the controller, the own image. What the
store refuses for certain is told at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

from ottla.protocol.errors import ErrorCode, KafkaError

from .follower import Follower
from .image import Image, Topic
from .store import Committed, Delete, Entry, Guard, Put, Rejected, Store, StoreUnavailable, UnknownOutcome, Write

logger = logging.getLogger(__name__)

AGAIN_S = 0.1  # until a write of unknown outcome is sent again


class Settling:
    """The way of one broker's administrators to the store, and back by the image."""

    def __init__(self, store: Store, follower: Follower) -> None:
        self._store = store
        self._follower = follower

    async def attempt(self, guards: Sequence[Guard], writes: Sequence[Write]) -> Committed | Rejected | None:
        """None, after a pause, where the outcome is unknown. Raises KafkaError REQUEST_TIMED_OUT where the store can't
        be reached and nothing was written."""
        try:
            return await self._store.transact(guards, writes)
        except UnknownOutcome as reason:
            logger.warning("an administrator's change has an unknown outcome: %s", reason)
            await asyncio.sleep(AGAIN_S)
            return None
        except StoreUnavailable as reason:
            raise _unreachable(reason) from reason

    async def surely(self, guards: Sequence[Guard], writes: Sequence[Write]) -> Committed | Rejected:
        """Sends it until its outcome is known. One of the writes must be to a key that is guarded."""
        doubtful = False
        while (result := await self.attempt(guards, writes)) is None:
            doubtful = True
        if doubtful and isinstance(result, Rejected) and (revision := _written_before(writes, result)) is not None:
            return Committed(revision)
        return result

    async def until(self, find: Callable[[Image], Topic | bool | None], topic_id: UUID | None = None) -> None:
        """Waits until `find` makes something of the image, as `Follower.wait`."""
        await self._follower.wait(find, None, topic_id)

    async def until_revision(self, revision: int) -> None:
        """Waits until the image is at that revision."""
        await self._follower.wait_for_revision(revision, None)

    async def until_settled(self, *settled: str) -> None:
        """Waits until the image is as new as what the store holds under these keys now. Raises KafkaError.

        Not until the store's revision: on an etcd that clusters share, that may be another's, and never comes here.
        """
        newest = 0
        for key in settled:
            newest = max([newest, *(entry.mod_revision for entry in await self._held(key) if entry.key == key)])
        await self.until_revision(newest)

    async def until_all_known(self, prefix: str) -> None:
        """Waits until the image has every key under the prefix that the store holds now. Raises KafkaError."""
        await self.until_revision(max((entry.mod_revision for entry in await self._held(prefix)), default=0))

    async def _held(self, prefix: str) -> Sequence[Entry]:
        try:
            return (await self._store.read(prefix)).entries
        except StoreUnavailable as reason:
            raise _unreachable(reason) from reason


@asynccontextmanager
async def within(timeout_s: float) -> AsyncIterator[None]:
    """Raises KafkaError REQUEST_TIMED_OUT where what is inside takes longer. What was written by then stands."""
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError:
        raise KafkaError(ErrorCode.request_timed_out) from None


def _written_before(writes: Sequence[Write], rejected: Rejected) -> int | None:
    """At which revision an earlier one of two same transactions was carried out (0: unknown, by a deletion); None where
    the guards of the second one failed by somebody else's."""
    revision = None
    for write in writes:
        if write.key not in rejected.failed:
            continue
        entry = rejected.failed[write.key]
        if isinstance(write, Put) and (entry is None or entry.value != write.value):
            return None
        if isinstance(write, Delete) and entry is not None:
            return None
        revision = 0 if entry is None else entry.mod_revision
    return revision


def _unreachable(reason: StoreUnavailable) -> KafkaError:
    return KafkaError(ErrorCode.request_timed_out, f"The metadata store can't be reached: {reason}")
