"""Brokers whose volume was lost with its node. Pure: objects and times are inputs.

If a volume lies on one node, its pod can't run on another node. The Cluster may say after how long such a volume counts
as lost. Then the volume is deleted with its pod, and the broker starts on an empty volume and copies its replicas from
other brokers. So this is done only if other brokers have all records of these replicas.
"""

from __future__ import annotations

from datetime import datetime

from ottla.operator.objects import Object, condition, seconds_since
from ottla.operator.plan.topic import KafkaCluster

# The scheduler's messages; releases of Kubernetes differ in them.
_ELSEWHERE = ("volume node affinity conflict", "didn't match PersistentVolume's node affinity")
_THERE = ("were unschedulable", "Insufficient ")  # if the volume's node is cordoned or full, the volume isn't lost


def waits_for_its_volume(pod: Object, seconds_min: float, now: datetime) -> bool:
    """Whether for at least `seconds_min` no node could run the pod, because its volume is on another node."""
    scheduled = condition(pod.get("status"), "PodScheduled")
    said = scheduled.get("message", "")
    elsewhere = any(words in said for words in _ELSEWHERE) and not any(words in said for words in _THERE)
    if scheduled.get("reason") != "Unschedulable" or not elsewhere:
        return False
    return seconds_since(scheduled["lastTransitionTime"], now) >= seconds_min


def only_there(cluster: KafkaCluster, broker: int) -> list[str]:
    """The partitions of a broker that no other broker has in sync, as <topic>-<index>."""
    return sorted(
        f"{topic.name}-{index}"
        for topic in cluster.topics.values()
        for index, partition in topic.partitions.items()
        if broker in partition.replicas and not partition.in_sync - {broker}
    )
