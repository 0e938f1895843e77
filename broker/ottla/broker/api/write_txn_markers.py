"""WriteTxnMarkers (27), versions 1–2: a transaction coordinator ends transactions in the partitions that this broker
leads.

The answer comes when the markers are committed, or after a short time: a coordinator then sends the uncommitted markers
again. From version 2 on a marker says by which protocol its transaction was ended. `kafka-transactions abort` sends
version 1, to end a transaction that no coordinator knows. It takes REQUEST_TIMED_OUT for a failure, and sends no marker
again. So the answer to version 1 waits as long as the tool does, nearly.
"""

from __future__ import annotations

import asyncio
from itertools import groupby
from operator import attrgetter
from typing import Any

from ottla.broker.marker_sender import Marker
from ottla.broker.ports import WithMarkerLog
from ottla.broker.request import Request
from ottla.broker.transaction.metadata import TopicPartition
from ottla.protocol.errors import ErrorCode
from ottla.protocol.rights import AclOperation, ResourceType, Right

from .declaration import Api, Response
from .refusals import NOT_ON_CLUSTER


def _refuse(version: int, body: Any) -> Response:
    """The answer to a client without the right."""
    code = NOT_ON_CLUSTER["error_code"]
    return {
        "markers": [
            {
                "producer_id": entry.producer_id,
                "topics": [
                    {
                        "name": topic.name,
                        "partitions": [
                            {"partition_index": index, "error_code": code} for index in topic.partition_indexes
                        ],
                    }
                    for topic in entry.topics
                ],
            }
            for entry in body.markers
        ]
    }


API = Api(
    key=27,
    versions=(1, 2),
    needs=(
        Right(AclOperation.ALTER, ResourceType.CLUSTER),
        Right(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER),
    ),
    refuse=_refuse,
)


MARKERS_PER_TURN = 50  # that are appended in one turn of the event loop
_COORDINATORS = 2  # the first version that coordinators send


async def handle(broker: WithMarkerLog, request: Request, body: Any) -> dict[str, Any]:
    """Answers an error code for each partition of each marker. Markers are appended in slices, between which the event
    loop serves other requests."""
    writing: list[asyncio.Task[dict[str, Any]]] = []
    count = 0
    try:
        for entry in body.markers:
            writing.append(asyncio.ensure_future(_write(broker, request, entry)))
            count += sum(len(topic.partition_indexes) for topic in entry.topics)
            if count >= MARKERS_PER_TURN:
                count = 0
                await asyncio.sleep(0)
        return {"markers": await asyncio.gather(*writing)}
    finally:
        for task in writing:
            task.cancel()


async def _write(broker: WithMarkerLog, request: Request, entry: Any) -> dict[str, Any]:
    marker = Marker(
        entry.producer_id,
        entry.producer_epoch,
        entry.transaction_result,
        entry.coordinator_epoch,
        entry.transaction_version,
    )
    partitions = sorted(
        {TopicPartition(topic.name, index) for topic in entry.topics for index in topic.partition_indexes}
    )
    patient = request.api_version < _COORDINATORS
    errors = await broker.marker_log.append_markers(marker, partitions, patient=patient)
    return {
        "producer_id": entry.producer_id,
        "topics": [
            {
                "name": topic,
                "partitions": [
                    {
                        "partition_index": each.partition,
                        "error_code": errors.get(each, ErrorCode.unknown_topic_or_partition),
                    }
                    for each in group
                ],
            }
            for topic, group in groupby(partitions, attrgetter("topic"))
        ],
    }
