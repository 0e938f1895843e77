"""Topics as Metadata and DescribeTopicPartitions show them to a client of one listener.

Rules of Kafka's KRaftMetadataCache: a leader that isn't alive, or that has no address on the listener, isn't named, and
the partition's error says why. Replicas on such brokers are listed as offline.

`EncodedTopics` keeps topics in encoded form. Successive images share the objects of unchanged topics and brokers, so a
topic is encoded anew only if its object, or the object with the brokers, has been replaced: even with 10,000 partitions
an answer is only a join of bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from ottla.metadata.image import Image, Topic
from ottla.metadata.model.brokers import Broker, BrokerState
from ottla.metadata.model.partitions import NO_LEADER, Partition
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import Encoded, encode_element

METADATA = 3
FIRST_VERSION_WITH_ALL_REPLICAS = 1  # version 0 leaves out replicas that are down
FIRST_VERSION_WITH_LISTENER_ERROR = 6
NAMELESS = UUID(int=0)


def alive(broker: Broker) -> bool:
    """Whether clients may be sent to the broker (Kafka: not fenced)."""
    return broker.state is not BrokerState.STARTING


def reachable_brokers(brokers: Iterable[Broker], listener: str) -> list[dict[str, Any]]:
    """The brokers that are alive and have an address on the listener, in the shape of Metadata's `brokers`."""
    return [
        {"node_id": broker.id, "host": endpoint.host, "port": endpoint.port, "rack": broker.rack}
        for broker in sorted(brokers, key=lambda broker: broker.id)
        if alive(broker) and (endpoint := broker.endpoints.get(listener)) is not None
    ]


def controller_for_clients(image: Image, broker_id: int) -> int:
    """The id of the broker that Metadata names as the controller: the broker that answers, since every broker serves
    admin requests. If that broker isn't alive, the id of another live broker; −1 where no broker is alive."""
    broker = image.brokers.get(broker_id)
    if broker is not None and alive(broker):
        return broker_id
    return min((other.id for other in image.brokers.values() if alive(other)), default=-1)


def describe_partition(
    partition: Partition, brokers: Mapping[int, Broker], listener: str, version: int = FIRST_VERSION_WITH_LISTENER_ERROR
) -> dict[str, Any]:
    """A partition, in the shape of Metadata's `partitions` (`version` is the version of the Metadata request)."""
    reached = {b for b in partition.replicas if b in brokers and alive(brokers[b]) and listener in brokers[b].endpoints}
    leader = partition.leader
    error = ErrorCode.none
    if leader not in brokers or not alive(brokers[leader]):
        leader, error = NO_LEADER, ErrorCode.leader_not_available
    elif listener not in brokers[leader].endpoints:
        leader = NO_LEADER
        known = version >= FIRST_VERSION_WITH_LISTENER_ERROR
        error = ErrorCode.listener_not_found if known else ErrorCode.leader_not_available
    offline = tuple(b for b in partition.replicas if b not in reached)
    replicas, isr = partition.replicas, partition.isr
    if version < FIRST_VERSION_WITH_ALL_REPLICAS and offline:
        replicas = tuple(b for b in replicas if b in reached)
        isr = tuple(b for b in isr if b in reached)
        if error is ErrorCode.none:
            error = ErrorCode.replica_not_available
    return {
        "error_code": error,
        "partition_index": partition.index,
        "leader_id": leader,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": replicas,
        "isr_nodes": isr,
        "offline_replicas": offline,
    }


def describe_topic(topic: Topic, image: Image, listener: str, version: int, operations: int) -> dict[str, Any]:
    """A topic, in the shape of Metadata's `topics`."""
    brokers = image.brokers
    return {
        "name": topic.name,
        "topic_id": topic.id,
        "is_internal": topic.internal,
        "partitions": [
            describe_partition(topic.partitions[index], brokers, listener, version)
            for index in range(len(topic.partitions))
        ],
        "topic_authorized_operations": operations,
    }


class EncodedTopics:
    """The topics in encoded form for responses to Metadata, by the request's version, the listener and the authorized
    operations."""

    def __init__(self) -> None:
        self._brokers: Mapping[int, Broker] | None = None
        self._kept: dict[tuple[int, str, int], dict[UUID, tuple[Topic, Encoded]]] = {}

    def of(self, topics: Iterable[Topic], image: Image, listener: str, version: int, operations: int) -> list[Encoded]:
        """The encoded topics, in the order of `topics`."""
        if self._brokers is not image.brokers:
            self._brokers = image.brokers
            self._kept.clear()
        kept = self._kept.setdefault((version, listener, operations), {})
        if len(kept) > len(image.topics_by_id) + 100:  # many of the kept topics have been deleted
            kept.clear()
        found = []
        for topic in topics:
            known = kept.get(topic.id)
            if known is None or known[0] is not topic:
                description = describe_topic(topic, image, listener, version, operations)
                known = kept[topic.id] = (topic, encode_element(METADATA, version, "topics", description))
            found.append(known[1])
        return found
