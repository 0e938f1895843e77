"""The steps that bring a topic to what its Topic resource says. Pure.

If one part of a spec can't be followed (fewer partitions, or more replicas than brokers), no part of the spec is. Only
the owner's mark and policy are written all the same, if the topic has the resource's mark already. A topic's settings
are exactly the resource's, besides the owner's mark, and besides the throttle while replicas are copied.

The order of steps: first the mark, with the settings in one change, so that all later changes belong to a topic that
names its owner, even if the operator stops midway; then new partitions; then moves, which are throttled by then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from ottla.operator.plan.replication import resized
from ottla.operator.plan.topic_owner import OWNER, mark, read_mark
from ottla.operator.spec.topic import TopicResource
from ottla.wording import counted

POLICY = "ottla.owner.deletion.policy"
THROTTLED_LEADERS = "leader.replication.throttled.replicas"
THROTTLED_FOLLOWERS = "follower.replication.throttled.replicas"
THROTTLE_RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")  # settings of brokers
DRAINED = "ottla.brokers.drained"
NOT_ENOUGH_BROKERS = "NotEnoughBrokers"
DEFAULT = -1  # as a number of partitions, or a replication factor: the cluster's default

Replicas = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KafkaPartition:
    """A partition. During a move, `replicas` has the added replicas, and those that are to be removed, too."""

    replicas: Replicas
    in_sync: frozenset[int]
    adding: frozenset[int] = frozenset()
    removing: frozenset[int] = frozenset()

    @property
    def target(self) -> Replicas:
        """The replicas after the present move; without a move, the present ones."""
        return _without(self.replicas, self.removing)

    @property
    def original(self) -> Replicas:
        """The replicas if the present move is cancelled; without a move, the present ones."""
        return _without(self.replicas, self.adding)

    @property
    def moving(self) -> bool:
        """Whether a move is under way."""
        return bool(self.adding or self.removing)


@dataclass(frozen=True, slots=True)
class KafkaTopic:
    """A topic: its partitions by index, and the settings that were given to it (`overrides`)."""

    name: str
    id: UUID
    partitions: Mapping[int, KafkaPartition]
    overrides: Mapping[str, str] = field(default_factory=dict)

    @property
    def owner(self) -> str:
        """The mark of the resource that owns the topic (`topic_owner`); empty where none does."""
        return self.overrides.get(OWNER, "")

    @property
    def replication_factor(self) -> int:
        """How many replicas each partition has, or will have after its move; the fewest where partitions differ."""
        return min((len(partition.target) for partition in self.partitions.values()), default=0)


@dataclass(frozen=True, slots=True)
class KafkaCluster:
    """A cluster as its brokers describe it: the registered brokers (id → rack), and the topics by name; internal topics
    only if they were asked for."""

    racks: Mapping[int, str | None]
    topics: Mapping[str, KafkaTopic]
    load: Mapping[int, int] = field(default_factory=dict)  # broker → how many replicas it has, of all topics
    settings: Mapping[str, str] = field(default_factory=dict)  # dynamic settings of all brokers

    @property
    def takers(self) -> dict[int, str | None]:
        """The brokers that may get replicas (id → rack): all but drained ones, or all where all are drained."""
        drained = {part.strip() for part in self.settings.get(DRAINED, "").split(",")}
        takers = {broker: rack for broker, rack in self.racks.items() if str(broker) not in drained}
        return takers or dict(self.racks)


@dataclass(frozen=True, slots=True)
class Create:
    """The step: create the topic with its settings, one of which (the mark) names the Topic resource that owns it."""

    topic: str
    partitions: int
    replication_factor: int
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Configure:
    """The step: set and reset settings of the topic, in one change."""

    topic: str
    given: Mapping[str, str]
    reset: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Grow:
    """The step: add partitions, until there are `partitions`."""

    topic: str
    partitions: int


@dataclass(frozen=True, slots=True)
class Move:
    """The step: move partitions to other replicas, or cancel moves. `targets`: a partition's index → its new replicas,
    or None, which cancels its move."""

    topic: str
    targets: Mapping[int, Replicas | None]


@dataclass(frozen=True, slots=True)
class Delete:
    """The step: delete the topic of this id, and no later topic of the same name."""

    topic: str
    id: UUID


Step = Create | Configure | Grow | Move | Delete


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a resource isn't followed: a word for programs, and a sentence that says what to change."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Moving:
    """The progress of a change of the replication factor, in partitions."""

    done: int
    total: int
    factor: int

    def __str__(self) -> str:
        return f"replication factor {self.factor}: {self.done} of {self.total} partitions done"


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """The steps, perhaps none. With a refusal, there is at most the step that renews the owner's mark."""

    steps: tuple[Step, ...] = ()
    refusal: Refusal | None = None
    moving: Moving | None = None
    adopted: bool = False  # the topic existed, and had no owner


