"""OffsetForLeaderEpoch (key 23), versions 2–4: the end offset of an epoch in the leader's log (KIP-101, KIP-320)."""

from __future__ import annotations

from typing import Any, Protocol

from ottla.broker.api.declaration import Api
from ottla.broker.api.refusals import refused
from ottla.broker.authorizer import allowed_names
from ottla.broker.ports import WithAuthorizer, WithPartitions
from ottla.broker.request import Request
from ottla.protocol.errors import KafkaError
from ottla.protocol.rights import CLUSTER_NAME, AclOperation, ResourceType, Right

API = Api(
    key=23,
    versions=(2, 4),
    needs=(Right(AclOperation.DESCRIBE, ResourceType.TOPIC), Right(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER)),
)
UNDEFINED = -1


class Parts(WithAuthorizer, WithPartitions, Protocol): ...


async def handle(broker: Parts, request: Request, body: Any) -> dict[str, Any]:
    """Answers for each partition the largest epoch up to the requested one, and its end offset; both −1 where there is
    none."""
    authorizer, names = broker.authorizer, {topic.topic for topic in body.topics}
    action = AclOperation.CLUSTER_ACTION
    if not authorizer.allows(request, action, ResourceType.CLUSTER, CLUSTER_NAME, quiet=True):
        names &= allowed_names(
            authorizer, request, AclOperation.DESCRIBE, ResourceType.TOPIC, (topic.topic for topic in body.topics)
        )
    topics = []
    for topic in body.topics:
        answers = []
        for asked in topic.partitions:
            answer = {"partition": asked.partition, "leader_epoch": UNDEFINED, "end_offset": UNDEFINED}
            try:
                if topic.topic not in names:
                    raise refused(ResourceType.TOPIC)
                partition = broker.partitions.find(topic.topic, asked.partition)
                partition.check_leader_epoch(asked.current_leader_epoch)
                epoch, end = partition.log.epochs.end_offset_for(asked.leader_epoch, partition.log.log_end_offset)
                answer |= {"leader_epoch": epoch, "end_offset": end}
            except KafkaError as error:
                answer["error_code"] = error.code
            answers.append(answer)
        topics.append({"topic": topic.topic, "partitions": answers})
    return {"topics": topics}
