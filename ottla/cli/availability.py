"""Explains why a command gets no answer: a partition has no leader, a group has no coordinator, or brokers don't run.

A partition also has no leader for a moment during an election. So a partition is reported only after it has had no
leader for `_SETTLED_S`, or immediately if all its replicas are on brokers that don't run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.cli import health
from ottla.cli.errors import CommandError, ExitCode
from ottla.wording import first_named

if TYPE_CHECKING:
    from ottla.cli.connection import Cluster

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
_SETTLED_S = 3.0
_LOOK_S = 0.3
_NAMED_MAX = 5
_LEADER_NOT_AVAILABLE = 5
_NOT_ENOUGH_REPLICAS = 19
_COORDINATOR_NOT_AVAILABLE = 15


class Leaderless(NamedTuple):
    """A partition without a leader. `away` are the brokers that have a replica of the partition and don't run."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    away: tuple[int, ...]

    @property
    def certain(self) -> bool:
        """Whether no leader can be elected until a broker starts again, because no broker of the partition runs."""
        return set(self.replicas) <= set(self.away)

    @property
    def name(self) -> str:
        """The partition as a user writes it on the command line: `topic:partition`."""
        return f"{self.topic}:{self.partition}"


def brokers_text(brokers: Collection[int]) -> str:
    """The beginning of a sentence about these brokers, with its verb: `broker 0 is`, `brokers 0 and 2 are`."""
    ids = [str(broker) for broker in sorted(brokers)]
    if len(ids) == 1:
        return f"broker {ids[0]} is"
    return f"brokers {', '.join(ids[:-1])} and {ids[-1]} are"


def without_leader(topics: Iterable[Mapping[str, Any]], living: Collection[int]) -> list[Leaderless]:
    """The partitions without a leader, out of the topics that the cluster described. Pure."""
    return [
        Leaderless(
            str(topic["name"]),
            int(partition["partition_index"]),
            tuple(partition["replica_nodes"]),
            tuple(broker for broker in partition["replica_nodes"] if broker not in living),
        )
        for topic in sorted(topics, key=lambda topic: str(topic["name"]))
        for partition in sorted(topic["partitions"], key=lambda partition: int(partition["partition_index"]))
        if partition["leader_id"] < 0
    ]


def reason(found: Collection[Leaderless]) -> str:
    """Why these partitions have no leader, as the rest of a sentence. Pure."""
    away = {broker for one in found for broker in one.away}
    if all(one.certain for one in found):
        return f"{brokers_text(away)} away, and no other broker has a replica"
    if away:
        return f"{brokers_text(away)} away, and no other replica is in sync"
    return "no running replica is in sync and on a working log directory"


def remedy(found: Collection[Leaderless]) -> str:
    """What the user can do to give these partitions a leader. Pure."""
    topics = sorted({one.topic for one in found})
    more = f"ottla topics alter {topics[0] if len(topics) == 1 else 'TOPIC'} --replication-factor 3"
    if all(one.certain and len(one.replicas) == 1 for one in found):
        return f"Start the broker again. A topic with three replicas stays available while one broker is away: {more}"
    if all(one.certain for one in found):
        return "Start one of these brokers again."
    return "Start the brokers that are away, or accept the loss of records: ottla topics elect TOPIC --unclean"


def explained_absence(found: Collection[Leaderless]) -> CommandError:
    """The error for partitions that can't be read or written because they have no leader. Pure."""
    names = [one.name for one in found]
    shown = first_named(names, _NAMED_MAX)
    verb = "has" if len(names) == 1 else "have"
    return CommandError(
        f"{shown} {verb} no leader: {reason(found)}", remedy(found), ExitCode.failed, _LEADER_NOT_AVAILABLE
    )


def no_coordinator(key: str, topic: Mapping[str, Any], living: Collection[int]) -> Leaderless | None:
    """The partition of the coordinators' `topic` that `key` (a group or a transactional id) belongs to, if that
    partition has no leader, else None. Pure."""
    from ottla.protocol.java_hash import partition_of

    if not topic["partitions"]:
        return None
    own = partition_of(key, len(topic["partitions"]))
    return next((one for one in without_leader([topic], living) if one.partition == own), None)


def leaderless(cluster: Cluster, topics: Iterable[str]) -> list[Leaderless]:
    """The partitions of these topics that still have no leader after `_SETTLED_S`, or can't have one."""
    wanted = sorted(set(topics))
    return _settled(cluster, lambda: without_leader(_described(cluster, wanted), cluster.living()))


