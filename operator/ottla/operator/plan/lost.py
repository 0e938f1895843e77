"""Brokers whose volume was lost with its node. Pure: objects and times come in.

A volume that lies on one node keeps its pod from every other one. Where the Cluster says after how long such a volume
is taken for lost, it is deleted with its pod, and the broker begins anew on an empty one, where it copies its replicas
from the others: so only if they have all of them.
"""

from __future__ import annotations

from datetime import datetime

from ottla.operator.objects import Object, condition, seconds_since
from ottla.operator.plan.topic import KafkaCluster

# The scheduler's words, which newer releases have changed.
_ELSEWHERE = ("volume node affinity conflict", "didn't match PersistentVolume's node affinity")
_THERE = ("were unschedulable", "Insufficient ")  # a node is cordoned or full: it may be the volume's, which isn't lost


def waits_for_its_volume(pod: Object, seconds_min: float, now: datetime) -> bool:
    """Whether no node takes the pod for so long, because of where its volume is."""
    scheduled = condition(pod.get("status"), "PodScheduled")
    said = scheduled.get("message", "")
    elsewhere = any(words in said for words in _ELSEWHERE) and not any(words in said for words in _THERE)
    if scheduled.get("reason") != "Unschedulable" or not elsewhere:
        return False
    return seconds_since(scheduled["lastTransitionTime"], now) >= seconds_min


def only_there(cluster: KafkaCluster, broker: int) -> list[str]:
    """Partitions that no other broker has all of."""
    return sorted(
        f"{topic.name}-{index}"
        for topic in cluster.topics.values()
        for index, partition in topic.partitions.items()
        if broker in partition.replicas and not partition.in_sync - {broker}
    )
