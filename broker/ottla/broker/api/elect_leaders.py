"""ElectLeaders (key 43), versions 0–2: elects the preferred replica (type 0), or any live replica (type 1, unclean).

A request whose `topic_partitions` are null asks for all partitions. Its answer lists only the partitions that needed an
election.
"""

from __future__ import annotations

from typing import Any, Protocol

from ottla.broker.api.declaration import Api, Response
from ottla.broker.api.refusals import NOT_ON_CLUSTER
from ottla.broker.bounded import gather_bounded
from ottla.broker.ports import WithImage, WithIntents
from ottla.broker.request import Request
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import milliseconds
from ottla.protocol.rights import AclOperation, ResourceType, Right


def _refuse(version: int, body: Any) -> Response:
    """The answer to a client without the right."""
    topics = [
        _topic(each.topic, [{"partition_id": index, **NOT_ON_CLUSTER} for index in each.partitions])
        for each in body.topic_partitions or ()
    ]
    return {"error_code": NOT_ON_CLUSTER["error_code"], "replica_election_results": topics}


API = Api(
    key=43,
    versions=(0, 2),
    needs=(Right(AclOperation.ALTER, ResourceType.CLUSTER),),
    changes_metadata=True,
    refuse=_refuse,
)
PREFERRED, UNCLEAN = 0, 1


class Parts(WithImage, WithIntents, Protocol): ...


async def handle(broker: Parts, request: Request, body: Any) -> dict[str, Any]:
    kind = body.election_type
    timeout_s = milliseconds(body.timeout) / 1000
    everything = body.topic_partitions is None
    if everything:
        asked = [(name, list(topic.partitions)) for name, topic in broker.image.topics.items()]
    else:
        asked = [(topic.topic, list(topic.partitions)) for topic in body.topic_partitions]
    if kind not in (PREFERRED, UNCLEAN):
        error = KafkaError(ErrorCode.invalid_request, f"Unknown election type {kind}")
        topics = [_topic(name, [_result(index, error) for index in indexes]) for name, indexes in asked]
        return {"error_code": error.code, "replica_election_results": topics}
    pairs = [(name, index) for name, indexes in asked for index in indexes]
    elected = iter(await gather_bounded(lambda pair: _elect(broker, *pair, kind, timeout_s), pairs))
    topics = []
    for name, indexes in asked:
        results = [next(elected) for _ in indexes]
        if everything:
            results = [result for result in results if result["error_code"] is not ErrorCode.election_not_needed]
        topics.append(_topic(name, results))
    return {"replica_election_results": topics}


async def _elect(broker: Parts, topic: str, index: int, kind: int, timeout_s: float) -> dict[str, Any]:
    try:
        await broker.intents.elect_leader(topic, index, kind == UNCLEAN, timeout_s)
    except KafkaError as error:
        return _result(index, error)
    return {"partition_id": index, "error_code": ErrorCode.none}


def _result(index: int, error: KafkaError) -> dict[str, Any]:
    return {"partition_id": index, "error_code": error.code, "error_message": error.message or None}


def _topic(name: str, results: list[dict[str, Any]]) -> dict[str, Any]:
    return {"topic": name, "partition_result": results}
