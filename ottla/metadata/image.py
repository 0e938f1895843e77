"""The cluster's metadata at one revision: an immutable image, and its successor after a change. Pure.

`Image.apply` makes the next image, which shares with its predecessor everything that the revision doesn't change. So
the cost of applying a revision depends on the number of its changes, and not on the size of the cluster. `apply` also
returns the names of the changed things (`Changed`), so that a listener looks only at these.

Each kind of metadata (`keys.py`) has a field in `Image`, and one of the same name in `Changed`. A kind's row in
`keys.py` says how the field follows from the kind's keys. The code for topics and partitions is separate, because
`topics` follows from three kinds: from intents, ready marks and states.

A topic is visible (`topics`, `topics_by_id`) once it has a ready mark, and has as many partitions as the mark says. The
states of its partitions are in `partitions` as soon as they are written: a broker opens the logs that it leads before
clients may see the topic, and the controller has to find states that lack a topic or a mark.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any
from uuid import UUID

from ottla.protocol.acls import AclBinding

from . import keys
from .identities import ConfigResource, QuotaEntity
from .keys import KINDS, Kind, MappedKind, SingleKind, kind_of
from .model.acls import Acl
from .model.brokers import Broker, ControllerHolder
from .model.cluster import Cluster, LineageRow, ProducerIds
from .model.partitions import Election, Partition, Reassignment
from .model.reports import Report
from .model.settings import Config, Feature, Quota
from .model.topics import Ready, Tombstone, TopicIntent
from .model.users import LoginSecret, ScramKeys, Token
from .naming import metric_name
from .persistent import PersistentMap
from .store import Change, Revision, Snapshot

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})

DRAINED = "ottla.brokers.drained"

_EMPTY: Mapping[Any, Any] = MappingProxyType({})
_NO_PARTITIONS: PersistentMap[int, Partition] = PersistentMap()

SHOWN_BY_TOPICS = ("intents", "ready")
"""The fields of `Image` that have no field of the same name in `Changed`: `Changed.topics` reports their changes."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A visible topic. The keys of `partitions` are 0 … len−1."""

    name: str
    id: UUID
    partitions: Mapping[int, Partition]

    @property
    def internal(self) -> bool:
        """Whether the topic is one of Kafka's internal topics."""
        return self.name in INTERNAL_TOPICS


@dataclass(frozen=True, slots=True)
class Changed:
    """The names of everything that differs between an image and its predecessor: added, removed or changed."""

    cluster: bool = False
    controller: bool = False
    producer_ids: bool = False
    brokers: frozenset[int] = frozenset()
    topics: frozenset[UUID] = frozenset()  # topics that appeared, vanished, became ready, or had a changed partition
    partitions: frozenset[tuple[UUID, int]] = frozenset()  # whose states changed, also of invisible topics
    tombstones: frozenset[UUID] = frozenset()
    configs: frozenset[ConfigResource] = frozenset()
    quotas: frozenset[QuotaEntity] = frozenset()
    features: frozenset[str] = frozenset()
    elections: frozenset[tuple[UUID, int]] = frozenset()
    reassignments: frozenset[tuple[UUID, int]] = frozenset()
    reports: frozenset[tuple[int, int]] = frozenset()
    lineage: frozenset[int] = frozenset()
    acls: frozenset[AclBinding] = frozenset()
    scram: frozenset[tuple[str, str]] = frozenset()
    tokens: frozenset[str] = frozenset()
    login_secret: bool = False

    def __or__(self, later: Changed) -> Changed:
        """Everything that this change or the `later` one changed."""
        return Changed(**{name: getattr(self, name) | getattr(later, name) for name in Changed.__slots__})

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in Changed.__slots__)


