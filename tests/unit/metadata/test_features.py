"""A process that doesn't support a finalised level takes no part in the cluster, at whatever moment the two meet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from ottla.metadata import features, keys
from ottla.metadata.backup import lines_of, read_backup, restored
from ottla.metadata.cluster import join_cluster
from ottla.metadata.embedded import EmbeddedStore
from ottla.metadata.features import (
    ELIGIBLE_LEADER_REPLICAS,
    FEATURES,
    SUPPORTED,
    TRANSACTIONS,
    LevelRange,
    UnsupportedLevel,
    check_levels,
    level,
    transaction_level,
)
from ottla.metadata.follower import Follower
from ottla.metadata.image import Image
from ottla.metadata.model import value
from ottla.metadata.model.brokers import Broker
from ottla.metadata.model.cluster import Cluster
from ottla.metadata.model.settings import Feature
from ottla.metadata.model.value import UnsupportedFormat
from ottla.metadata.registration import Registration
from ottla.metadata.renewal import RenewalTask
from ottla.metadata.store import Committed, Guard, Put, Rejected, Store, Write
from tests.unit.metadata.faulty import FaultyStore

OLDER = {ELIGIBLE_LEADER_REPLICAS: LevelRange(0, 1)}


def play(path: Path, scene: Callable[[EmbeddedStore], Awaitable[None]]) -> None:
    async def main() -> None:
        store = await EmbeddedStore.open(path / "metadata")
        try:
            async with asyncio.timeout(60):
                await scene(store)
        finally:
            await store.close()

    asyncio.run(main())


async def finalise(store: Store, name: str, finalised: int) -> None:
    await store.transact([], [Put(keys.feature(name), Feature(finalised).encode())])


def registration(store: Store, supported: dict[str, LevelRange]) -> Registration:
    broker = Broker(7, -1, {}, features=supported)
    return Registration(store, broker, RenewalTask(store), 5, told=lambda broker: None)


@pytest.mark.parametrize("feature", FEATURES.values(), ids=FEATURES)
def test_every_feature_can_be_off_and_a_new_cluster_has_a_supported_level(feature: features.Supported) -> None:
    assert features.OFF in feature.levels
    assert feature.of_new_clusters in feature.levels
    assert feature.format <= value.FORMAT_MAX


@pytest.mark.parametrize(
    ("finalised", "supported", "reason"),
    [
        ({}, {}, None),
        ({"f": 0}, {}, None),
        ({"f": 1}, {"f": LevelRange(0, 1)}, None),
        ({"f": 1}, {}, "finalised level 1 of f, and this version of Ottla supports no such feature"),
        ({"f": 3}, {"f": LevelRange(0, 2)}, "level 3 of f, and this version of Ottla supports levels 0-2 of it"),
        ({"f": 0}, {"f": LevelRange(1, 2)}, "level 0 of f, and this version of Ottla supports levels 1-2 of it"),
        ({"f": 1, "g": 1}, {"f": LevelRange(0, 1)}, "of g"),
    ],
)
def test_a_level_is_refused_if_it_is_not_among_the_supported_ones(
    finalised: dict[str, int], supported: dict[str, LevelRange], reason: str | None
) -> None:
    levels = {name: Feature(level) for name, level in finalised.items()}
    if reason is None:
        check_levels(levels, supported)
        return
    with pytest.raises(UnsupportedLevel, match=reason):
        check_levels(levels, supported)


def test_a_new_cluster_has_the_highest_levels_and_an_older_one_those_that_it_had(tmp_path: Path) -> None:
    async def scene(store: EmbeddedStore) -> None:
        assert transaction_level(Image()) == 0
        await join_cluster(store, None)
        image = Image.of(await store.read())
        assert transaction_level(image) == 2
        assert {name: level(image, name) for name in SUPPORTED} == {
            name: levels.highest for name, levels in SUPPORTED.items()
        }

    async def older(store: EmbeddedStore) -> None:
        await store.transact([], [Put(keys.cluster.key, Cluster("abc").encode())])
        await join_cluster(store, None)
        assert Image.of(await store.read()).features == {}

    for number, each in enumerate((scene, older)):
        (tmp_path / str(number)).mkdir()
        play(tmp_path / str(number), each)


def test_a_version_of_ottla_that_does_not_know_transactions_stops_at_their_level(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(store: EmbeddedStore) -> None:
        await join_cluster(store, None)
        snapshot = await store.read()
        monkeypatch.setattr(value, "FORMAT_MAX", 1)
        with pytest.raises(UnsupportedFormat, match=rf"features/{TRANSACTIONS} has format 2.*upgrade Ottla"):
            Image.of(snapshot)

    play(tmp_path, scene)


def test_a_process_ends_before_it_publishes_an_unsupported_level(tmp_path: Path) -> None:
    async def scene(store: EmbeddedStore) -> None:
        follower = Follower(store)
        await follower.start()
        running = asyncio.ensure_future(follower.run())
        seen: list[int] = []
        follower.listen(lambda image, changed: seen.append(image.revision))
        await finalise(store, TRANSACTIONS, 1)
        await finalise(store, TRANSACTIONS, 3)
        with pytest.raises(UnsupportedLevel, match=r"level 3 of transaction\.version"):
            await running
        assert transaction_level(follower.image) == 1
        assert len(seen) == 1
        with pytest.raises(UnsupportedLevel):
            await Follower(store).start()

    play(tmp_path, scene)


def test_a_broker_does_not_register_under_a_level_that_it_does_not_support(tmp_path: Path) -> None:
    async def scene(store: EmbeddedStore) -> None:
        await finalise(store, TRANSACTIONS, 2)
        with pytest.raises(UnsupportedLevel, match="supports no such feature"):
            await registration(store, OLDER).register()
        assert not (await store.read(keys.broker.prefix)).entries
        own = registration(store, {**OLDER, TRANSACTIONS: LevelRange(0, 2)})
        await own.register()
        await own.withdraw()

    play(tmp_path, scene)


@pytest.mark.parametrize("supported", [OLDER, {**OLDER, TRANSACTIONS: LevelRange(0, 1)}])
@pytest.mark.parametrize("finalised", [1, 2])
def test_a_level_that_is_raised_between_the_check_and_the_registration_counts(
    tmp_path: Path, supported: dict[str, LevelRange], finalised: int
) -> None:
    class Raised(FaultyStore):
        """A store in which a level is raised immediately before the first transaction."""

        async def transact(self, guards: Sequence[Guard], writes: Sequence[Write]) -> Committed | Rejected:
            if not self.transactions:
                await finalise(self.store, ELIGIBLE_LEADER_REPLICAS, finalised)
            return await super().transact(guards, writes)

    async def scene(store: EmbeddedStore) -> None:
        own = registration(Raised(store), supported)
        if finalised in OLDER[ELIGIBLE_LEADER_REPLICAS]:
            await own.register()
            await own.withdraw()
            return
        with pytest.raises(UnsupportedLevel):
            await own.register()
        assert not (await store.read(keys.broker.prefix)).entries

    play(tmp_path, scene)


def test_a_backup_has_the_levels(tmp_path: Path) -> None:
    async def scene(store: EmbeddedStore) -> None:
        await join_cluster(store, None)
        snapshot = await store.read()
        written = {put.key: put.value for put in restored(read_backup([*lines_of(snapshot)]), 1, 0)[1]}
        for name in FEATURES:
            (entry,) = (entry for entry in snapshot.entries if entry.key == keys.feature(name))
            assert written[entry.key] == entry.value

    play(tmp_path, scene)
