"""From a Topic resource, and the topic as the cluster has it, to the steps that bring the one to the other. Pure.

A spec that can't be followed in one part isn't followed in any: partitions never go away, a topic isn't copied to more
brokers than there are. Only the owner's mark and policy are written all the same, once the topic has them. The settings
of the resource are all the settings of the topic, beside the owner's mark, and beside the throttle while replicas are
copied.

Steps are in order: first the mark (and the settings with it, in one change), so that whatever is made next is known to
be the resource's, however the operator ends; then new partitions; then moves, which are throttled by then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from ottla.operator.plan.replication import resized
from ottla.operator.plan.topic_owner import OWNER, mark, read_mark
from ottla.operator.spec.topic import TopicResource

POLICY = "ottla.owner.deletion.policy"
THROTTLED_LEADERS = "leader.replication.throttled.replicas"
THROTTLED_FOLLOWERS = "follower.replication.throttled.replicas"
THROTTLE_RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")  # of all brokers
DRAINED = "ottla.brokers.drained"
NOT_ENOUGH_BROKERS = "NotEnoughBrokers"
DEFAULT = -1  # partitions, replication factor: as the cluster has it

Replicas = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KafkaPartition:
    """A partition; while it is moved, `replicas` holds those that are added and those that will go, too."""

    replicas: Replicas
    in_sync: frozenset[int]
    adding: frozenset[int] = frozenset()
    removing: frozenset[int] = frozenset()

    @property
    def target(self) -> Replicas:
        """Its replicas once it isn't moved any more."""
        return _without(self.replicas, self.removing)

    @property
    def original(self) -> Replicas:
        """Its replicas if the move is cancelled."""
        return _without(self.replicas, self.adding)

    @property
    def moving(self) -> bool:
        """Whether a move is under way."""
        return bool(self.adding or self.removing)


@dataclass(frozen=True, slots=True)
class KafkaTopic:
    """A topic: its partitions by index, and all that was given to it as settings."""

    name: str
    id: UUID
    partitions: Mapping[int, KafkaPartition]
    overrides: Mapping[str, str] = field(default_factory=dict)

    @property
    def owner(self) -> str:
        """The resource that it follows, or nothing."""
        return self.overrides.get(OWNER, "")

    @property
    def replication_factor(self) -> int:
        """How many replicas its partitions have or, while they are moved, will have: the fewest, where they differ."""
        return min((len(partition.target) for partition in self.partitions.values()), default=0)


@dataclass(frozen=True, slots=True)
class KafkaCluster:
    """What the brokers say: who they are (id → rack), and the topics by name, internal ones left out."""

    racks: Mapping[int, str | None]
    topics: Mapping[str, KafkaTopic]
    load: Mapping[int, int] = field(default_factory=dict)  # broker → replicas of any topic
    settings: Mapping[str, str] = field(default_factory=dict)  # what was given to all brokers

    @property
    def takers(self) -> dict[int, str | None]:
        """Brokers that may get replicas: not those that are drained, unless all are."""
        drained = {part.strip() for part in self.settings.get(DRAINED, "").split(",")}
        takers = {broker: rack for broker, rack in self.racks.items() if str(broker) not in drained}
        return takers or dict(self.racks)


@dataclass(frozen=True, slots=True)
class Create:
    """Make the topic, its owner's mark and settings with it."""

    topic: str
    partitions: int
    replication_factor: int
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Configure:
    """Change settings; all of it or nothing."""

    topic: str
    given: Mapping[str, str]
    reset: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Grow:
    """Add partitions, up to so many."""

    topic: str
    partitions: int