def check_leaders(cluster: Cluster, partitions: Iterable[tuple[str, int]]) -> None:
    """Raises CommandError if one of these partitions still has no leader after `_SETTLED_S`, or can't have one."""
    wanted = set(partitions)
    found = [one for one in leaderless(cluster, {topic for topic, _ in wanted}) if (one.topic, one.partition) in wanted]
    if found:
        raise explained_absence(found)


def check_writable(cluster: Cluster, topic: str, *, all_replicas: bool) -> None:
    """Raises CommandError if records can't be written to the topic: a partition has no leader, or a log directory of a
    leader's broker is full or has failed. With `all_replicas` (acks=all) it also raises CommandError if a partition has
    too few in-sync replicas: fewer than the topic's min.insync.replicas or, if the partition has fewer replicas than
    that, fewer than all of them."""
    check_leaders(cluster, [(topic, partition) for partition in _partitions(cluster, topic)])
    partitions = _partitions(cluster, topic)
    health.check_directories(cluster, {state["leader_id"] for state in partitions.values()})
    if not all_replicas:
        return
    minimum = min_isr(cluster, [topic]).get(topic, 1)
    for partition, state in partitions.items():
        isr, replicas = state["isr_nodes"], state["replica_nodes"]
        if len(isr) < min(minimum, len(replicas)):
            behind = [broker for broker in replicas if broker not in isr]
            raise CommandError(
                f"{topic}:{partition} has {len(isr)} of its replicas in sync, and min.insync.replicas is {minimum}:"
                f" {brokers_text(behind)} not in sync",
                "Start the brokers that are away, or wait until they have caught up (`ottla cluster status`); "
                "--acks 1 doesn't wait for these brokers.",
                kafka_code=_NOT_ENOUGH_REPLICAS,
            )


def _partitions(cluster: Cluster, topic: str) -> dict[int, dict[str, Any]]:
    return {int(one["partition_index"]): one for found in _described(cluster, [topic]) for one in found["partitions"]}


def min_isr(cluster: Cluster, topics: Collection[str]) -> dict[str, int]:
    """min.insync.replicas of each topic."""
    from kafka.admin import ConfigResource, ConfigResourceType

    from ottla.cli.connection import explained

    resources = [ConfigResource(ConfigResourceType.TOPIC, topic) for topic in topics]
    with explained("the settings of topics"):
        answer = cluster.admin.describe_configs(resources, config_filter="all").get("topic", {}) if topics else {}
    return {topic: int(settings["min.insync.replicas"]["value"]) for topic, settings in answer.items() if settings}


def check_coordinator(cluster: Cluster, group_id: str) -> None:
    """Raises CommandError if the group still has no coordinator after `_SETTLED_S`, or can't have one."""
    _check_coordinator(cluster, OFFSETS_TOPIC, group_id, f"group '{group_id}'")


def check_transactions(cluster: Cluster, transactional_id: str) -> None:
    """Raises CommandError if the transactional id still has no coordinator after `_SETTLED_S`, or can't have one."""
    _check_coordinator(cluster, TRANSACTIONS_TOPIC, transactional_id, f"transactional id '{transactional_id}'")


def _check_coordinator(cluster: Cluster, topic: str, key: str, subject: str) -> None:
    def look() -> list[Leaderless]:
        living = cluster.living()
        found = (no_coordinator(key, described, living) for described in _described(cluster, [topic]))
        return [one for one in found if one is not None]

    if found := _settled(cluster, look):
        raise CommandError(
            f"{subject} has no coordinator: {found[0].name} has no leader: {reason(found)}",
            remedy(found),
            ExitCode.failed,
            _COORDINATOR_NOT_AVAILABLE,
        )


def _described(cluster: Cluster, topics: list[str]) -> list[dict[str, Any]]:
    """The descriptions of those topics in `topics` that exist."""
    from ottla.cli.connection import explained

    with explained("the description of topics"):
        found = cluster.patiently(lambda: cluster.admin.describe_topics(topics))
    return [topic for topic in found if not topic["error_code"]]


def _settled(cluster: Cluster, look: Callable[[], list[Leaderless]]) -> list[Leaderless]:
    """Calls `look` again and again for up to `_SETTLED_S`. Returns the partitions without a leader of the last call.

    Returns earlier if no partition lacks a leader, or if none of the partitions can get one before a broker starts
    again.
    """
    deadline = time.monotonic() + min(cluster.timeout_s, _SETTLED_S)
    while (found := look()) and not all(one.certain for one in found) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    return found