@dataclass(frozen=True, slots=True)
class Image:
    """The metadata at `revision`."""

    revision: int = 0
    cluster: Cluster | None = None
    controller: ControllerHolder | None = None
    producer_ids: ProducerIds | None = None
    brokers: Mapping[int, Broker] = field(default_factory=dict)
    topics: PersistentMap[str, Topic] = field(default_factory=PersistentMap)  # the visible topics, by name
    topics_by_id: PersistentMap[UUID, Topic] = field(default_factory=PersistentMap)
    intents: PersistentMap[str, TopicIntent] = field(default_factory=PersistentMap)  # visible or not
    intents_by_id: PersistentMap[UUID, TopicIntent] = field(default_factory=PersistentMap)
    metric_names: PersistentMap[str, frozenset[str]] = field(default_factory=PersistentMap)  # see naming.metric_name
    ready: PersistentMap[UUID, Ready] = field(default_factory=PersistentMap)
    partitions: PersistentMap[UUID, PersistentMap[int, Partition]] = field(default_factory=PersistentMap)
    tombstones: PersistentMap[UUID, Tombstone] = field(default_factory=PersistentMap)
    configs: PersistentMap[ConfigResource, Config] = field(default_factory=PersistentMap)
    quotas: Mapping[QuotaEntity, Quota] = field(default_factory=dict)
    features: Mapping[str, Feature] = field(default_factory=dict)
    elections: PersistentMap[tuple[UUID, int], Election] = field(default_factory=PersistentMap)
    reassignments: PersistentMap[tuple[UUID, int], Reassignment] = field(default_factory=PersistentMap)
    reports: Mapping[tuple[int, int], Report] = field(default_factory=dict)  # by (broker id, part)
    lineage: PersistentMap[int, LineageRow] = field(default_factory=PersistentMap)  # by the row's number
    acls: PersistentMap[AclBinding, Acl] = field(default_factory=PersistentMap)
    scram: PersistentMap[tuple[str, str], ScramKeys] = field(default_factory=PersistentMap)  # by (user, mechanism)
    tokens: PersistentMap[str, Token] = field(default_factory=PersistentMap)  # delegation tokens, by id
    login_secret: LoginSecret | None = None

    @classmethod
    def of(cls, snapshot: Snapshot) -> Image:
        """The image of a snapshot of all keys."""
        changes = tuple(Change(entry.key, entry) for entry in snapshot.entries)
        return cls().apply(Revision(snapshot.revision, changes))[0]

    def apply(self, revision: Revision) -> tuple[Image, Changed]:
        """Returns (the next image, its differences from this one). Ignores unknown kinds. Raises UnsupportedFormat."""
        by_kind: dict[Kind | None, list[Change]] = {}
        for change in revision.changes:
            by_kind.setdefault(kind_of(change.key), []).append(change)
        fields: dict[str, Any] = {"revision": revision.revision}
        changed: dict[str, Any] = {}
        for kind, changes in by_kind.items():
            if (step := _STEPS.get(kind)) is not None:
                step(self, changes, fields, changed)
        touched = _touched_topics(fields, changed)
        if touched:
            _update_visible(self, touched, fields, changed.get("topics_losing_states", ()))
            changed["topics"] = frozenset(touched)
        for internal in (*SHOWN_BY_TOPICS, "topics_losing_states"):
            changed.pop(internal, None)
        return replace(self, **fields), Changed(**changed)

    def partition(self, topic_id: UUID, index: int) -> Partition | None:
        """A partition's state, whether its topic is visible or not."""
        states = self.partitions.get(topic_id)
        return None if states is None else states.get(index)

    def config(self, kind: str, name: str) -> Mapping[str, str]:
        """The dynamic settings of a resource; `name` "" is the default resource of that type."""
        config = self.configs.get(ConfigResource(kind, name))
        return _EMPTY if config is None else config.entries

    @property
    def drained(self) -> frozenset[int]:
        """The brokers that are drained: they keep their replicas in sync, but lead only where no other broker can."""
        return _ids(self.config("broker", "").get(DRAINED, ""))

    @property
    def cluster_id(self) -> str:
        """The cluster's id; empty before the store has one."""
        return "" if self.cluster is None else self.cluster.id


