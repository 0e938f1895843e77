"""The layout of keys in the metadata store, written down only here. Pure.

| key | kind | value (`model.py`) |
|---|---|---|
| `cluster` | intent | Cluster: the cluster's id |
| `topics/<name>` | intent | TopicIntent: the topic's id, and each partition's first replicas |
| `tombstones/<topic id>` | intent | Tombstone: a deleted topic, and the brokers that have yet to remove its data |
| `configs/<type>/<name>` | intent | Config: dynamic settings of a topic, broker, group or client-metrics subscription |
| `quotas/<entity>` | intent | Quota: the limits of a user, client id or address |
| `features/<name>` | intent | Feature: a finalised level |
| `elections/<topic id>/<index>` | intent | Election: a leader election that was asked for |
| `reassignments/<topic id>/<index>` | intent | Reassignment: the replicas that were asked for, or the end of a move |
| `producer-ids` | intent | ProducerIds: the first id that no broker has been given |
| `lineage/<row>` | state | LineageRow: random words by which a process recognises its store (`lineage.py`) |
| `lineage-word/<word>` | state | nothing: one key, named after the newest word, for transactions' guards |
| `partitions/<topic id>/<index>` | state | Partition |
| `ready/<topic id>` | state | Ready: how many of the topic's partitions clients may see |
| `brokers/<id>` | ephemeral | Broker |
| `reports/<broker id>/<part>` | ephemeral | Report: the ends of a broker's logs, after a restore from a backup |
| `controller` | ephemeral | ControllerHolder |

Topic ids are written as Kafka writes them: 22 characters of URL-safe base64. Names in which any character is allowed
are percent-encoded. The default entity has no name, and is written as `<default>`, which no encoded name can be.
"""

from __future__ import annotations

import base64
import enum
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote, unquote
from uuid import UUID

CLUSTER = "cluster"
CONTROLLER = "controller"
PRODUCER_IDS = "producer-ids"
BROKERS = "brokers/"
TOPICS = "topics/"
TOMBSTONES = "tombstones/"
CONFIGS = "configs/"
QUOTAS = "quotas/"
FEATURES = "features/"
ELECTIONS = "elections/"
REASSIGNMENTS = "reassignments/"
PARTITIONS = "partitions/"
READY = "ready/"
REPORTS = "reports/"
LINEAGE = "lineage/"
LINEAGE_WORD = "lineage-word/"

_DEFAULT = "<default>"

QuotaEntity = tuple[tuple[str, str | None], ...]  # sorted (entity type, name); name None = the default entity


class Kind(enum.Enum):
    """The kinds of keys, by the first part of a key."""

    CLUSTER = "cluster"
    CONTROLLER = "controller"
    PRODUCER_IDS = "producer-ids"
    BROKER = "brokers"
    TOPIC = "topics"
    TOMBSTONE = "tombstones"
    CONFIG = "configs"
    QUOTA = "quotas"
    FEATURE = "features"
    ELECTION = "elections"
    REASSIGNMENT = "reassignments"
    PARTITION = "partitions"
    READY = "ready"
    REPORT = "reports"
    LINEAGE = "lineage"
    LINEAGE_WORD = "lineage-word"
    UNKNOWN = ""


_KINDS = {kind.value: kind for kind in Kind}


class ConfigResource(NamedTuple):
    """A resource that has dynamic settings.

    `type` is "topic", "broker", "group" or "client-metrics". `name` "" is the default resource of the type.
    """

    type: str
    name: str


def uuid_text(value: UUID) -> str:
    """A UUID as Kafka prints it."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


@lru_cache(maxsize=65536)
def uuid_from_text(text: str) -> UUID:
    """The UUID that Kafka prints as `text`. Raises ValueError."""
    raw = base64.urlsafe_b64decode(text + "==")
    if len(raw) != 16:
        raise ValueError(f"not a Kafka UUID: {text!r}")
    return UUID(bytes=raw)


def broker(broker_id: int) -> str:
    """Key of a broker's registration."""
    return f"{BROKERS}{broker_id}"


def topic(name: str) -> str:
    """Key of a topic's intent."""
    return TOPICS + name


def tombstone(topic_id: UUID) -> str:
    """Key of a deleted topic's tombstone."""
    return TOMBSTONES + uuid_text(topic_id)


def ready(topic_id: UUID) -> str:
    """Key of a topic's ready mark."""
    return READY + uuid_text(topic_id)


def partition(topic_id: UUID, index: int) -> str:
    """Key of a partition's state."""
    return f"{PARTITIONS}{uuid_text(topic_id)}/{index}"


def election(topic_id: UUID, index: int) -> str:
    """Key of an election that was asked for."""
    return f"{ELECTIONS}{uuid_text(topic_id)}/{index}"


def reassignment(topic_id: UUID, index: int) -> str:
    """Key of a reassignment that was asked for."""
    return f"{REASSIGNMENTS}{uuid_text(topic_id)}/{index}"


def report(broker_id: int, part: int) -> str:
    """Key of one part of a broker's report of its logs' ends."""
    return f"{REPORTS}{broker_id}/{part}"


def lineage(row: int) -> str:
    """Key of a row of lineage words."""
    return f"{LINEAGE}{row:08d}"


def lineage_word(word: str) -> str:
    """Key that exists while `word` is the lineage's newest word."""
    return LINEAGE_WORD + word


def config(resource: ConfigResource) -> str:
    """Key of a resource's dynamic settings."""
    return f"{CONFIGS}{resource.type}/{_encoded(resource.name or None)}"


def feature(name: str) -> str:
    """Key of a finalised feature."""
    return FEATURES + name


def quota(entity: QuotaEntity) -> str:
    """Key of an entity's quotas."""
    return QUOTAS + ",".join(f"{kind}={_encoded(name)}" for kind, name in sorted(entity))


def kind_of(key: str) -> Kind:
    """The key's kind; UNKNOWN for keys of later versions of Ottla."""
    return _KINDS.get(key.partition("/")[0], Kind.UNKNOWN)


def broker_id(key: str) -> int:
    """The id in a registration's key."""
    return int(key[len(BROKERS) :])


def topic_name(key: str) -> str:
    """The name in a topic's key."""
    return key[len(TOPICS) :]


def topic_id(key: str) -> UUID:
    """The topic id in the key of a tombstone or ready mark."""
    return uuid_from_text(key.partition("/")[2])


def partition_id(key: str) -> tuple[UUID, int]:
    """(topic id, index) in the key of a partition, election or reassignment."""
    _, topic_text, index = key.split("/")
    return uuid_from_text(topic_text), int(index)


def report_part(key: str) -> tuple[int, int]:
    """(broker id, part) in the key of a report."""
    _, broker_text, part = key.split("/")
    return int(broker_text), int(part)


def lineage_row(key: str) -> int:
    """The row in the key of lineage words."""
    return int(key[len(LINEAGE) :])


def config_resource(key: str) -> ConfigResource:
    """The resource in the key of dynamic settings."""
    _, kind, name = key.split("/", 2)
    return ConfigResource(kind, _decoded(name) or "")


def feature_name(key: str) -> str:
    """The name in a feature's key."""
    return key[len(FEATURES) :]


def quota_entity(key: str) -> QuotaEntity:
    """The entity in the key of quotas."""
    pairs = (part.partition("=") for part in key[len(QUOTAS) :].split(","))
    return tuple(sorted((kind, _decoded(name)) for kind, _, name in pairs))


def _encoded(name: str | None) -> str:
    return _DEFAULT if name is None else quote(name, safe="")


def _decoded(text: str) -> str | None:
    return None if text == _DEFAULT else unquote(text)
