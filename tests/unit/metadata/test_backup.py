"""Backups are complete or refused. A restore that stops half-way leaves a store that no process takes for a complete
one."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from ottla.controller.decide import decide, whole_scope
from ottla.metadata import keys
from ottla.metadata.backup import Backup, NotABackup, RestoreRefused, lines_of, read_backup, restore
from ottla.metadata.cluster import join_cluster
from ottla.metadata.embedded import EmbeddedStore
from ottla.metadata.identities import ConfigResource
from ottla.metadata.image import Image
from ottla.metadata.lineage import Known, judge
from ottla.metadata.model.brokers import Broker
from ottla.metadata.model.cluster import Cluster, ProducerIds
from ottla.metadata.model.partitions import NO_LEADER, Election, Partition
from ottla.metadata.model.settings import Config
from ottla.metadata.model.topics import Ready, TopicIntent
from ottla.metadata.model.value import UnsupportedFormat
from ottla.metadata.store import Committed, ForeignStore, Put, Snapshot, UnknownOutcome
from tests.unit.metadata.faulty import DONE_BUT_UNKNOWN, LOST, OK, FaultyStore

T = UUID("12345678-1234-4321-8765-123456789abc")
PARTITIONS = 300


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(limited())


async def filled(path: Path, **cluster: Any) -> EmbeddedStore:
    """A store with a topic, settings, a requested election, a key of a later version, and two registered brokers."""
    store = await EmbeddedStore.open(path)
    lease = await store.grant(60)
    state = Partition(T, 0, (1, 2), (2, 1), (10, 11), 2, 5, 6, elr=(1,), elr_epochs=(11,), unknown={"of_later": 1})
    puts = [
        Put(keys.cluster.key, Cluster("abc", **cluster).encode()),
        Put(keys.producer_ids.key, ProducerIds(4000).encode()),
        Put(keys.config(ConfigResource("topic", "tä\u2028")), Config({"a": "b"}).encode()),
        Put(keys.election(T, 0), Election().encode()),
        Put("of-later/x", b"\xff\x00"),
        Put(keys.broker(1), Broker(1, 0, {}).encode(), lease),
        Put(keys.broker(7), Broker(7, 0, {}).encode(), lease),
        Put(keys.controller.key, b"{}", lease),
        Put(keys.topic("tä\u2028"), TopicIntent("", T, ((1, 2),) * PARTITIONS).encode()),
        Put(keys.ready(T), Ready(PARTITIONS).encode()),
    ]
    puts += [Put(keys.partition(T, index), state.encode()) for index in range(PARTITIONS)]
    for start in range(0, len(puts), 100):
        assert isinstance(await store.transact([], puts[start : start + 100]), Committed)
    return store


async def backed_up(path: Path, **cluster: Any) -> Backup:
    store = await filled(path, **cluster)
    lines = list(lines_of(await store.read()))
    await store.close()
    return read_backup(lines)


def test_a_backup_says_nothing_of_who_lives(tmp_path: Path) -> None:
    async def test() -> None:
        store = await filled(tmp_path / "a", generation=3)
        snapshot = await store.read()
        backup = read_backup("".join(lines_of(snapshot)).splitlines(keepends=True))
        assert (backup.cluster, backup.revision, backup.brokers) == (Cluster("abc", 3), snapshot.revision, (1, 7))
        living = {keys.broker(1), keys.broker(7), keys.controller.key}
        expected = {entry.key: entry.value for entry in snapshot.entries if entry.key not in living}
        assert {entry.key: entry.value for entry in backup.entries} == expected
        await store.close()

    run(test)


def test_half_a_file_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        store = await filled(tmp_path / "a")
        lines = list(lines_of(await store.read()))
        await store.close()
        damaged = [*lines[:5], lines[5].replace("1", "2", 1), *lines[6:]]
        for broken in (
            [],
            lines[:1],
            lines[:-1],
            lines[:-2],
            lines[1:],
            [*lines[:5], *lines[6:]],
            damaged,
            ["[]", "3"],
        ):
            with pytest.raises(NotABackup):
                read_backup(broken)
        with pytest.raises(NotABackup, match="upgrade"):
            read_backup([json.dumps(json.loads(lines[0]) | {"ottla-metadata-backup": 2}) + "\n", *lines[1:]])

    run(test)


def test_an_empty_store_makes_no_backup() -> None:
    with pytest.raises(NotABackup, match="empty"):
        list(lines_of(Snapshot(3, ())))


def test_what_a_restored_store_holds(tmp_path: Path) -> None:
    async def test() -> None:
        backup = await backed_up(tmp_path / "a", generation=3)
        store = await EmbeddedStore.open(tmp_path / "b")
        cluster = await restore(store, backup, gone=[7])
        image = Image.of(await store.read())
        assert cluster.restored_ms > 0
        assert re.fullmatch(r"4-[\w-]{8}", cluster.restore)
        assert image.cluster == cluster
        assert replace(cluster, restore="") == Cluster(
            "abc", 4, awaited=(1, 2), restored_ms=cluster.restored_ms, past=("3@0",)
        )
        assert not image.brokers
        assert not image.elections
        assert image.topics["tä\u2028"].id == T
        assert image.config("topic", "tä\u2028") == {"a": "b"}
        assert (await store.read("of-later/")).entries[0].value == b"\xff\x00"
        state = image.partition(T, 7)
        assert state is not None
        assert (state.restored, state.leader, state.isr, state.isr_epochs) == (True, NO_LEADER, (2, 1), (-1, -1))
        assert (state.leader_epoch, state.partition_epoch, state.elr, state.unknown) == (5, 7, (), {"of_later": 1})
        assert not list(decide(image, whole_scope(image), {}))
        assert image.producer_ids is not None
        first = image.producer_ids.next_id
        assert first > 1 << 50
        again = await restore(store, backup, replace_all=True)
        assert (again.generation, again.past) == (5, ("3@0", cluster.restore))
        ids = Image.of(await store.read()).producer_ids
        assert ids is not None
        assert first <= ids.next_id < 1 << 62
        await store.close()

    run(test)


def test_a_store_in_use_or_of_another_cluster_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        backup = await backed_up(tmp_path / "a")
        used = await filled(tmp_path / "used")
        with pytest.raises(RestoreRefused, match="brokers 1, 7 run"):
            await restore(used, backup, replace_all=True)
        await used.close()
        store = await EmbeddedStore.open(tmp_path / "b")
        await store.transact([], [Put(keys.cluster.key, Cluster("other").encode())])
        with pytest.raises(RestoreRefused, match="holds cluster other"):
            await restore(store, backup, replace_all=True)
        await store.transact([], [Put(keys.cluster.key, Cluster("abc").encode())])
        with pytest.raises(RestoreRefused, match="isn't empty"):
            await restore(store, backup)
        await store.close()

    run(test)


def test_a_format_of_later_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    async def test() -> None:
        store = await filled(tmp_path / "a")
        await store.transact([], [Put(keys.partition(T, 0), b'{"format":9}')])
        backup = read_backup(list(lines_of(await store.read())))
        await store.close()
        target = await EmbeddedStore.open(tmp_path / "b")
        with pytest.raises(UnsupportedFormat):
            await restore(target, backup)
        assert not (await target.read()).entries
        await target.close()

    run(test)


@pytest.mark.parametrize("last", [LOST, DONE_BUT_UNKNOWN])
def test_a_restore_may_break_off_anywhere(tmp_path: Path, last: str) -> None:
    async def test() -> None:
        backup = await backed_up(tmp_path / "a")
        for transactions in range(20):
            store = await EmbeddedStore.open(tmp_path / f"b{transactions}")
            faulty = FaultyStore(store)
            faulty.plan.extend([OK] * transactions + [last])
            ended = True
            try:
                await restore(faulty, backup)
            except UnknownOutcome:
                ended = False
            image = Image.of(await store.read())
            if image.cluster is not None and image.cluster.restoring:
                with pytest.raises(ForeignStore, match="hasn't ended"):
                    await join_cluster(store, None)
                with pytest.raises(NotABackup, match="hasn't ended"):
                    list(lines_of(await store.read()))
                assert not list(decide(image, whole_scope(image), {}))
            if not image.cluster or image.cluster.restoring:
                await restore(store, backup)
            restored = Image.of(await store.read())
            assert restored.cluster is not None
            assert (await join_cluster(store, "abc")) == restored.cluster
            assert len(restored.topics["tä\u2028"].partitions) == PARTITIONS
            await store.close()
            if ended:
                return
        raise AssertionError("the restore never finishes")

    run(test)


def test_a_clock_that_is_set_back_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Producer ids start from the clock: with a wrong clock, ids that were assigned after the backup would be assigned
    again."""

    async def test() -> None:
        backup = await backed_up(tmp_path / "source")
        target = await EmbeddedStore.open(tmp_path / "target")
        monkeypatch.setattr("ottla.metadata.backup.time.time", lambda: 3600.0)
        with pytest.raises(RestoreRefused, match="clock"):
            await restore(target, backup)
        assert (await target.read()).entries == ()
        await target.close()

    run(test)


