"""AddOffsetsToTxn (25), versions 0–4: a transaction commits offsets of a group.

The group's partition of `__consumer_offsets` joins the transaction like any other partition. If the topic doesn't exist
yet, its creation begins, and the client asks again. Clients of the newer protocol don't send this request: the first
TxnOffsetCommit adds the partition.
"""

from __future__ import annotations

from typing import Any, Protocol

from ottla.broker.group.partitioning import OFFSETS_TOPIC, partition_for
from ottla.broker.ports import WithAuthorizer, WithImage, WithInternalTopics, WithTransactions
from ottla.broker.request import Request
from ottla.broker.transaction.initialization import Producer
from ottla.broker.transaction.metadata import V1, TopicPartition
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.rights import AclOperation, ResourceType, Right

from .declaration import Api
from .older_producers import known_to

API = Api(
    key=25,
    versions=(0, 4),
    needs=(
        Right(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID),
        Right(AclOperation.READ, ResourceType.GROUP),
    ),
)


class Parts(WithAuthorizer, WithImage, WithInternalTopics, WithTransactions, Protocol): ...


async def handle(broker: Parts, request: Request, body: Any) -> dict[str, Any]:
    """Adds the group's partition to the transaction; answers with an error code."""
    kind = ResourceType.TRANSACTIONAL_ID
    if not broker.authorizer.allows(request, AclOperation.WRITE, kind, body.transactional_id):
        return {"error_code": ErrorCode.transactional_id_authorization_failed}
    if not broker.authorizer.allows(request, AclOperation.READ, ResourceType.GROUP, body.group_id):
        return {"error_code": ErrorCode.group_authorization_failed}
    topic = broker.image.topics.get(OFFSETS_TOPIC)
    if topic is None:
        broker.internal_topics.want(OFFSETS_TOPIC)
        return {"error_code": ErrorCode.coordinator_not_available}
    partition = TopicPartition(OFFSETS_TOPIC, partition_for(body.group_id, len(topic.partitions)))
    producer = Producer(body.producer_id, body.producer_epoch)
    try:
        error = await broker.transactions.add_partitions(body.transactional_id, producer, {partition}, V1)
    except KafkaError as refusal:
        error = refusal.code
    return {"error_code": known_to(request, error, 2)}
