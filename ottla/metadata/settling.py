"""Writes to the store until their outcome is known, and waits until the image shows them, within a request's time-out.

A write of unknown outcome is sent again with the same guards, or the key is read and the missing change is sent again.
Of two transactions with the same guards at most one is carried out. Suppose that the second is rejected, and the key
has the value that the first was to write (or doesn't exist, if the first was to delete it). Then the first was carried
out. Another process may have undone the first in between: either the guards cover that case (`create_topic`), or the
key is read.

A request takes no longer than its time-out, whether it waits for the store, for the controller or for this broker's
image. If the store certainly refused a write, the refusal is reported without a wait.
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

AGAIN_S = 0.1  # the pause before a write of unknown outcome is sent again


class Settling:
    """Writes the changes that administrators request from one broker, and waits until the broker's image shows them."""

    def __init__(self, store: Store, follower: Follower) -> None:
        self._store = store
        self._follower = follower

    @property
    def image(self) -> Image:
        """The broker's image of the metadata."""
        return self._follower.image

    async def attempt(self, guards: Sequence[Guard], writes: Sequence[Write]) -> Committed | Rejected | None:
        """Sends the transaction once. Returns None, after a pause, if its outcome is unknown.

        Raises KafkaError REQUEST_TIMED_OUT if the store can't be reached and nothing was written.
        """
        try:
            return await self._store.transact(guards, writes)
        except UnknownOutcome as reason:
            logger.warning("an administrator's change has an unknown outcome: %s", reason)
            await asyncio.sleep(AGAIN_S)
            return None
        except StoreUnavailable as reason:
            raise _unreachable(reason) from reason

    async def surely(self, guards: Sequence[Guard], writes: Sequence[Write]) -> Committed | Rejected:
        """Sends the transaction until its outcome is known. At least one write must be to a guarded key."""
        doubtful = False
        while (result := await self.attempt(guards, writes)) is None:
            doubtful = True
        if doubtful and isinstance(result, Rejected) and (revision := _written_before(writes, result)) is not None:
            return Committed(revision)
        return result

    async def until(self, find: Callable[[Image], Topic | bool | None], topic_id: UUID | None = None) -> None:
        """Waits until `find`, called with the image, returns something other than None. See `Follower.wait`."""
        await self._follower.wait(find, None, topic_id)

    async def until_revision(self, revision: int) -> None:
        """Waits until the image shows `revision` or a later one."""
        await self._follower.wait_for_revision(revision, None)

    async def until_settled(self, *settled: str) -> None:
        """Waits until the image is as new as the entries that the store has under these keys now. Raises KafkaError.

        It doesn't wait for the store's own revision: on an etcd that clusters share, that revision may be another
        cluster's, which this cluster's image never shows.
        """
        newest = 0
        for key in settled:
            newest = max([newest, *(entry.mod_revision for entry in await self._held(key) if entry.key == key)])
        await self.until_revision(newest)

    async def until_all_known(self, prefix: str) -> None:
        """Waits until the image has every key that the store has under the prefix now. Raises KafkaError."""
        await self.until_revision(max((entry.mod_revision for entry in await self._held(prefix)), default=0))

    async def _held(self, prefix: str) -> Sequence[Entry]:
        try:
            return (await self._store.read(prefix)).entries
        except StoreUnavailable as reason:
            raise _unreachable(reason) from reason


@asynccontextmanager
async def within(timeout_s: float) -> AsyncIterator[None]:
    """Cancels the block after `timeout_s`, and raises KafkaError REQUEST_TIMED_OUT. Writes made by then stay."""
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError:
        raise KafkaError(ErrorCode.request_timed_out) from None


def _written_before(writes: Sequence[Write], rejected: Rejected) -> int | None:
    """The revision of the first of two equal transactions, if the second was `rejected` because the first was applied.

    The revision is 0 (unknown) if the transaction was a deletion. None means that the guards of the second failed
    because of another process's writes.
    """
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
