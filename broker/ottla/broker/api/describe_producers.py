"""DescribeProducers (key 61), version 0: the producers that a partition's leader remembers, and where their open
transactions begin (KIP-664).

A partition may have a hundred thousand producers. The answer has all their states at one moment; Kafka holds the log's
lock for this. The state is read and encoded in pieces, and other requests are served in between. The work ends early if
the client disconnects.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from ottla.broker.api.declaration import Api
from ottla.broker.api.refusals import refused
from ottla.broker.authorizer import allowed_names
from ottla.broker.ports import WithAuthorizer, WithPartitions
from ottla.broker.request import Request
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages import EncodedArray
from ottla.protocol.rights import AclOperation, ResourceType, Right

if TYPE_CHECKING:
    from ottla.broker.log.producers import FrozenProducers
    from ottla.net.pending import Pending

API = Api(key=61, versions=(0, 0), needs=(Right(AclOperation.READ, ResourceType.TOPIC),))

_PRODUCERS_PER_TURN = 250
_A_PARTITIONS_WORK = 5  # a partition takes as much time as so many producers, beside the time of its own producers


class _ClientGone(Exception):
    """The client disconnected, so the answer isn't needed any more."""


class _Turn:
    """Counts the work that may still be done in this iteration of the event loop, as a number of producers."""

    __slots__ = ("_pending", "left")

    def __init__(self, pending: Pending) -> None:
        self.left = _PRODUCERS_PER_TURN
        self._pending = pending

    async def did(self, work: int) -> None:
        """Counts `work`. If no work is left for this turn, waits for the next one. Raises _ClientGone."""
        self.left -= work
        if self.left <= 0:
            await asyncio.sleep(0)
            self.left = _PRODUCERS_PER_TURN
            if not self._pending.wanted:
                raise _ClientGone


class Parts(WithAuthorizer, WithPartitions, Protocol): ...


async def handle(broker: Parts, request: Request, body: Any) -> dict[str, Any]:
    """Answers the id, the epochs (the producer's and its coordinator's), the last sequence, the last timestamp and the
    open transaction of each producer."""
    try:
        return {"topics": await _topics(broker, request, body)}
    except _ClientGone:
        return {"topics": []}  # it isn't sent: the client has gone


async def _topics(broker: Parts, request: Request, body: Any) -> list[dict[str, Any]]:
    topics = []
    names = (topic.name for topic in body.topics)
    readable = allowed_names(broker.authorizer, request, AclOperation.READ, ResourceType.TOPIC, names)
    turn = _Turn(request.pending)
    for topic in body.topics:
        answers = []
        for index in topic.partition_indexes:
            answer: dict[str, Any] = {"partition_index": index}
            try:
                if topic.name not in readable:
                    raise refused(ResourceType.TOPIC)
                partition = broker.partitions.find(topic.name, index)
                partition.check_leader_epoch(-1)
                frozen = partition.log.producers.freeze()
                answer["active_producers"] = await _encoded(frozen, request.api_version, turn)
            except KafkaError as error:
                answer |= {"error_code": error.code, "error_message": error.message or None}
            answers.append(answer)
            await turn.did(_A_PARTITIONS_WORK)
        topics.append({"name": topic.name, "partitions": answers})
    return topics


async def _encoded(producers: FrozenProducers, version: int, turn: _Turn) -> EncodedArray:
    encoded = EncodedArray(API.key, version, "topics.partitions.active_producers")
    items = producers.items()
    while some := list(islice(items, turn.left)):
        encoded.extend(
            {
                "producer_id": producer_id,
                "producer_epoch": producer.epoch,
                "last_sequence": producer.last_sequence,
                "last_timestamp": producer.last_timestamp,
                "coordinator_epoch": producer.coordinator_epoch,
                "current_txn_start_offset": producer.transaction_start,
            }
            for producer_id, producer in some
        )
        await turn.did(len(some))
    return encoded
