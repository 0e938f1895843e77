"""The features of a cluster: those that this version of Ottla supports, and the levels that a cluster has finalised.
Pure.

A feature changes what processes write or how they decide, so that a process without the feature would misread the
result. Its finalised level is metadata, which administrators raise once every process supports the level
(`intents/features.py`). Level 0 is a feature that is off; it has no key in the store.

A process that doesn't support a finalised level must not take part in the cluster. Four rules ensure it:

1. A registration names the levels that its process supports (`Broker.features`, `ControllerHolder.features`), and a
   level is raised only if it is among the supported levels of each registered process.
2. A broker registers in a transaction that guards the levels which it has checked (`registration.py`). So it is never
   registered under a level that it doesn't support, if that level was finalised before.
3. A broker may register after a request to raise a level has looked at the registrations, and before the level is
   written. Then the broker's `Follower` meets the level, and ends the process before the level is published. All
   later metadata, such as the decision that the broker leads a partition, comes after the level. So that broker never
   acts on metadata that is later than the level.
4. A version of Ottla that follows none of these rules stops at a value whose format it can't read. Therefore a level
   is written in the format that came with its feature.

Source: Apache Kafka's QuorumFeatures and Feature (KIP-584, KIP-1022).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from .model.value import FORMAT_FIRST, UnsupportedFormat

if TYPE_CHECKING:
    from .image import Image
    from .model.settings import Feature

ELIGIBLE_LEADER_REPLICAS = "eligible.leader.replicas.version"
TRANSACTIONS = "transaction.version"

OFF = 0


class LevelRange(NamedTuple):
    """The levels of a feature that a process supports, both ends included."""

    lowest: int
    highest: int

    def __contains__(self, level: object) -> bool:
        return isinstance(level, int) and self.lowest <= level <= self.highest

    def __str__(self) -> str:
        return f"{self.lowest}-{self.highest}"


UNSUPPORTED = LevelRange(OFF, OFF)
"""The range of a feature that a process doesn't know: the feature may be off."""


class Supported(NamedTuple):
    """A feature that this version of Ottla supports.

    `of_new_clusters` is the level with which a new cluster begins. `format` is the first format of metadata values
    whose readers know the feature: a level above OFF is written in this format.
    """

    levels: LevelRange
    of_new_clusters: int
    format: int


FEATURES: Mapping[str, Supported] = {
    ELIGIBLE_LEADER_REPLICAS: Supported(LevelRange(0, 1), of_new_clusters=1, format=FORMAT_FIRST),
    TRANSACTIONS: Supported(LevelRange(0, 2), of_new_clusters=2, format=2),
}
"""All features that this version of Ottla supports, by Kafka's names."""

SUPPORTED: Mapping[str, LevelRange] = {name: feature.levels for name, feature in FEATURES.items()}


class UnsupportedLevel(UnsupportedFormat):
    """A feature's finalised level isn't supported by this process."""


def level(image: Image, name: str) -> int:
    """The finalised level of a feature; OFF if none is finalised."""
    feature = image.features.get(name)
    return OFF if feature is None else feature.level


def transaction_level(image: Image) -> int:
    """The finalised level of `transaction.version`, 0–2."""
    return level(image, TRANSACTIONS)


def check_levels(finalised: Mapping[str, Feature], supported: Mapping[str, LevelRange]) -> None:
    """Raises UnsupportedLevel if a process that supports the levels `supported` doesn't support a finalised one."""
    for name, feature in finalised.items():
        levels = supported.get(name, UNSUPPORTED)
        if feature.level not in levels:
            what = f"levels {levels} of it" if name in supported else "no such feature"
            raise UnsupportedLevel(
                f"the cluster has finalised level {feature.level} of {name}, and this version of Ottla supports {what}:"
                f" upgrade it, or lower the level first (kafka-features downgrade)"
            )
