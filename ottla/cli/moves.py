"""Shared code of the commands that move replicas: plans, their files, the moves under way, and their throttle.

A plan's file has the format of `kafka-reassign-partitions`, and the throttle is set as that tool sets it: settings of
the topics name the throttled replicas, settings of the brokers involved have the rate.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.cli import health
from ottla.cli.configs import alter_resource, described_settings
from ottla.cli.connection import explained, sentence
from ottla.cli.errors import CommandError, UsageError, raise_all, unreadable

if TYPE_CHECKING:
    from ottla.cli.connection import Cluster
    from ottla.placement import PartitionName, Replicas

    Moves = Mapping[PartitionName, Replicas]
    ReplicaName = tuple[PartitionName, int]  # a partition, and the broker that the replica is on

_ANY = "any"  # in a plan's file: the broker chooses the log directory
_SIDES = ("leader", "follower")


def assignments(cluster: Cluster) -> dict[PartitionName, Replicas]:
    """The replicas of each partition; if a move of the partition is under way, the replicas that the move leads to."""
    return {name: replicas for name, (replicas, _) in _held(cluster).items()}


def _held(cluster: Cluster) -> dict[PartitionName, tuple[Replicas, Replicas]]:
    """(the replicas as `assignments` gives them, the in-sync replicas) of each partition."""
    with explained("the list of topics"):
        topics = cluster.patiently(cluster.admin.describe_topics)
    held = {
        (str(topic["name"]), int(partition["partition_index"])): (
            tuple(partition["replica_nodes"]),
            tuple(partition["isr_nodes"]),
        )
        for topic in topics
        for partition in topic["partitions"]
    }
    for name, move in under_way(cluster).items():
        target = tuple(broker for broker in move["replicas"] if broker not in move["removing_replicas"])
        held[name] = target, held[name][1] if name in held else ()
    return held


def under_way(cluster: Cluster) -> dict[PartitionName, dict[str, list[int]]]:
    """The partitions whose moves haven't ended, each with its replicas, adding_replicas and removing_replicas."""
    with explained("the list of moves"):
        found = cluster.patiently(lambda: cluster.admin.list_partition_reassignments(timeout_ms=cluster.timeout_ms))
    return {(one.topic, one.partition): move for one, move in sorted(found.items())}


def plan(
    cluster: Cluster,
    topics: Collection[str] | None = None,
    brokers: Collection[int] | None = None,
    without: Collection[int] = (),
) -> tuple[dict[PartitionName, Replicas], dict[PartitionName, Replicas]]:
    """(present replicas of all partitions, new replicas of the partitions to move). The new replicas spread replicas
    and leaders evenly over `brokers` (None: over all brokers), except those in `without`."""
    from ottla.balance.counts import Target, balanced

    racks = cluster.racks()
    unknown = sorted(set(brokers or ()).difference(racks))
    if unknown:
        raise UsageError(f"there is no broker {unknown[0]}", "`ottla brokers list` shows all brokers.")
    targets = [
        Target(broker, rack)
        for broker, rack in racks.items()
        if (brokers is None or broker in brokers) and broker not in without
    ]
    present = assignments(cluster)
    wide = sorted(
        {name[0]: len(replicas) for name, replicas in present.items() if len(replicas) > len(targets)}.items()
    )
    wide = [(topic, replicas) for topic, replicas in wide if not topics or topic in topics]
    if wide:
        topic, replicas = wide[0]
        more = f", nor those of {len(wide) - 1} more topics" if len(wide) > 1 else ""
        allowed = "1 broker" if len(targets) == 1 else f"{len(targets)} brokers"
        raise CommandError(
            f"{allowed} can't hold the {replicas} replicas that partitions of topic '{topic}' have{more}",
            f"Allow more brokers, or fewer replicas: ottla topics alter {topic} -r {max(len(targets), 1)}",
        )
    return present, balanced(present, targets, topics or None)


