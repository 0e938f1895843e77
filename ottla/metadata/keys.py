"""The kinds of metadata, one row each: the layout of keys in the store, written down only here. Pure.

A row says everything that differs between kinds: the name at the beginning of the keys, the form of the identity that
follows the name (`identities.py`), the class of the values (`model/`), the field of the image, and how a backup treats
the keys (`Kept`). The code that applies changes to an image, compares two images or makes a backup goes through these
rows.

A row makes the kind's keys: `keys.partition(topic_id, 3)` is `partitions/<topic id>/3`, `keys.partition.of(key)` is
`(topic_id, 3)` again, and `keys.cluster.key` is the only key of its kind. Keys that have no row belong to a later
version of Ottla: the image ignores them, and backups keep them.
"""

from __future__ import annotations

import enum
from typing import Generic, ParamSpec, TypeVar

from .identities import (
    BY_ACL,
    BY_CREDENTIAL,
    BY_ENTITY,
    BY_NAME,
    BY_NUMBER,
    BY_PADDED_NUMBER,
    BY_PART,
    BY_PARTITION,
    BY_RESOURCE,
    BY_TOPIC_ID,
    Identity,
)
from .model.acls import Acl
from .model.brokers import Broker, ControllerHolder
from .model.cluster import Cluster, LineageRow, LineageWord, ProducerIds
from .model.partitions import Election, Partition, Reassignment
from .model.reports import Report
from .model.settings import Config, Feature, Quota
from .model.topics import Ready, Tombstone, TopicIntent
from .model.users import LoginSecret, ScramKeys, Token
from .model.value import Value

P = ParamSpec("P")
T = TypeVar("T")


class Kept(enum.Enum):
    """Whether the keys of a kind of metadata are in a backup of the store, and are restored from it."""

    RESTORED = enum.auto()
    DROPPED = enum.auto()  # the backup has them, but a restored store doesn't
    LEFT_OUT = enum.auto()  # a running process writes them about itself, under its lease: a backup doesn't have them


class Kind:
    """A kind of metadata: one row of this module's table.

    `name` is the first part of each key, up to the slash. `value` is the class of the values. `field` is the name of
    the kind's field in `Image`; it is empty for a kind that the image doesn't show. `kept` says whether backups have
    the keys.
    """

    __slots__ = ("field", "kept", "name", "value")

    def __init__(self, name: str, value: type[Value], field: str, kept: Kept = Kept.RESTORED) -> None:
        self.name = name
        self.value = value
        self.field = field
        self.kept = kept

    def __repr__(self) -> str:
        return self.name


class SingleKind(Kind):
    """A kind of metadata with only one key, which is the kind's name. Its field in `Image` has the value, or None."""

    __slots__ = ()

    @property
    def key(self) -> str:
        """The only key of the kind."""
        return self.name


class MappedKind(Kind, Generic[P, T]):
    """A kind of metadata with many keys, such as one for each topic. Its field in `Image` maps identities to values.

    A `MappedKind` is called with an identity, and returns the key. `of` reads the identity from a key, and raises
    ValueError for a key that isn't of this kind. `prefix` is the beginning of all keys of the kind, with the slash.
    """

    __slots__ = ("_text", "of", "prefix")

    def __init__(
        self, name: str, identity: Identity[P, T], value: type[Value], field: str, kept: Kept = Kept.RESTORED
    ) -> None:
        super().__init__(name, value, field, kept)
        self.prefix = f"{name}/"
        self.of = identity.of
        self._text = identity.text

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """The key of the object with this identity; a topic's identity is its name, for example."""
        return self.prefix + self._text(*args, **kwargs)


# The cluster, and administrators' requests. A broker writes them.
cluster = SingleKind("cluster", Cluster, "cluster")
topic = MappedKind("topics", BY_NAME, TopicIntent, "intents")
tombstone = MappedKind("tombstones", BY_TOPIC_ID, Tombstone, "tombstones")
config = MappedKind("configs", BY_RESOURCE, Config, "configs")
quota = MappedKind("quotas", BY_ENTITY, Quota, "quotas")
feature = MappedKind("features", BY_NAME, Feature, "features")
acl = MappedKind("acls", BY_ACL, Acl, "acls")
election = MappedKind("elections", BY_PARTITION, Election, "elections", Kept.DROPPED)
reassignment = MappedKind("reassignments", BY_PARTITION, Reassignment, "reassignments", Kept.DROPPED)
producer_ids = SingleKind("producer-ids", ProducerIds, "producer_ids")
scram = MappedKind("scram", BY_CREDENTIAL, ScramKeys, "scram")
token = MappedKind("tokens", BY_NAME, Token, "tokens")
login_secret = SingleKind("login-secret", LoginSecret, "login_secret")

# Decisions. The controller writes them; a partition's leader, too, changes the partition's state.
partition = MappedKind("partitions", BY_PARTITION, Partition, "partitions")
ready = MappedKind("ready", BY_TOPIC_ID, Ready, "ready")
lineage = MappedKind("lineage", BY_PADDED_NUMBER, LineageRow, "lineage", Kept.DROPPED)
lineage_word = MappedKind("lineage-word", BY_NAME, LineageWord, "", Kept.DROPPED)

# The living processes, and the brokers' reports. Each process writes its own keys.
broker = MappedKind("brokers", BY_NUMBER, Broker, "brokers", Kept.LEFT_OUT)
report = MappedKind("reports", BY_PART, Report, "reports", Kept.LEFT_OUT)
controller = SingleKind("controller", ControllerHolder, "controller", Kept.LEFT_OUT)

KINDS = {row.name: row for row in list(globals().values()) if isinstance(row, Kind)}
"""All kinds, by name."""


def kind_of(key: str) -> Kind | None:
    """The key's kind; None for keys of later versions of Ottla."""
    return KINDS.get(key.partition("/")[0])
