"""Keeps a process's image of the metadata current: reads a snapshot, watches the store, and publishes each revision.

All other parts of a process rely on the following order. For each revision, in revision order, the preparers do their
slow work. Then the image is replaced. Then every listener runs to its end. Then the waiters whose condition is
fulfilled by this revision continue. So a caller that waited for a topic to appear finds the local replicas of that
topic already opened.

While the store can't be reached, the image stays as it is; afterwards the watch continues from the last applied
revision. If the history in between is gone, a new snapshot is compared with the image, and the listeners get the
difference as one change. A snapshot that can't be later than the image belongs to an older store, and is never
published. Nor is an image with a finalised level of a feature that this version of Ottla doesn't support: the follower
ends with UnsupportedLevel, and its process with it (`features.py` says why).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar, cast
from uuid import UUID

from .features import SUPPORTED, check_levels
from .image import Changed, Image, difference
from .lineage import check_successor
from .model.brokers import NO_BROKER
from .store import Change, Compacted, ForeignStore, Revision, Snapshot, Store, StoreUnavailable

logger = logging.getLogger(__name__)

T = TypeVar("T")
Listener = Callable[[Image, Changed], None]
Preparer = Callable[[Image, Changed], Awaitable[None]]

_RETRY_S = 0.5
_SLICE = 200  # entries of a snapshot that are decoded without a pause for the event loop


@dataclass(slots=True, eq=False)
class _Waiter:
    find: Callable[[Image], Any]
    future: asyncio.Future[Any]


class Follower:
    """Keeps the current image of one process. Its owner awaits `start` first, then runs `run` as a task."""

    def __init__(self, store: Store, broker_id: int = NO_BROKER) -> None:
        """`broker_id` is the broker in this process, or NO_BROKER if the process has no replicas."""
        self.image = Image()
        self.resync_count = 0  # how often the watch had to start from a new snapshot
        self._store = store
        self._broker_id = broker_id
        self._listeners: list[Listener] = []
        self._preparers: list[Preparer] = []
        self._waiters: dict[UUID | None, list[_Waiter]] = {}

    def listen(self, listener: Listener) -> None:
        """Calls `listener(image, changed)` after every change from now on. A listener must neither block nor raise."""
        self._listeners.append(listener)

    def prepare(self, preparer: Preparer) -> None:
        """Awaits `preparer(image, changed)` before each change is published.

        Blocking work belongs in a preparer, which runs it in a thread.
        """
        self._preparers.append(preparer)

    async def start(self) -> None:
        """Reads the first snapshot and tells the listeners. Raises StoreUnavailable, UnsupportedFormat."""
        await self._resync()

    async def run(self) -> None:
        """Follows the store until cancelled, or until the store is closed. Raises ForeignStore, UnsupportedFormat."""
        while True:
            try:
                await self._follow()
                return
            except Compacted as reason:
                logger.warning("metadata watch starts from a new snapshot: %s", reason)
                await self._resync_when_possible()
            except ForeignStore:
                raise
            except StoreUnavailable as reason:
                logger.warning("metadata watch interrupted at revision %d: %s", self.image.revision, reason)
                await asyncio.sleep(_RETRY_S)

    async def wait(self, find: Callable[[Image], T | None], timeout_s: float | None, topic_id: UUID | None = None) -> T:
        """The result of `find(image)` for the first image for which it isn't None, beginning with the present image.

        With `topic_id`, `find` gets only those of the later images in which that topic changed. Raises TimeoutError;
        without `timeout_s` it waits for ever.
        """
        found = find(self.image)
        if found is not None:
            return found
        waiter = _Waiter(find, asyncio.get_running_loop().create_future())
        waiters = self._waiters.setdefault(topic_id, [])
        waiters.append(waiter)
        try:
            return cast("T", await asyncio.wait_for(waiter.future, timeout_s))
        finally:
            waiters.remove(waiter)
            if not waiters and self._waiters.get(topic_id) is waiters:
                del self._waiters[topic_id]

    async def wait_for_revision(self, revision: int, timeout_s: float | None) -> Image:
        """The first image at `revision` or later. Raises TimeoutError."""
        return await self.wait(lambda image: image if image.revision >= revision else None, timeout_s)

    async def _follow(self) -> None:
        async with aclosing(self._store.watch("", self.image.revision)) as revisions:
            async for revision in revisions:
                image, changed = self.image.apply(revision)
                await self._publish(image, changed)
                await asyncio.sleep(0)  # many revisions in a row mustn't keep the event loop from serving clients

    async def _resync_when_possible(self) -> None:
        while True:
            try:
                return await self._resync()
            except ForeignStore:
                raise
            except StoreUnavailable as reason:
                logger.warning("metadata snapshot failed: %s", reason)
                await asyncio.sleep(_RETRY_S)

    async def _resync(self) -> None:
        image = await _image_of(await self._store.read())
        for count, _ in enumerate(check_successor(self.image, image, self._broker_id)):
            if count % _SLICE == 0:
                await asyncio.sleep(0)
        self.resync_count += 1
        await self._publish(image, difference(self.image, image))

    async def _publish(self, image: Image, changed: Changed) -> None:
        if changed.features:
            check_levels(image.features, SUPPORTED)
        for preparer in self._preparers:
            await preparer(image, changed)
        self.image = image
        for listener in self._listeners:
            listener(image, changed)
        for topic_id in (None, *changed.topics, *changed.tombstones):
            for waiter in self._waiters.get(topic_id, ()):
                if not waiter.future.done() and (found := waiter.find(image)) is not None:
                    waiter.future.set_result(found)


async def _image_of(snapshot: Snapshot) -> Image:
    """The same as `Image.of`, with pauses, so that a broker that takes a new snapshot serves its clients meanwhile."""
    image = Image.of(Snapshot(snapshot.revision, ()))
    for start in range(0, len(snapshot.entries), _SLICE):
        some = snapshot.entries[start : start + _SLICE]
        image, _ = image.apply(Revision(snapshot.revision, tuple(Change(entry.key, entry) for entry in some)))
        await asyncio.sleep(0)
    return image
