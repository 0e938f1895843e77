"""ListOffsets (key 2), versions 1–11: the offset for a timestamp, or for a special value in its place.

−1 latest (the high watermark; for READ_COMMITTED the last stable offset; for a follower the log's end), −2 earliest, −3
the record with the greatest timestamp (KIP-734), −4 the earliest on local disk, −5 the last in remote storage, −6 the
earliest pending upload. There is no remote storage, so −4 is answered like −2, and −5 and −6 with offset −1.

For a timestamp or −3, a thread searches the log, for one partition of a request after the other. If the client
disconnects, its request ends, so that there are never more look-ups than connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from ottla.broker.api.declaration import Api
from ottla.broker.api.refusals import refused
from ottla.broker.authorizer import allowed_names
from ottla.broker.log.log import Log
from ottla.broker.log.segment import DamagedSegment, FoundRecord
from ottla.broker.ports import WithAuthorizer, WithColdReads, WithPartitions
from ottla.broker.request import Request
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.rights import AclOperation, ResourceType, Right

API = Api(
    key=2,
    versions=(1, 11),
    needs=(Right(AclOperation.DESCRIBE, ResourceType.TOPIC),),
    gaps=("There is no remote storage: the timestamps −5 and −6 are answered with offset −1.",),
)
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
FIRST_VERSION = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
UNKNOWN = -1
READ_COMMITTED = 1


class Parts(WithAuthorizer, WithColdReads, WithPartitions, Protocol): ...


async def handle(broker: Parts, request: Request, body: Any) -> dict[str, Any]:
    """Answers each partition's offset or error; an error of one partition doesn't affect the others."""
    names = (topic.name for topic in body.topics for _ in topic.partitions)
    allowed = allowed_names(broker.authorizer, request, AclOperation.DESCRIBE, ResourceType.TOPIC, names)
    counts: dict[tuple[str, int], int] = {}
    for topic in body.topics:
        for partition in topic.partitions:
            key = (topic.name, partition.partition_index)
            counts[key] = counts.get(key, 0) + 1
    topics = []
    for topic in body.topics:
        answers = []
        for asked in topic.partitions:
            answer = {"partition_index": asked.partition_index, "timestamp": -1, "offset": UNKNOWN, "leader_epoch": -1}
            try:
                if topic.name not in allowed:
                    raise refused(ResourceType.TOPIC)
                if counts[topic.name, asked.partition_index] > 1:
                    raise KafkaError(ErrorCode.invalid_request, "the request names the partition twice")
                timestamp, offset, epoch = await _look_up(broker, request, body, topic.name, asked)
                answer |= {"timestamp": timestamp, "offset": offset, "leader_epoch": epoch}
            except KafkaError as error:
                answer["error_code"] = error.code
            answers.append(answer)
        topics.append({"name": topic.name, "partitions": answers})
    return {"topics": topics}


async def _look_up(broker: Parts, request: Request, body: Any, topic: str, asked: Any) -> tuple[int, int, int]:
    """A partition's (timestamp in ms, offset, leader epoch), each −1 if unknown. Raises KafkaError."""
    target = asked.timestamp
    if request.api_version < FIRST_VERSION.get(target, 0) or target < EARLIEST_PENDING_UPLOAD:
        raise KafkaError(ErrorCode.unsupported_version, f"version {request.api_version} has no timestamp {target}")
    partition = broker.partitions.find(topic, asked.partition_index)
    partition.check_leader_epoch(asked.current_leader_epoch)
    log = partition.log
    committed = body.isolation_level == READ_COMMITTED
    end = partition.last_stable_offset if committed else partition.high_watermark
    if body.replica_id >= 0:
        end = log.log_end_offset
    elif target == LATEST:
        partition.check_watermark()
    if target == LATEST:
        return UNKNOWN, end, partition.leader_epoch
    if target in (EARLIEST, EARLIEST_LOCAL):
        return UNKNOWN, log.log_start_offset, log.epochs.epoch_of(log.log_start_offset)
    if target in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return UNKNOWN, UNKNOWN, -1
    held = list(log.segments)
    work = log.offset_of_max_timestamp if target == MAX_TIMESTAMP else partial(log.offset_for_timestamp, target)
    try:
        found = await _unless_given_up(broker, request, log, work)
    except DamagedSegment as error:  # the segment is damaged, but the log directory works
        raise KafkaError(ErrorCode.corrupt_message, str(error)) from error
    except OSError as error:
        partition.check_leader_epoch(asked.current_leader_epoch)
        if isinstance(error, FileNotFoundError) and not set(held).issubset(log.segments):
            # Retention or compaction removed a segment that the thread was reading: the client asks again.
            raise KafkaError(ErrorCode.kafka_storage_error, str(error)) from error
        raise partition.failed(error) from error
    partition.check_leader_epoch(asked.current_leader_epoch)  # the topic may have been deleted meanwhile
    if found is None or found.offset >= end:
        if found is not None:
            partition.check_watermark()
        return UNKNOWN, UNKNOWN, -1
    return found.timestamp, found.offset, log.epochs.epoch_of(found.offset)


async def _unless_given_up(
    broker: Parts, request: Request, log: Log, work: Callable[[], FoundRecord | None]
) -> FoundRecord | None:
    """The result of a look-up in a log. Raises CancelledError if the client has disconnected."""
    pending = request.pending
    if not pending.wanted:
        raise asyncio.CancelledError
    looking = broker.cold_reads.run(log, work)

    def given_up() -> None:
        looking.cancel()

    pending.abandoned = given_up
    try:
        return await looking
    finally:
        pending.abandoned = None
