"""DescribeProducers (key 61), version 0: the idempotent producers that a partition's leader remembers (KIP-664)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.registry import Api, RequestContext
from ottla.protocol.errors import KafkaError

if TYPE_CHECKING:
    from ottla.broker.node import Broker

API = Api(key=61, versions=(0, 0))


async def handle(broker: Broker, context: RequestContext, request: Any) -> dict[str, Any]:
    """Id, epoch, last sequence and last time of each producer."""
    topics = []
    for topic in request.topics:
        answers = []
        for index in topic.partition_indexes:
            answer: dict[str, Any] = {"partition_index": index}
            try:
                partition = broker.partitions.find(topic.name, index)
                partition.check_leader_epoch(-1)
                answer["active_producers"] = [
                    {
                        "producer_id": producer_id,
                        "producer_epoch": producer.epoch,
                        "last_sequence": producer.last_sequence,
                        "last_timestamp": producer.last_timestamp,
                        "coordinator_epoch": -1,
                        "current_txn_start_offset": -1,
                    }
                    for producer_id, producer in partition.log.producers.items()
                ]
            except KafkaError as error:
                answer |= {"error_code": error.code, "error_message": error.message or None}
            answers.append(answer)
        topics.append({"name": topic.name, "partitions": answers})
    return {"topics": topics}