def test_a_restore_by_an_earlier_version_of_a_backup_that_has_an_id(tmp_path: Path) -> None:
    """A restore by an earlier version copies the restore id from the backup. So the new store has the same id as the
    store of the restore before, but none of its lineage words (`ottla.metadata.lineage`). Brokers must accept the new
    store, and not take it for an older copy of that store."""

    async def test() -> None:
        before = await EmbeddedStore.open(tmp_path / "before")
        first = await restore(before, await backed_up(tmp_path / "source"))
        backup = read_backup(list(lines_of(await before.read())))
        (entry,) = (entry for entry in backup.entries if entry.key == keys.cluster.key)
        document = json.loads(entry.value) | {"generation": 2, "restored_ms": first.restored_ms + 1}
        store = await EmbeddedStore.open(tmp_path / "earlier version's")
        await store.transact([], [Put(keys.cluster.key, json.dumps(document).encode())])
        second = Image.of(await store.read()).cluster
        assert second is not None
        known = judge(Known("abc", 1, 5, "aaaaaaaa", first.restored_ms, first.restore, first.past), second, {})
        assert known.restore_id == f"2@{first.restored_ms + 1}"
        with pytest.raises(ForeignStore, match="has since been restored as generation 2"):
            judge(known, first, {})
        third = await restore(store, read_backup(list(lines_of(await store.read()))), replace_all=True)
        assert third.past == (first.restore, known.restore_id)
        assert judge(known, third, {}).restore == third.restore
        await before.close()
        await store.close()

    run(test)