def plan_topic(
    resource: TopicResource,
    topic: KafkaTopic | None,
    cluster: KafkaCluster,
    cluster_uid: str,
    throttled: bool = True,
    by_hand: bool = False,
) -> TopicPlan:
    """The plan for a resource that wins its topic's name (`winners`). `topic` is None if no topic has that name.

    `cluster_uid`: the Cluster's uid, for the owner's mark; `throttled`: whether the Cluster says how fast replicas may
    be copied; `by_hand`: whether an administrator throttles replicas, too.
    """
    refusal = _refusal(resource, topic, cluster)
    if refusal is not None:
        return TopicPlan(_still_marked(resource, topic, cluster_uid), refusal)
    if topic is None:
        partitions = resource.partitions or DEFAULT
        factor = resource.replication_factor or DEFAULT
        return TopicPlan(
            (Create(resource.topic, partitions, factor, {**resource.config, **_mark(resource, cluster_uid)}),)
        )
    targets = _targets(resource, topic, cluster)
    steps: list[Step] = []
    if configure := _configure(resource, topic, cluster_uid, _throttle(topic, targets, throttled, by_hand)):
        steps.append(configure)
    if resource.partitions is not None and resource.partitions > len(topic.partitions):
        steps.append(Grow(topic.name, resource.partitions))
    if targets:
        steps.append(Move(topic.name, targets))
    return TopicPlan(tuple(steps), moving=_moving(resource, topic, targets), adopted=not topic.owner)


def takes_throttle_away(plan: TopicPlan, topic: KafkaTopic | None) -> bool:
    """Whether the plan changes or resets the throttled replicas that the topic's settings name now."""
    present = topic.overrides if topic is not None else {}
    return any(
        name in present and (name in step.reset or name in step.given)
        for step in plan.steps
        if isinstance(step, Configure)
        for name in (THROTTLED_LEADERS, THROTTLED_FOLLOWERS)
    )


def _still_marked(resource: TopicResource, topic: KafkaTopic | None, cluster_uid: str) -> tuple[Step, ...]:
    """The step that renews the mark and the policy alone, if the topic's mark names a resource of this name.

    Even if the rest of the spec can't be followed, the policy of the present resource decides whether the topic is
    deleted, also after the resource was deleted and made again.
    """
    owner = read_mark(topic.owner) if topic is not None else None
    if topic is None or owner is None or owner.ref != resource.ref:
        return ()
    wanted = _mark(resource, cluster_uid)
    given = {name: value for name, value in wanted.items() if topic.overrides.get(name) != value}
    return (Configure(topic.name, given),) if given else ()


def marks(plan: TopicPlan) -> bool:
    """Whether a step of the plan writes the setting that names the topic's owner (the mark)."""
    return any(
        OWNER in (step.config if isinstance(step, Create) else step.given)
        for step in plan.steps
        if isinstance(step, Create | Configure)
    )


def release(topic: KafkaTopic) -> Configure:
    """The step that removes from a topic the setting that names its owner (the mark)."""
    return Configure(topic.name, {}, tuple(name for name in (OWNER, POLICY) if name in topic.overrides))


def warning(topic: KafkaTopic, default: int) -> str:
    """A warning about a topic that is as its resource says; empty where there is none. `default`: the cluster's
    min.insync.replicas.

    Brokers ask for no more in-sync replicas than a partition has (`Partition.in_sync_min`, as `effectiveMinIsr` in
    Kafka 4), so writes with acks=all succeed although min.insync.replicas is greater.
    """
    text = topic.overrides.get("min.insync.replicas", "")
    least = int(text) if text.isdigit() else default
    factor = topic.replication_factor
    if factor >= least:
        return ""
    stop = "while one of them isn't in sync" if factor > 1 else "while its broker is away"
    return (
        f"min.insync.replicas is {least}, and each partition has {counted(factor, 'replica')}: writes with acks=all "
        f"succeed with fewer copies than that, and stop {stop}"
    )


def winners(resources: Iterable[TopicResource]) -> dict[str, TopicResource]:
    """A topic's name → the resource that the topic follows: the oldest one that claims the name. Of equally old
    resources, a ready one comes first."""
    found: dict[str, TopicResource] = {}
    for resource in resources:
        other = found.get(resource.topic)
        if other is None or _seniority(resource) < _seniority(other):
            found[resource.topic] = resource
    return found


def conflict(winner: TopicResource) -> Refusal:
    """The refusal for the other resources that claim the winner's topic."""
    return Refusal(
        "ResourceConflict",
        f"topic '{winner.topic}' follows the older Topic {winner.ref}: choose another topicName, or delete one of them",
    )