@lru_cache(maxsize=16)
def _ids(text: str) -> frozenset[int]:
    return frozenset(int(part) for part in text.split(",") if part.strip())


def difference(old: Image, new: Image) -> Changed:
    """The differences between two images that aren't neighbours, found by a comparison of all fields."""
    changed: dict[str, Any] = {}
    for kind in KINDS.values():
        if kind.field:
            before, after = getattr(old, kind.field), getattr(new, kind.field)
            differs = before != after if isinstance(kind, SingleKind) else frozenset(_differing(before, after))
            changed[kind.field] = differs
    partitions = frozenset(
        (topic, index)
        for topic in changed["partitions"]
        for index in _differing(old.partitions.get(topic, _EMPTY), new.partitions.get(topic, _EMPTY))
    )
    topics = changed["partitions"] | changed["ready"] | _differing(old.intents_by_id, new.intents_by_id)
    changed |= {"partitions": partitions, "topics": topics | _differing(old.topics_by_id, new.topics_by_id)}
    return Changed(**{name: differs for name, differs in changed.items() if name not in SHOWN_BY_TOPICS})


def _differing(old: Mapping[Any, Any], new: Mapping[Any, Any]) -> set[Any]:
    if old is new:
        return set()
    keys = {key for key, value in new.items() if old.get(key) != value}
    return keys | {key for key in old if key not in new}


_Step = Callable[[Image, list[Change], dict[str, Any], dict[str, Any]], None]


def _single(kind: Kind) -> _Step:
    """A function that applies the changes of a kind with only one key to the fields of the next image."""
    name, decode = kind.field, kind.value.decode

    def step(image: Image, changes: list[Change], fields: dict[str, Any], changed: dict[str, Any]) -> None:
        entry = changes[-1].entry
        fields[name] = None if entry is None else decode(entry)
        changed[name] = True

    return step


def _mapped(kind: MappedKind[..., Any]) -> _Step:
    """A function that applies the changes of a kind with many keys to its mapping in the next image."""
    name = kind.field

    def step(image: Image, changes: list[Change], fields: dict[str, Any], changed: dict[str, Any]) -> None:
        puts, removes = _sorted_out(changes, kind)
        before = getattr(image, name)
        if isinstance(before, PersistentMap):
            fields[name] = before.changed(puts, removes)
        else:
            fields[name] = MappingProxyType({k: v for k, v in {**before, **puts}.items() if k not in removes})
        changed[name] = frozenset(puts) | frozenset(removes)

    return step


def _apply_intents(image: Image, changes: list[Change], fields: dict[str, Any], changed: dict[str, Any]) -> None:
    puts, removes = _sorted_out(changes, keys.topic)
    replaced = [image.intents[name].id for name in (*puts, *removes) if name in image.intents]
    fields["intents"] = image.intents.changed(puts, removes)
    by_id = {intent.id: intent for intent in puts.values()}
    fields["intents_by_id"] = image.intents_by_id.changed(by_id, [old for old in replaced if old not in by_id])
    changed["intents"] = {*replaced, *by_id}
    _update_metric_names(image, puts, removes, fields)


def _update_metric_names(image: Image, puts: Iterable[str], removes: Iterable[str], fields: dict[str, Any]) -> None:
    names: dict[str, frozenset[str]] = {}
    for topics, present in ((removes, False), (puts, True)):
        for topic in topics:
            if metric := metric_name(topic):
                known = names.get(metric, image.metric_names.get(metric, frozenset()))
                names[metric] = known | {topic} if present else known - {topic}
    if names:
        puts_now = {metric: topics for metric, topics in names.items() if topics}
        fields["metric_names"] = image.metric_names.changed(puts_now, [metric for metric in names if not names[metric]])


