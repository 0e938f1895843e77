"""Changes of the finalised levels of features: the rules (pure functions), and the intent that writes the levels.

A request changes all levels that it names, or none. A level is raised only if this version of Ottla, every registered
broker and the active controller support it. A broker that isn't running isn't asked, because its registration has ended
with its process; it refuses to start if it doesn't support the level. (Kafka asks all brokers that were ever registered
and not unregistered since.)

Both types of downgrade may lower any level to any other one. The levels of Ottla's features decide only in which way
new things are written: what was written at a higher level stays readable at a lower one, so nothing is lost.

Source: Apache Kafka's FeatureControlManager and QuorumFeatures.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from ottla.metadata import keys
from ottla.metadata.features import FEATURES, OFF, SUPPORTED, UNSUPPORTED, LevelRange, level
from ottla.metadata.image import Image
from ottla.metadata.model.settings import Feature
from ottla.metadata.settling import Settling, within
from ottla.metadata.store import Committed, Delete, Guard, Put, Write
from ottla.protocol.errors import ErrorCode, KafkaError


class UpgradeType(enum.IntEnum):
    """In which direction a request may change a level, by Kafka's codes."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class FeatureUpdate(NamedTuple):
    """The level that a request asks for, and the code of an UpgradeType (which may be unknown)."""

    level: int
    upgrade_type: int


class FeatureIntents:
    """Administrators' requests about features."""

    def __init__(self, settling: Settling) -> None:
        self._settling = settling

    async def update_features(
        self, updates: Mapping[str, FeatureUpdate], timeout_s: float, *, validate_only: bool = False
    ) -> None:
        """Finalises the levels of all features that `updates` names, or of none of them. Waits until this broker's
        image shows the levels. With `validate_only`, only checks the request. Raises KafkaError.
        """
        async with within(timeout_s):
            await self._settling.until_all_known(keys.broker.prefix)
            await self._settling.until_all_known(keys.controller.key)
            if validate_only:
                check_updates(self._settling.image, updates)
            else:
                await self._update_features(updates)

    async def _update_features(self, updates: Mapping[str, FeatureUpdate]) -> None:
        touched = [keys.feature(name) for name in updates]
        while True:
            image = self._settling.image
            check_updates(image, updates)
            present = {name: image.features.get(name) or Feature(OFF) for name in updates}
            guards = [Guard(keys.feature(name), feature.revision) for name, feature in present.items()]
            writes = [
                _write(name, present[name], update.level)
                for name, update in updates.items()
                if update.level != present[name].level
            ]
            result = await self._settling.attempt(guards, writes)
            if isinstance(result, Committed):
                return await self._settling.until_revision(result.revision)
            if result is None:
                await self._settling.until_settled(*touched)
                continue
            newest = max((entry.mod_revision for entry in result.failed.values() if entry), default=image.revision + 1)
            await self._settling.until_revision(newest)


def check_updates(image: Image, updates: Mapping[str, FeatureUpdate]) -> None:
    """Raises KafkaError INVALID_UPDATE_VERSION for the first update that isn't allowed."""
    for name, update in updates.items():
        reason = _why_not(image, name, update)
        if reason:
            raise KafkaError(
                ErrorCode.invalid_update_version,
                "The update failed for all features since the following feature had an error:"
                f" Invalid update version {update.level} for feature {name}. {reason}",
            )


def _why_not(image: Image, name: str, update: FeatureUpdate) -> str:
    """Why a level may not be finalised, in Kafka's words as far as Kafka has them; empty if it may."""
    wanted, present = update.level, level(image, name)
    if update.upgrade_type not in list(UpgradeType):
        return "The controller does not support the given upgrade type."
    if wanted < OFF:
        return "A feature version cannot be less than 0."
    for who, supported in _participants(image):
        levels = supported.get(name, UNSUPPORTED)
        if wanted not in levels:
            if levels == UNSUPPORTED:
                return f"{who} does not support this feature."
            return f"{who} only supports versions {levels}"
    if wanted < present and update.upgrade_type == UpgradeType.UPGRADE:
        return (
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe"
            " downgrade."
        )
    if wanted > present and update.upgrade_type != UpgradeType.UPGRADE:
        return "Can't downgrade to a newer version."
    if name not in FEATURES:
        return f"Feature {name} not found."
    return ""


def _participants(image: Image) -> Iterator[tuple[str, Mapping[str, LevelRange]]]:
    """The processes that have to support a level, with the levels that they support."""
    yield "This version of Ottla", SUPPORTED
    for broker in image.brokers.values():
        yield f"Broker {broker.id}", broker.features
    holder = image.controller
    if holder is not None and holder.broker_id not in image.brokers:
        yield f"The active controller ({holder.name})", holder.features


def _write(name: str, present: Feature, wanted: int) -> Write:
    """The write that changes a feature's level. The registered brokers read the level's format, because they know the
    feature."""
    key = keys.feature(name)
    if wanted == OFF:
        return Delete(key)
    return Put(key, replace(present, level=wanted, format=FEATURES[name].format).encode())
