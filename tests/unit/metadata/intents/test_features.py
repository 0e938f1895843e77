"""The rules by which levels of features are raised and lowered, and the writes that change them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from ottla.metadata import keys
from ottla.metadata.embedded import EmbeddedStore
from ottla.metadata.features import ELIGIBLE_LEADER_REPLICAS, SUPPORTED, TRANSACTIONS, LevelRange
from ottla.metadata.follower import Follower
from ottla.metadata.image import Image
from ottla.metadata.intents.facade import Intents
from ottla.metadata.intents.features import FeatureUpdate, UpgradeType, check_updates
from ottla.metadata.model.brokers import Broker, ControllerHolder
from ottla.metadata.model.settings import Feature
from ottla.metadata.store import Committed, Delete, Guard, Put, Rejected, Write
from ottla.protocol.errors import ErrorCode, KafkaError
from tests.unit.metadata.faulty import FaultyStore

UP, SAFE, UNSAFE = UpgradeType
OLDER = {ELIGIBLE_LEADER_REPLICAS: LevelRange(0, 1)}
TO_1 = {**SUPPORTED, TRANSACTIONS: LevelRange(0, 1)}


def refusal(image: Image, name: str, level: int, upgrade_type: int) -> str:
    """The reason why an update is refused; empty if it is allowed."""
    refused: KafkaError | None = None
    try:
        check_updates(image, {name: FeatureUpdate(level, upgrade_type)})
    except KafkaError as error:
        refused = error
    if refused is None:
        return ""
    assert refused.code is ErrorCode.invalid_update_version
    _, prefix, reason = refused.message.partition(f"an error: Invalid update version {level} for feature {name}. ")
    assert prefix
    return reason


@pytest.mark.parametrize(
    ("present", "wanted", "upgrade_type", "reason"),
    [
        (0, 2, UP, ""),
        (0, 1, UP, ""),
        (1, 2, UP, ""),
        (2, 2, UP, ""),
        (2, 2, SAFE, ""),
        (2, 1, SAFE, ""),
        (2, 0, SAFE, ""),
        (2, 1, UNSAFE, ""),
        (0, 0, SAFE, ""),
        (2, 1, UP, "Can't downgrade the version of this feature without setting"),
        (2, 0, UP, "Can't downgrade the version of this feature without setting"),
        (1, 2, SAFE, "Can't downgrade to a newer version."),
        (1, 2, UNSAFE, "Can't downgrade to a newer version."),
        (2, 3, UP, "This version of Ottla only supports versions 0-2"),
        (2, -1, SAFE, "A feature version cannot be less than 0."),
        (2, 2, 0, "The controller does not support the given upgrade type."),
        (2, 2, 4, "The controller does not support the given upgrade type."),
    ],
)
def test_directions(present: int, wanted: int, upgrade_type: int, reason: str) -> None:
    image = Image(features={TRANSACTIONS: Feature(present)} if present else {}, brokers={1: Broker(1, 1, {})})
    found = refusal(image, TRANSACTIONS, wanted, upgrade_type)
    assert found.startswith(reason)
    assert bool(found) == bool(reason)


@pytest.mark.parametrize(
    ("name", "wanted", "upgrade_type", "reason"),
    [
        ("foo", 1, UP, "This version of Ottla does not support this feature."),
        ("foo", 0, SAFE, "Feature foo not found."),
        ("metadata.version", 30, UP, "This version of Ottla does not support this feature."),
        ("", 1, UP, "This version of Ottla does not support this feature."),
    ],
)
def test_unknown_features(name: str, wanted: int, upgrade_type: int, reason: str) -> None:
    assert refusal(Image(), name, wanted, upgrade_type) == reason


@pytest.mark.parametrize(
    ("brokers", "controller", "wanted", "reason"),
    [
        ([SUPPORTED, SUPPORTED], None, 2, ""),
        ([SUPPORTED, OLDER], None, 1, "Broker 2 does not support this feature."),
        ([SUPPORTED, OLDER], None, 0, ""),
        ([SUPPORTED, {}], None, 1, "Broker 2 does not support this feature."),
        ([SUPPORTED, TO_1], None, 1, ""),
        ([SUPPORTED, TO_1], None, 2, "Broker 2 only supports versions 0-1"),
        ([SUPPORTED], ControllerHolder("broker-1", 1, features=OLDER), 2, ""),  # its broker's registration counts
        ([SUPPORTED], ControllerHolder("controller-3", -5), 2, ""),
        (
            [SUPPORTED],
            ControllerHolder("controller-3", -5, features=OLDER),
            2,
            "The active controller (controller-3) does not support this feature.",
        ),
    ],
)
def test_every_process_has_to_support_the_level(
    brokers: list[Mapping[str, LevelRange]], controller: ControllerHolder | None, wanted: int, reason: str
) -> None:
    registered = {number: Broker(number, 1, {}, features=each) for number, each in enumerate(brokers, 1)}
    upgrade_type = UP if wanted else SAFE
    assert refusal(Image(brokers=registered, controller=controller), TRANSACTIONS, wanted, upgrade_type) == reason


@asynccontextmanager
async def administrator(path: Path) -> AsyncIterator[tuple[FaultyStore, Follower, Intents]]:
    store = await EmbeddedStore.open(path / "metadata")
    follower = Follower(store)
    await follower.start()
    running = asyncio.ensure_future(follower.run())
    faulty = FaultyStore(store)
    try:
        async with asyncio.timeout(60):
            await store.transact([], [Put(keys.broker(1), Broker(1, 0, {}).encode())])
            yield faulty, follower, Intents(faulty, follower, Random(1))
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await store.close()


def levels(image: Image) -> dict[str, int]:
    return {name: feature.level for name, feature in image.features.items()}


def test_all_levels_of_a_request_change_or_none(tmp_path: Path) -> None:
    async def main() -> None:
        async with administrator(tmp_path) as (store, follower, intents):
            both = {TRANSACTIONS: FeatureUpdate(1, UP), ELIGIBLE_LEADER_REPLICAS: FeatureUpdate(1, UP)}
            await intents.update_features(both, 10)
            assert levels(follower.image) == {TRANSACTIONS: 1, ELIGIBLE_LEADER_REPLICAS: 1}
            assert {feature.revision for feature in follower.image.features.values()} == {follower.image.revision}
            half = {TRANSACTIONS: FeatureUpdate(2, UP), ELIGIBLE_LEADER_REPLICAS: FeatureUpdate(0, UP)}
            with pytest.raises(KafkaError, match=ELIGIBLE_LEADER_REPLICAS):
                await intents.update_features(half, 10)
            assert levels(follower.image) == {TRANSACTIONS: 1, ELIGIBLE_LEADER_REPLICAS: 1}
            await intents.update_features(half | {ELIGIBLE_LEADER_REPLICAS: FeatureUpdate(0, SAFE)}, 10)
            assert levels(follower.image) == {TRANSACTIONS: 2}
            await intents.update_features({}, 10)
            revision = follower.image.revision
            await intents.update_features({TRANSACTIONS: FeatureUpdate(1, SAFE)}, 10, validate_only=True)
            with pytest.raises(KafkaError):
                await intents.update_features({TRANSACTIONS: FeatureUpdate(1, UP)}, 10, validate_only=True)
            await intents.update_features({TRANSACTIONS: FeatureUpdate(2, UP)}, 10)
            assert follower.image.revision == revision
            await intents.update_features({TRANSACTIONS: FeatureUpdate(0, SAFE)}, 10)
            assert not (await store.read(keys.feature.prefix)).entries

    asyncio.run(main())


def test_a_level_is_written_in_the_format_of_its_feature(tmp_path: Path) -> None:
    """So versions of Ottla that know only earlier formats stop at a level that they don't know."""

    async def main() -> None:
        async with administrator(tmp_path) as (store, _, intents):
            later = json.dumps({"format": 1, "level": 1, "of_later": 3}).encode()
            await store.transact([], [Put(keys.feature(TRANSACTIONS), later)])
            both = {TRANSACTIONS: FeatureUpdate(2, UP), ELIGIBLE_LEADER_REPLICAS: FeatureUpdate(1, UP)}
            await intents.update_features(both, 10)
            found = {entry.key: json.loads(entry.value) for entry in (await store.read(keys.feature.prefix)).entries}
            assert found == {
                keys.feature(TRANSACTIONS): {"format": 2, "level": 2, "of_later": 3},
                keys.feature(ELIGIBLE_LEADER_REPLICAS): {"format": 1, "level": 1},
            }

    asyncio.run(main())