def _apply_partitions(image: Image, changes: list[Change], fields: dict[str, Any], changed: dict[str, Any]) -> None:
    by_topic: dict[UUID, tuple[dict[int, Partition], list[int]]] = {}
    identity_of = keys.partition.of
    for key, entry in changes:
        topic, index = identity_of(key)
        puts, removes = by_topic.setdefault(topic, ({}, []))
        if entry is None:
            removes.append(index)
        else:
            puts[index] = Partition.decode(entry)
    updated: dict[UUID, PersistentMap[int, Partition]] = {}
    emptied: list[UUID] = []
    for topic, (puts, removes) in by_topic.items():
        states = image.partitions.get(topic, _NO_PARTITIONS).changed(puts, removes)
        if states:
            updated[topic] = states
        else:
            emptied.append(topic)
    fields["partitions"] = image.partitions.changed(updated, emptied)
    changed["topics_losing_states"] = {topic for topic, (_, removes) in by_topic.items() if removes}
    changed["partitions"] = frozenset(
        (topic, index) for topic, both in by_topic.items() for part in both for index in part
    )


def _sorted_out(changes: Iterable[Change], kind: MappedKind[..., Any]) -> tuple[dict[Any, Any], list[Any]]:
    """The changes of a kind as a pair: the values that were put, by identity, and the identities that were removed."""
    identity_of, decode = kind.of, kind.value.decode
    puts: dict[Any, Any] = {}
    removes: list[Any] = []
    for key, entry in changes:
        if entry is None:
            removes.append(identity_of(key))
        else:
            puts[identity_of(key)] = decode(entry)
    return puts, removes


def _touched_topics(fields: dict[str, Any], changed: dict[str, Any]) -> set[UUID]:
    touched = set(changed.get("intents", ())) | set(changed.get("ready", ()))
    touched.update(topic for topic, _ in changed.get("partitions", ()))
    return touched


def _update_visible(
    image: Image, touched: Iterable[UUID], fields: dict[str, Any], losing_states: Collection[UUID]
) -> None:
    """Computes `topics` and `topics_by_id` from the new intents (the requested topics), ready marks and states."""
    intents = fields.get("intents_by_id", image.intents_by_id)
    ready = fields.get("ready", image.ready)
    partitions = fields.get("partitions", image.partitions)
    visible: dict[UUID, Topic] = {}
    hidden: list[UUID] = []
    for topic in touched:
        before = None if topic in losing_states else image.topics_by_id.get(topic)
        made = _visible(intents.get(topic), ready.get(topic), partitions.get(topic, _NO_PARTITIONS), before)
        if made is not None:
            visible[topic] = made
        elif topic in image.topics_by_id:
            hidden.append(topic)
    by_name = {topic.name: topic for topic in visible.values()}
    hidden_names = [image.topics_by_id[topic].name for topic in hidden]
    fields["topics"] = image.topics.changed(by_name, [name for name in hidden_names if name not in by_name])
    fields["topics_by_id"] = image.topics_by_id.changed(visible, hidden)


def _visible(
    intent: TopicIntent | None, ready: Ready | None, states: PersistentMap[int, Partition], before: Topic | None
) -> Topic | None:
    """The topic, if all partitions that its ready mark counts have states.

    `before` is the topic in the previous image; it must be None if the topic has lost a state since.
    """
    if intent is None or ready is None:
        return None
    count = ready.partitions
    if before is not None and len(before.partitions) == count == len(states):
        # The topic had the states 0 … count−1, has lost none and has no others. So the states needn't be checked.
        return Topic(intent.name, intent.id, states)
    if any(index not in states for index in range(count)):
        return None
    if len(states) == count:
        return Topic(intent.name, intent.id, states)
    return Topic(intent.name, intent.id, PersistentMap({index: states[index] for index in range(count)}))


def _step(kind: Kind) -> _Step:
    return _mapped(kind) if isinstance(kind, MappedKind) else _single(kind)


_STEPS: Mapping[Kind | None, _Step] = {
    **{kind: _step(kind) for kind in KINDS.values() if kind.field},
    keys.topic: _apply_intents,
    keys.partition: _apply_partitions,
}
