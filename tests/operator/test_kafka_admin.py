"""The operator's admin client on real brokers: the state that it reads, its changes, and refusals."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from ottla.net.admin import BROKER
from ottla.operator.emptying import CORDONED
from ottla.operator.kafka import KafkaAdmin, Unreachable, _batches
from ottla.operator.plan.topic import THROTTLE_RATES, Configure, Create, Delete, Grow, Move
from ottla.operator.plan.volumes import emptied
from ottla.protocol.errors import ErrorCode, KafkaError
from tests.peers.ottla_broker import OttlaBroker
from tests.peers.ottla_cluster import ottla_cluster


def code(refusal: KafkaError | None) -> ErrorCode | None:
    return None if refusal is None else refusal.code


async def story(admin: KafkaAdmin) -> None:
    made = await admin.create(
        [Create("a", 3, 1, {"retention.ms": "1"}), Create("b", 2, 9, {}), Create("c", 1, 1, {"no.such": "x"})]
    )
    assert code(made["a"]) is None
    assert code(made["b"]) == ErrorCode.invalid_replication_factor
    assert code(made["c"]) == ErrorCode.invalid_config
    assert len(await admin.cluster_id()) == 22
    seen = await admin.look()
    assert set(seen.racks) == {0, 1}
    assert set(seen.topics) == {"a"}
    assert seen.topics["a"].overrides == {"retention.ms": "1"}
    assert sum(seen.load.values()) == 3
    changed = await admin.configure(
        [Configure("a", {"segment.ms": "5"}, ("retention.ms",)), Configure("z", {"x": "y"})]
    )
    assert (code(changed["a"]), code(changed["z"])) == (None, ErrorCode.unknown_topic_or_partition)
    grown = await admin.grow([Grow("a", 4), Grow("z", 2)])
    assert (code(grown["a"]), code(grown["z"])) == (None, ErrorCode.unknown_topic_or_partition)
    held = seen.topics["a"].partitions[0].replicas[0]
    moved = await admin.move([Move("a", {0: (held, 1 - held), 1: (9,)})])
    assert code(moved["a"]) == ErrorCode.invalid_replica_assignment
    topic = (await admin.look()).topics["a"]
    assert (len(topic.partitions), topic.overrides) == (4, {"segment.ms": "5"})
    assert topic.partitions[0].target == (held, 1 - held)
    await admin.configure_brokers({"ottla.brokers.drained": "1"})
    assert (await admin.settings(BROKER, ""))["ottla.brokers.drained"] == "1"
    assert set((await admin.look()).takers) == {0}
    with pytest.raises(KafkaError):
        await admin.configure_brokers({"log.dirs": "elsewhere"})
    await own_settings(admin)
    assert not await admin.throttled_by_hand()
    await admin.configure_brokers(dict.fromkeys(THROTTLE_RATES, "1000000"))
    assert not await admin.throttled_by_hand(), "a rate for all brokers doesn't count"
    for broker in ("0", "1"):
        with suppress(KafkaError):  # only the broker that is asked takes settings of its own
            await admin.configure_brokers(dict.fromkeys(THROTTLE_RATES, "1000000"), broker=broker)
    assert await admin.throttled_by_hand()
    loads = await admin.loads()
    assert set(loads.worked) == {0, 1}
    assert all(work.cpu_seconds > 0 for work in loads.worked.values())
    sizes = {(each.broker, name): size for each in loads.directories for name, size in each.sizes.items()}
    assert sizes[held, ("a", 0)] == 0
    assert all(each.usable_bytes > 0 for each in loads.directories)
    for _ in range(2):  # deleting a topic that is gone isn't refused
        assert await admin.delete([Delete("a", topic.id)]) == {"a": None}


async def own_settings(admin: KafkaAdmin) -> None:
    """Each broker reports the settings of every broker, but takes changes only of its own."""
    assert await admin.own_settings([0, 1]) == {0: {}, 1: {}}
    refused = []
    for broker in ("0", "1"):
        try:
            await admin.configure_brokers({"log.retention.ms": f"{broker}5"}, broker=broker)
        except KafkaError as error:
            refused.append((broker, error.code))
    ((other, why),) = refused
    assert why == ErrorCode.invalid_request
    mine = 1 - int(other)
    assert await admin.own_settings([0, 1]) == {mine: {"log.retention.ms": f"{mine}5"}, int(other): {}}
    await admin.configure_brokers({}, ["log.retention.ms"], broker=str(mine))
    assert await admin.own_settings([mine]) == {mine: {}}


def test_on_real_brokers(tmp_path: Path) -> None:
    async def whole(bootstrap: str) -> None:
        admin = KafkaAdmin(f"127.0.0.1:1,{bootstrap}")  # nothing listens at the first address
        try:
            await story(admin)
        finally:
            admin.close()

    with ottla_cluster(tmp_path, 2) as cluster:
        asyncio.run(asyncio.wait_for(whole(cluster.bootstrap), 60))


async def emptied_directory(admin: KafkaAdmin, one: str, two: str) -> None:
    await admin.create([Create("a", 6, 1, {})])
    going = [one]
    assert sorted(len(each.sizes) for each in await admin.log_directories()) == [3, 3]
    assert (
        emptied(await admin.log_directories(), going).waits_for == "the broker still places new replicas on the volume"
    )
    await admin.configure_brokers({CORDONED: one}, broker="0")
    assert (await admin.settings(BROKER, "0"))[CORDONED] == one
    while (plan := emptied(await admin.log_directories(), going)).left:
        assert plan.waits_for == ""
        assert plan.moves.keys() <= {two}
        await admin.move_to_directories(plan.moves)
        await asyncio.sleep(0.05)
    assert {each.path: len(each.sizes) for each in await admin.log_directories()} == {one: 0, two: 6}
    await admin.create([Create("b", 4, 1, {})])
    assert {each.path: len(each.sizes) for each in await admin.log_directories()} == {one: 0, two: 10}
    with pytest.raises(KafkaError):
        await admin.move_to_directories({one: [("b", 0)]})
    await admin.move_to_directories({two: [("gone", 0)]})


def test_a_real_broker_empties_a_log_directory(tmp_path: Path) -> None:
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    broker = OttlaBroker(tmp_path, log_dirs=f"{one},{two}")

    async def whole() -> None:
        admin = KafkaAdmin(broker.bootstrap)
        try:
            await emptied_directory(admin, one, two)
        finally:
            admin.close()

    try:
        asyncio.run(asyncio.wait_for(whole(), 60))
    finally:
        broker.stop()


def test_nobody_answers() -> None:
    with pytest.raises(Unreachable, match="no broker answers"):
        asyncio.run(KafkaAdmin("127.0.0.1:1").look())


def test_a_request_has_only_so_many_partitions() -> None:
    def sizes(*partitions: int) -> list[int]:
        return [len(batch) for batch in _batches([Create(str(n), count, 1, {}) for n, count in enumerate(partitions)])]

    assert sizes(*[1] * 250) == [100, 100, 50]
    assert sizes(600, 600, 10_000, 1) == [1, 1, 1, 1]
    assert sizes() == []