def _seniority(resource: TopicResource) -> tuple[str, bool, str]:
    return resource.created, not resource.ready, resource.uid


def _refusal(resource: TopicResource, topic: KafkaTopic | None, cluster: KafkaCluster) -> Refusal | None:
    if resource.refusal:
        return Refusal("InvalidSpec", resource.refusal)
    if topic is None:
        return None  # the broker that creates the topic checks whether there are enough brokers
    factor = resource.replication_factor
    brokers = len(cluster.takers)
    if factor is not None and factor > max(brokers, topic.replication_factor):
        have = "1 broker" if brokers == 1 else f"{brokers} brokers"
        return Refusal(
            NOT_ENOUGH_BROKERS,
            f"replicationFactor is {factor}, and the cluster has {have} to put replicas on: "
            "lower replicationFactor, or add brokers",
        )
    if resource.partitions is not None and resource.partitions < len(topic.partitions):
        return Refusal(
            "NotSupported",
            f"the topic has {len(topic.partitions)} partitions and partitions can't be taken away: "
            f"set partitions to {len(topic.partitions)} or more, or make another topic",
        )
    return None


def _mark(resource: TopicResource, cluster_uid: str) -> dict[str, str]:
    return {OWNER: mark(resource, cluster_uid), POLICY: resource.deletion_policy.value}


def _configure(
    resource: TopicResource, topic: KafkaTopic, cluster_uid: str, throttle: Mapping[str, str]
) -> Configure | None:
    wanted = {**throttle, **resource.config, **_mark(resource, cluster_uid)}
    given = {name: value for name, value in wanted.items() if topic.overrides.get(name) != value}
    reset = tuple(sorted(name for name in topic.overrides if name not in wanted))
    return Configure(topic.name, given, reset) if given or reset else None


def _targets(resource: TopicResource, topic: KafkaTopic, cluster: KafkaCluster) -> dict[int, Replicas | None]:
    """The moves to request, by partition, so that each gets as many replicas as the resource says."""
    factor = resource.replication_factor
    targets: dict[int, Replicas | None] = {}
    if factor is None:
        return targets
    load = Counter(cluster.load)
    for index, partition in sorted(topic.partitions.items()):
        if len(partition.target) == factor:
            continue  # the partition has that many replicas, or will have them after its move
        if partition.moving and len(partition.original) == factor:
            targets[index] = None
            continue
        target = resized(partition.original, factor, partition.in_sync, cluster.takers, load)
        load.subtract(partition.original)
        load.update(target)
        targets[index] = target
    return targets


def _throttle(
    topic: KafkaTopic, targets: Mapping[int, Replicas | None], throttled: bool, by_hand: bool
) -> dict[str, str]:
    """The settings that name the replicas to copy and the replicas that they are copied from; empty if none is copied.

    Present values are kept while they cover these replicas, because otherwise each completed partition would change
    them. They are kept, too, if the Cluster has no throttle, because the administrator who moves the replicas may have
    set one. While an administrator throttles by hand, all present values are kept, whether or not the replicas that
    they name are being moved, because they may be moved next.
    """
    leaders, followers = [], []
    for index, partition in sorted(topic.partitions.items()):
        target = targets.get(index, partition.target if partition.moving else None)
        added = [broker for broker in target or () if broker not in partition.original]
        if added:
            leaders += [f"{index}:{broker}" for broker in partition.original]
            followers += [f"{index}:{broker}" for broker in added]
    throttle = {}
    for name, replicas in ((THROTTLED_LEADERS, leaders), (THROTTLED_FOLLOWERS, followers)):
        present = topic.overrides.get(name, "")
        if by_hand and present:
            named = present.split(",")
            more = [each for each in replicas if throttled and present != "*" and each not in named]
            throttle[name] = ",".join([*named, *more])
        elif not replicas:
            continue
        elif present == "*" or set(replicas) <= set(present.split(",")):
            throttle[name] = present
        elif throttled:
            throttle[name] = ",".join(replicas)
    return throttle


def _moving(resource: TopicResource, topic: KafkaTopic, targets: Mapping[int, Replicas | None]) -> Moving | None:
    factor = resource.replication_factor
    if factor is None:
        return None
    changing = sum(
        index in targets or (partition.moving and len(partition.original) != factor)
        for index, partition in topic.partitions.items()
    )
    total = len(topic.partitions)
    return Moving(total - changing, total, factor) if changing else None


def _without(replicas: Replicas, some: frozenset[int]) -> Replicas:
    return tuple(broker for broker in replicas if broker not in some) if some else replicas
