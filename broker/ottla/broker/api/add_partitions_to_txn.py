"""AddPartitionsToTxn (24), versions 0–5: a transaction writes to further partitions.

Versions 0–3 come from producers, and name one transaction. Versions from 4 on come from the leaders of partitions, and
name several transactions (KIP-890). A leader asks whether partitions belong to a transaction (`VerifyOnly`), or wants
them to be added to it. A leader has one such request at a time under way to this broker, so no transaction's answer may
wait long for a partition of `__transaction_state` that commits nothing.

If one partition of a transaction doesn't exist, none is added to the transaction, and the other partitions are answered
OPERATION_NOT_ATTEMPTED. Producers may not add partitions of internal topics: a producer adds partitions of
`__consumer_offsets` by AddOffsetsToTxn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Set
from itertools import groupby
from operator import attrgetter
from typing import Any, Protocol

from ottla.broker.authorizer import allowed_names
from ottla.broker.group.partitioning import OFFSETS_TOPIC
from ottla.broker.ports import WithAuthorizer, WithImage, WithTransactions
from ottla.broker.request import Request
from ottla.broker.transaction.initialization import Producer
from ottla.broker.transaction.metadata import V1, V2, TopicPartition
from ottla.broker.transaction.partitioning import TRANSACTIONS_TOPIC
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.rights import CLUSTER_NAME, AclOperation, ResourceType, Right

from .declaration import Api
from .older_producers import known_to

API = Api(
    key=24,
    versions=(0, 5),
    needs=(
        Right(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID),
        Right(AclOperation.WRITE, ResourceType.TOPIC),
        Right(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER),
    ),
)

_BATCHED = 4  # the first version with several transactions
_INTERNAL = (OFFSETS_TOPIC, TRANSACTIONS_TOPIC)


class Parts(WithAuthorizer, WithImage, WithTransactions, Protocol): ...


async def handle(broker: Parts, request: Request, body: Any) -> dict[str, Any]:
    """Answers an error code for each partition of each transaction."""
    if request.api_version < _BATCHED:
        producer = Producer(body.v3_and_below_producer_id, body.v3_and_below_producer_epoch)
        partitions = _partitions(body.v3_and_below_topics)
        allowed = broker.authorizer.allows(
            request, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, body.v3_and_below_transactional_id
        )
        if not allowed:
            refused = dict.fromkeys(partitions, ErrorCode.transactional_id_authorization_failed)
            return {"results_by_topic_v3_and_below": _results(refused)}
        errors = await _errors(broker, request, body.v3_and_below_transactional_id, producer, partitions, False)
        return {"results_by_topic_v3_and_below": _results(errors)}
    action = AclOperation.CLUSTER_ACTION
    if not broker.authorizer.allows(request, action, ResourceType.CLUSTER, CLUSTER_NAME):
        return {"error_code": ErrorCode.cluster_authorization_failed}
    asked = [
        _errors(
            broker,
            request,
            each.transactional_id,
            Producer(each.producer_id, each.producer_epoch),
            _partitions(each.topics),
            each.verify_only,
        )
        for each in body.transactions
    ]
    answers = await asyncio.gather(*asked)
    return {
        "error_code": ErrorCode.none,
        "results_by_transaction": [
            {"transactional_id": each.transactional_id, "topic_results": _results(errors)}
            for each, errors in zip(body.transactions, answers, strict=True)
        ],
    }


async def _errors(
    broker: Parts,
    request: Request,
    transactional_id: str,
    producer: Producer,
    partitions: frozenset[TopicPartition],
    verify_only: bool,
) -> Mapping[TopicPartition, ErrorCode]:
    writable: Set[str] | None = None  # None: all topics, because a leader has checked the rights of its client
    if request.api_version < _BATCHED:
        names = (each.topic for each in partitions if each.topic not in _INTERNAL)
        writable = allowed_names(broker.authorizer, request, AclOperation.WRITE, ResourceType.TOPIC, names)
    refused = {
        each: refusal for each in partitions if (refusal := _refusal(broker, writable, each)) is not ErrorCode.none
    }
    if refused:
        return {each: refused.get(each, ErrorCode.operation_not_attempted) for each in partitions}
    try:
        if verify_only:
            return broker.transactions.verify(transactional_id, producer, partitions)
        batched = request.api_version >= _BATCHED
        error = await broker.transactions.add_partitions(
            transactional_id, producer, partitions, V2 if batched else V1, shares_response=batched
        )
    except KafkaError as failure:
        error = failure.code
    return dict.fromkeys(partitions, known_to(request, error, 2))


def _refusal(broker: Parts, writable: Set[str] | None, partition: TopicPartition) -> ErrorCode:
    """The error for a partition that can't join the transaction; NONE for any other partition. `writable` are the names
    of the topics to which the client may write."""
    if writable is not None and partition.topic not in writable:
        return ErrorCode.topic_authorization_failed
    topic = broker.image.topics.get(partition.topic)
    if topic is None or partition.partition not in topic.partitions:
        return ErrorCode.unknown_topic_or_partition
    return ErrorCode.none


def _partitions(topics: Iterable[Any]) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic.name, index) for topic in topics for index in topic.partitions)


def _results(errors: Mapping[TopicPartition, ErrorCode]) -> list[dict[str, Any]]:
    return [
        {
            "name": topic,
            "results_by_partition": [
                {"partition_index": each.partition, "partition_error_code": errors[each]} for each in group
            ],
        }
        for topic, group in groupby(sorted(errors), attrgetter("topic"))
    ]
