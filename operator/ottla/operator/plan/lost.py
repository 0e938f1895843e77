"""Brokers whose volume was lost with its node. Pure: objects and times come in.

A volume that lies on one node keeps its pod from every other one. Where the Cluster says after how long such a volume
is taken for lost, it is deleted with its pod, and the broker begins anew on an empty one, where it copies its replicas
from the others: so only if they have all of them.
"""

from __future__ import annotations

from datetime import datetime

from ottla.operator.objects import Object, condition, seconds_since
from ottla.operator.plan.topic import KafkaCluster

_ELSEWHERE = "volume node affinity conflict"  # the scheduler's words


def waits_for_its_volume(pod: Object, seconds_min: float, now: datetime) -> bool:
    """Whether no node takes the pod for so long, because of where its volume is."""
    scheduled = condition(pod.get("status"), "PodScheduled")
    if scheduled.get("reason") != "Unschedulable" or _ELSEWHERE not in scheduled.get("message", ""):
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
