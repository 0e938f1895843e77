"""etcd may lose its leader at any time, also while a broker starts. A request that fails for this reason is
repeated."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from ottla.broker.node import Broker
from ottla.metadata.embedded import EmbeddedStore
from ottla.metadata.patience import Patience
from ottla.metadata.store import Committed, Guard, LeaseId, Rejected, Snapshot, StoreUnavailable, Write
from ottla.settings.config import BrokerConfig

PATIENCE_S = 60.0


class WithoutLeader(EmbeddedStore):
    """From the request `lost_at` on, two requests to the store fail, and all later ones succeed."""

    lost_at = ""
    unanswered = 0

    def _asked(self, question: str) -> None:
        if question == self.lost_at:
            self.lost_at, self.unanswered = "", 2
        if self.unanswered:
            self.unanswered -= 1
            raise StoreUnavailable("etcdserver: no leader")

    async def read(self, prefix: str = "") -> Snapshot:
        self._asked(f"read {prefix}")
        return await super().read(prefix)

    async def grant(self, ttl_s: float) -> LeaseId:
        self._asked("grant")
        return await super().grant(ttl_s)

    async def transact(self, guards: Sequence[Guard], writes: Sequence[Write]) -> Committed | Rejected:
        self._asked(f"put {writes[0].key.partition('/')[0]}" if writes else "compare")
        return await super().transact(guards, writes)


@pytest.mark.parametrize("question", ["read cluster", "put cluster", "read ", "grant", "put brokers"])
def test_a_store_that_loses_its_leader_before_the_registration_is_waited_for(tmp_path: Path, question: str) -> None:
    """Before the fix, the broker ended, because only the very first request to the store was repeated."""

    async def start() -> None:
        store = await WithoutLeader.open(tmp_path / "metadata")
        assert isinstance(store, WithoutLeader)
        store.lost_at = question
        settings = {"node.id": "1", "log.dirs": str(tmp_path / "data"), "listeners": "PLAINTEXT://127.0.0.1:0"}
        broker = Broker(BrokerConfig.from_sources("", settings, {}), store)
        patience = Patience(PATIENCE_S, asyncio.Event())
        try:
            await broker.open(patience)
            await broker.register(patience)
            assert (store.lost_at, store.unanswered) == ("", 0)
            assert broker.replicas.broker_epoch > 0
        finally:
            await broker.stop()
            await store.close()

    asyncio.run(start())
