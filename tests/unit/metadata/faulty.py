"""A store whose calls fail as the test plans: they are refused, or have an unknown outcome, or a watch is cut."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from ottla.metadata.store import (
    Attached,
    Committed,
    Guard,
    LeaseId,
    LeaseLeft,
    LeaseLine,
    Rejected,
    Revision,
    Snapshot,
    Store,
    StoreUnavailable,
    UnknownOutcome,
    Write,
)

OK, REFUSED, LOST, DONE_BUT_UNKNOWN = "ok", "refused", "lost", "done but unknown"


class FaultyStore:
    """Forwards calls to a store. `plan` has the outcomes of the next transactions; each error in `breaks` ends one
    watch.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.plan: deque[str] = deque()
        self.breaks: deque[type[Exception]] = deque()
        self.transactions = 0

    async def read(self, prefix: str = "") -> Snapshot:
        return await self.store.read(prefix)

    async def watch(
        self, prefix: str, after_revision: int, attached: Attached | None = None
    ) -> AsyncGenerator[Revision, None]:
        async with aclosing(self.store.watch(prefix, after_revision, attached)) as revisions:
            async for revision in revisions:
                if self.breaks:
                    raise self.breaks.popleft()("planned")
                yield revision

    async def transact(self, guards: Sequence[Guard], writes: Sequence[Write]) -> Committed | Rejected:
        self.transactions += 1
        fate = self.plan.popleft() if self.plan else OK
        if fate == REFUSED:
            raise StoreUnavailable("planned")
        if fate == LOST:
            raise UnknownOutcome("planned")
        result = await self.store.transact(guards, writes)
        if fate == DONE_BUT_UNKNOWN:
            raise UnknownOutcome("planned")
        return result

    async def grant(self, ttl_s: float) -> LeaseId:
        return await self.store.grant(ttl_s)

    async def keep_alive(self, lease: LeaseId) -> None:
        await self.store.keep_alive(lease)

    async def lease_left(self, lease: LeaseId) -> LeaseLeft:
        return await self.store.lease_left(lease)

    def lease_line(self) -> LeaseLine:
        return self.store.lease_line()

    async def revoke(self, lease: LeaseId) -> None:
        await self.store.revoke(lease)

    async def close(self) -> None:
        await self.store.close()