def resizing(
    cluster: Cluster, topics: Collection[str], replication_factor: int
) -> tuple[dict[PartitionName, Replicas], dict[PartitionName, Replicas]]:
    """(present replicas of all partitions, new replicas of the partitions to change). With the new replicas, each
    partition of these topics has `replication_factor` replicas."""
    from ottla.placement import Candidate, resized
    from ottla.protocol.errors import KafkaError

    held = _held(cluster)
    present = {name: replicas for name, (replicas, _) in held.items()}
    in_sync = {name: isr for name, (_, isr) in held.items()}
    candidates = [Candidate(broker, rack) for broker, rack in cluster.racks().items()]
    names = [name for name in present if name[0] in topics]
    try:
        return present, resized(present, names, candidates, replication_factor, in_sync)
    except KafkaError as error:
        raise CommandError(
            error.message,
            "`ottla brokers list` shows which brokers run; start more brokers, or ask for fewer replicas.",
            kafka_code=error.code,
        ) from error


class Plan(NamedTuple):
    """The wanted replicas of partitions, and the wanted log directories of some replicas, by partition and broker."""

    replicas: Moves
    directories: Mapping[ReplicaName, str]


def to_file(plan: Plan) -> dict[str, Any]:
    """A plan as `kafka-reassign-partitions` reads it."""
    return {
        "version": 1,
        "partitions": [
            {
                "topic": name[0],
                "partition": name[1],
                "replicas": list(replicas),
                "log_dirs": [plan.directories.get((name, broker), _ANY) for broker in replicas],
            }
            for name, replicas in sorted(plan.replicas.items())
        ],
    }


def write_file(document: Mapping[str, Any], path: str) -> None:
    """Writes the document that `to_file` made of a plan."""
    with open(path, "w") as file:
        json.dump(document, file, indent=1)
        file.write("\n")


def from_file(path: str) -> Plan:
    """The plan in a file. Raises UsageError if the file has no plan, CommandError if it can't be read."""
    replicas: dict[PartitionName, Replicas] = {}
    directories: dict[ReplicaName, str] = {}
    try:
        with open(path) as file:
            document = json.load(file)
        for one in document["partitions"]:
            name = str(one["topic"]), int(one["partition"])
            replicas[name] = tuple(int(broker) for broker in one["replicas"])
            for broker, directory in zip(replicas[name], one.get("log_dirs") or (), strict=False):
                if directory != _ANY:
                    directories[name, broker] = str(directory)
    except OSError as error:
        raise unreadable(path, error, "`ottla reassign plan --out FILE` makes a plan.") from None
    except (ValueError, KeyError, TypeError):
        raise UsageError(
            f"{path} is not a plan",
            "`ottla reassign plan --out FILE` or kafka-reassign-partitions --generate makes a plan.",
        ) from None
    if not replicas:
        raise UsageError(f"{path} is a plan without partitions")
    return Plan(replicas, directories)


def begin(cluster: Cluster, moves: Mapping[PartitionName, Replicas | None]) -> None:
    """Asks the cluster for the moves; None cancels a partition's move. Raises an error for each refused partition."""
    from kafka import TopicPartition

    wanted = {TopicPartition(*name): None if replicas is None else list(replicas) for name, replicas in moves.items()}
    with explained("the moves"):
        answer = cluster.admin.alter_partition_reassignments(wanted, timeout_ms=cluster.timeout_ms)
    failures = [
        sentence(error() if isinstance(error, type) else error, f"partition '{one.topic}-{one.partition}'")
        for one, error in sorted(answer.items())
        if error is not None
    ]
    raise_all(failures)


