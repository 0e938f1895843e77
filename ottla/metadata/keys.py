"""The kinds of keys in the metadata store, one row for each. Pure.

A row is called with an identity and gives the key: `keys.partition(topic_id, 3)` is `partitions/<topic id>/3`. A row
says all that differs between kinds: who writes them (`Role`), the name in the key, how the thing is named behind it
(`identities.py`), the value (`model.py`), the field of the image, and whether a restore takes it from a backup. The
image, the difference of two images and backups follow from the rows.

Keys of later versions of Ottla are of no kind here, are ignored by the image, and are kept by backups.
"""

from __future__ import annotations

import enum
from typing import Any, Generic, ParamSpec, TypeVar

from . import model
from .identities import (
    BY_ENTITY,
    BY_NAME,
    BY_NUMBER,
    BY_PART,
    BY_PARTITION,
    BY_RESOURCE,
    BY_ROW,
    BY_TOPIC_ID,
    SINGLE,
    Identity,
)

P = ParamSpec("P")
I = TypeVar("I")  # noqa: E741 (an identity)
V = TypeVar("V")


class Role(enum.Enum):
    """The writers of a kind, and for how long its keys exist."""

    INTENT = "intent"  # the broker that took an administrator's request
    STATE = "state"  # the controller; a partition's leader, too
    EPHEMERAL = "ephemeral"  # the process that the key is about, under its lease


class Kind(Generic[P, I, V]):
    """A kind of keys, called with an identity for its key.

    `prefix` is the beginning of all its keys, with the slash; of a kind with a single key it is the key. `of` reads the
    identity from a key. `value` is the class of the values, `bytes` where they are taken as they are. `field` is the
    image's field, empty for a kind that the image leaves out. A kind that isn't `restored` is left out when a backup is
    restored; ephemeral keys aren't in backups at all.
    """

    __slots__ = ("_text", "field", "name", "of", "prefix", "restored", "role", "single", "value")

    def __init__(
        self, role: Role, name: str, identity: Identity[P, I], value: type[V], field: str = "", *, restored: bool = True
    ) -> None:
        self.role = role
        self.name = name
        self.single = identity is SINGLE
        self.prefix = name if self.single else f"{name}/"
        self._text = identity.text
        self.of = identity.of
        self.value = value
        self.field = field
        self.restored = restored

    def __repr__(self) -> str:
        return self.prefix

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """The key of an identity."""
        return self.prefix + self._text(*args, **kwargs)


_INTENT, _STATE, _EPHEMERAL = Role

cluster = Kind(_INTENT, "cluster", SINGLE, model.Cluster, "cluster")
topic = Kind(_INTENT, "topics", BY_NAME, model.TopicIntent, "intents")
tombstone = Kind(_INTENT, "tombstones", BY_TOPIC_ID, model.Tombstone, "tombstones")
config = Kind(_INTENT, "configs", BY_RESOURCE, model.Config, "configs")
quota = Kind(_INTENT, "quotas", BY_ENTITY, model.Quota, "quotas")
feature = Kind(_INTENT, "features", BY_NAME, model.Feature, "features")
election = Kind(_INTENT, "elections", BY_PARTITION, model.Election, "elections", restored=False)
reassignment = Kind(_INTENT, "reassignments", BY_PARTITION, model.Reassignment, "reassignments", restored=False)
producer_ids = Kind(_INTENT, "producer-ids", SINGLE, model.ProducerIds, "producer_ids")
lineage = Kind(_STATE, "lineage", BY_ROW, model.LineageRow, "lineage", restored=False)
lineage_word = Kind(_STATE, "lineage-word", BY_NAME, bytes, restored=False)
partition = Kind(_STATE, "partitions", BY_PARTITION, model.Partition, "partitions")
ready = Kind(_STATE, "ready", BY_TOPIC_ID, model.Ready, "ready")
broker = Kind(_EPHEMERAL, "brokers", BY_NUMBER, model.Broker, "brokers")
report = Kind(_EPHEMERAL, "reports", BY_PART, model.Report, "reports")
controller = Kind(_EPHEMERAL, "controller", SINGLE, model.ControllerHolder, "controller")

KINDS: dict[str, Kind[..., Any, Any]] = {kind.name: kind for kind in globals().values() if isinstance(kind, Kind)}
"""All kinds, by the name at the beginning of their keys."""


def kind_of(key: str) -> Kind[..., Any, Any] | None:
    """The key's kind; None for keys of later versions of Ottla."""
    return KINDS.get(key.partition("/")[0])
