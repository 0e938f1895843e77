"""Only one of several operators acts: another operator gets the Lease when it is released or not renewed, and never
before."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from ottla.operator import lease as module
from ottla.operator.kube import KubeError
from ottla.operator.lease import Lease, LeaseLost


class Leases:
    """A stand-in of the API server with one Lease, which only a caller with its newest version may replace."""

    def __init__(self) -> None:
        self.item: dict[str, Any] | None = None
        self.version = 0
        self.away = False

    async def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        self._answers()
        return self.item and {**self.item, "spec": dict(self.item["spec"])}

    async def create(self, wanted: dict[str, Any]) -> dict[str, Any]:
        self._answers()
        if self.item is not None:
            raise KubeError(409, "creating", "it is there")
        return self._put(wanted)

    async def replace(self, wanted: dict[str, Any]) -> dict[str, Any]:
        self._answers()
        assert self.item is not None
        if wanted["metadata"]["resourceVersion"] != self.item["metadata"]["resourceVersion"]:
            raise KubeError(409, "replacing", "it has changed")
        return self._put(wanted)

    def _answers(self) -> None:
        if self.away:
            raise KubeError(0, "reading", "Kubernetes can't be reached")

    def _put(self, wanted: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        self.item = {**wanted, "metadata": {**wanted["metadata"], "resourceVersion": str(self.version)}}
        return self.item

    @property
    def holder(self) -> str:
        assert self.item is not None
        holder: str = self.item["spec"]["holderIdentity"]
        return holder


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RENEW_S", 0.02)
    monkeypatch.setattr(module, "RENEWED_WITHIN_S", 0.2)
    monkeypatch.setattr(module, "DURATION_S", 0.4)


def _lease(leases: Leases, holder: str) -> Lease:
    return Lease(leases, "system", "ottla", holder, lambda: datetime(2026, 5, 1, tzinfo=UTC))  # type: ignore[arg-type]


def test_the_second_one_waits_until_the_first_one_gives_it_back() -> None:
    async def run() -> None:
        leases = Leases()
        first, second = _lease(leases, "a"), _lease(leases, "b")
        await first.acquire()
        keeping = asyncio.ensure_future(first.keep())
        waiting = asyncio.ensure_future(second.acquire())
        await asyncio.sleep(0.8)
        assert not waiting.done()
        keeping.cancel()
        await first.release()
        await asyncio.wait_for(waiting, 0.3)
        assert leases.holder == "b"

    asyncio.run(run())


def test_who_may_not_read_the_lease_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """Before the fix, an operator without rights waited for ever, and looked healthy."""

    async def run() -> None:
        leases = Leases()
        lease = _lease(leases, "a")
        assert lease.trouble
        leases.away = True
        waiting = asyncio.ensure_future(lease.acquire())
        await asyncio.sleep(0.2)
        assert lease.trouble == "the lease system/ottla can't be read or taken: reading: Kubernetes can't be reached"
        assert [record.getMessage() for record in caplog.records] == [lease.trouble], "it is logged once"
        leases.away = False
        await asyncio.wait_for(waiting, 5)
        assert lease.trouble == ""
        other = _lease(leases, "b")
        standing_by = asyncio.ensure_future(other.acquire())
        await asyncio.sleep(0.1)
        assert other.trouble == "", "the holder is known"
        standing_by.cancel()

    asyncio.run(run())


def test_a_holder_that_is_gone_is_followed_when_its_time_is_over() -> None:
    async def run() -> None:
        leases = Leases()
        await _lease(leases, "a").acquire()
        waiting = asyncio.ensure_future(_lease(leases, "b").acquire())
        await asyncio.sleep(0.25)
        assert not waiting.done()
        await asyncio.wait_for(waiting, 2)
        assert leases.holder == "b"

    asyncio.run(run())


def test_who_can_not_renew_stops_before_another_one_may_begin() -> None:
    async def run() -> None:
        leases = Leases()
        lease = _lease(leases, "a")
        await lease.acquire()
        leases.away = True
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(
            LeaseLost, match=r"system/ottla couldn't be renewed for 0 s: reading: Kubernetes can't be reached"
        ):
            await lease.keep()
        assert loop.time() - began < 0.4

    asyncio.run(run())


def test_who_finds_another_holder_stops_at_once() -> None:
    async def run() -> None:
        leases = Leases()
        lease = _lease(leases, "a")
        await lease.acquire()
        assert leases.item is not None
        leases.item["spec"]["holderIdentity"] = "b"
        leases.version += 1
        leases.item["metadata"]["resourceVersion"] = str(leases.version)
        with pytest.raises(LeaseLost, match="another process has the lease"):
            await lease.keep()

    asyncio.run(run())