def test_a_broker_that_has_just_registered_is_asked(tmp_path: Path) -> None:
    """The registration is in the store, and the image of the broker that got the request doesn't show it yet."""

    async def main() -> None:
        async with administrator(tmp_path) as (store, follower, intents):
            release = asyncio.Event()

            async def slowly(image: Image, changed: object) -> None:
                await release.wait()

            follower.prepare(slowly)
            await store.transact([], [Put(keys.broker(2), Broker(2, 0, {}, features=OLDER).encode())])
            asking = asyncio.ensure_future(intents.update_features({TRANSACTIONS: FeatureUpdate(1, UP)}, 10))
            await asyncio.sleep(0.1)
            assert not asking.done()
            release.set()
            with pytest.raises(KafkaError, match="Broker 2 does not support this feature"):
                await asking

    asyncio.run(main())


@pytest.mark.parametrize("others", [2, None])
def test_a_level_that_another_request_changes_at_the_same_time_is_looked_at_again(
    tmp_path: Path, others: int | None
) -> None:
    key = keys.feature(TRANSACTIONS)

    class Overtaken(FaultyStore):
        """A store in which another request changes the level immediately before the first transaction."""

        async def transact(self, guards: Sequence[Guard], writes: Sequence[Write]) -> Committed | Rejected:
            if not self.transactions:
                write = Delete(key) if others is None else Put(key, Feature(others).encode())
                await self.store.transact([], [write])
            return await super().transact(guards, writes)

    async def main() -> None:
        async with administrator(tmp_path) as (store, follower, intents):
            await intents.update_features({TRANSACTIONS: FeatureUpdate(1, UP)}, 10)
            overtaken = Intents(Overtaken(store.store), follower)
            request = overtaken.update_features({TRANSACTIONS: FeatureUpdate(1, UP)}, 10)
            if others is None:
                await request
                assert levels(follower.image) == {TRANSACTIONS: 1}
            else:
                with pytest.raises(KafkaError, match="Can't downgrade"):
                    await request
                assert levels(follower.image) == {TRANSACTIONS: others}

    asyncio.run(main())
