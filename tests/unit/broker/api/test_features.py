"""UpdateFeatures and the features in ApiVersions, as clients see them.

`tests/conformance/test_features.py` compares the answers with Apache Kafka's.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ottla.metadata.features import ELIGIBLE_LEADER_REPLICAS, TRANSACTIONS
from ottla.metadata.intents.features import UpgradeType
from ottla.protocol.errors import ErrorCode
from tests.unit.broker.api.stand_in import BrokerStandIn, broker_stand_in

VERSIONS, UPDATE = 18, 57
UP, SAFE, _ = UpgradeType


async def versions(broker: BrokerStandIn, version: int = 4) -> Any:
    return await broker.ask(VERSIONS, version, {"client_software_name": "x", "client_software_version": "1"})


async def update(broker: BrokerStandIn, version: int, *updates: tuple[str, int, int], **others: Any) -> Any:
    asked = [
        {"feature": name, "max_version_level": level, "upgrade_type": upgrade_type}
        for name, level, upgrade_type in updates
    ]
    return await broker.ask(UPDATE, version, {"feature_updates": asked, "timeout": 10_000, **others})


def finalised(answer: Any) -> dict[str, int]:
    assert all(feature.min_version_level == feature.max_version_level for feature in answer.finalized_features)
    return {feature.name: feature.max_version_level for feature in answer.finalized_features}


def test_clients_see_supported_ranges_finalised_levels_and_a_rising_epoch(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_stand_in(tmp_path) as broker:
            first = await versions(broker)
            supported = {each.name: (each.min_version, each.max_version) for each in first.supported_features}
            assert supported == {ELIGIBLE_LEADER_REPLICAS: (0, 1), TRANSACTIONS: (0, 2)}
            assert finalised(first) == {ELIGIBLE_LEADER_REPLICAS: 1, TRANSACTIONS: 2}
            assert first.finalized_features_epoch >= 0
            third = await versions(broker, 3)
            assert third.supported_features == ()  # KAFKA-17011: clients up to 3.8 fail at a lowest version of 0
            assert finalised(third) == finalised(first)
            epoch = first.finalized_features_epoch
            for level, upgrade_type in ((1, SAFE), (0, SAFE), (2, UP)):
                assert (await update(broker, 2, (TRANSACTIONS, level, upgrade_type))).error_code is ErrorCode.none
                answer = await versions(broker)
                assert answer.finalized_features_epoch > epoch
                assert finalised(answer).get(TRANSACTIONS, 0) == level
                epoch = answer.finalized_features_epoch

    asyncio.run(main())


def test_a_cluster_without_finalised_features_has_an_epoch(tmp_path: Path) -> None:
    """At an epoch of -1 a client takes the finalised features for unknown."""

    async def main() -> None:
        async with broker_stand_in(tmp_path) as broker:
            await update(broker, 2, (TRANSACTIONS, 0, SAFE), (ELIGIBLE_LEADER_REPLICAS, 0, SAFE))
            answer = await versions(broker)
            assert finalised(answer) == {}
            assert answer.finalized_features_epoch >= 0

    asyncio.run(main())


@pytest.mark.parametrize("version", [0, 1, 2])
def test_answers_of_every_version(tmp_path: Path, version: int) -> None:
    async def main() -> None:
        async with broker_stand_in(tmp_path) as broker:
            kept = (ELIGIBLE_LEADER_REPLICAS, 1, UP)
            allowed = await update(broker, version, (TRANSACTIONS, 2, UP), kept)
            assert (allowed.error_code, allowed.error_message) == (ErrorCode.none, None)
            refused = await update(broker, version, kept, (TRANSACTIONS, 3, UP))
            assert refused.error_code is ErrorCode.invalid_update_version
            assert refused.error_message == (
                "The update failed for all features since the following feature had an error: Invalid update version 3"
                " for feature transaction.version. This version of Ottla only supports versions 0-2"
            )
            if version < 2:
                named = [TRANSACTIONS, ELIGIBLE_LEADER_REPLICAS]
                assert [result.feature for result in allowed.results] == named
                assert {result.error_code for result in allowed.results} == {ErrorCode.none}
                assert refused.results == ()
            checked = await update(broker, version, (TRANSACTIONS, 0, SAFE), validate_only=True)
            assert (checked.error_code is ErrorCode.none) == (version > 0)  # version 0 names no type of upgrade
            assert broker.image.features[TRANSACTIONS].level == 2

    asyncio.run(main())


def test_the_last_update_of_a_feature_counts(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_stand_in(tmp_path) as broker:
            answer = await update(broker, 1, (TRANSACTIONS, 7, UP), (TRANSACTIONS, 1, SAFE))
            assert [result.feature for result in answer.results] == [TRANSACTIONS] * 2
            assert broker.image.features[TRANSACTIONS].level == 1

    asyncio.run(main())