def test_a_restore_with_the_right_clock_after_one_whose_clock_was_ahead_is_none_of_the_past(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock was ahead at the first restore only. The second restore puts the same backup into another store, the
    third a later backup. Before the fix, the clock alone decided, so the second and the third store, or their producer
    ids, were refused.
    """

    async def test() -> None:
        backup = await backed_up(tmp_path / "source")
        now = time.time()
        ahead = await EmbeddedStore.open(tmp_path / "ahead")
        monkeypatch.setattr("ottla.metadata.backup.time.time", lambda: now + 86_400)
        first = await restore(ahead, backup)
        known = judge(Known("abc", 0), first, {})
        monkeypatch.setattr("ottla.metadata.backup.time.time", lambda: now)
        anew = await EmbeddedStore.open(tmp_path / "anew")
        second = await restore(anew, backup)
        known = judge(known, second, {})
        assert known.restore == second.restore
        with pytest.raises(ForeignStore, match="has since been restored as generation 1"):
            judge(known, first, {})
        later = read_backup(list(lines_of(await ahead.read())))
        handed_out = Image.of(await ahead.read()).producer_ids
        third = await restore(anew, later, replace_all=True)
        ids = Image.of(await anew.read()).producer_ids
        assert ids is not None
        assert handed_out is not None
        assert handed_out.next_id + (1 << 39) < ids.next_id < 1 << 62
        assert judge(known, third, {}).past == (first.restore, second.restore)
        for past in (first, second):
            with pytest.raises(ForeignStore):
                judge(Known("abc", 2, restore=third.restore, past=third.past), past, {})
        await ahead.close()
        await anew.close()

    run(test)