@dataclass(frozen=True, slots=True)
class Move:
    """Give partitions other replicas, or (None) end their moves."""

    topic: str
    targets: Mapping[int, Replicas | None]


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the topic of that id, and no later one of that name."""

    topic: str
    id: UUID


Step = Create | Configure | Grow | Move | Delete


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why nothing is done: a word for programs, and a sentence that says what to change."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Moving:
    """How far a change of the replication factor is, in partitions."""

    done: int
    total: int
    factor: int

    def __str__(self) -> str:
        return f"replication factor {self.factor}: {self.done} of {self.total} partitions done"


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """Steps, perhaps none; with a refusal at most that which marks the topic."""

    steps: tuple[Step, ...] = ()
    refusal: Refusal | None = None
    moving: Moving | None = None
    adopted: bool = False  # the topic was there, and nobody's


def plan_topic(
    resource: TopicResource,
    topic: KafkaTopic | None,
    cluster: KafkaCluster,
    cluster_uid: str,
    throttled: bool = True,
    by_hand: bool = False,
) -> TopicPlan:
    """What to do for a resource that its topic's name belongs to; `topic` None: there is none of that name.

    `cluster_uid`: of the Cluster resource, for the owner's mark; `throttled`: the Cluster says how fast replicas may be
    copied; `by_hand`: somebody else throttles replicas, too.
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
    """Whether replicas that the topic names for a throttle wouldn't be named any more."""
    present = topic.overrides if topic is not None else {}
    return any(
        name in present and (name in step.reset or name in step.given)
        for step in plan.steps
        if isinstance(step, Configure)
        for name in (THROTTLED_LEADERS, THROTTLED_FOLLOWERS)
    )


def _still_marked(resource: TopicResource, topic: KafkaTopic | None, cluster_uid: str) -> tuple[Step, ...]:
    """The mark and the policy alone, where the topic's mark names a resource of this name: whatever becomes of the rest
    of the spec, the topic goes or stays by the policy of the resource that is there, be it made again."""
    owner = read_mark(topic.owner) if topic is not None else None
    if topic is None or owner is None or owner.ref != resource.ref:
        return ()
    wanted = _mark(resource, cluster_uid)
    given = {name: value for name, value in wanted.items() if topic.overrides.get(name) != value}
    return (Configure(topic.name, given),) if given else ()


def marks(plan: TopicPlan) -> bool:
    """Whether it writes an owner's mark."""
    return any(
        OWNER in (step.config if isinstance(step, Create) else step.given)
        for step in plan.steps
        if isinstance(step, Create | Configure)
    )


def release(topic: KafkaTopic) -> Configure:
    """Leaves a topic to nobody."""
    return Configure(topic.name, {}, tuple(name for name in (OWNER, POLICY) if name in topic.overrides))


def warning(topic: KafkaTopic, default: int) -> str:
    """What is wrong with a topic that is as its resource says; `default`: the cluster's min.insync.replicas."""
    text = topic.overrides.get("min.insync.replicas", "")
    least = int(text) if text.isdigit() else default
    factor = topic.replication_factor
    if factor >= least:
        return ""
    return f"min.insync.replicas is {least} with {factor} of each record: writes with acks=all are refused"


def winners(resources: Iterable[TopicResource]) -> dict[str, TopicResource]:
    """By topic: the oldest of the resources that claim its name; of two as old the one that is ready already."""
    found: dict[str, TopicResource] = {}
    for resource in resources:
        other = found.get(resource.topic)
        if other is None or _seniority(resource) < _seniority(other):
            found[resource.topic] = resource
    return found


def conflict(winner: TopicResource) -> Refusal:
    """What the others are told."""
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
        return None  # the brokers know best whether there are enough of them
    factor = resource.replication_factor
    brokers = len(cluster.takers)
    if factor is not None and factor > max(brokers, topic.replication_factor):
        have = "1 broker" if brokers == 1 else f"{brokers} brokers"
        return Refusal(
            NOT_ENOUGH_BROKERS,
            f"replicationFactor is {factor}, and the cluster has {have} to put replicas on: lower it or add brokers",
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
    """The moves to ask for, so that each partition gets as many replicas as the resource says."""
    factor = resource.replication_factor
    targets: dict[int, Replicas | None] = {}
    if factor is None:
        return targets
    load = Counter(cluster.load)
    for index, partition in sorted(topic.partitions.items()):
        if len(partition.target) == factor:
            continue  # as it should be, or on its way there
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
    """The settings that name the replicas which copy, and those that they copy from; nothing where none does.

    What stands there already is kept while it covers the replicas: each partition that is done would be a change. It is
    kept as well where the Cluster has no throttle: whoever moves the replicas may have set one. While somebody
    throttles by hand all that stands there is kept, whether it moves or not: it may be about to.
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
