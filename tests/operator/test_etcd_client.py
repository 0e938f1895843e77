"""The operator's requests to a real etcd: its members and their health; one member is replaced, and all are
defragmented."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.operator.etcd_client import EtcdClient, EtcdUnreachable
from tests.peers.etcd import Etcd, etcd_cluster


@pytest.fixture
def members(tmp_path: Path) -> Iterator[list[Etcd]]:
    cluster = etcd_cluster(tmp_path, 3)
    yield cluster
    for member in cluster:
        member.kill()


def test_members_are_listed_removed_and_added(members: list[Etcd]) -> None:
    async def run() -> None:
        client = EtcdClient()
        endpoints = [member.endpoint for member in members]
        listed = await client.members(endpoints)
        assert sorted(member.name for member in listed) == ["m0", "m1", "m2"]
        statuses = [await client.status(endpoint) for endpoint in endpoints]
        assert sum(status.leads for status in statuses) == 1
        assert all(status.size_bytes >= status.used_bytes > 0 and status.revision >= 1 for status in statuses)
        assert await client.alarms(endpoints) == []
        await client.compact(endpoints, max(status.revision for status in statuses))
        for endpoint in endpoints:
            await client.defragment(endpoint)
        lost = next(member for member in listed if member.name == "m1")
        members[1].kill()
        await _until_it_works(lambda: client.remove(endpoints[:1], lost))
        await _until_it_works(lambda: client.add(endpoints, lost.peer_url))
        # the first endpoint is the dead member's, and is skipped
        listed = await client.members([*endpoints[1:2], *endpoints])
        joining = next(member for member in listed if member.peer_url == lost.peer_url)
        assert (joining.name, joining.id != lost.id) == ("", True)
        members[0].kill()
        with pytest.raises(EtcdUnreachable):
            await client.members(endpoints)
        await client.close()

    asyncio.run(run())


async def _until_it_works(act: object) -> None:
    """Retries a change of etcd's members, because etcd refuses further changes for some seconds after a change."""
    deadline = time.monotonic() + 20
    while True:
        try:
            await act()  # type: ignore[operator]
            return
        except EtcdUnreachable:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.2)