def move_directories(cluster: Cluster, wanted: Mapping[ReplicaName, str]) -> int:
    """Asks brokers to move their replicas to these log directories. Returns the number of replicas that weren't
    in the wanted directory already.

    Raises an error for each refused replica.
    """
    from kafka.structs import TopicPartitionReplica

    where = _directories_of(cluster, wanted)
    left = {at: path for at, path in wanted.items() if where.get(at) != (path, False)}
    if not left:
        return 0
    asked = {TopicPartitionReplica(*name, broker_id=broker): path for (name, broker), path in left.items()}
    with explained("the log directories"):
        answer = cluster.admin.alter_replica_log_dirs(asked)
    failures = [
        sentence(error() if isinstance(error, type) else error, f"the replica of '{one.topic}-{one.partition}'")
        for one, error in sorted(answer.items())
        if error is not None and error.errno
    ]
    raise_all(failures)
    return len(left)


def directories_to_go(cluster: Cluster, wanted: Mapping[ReplicaName, str]) -> dict[ReplicaName, bool]:
    """The replicas that aren't in their wanted log directories yet, and whether each is being copied."""
    where = _directories_of(cluster, wanted)
    found = {at: where[at] for at in wanted if at in where}
    return {at: copying for at, (path, copying) in found.items() if (path, copying) != (wanted[at], False)}


def _directories_of(cluster: Cluster, asked: Iterable[ReplicaName]) -> dict[ReplicaName, tuple[str, bool]]:
    """(log directory, whether the replica is being copied to another one) of each replica on the brokers in `asked`."""
    found: dict[ReplicaName, str] = {}
    copied: set[ReplicaName] = set()
    for answer in health.described(cluster, {broker for _, broker in asked}):
        for directory in answer["log_dirs"]:
            for topic in directory["topics"]:
                for partition in topic["partitions"]:
                    at = (topic["name"], partition["partition_index"]), answer["broker"]
                    if partition["is_future_key"]:
                        copied.add(at)
                    else:
                        found[at] = directory["log_dir"]
    return {at: (path, at in copied) for at, path in found.items()}


def throttle(cluster: Cluster, present: Moves, moves: Moves, bytes_per_second: int) -> None:
    """Limits the rate at which the replicas of these moves are copied, on leaders and on followers."""
    by_topic: dict[str, tuple[list[str], list[str]]] = {}
    brokers: set[int] = set()
    for name, replicas in sorted(moves.items()):
        sources = present.get(name, ())
        added = [broker for broker in replicas if broker not in sources]
        if not added:
            continue
        leaders, followers = by_topic.setdefault(name[0], ([], []))
        leaders += [f"{name[1]}:{broker}" for broker in sources]
        followers += [f"{name[1]}:{broker}" for broker in added]
        brokers.update(sources, added)
    # The brokers' rates come first: while they are set, an operator doesn't reset the topics' throttled replicas.
    for broker in sorted(brokers.intersection(cluster.racks())):
        rates = {_rate_setting(side): str(bytes_per_second) for side in _SIDES}
        alter_resource(cluster, "broker", str(broker), rates)
    for topic, sides in by_topic.items():
        values = dict(zip(map(_replicas_setting, _SIDES), map(",".join, sides), strict=True))
        alter_resource(cluster, "topic", topic, {}, append=values)


def unthrottle(cluster: Cluster, topics: Iterable[str]) -> None:
    """Removes the limits from these topics and from all brokers."""
    for topic in sorted(set(topics)):
        settings = described_settings(cluster, "topic", topic)
        names = [name for name in map(_replicas_setting, _SIDES) if settings.get(name, {}).get("value")]
        if names:
            alter_resource(cluster, "topic", topic, {}, names)
    for broker in sorted(cluster.racks()):
        settings = described_settings(cluster, "broker", str(broker))
        names = [
            name
            for name in map(_rate_setting, _SIDES)
            if settings.get(name, {}).get("config_source") == "DYNAMIC_BROKER_CONFIG"
        ]
        if names:
            alter_resource(cluster, "broker", str(broker), {}, names)


def _replicas_setting(side: str) -> str:
    return f"{side}.replication.throttled.replicas"


def _rate_setting(side: str) -> str:
    return f"{side}.replication.throttled.rate"
