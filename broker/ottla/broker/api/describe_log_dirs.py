"""DescribeLogDirs (key 35), versions 1–5: the log directories, the replicas in them, and the free space.

A request whose `topics` are null asks for all topics. A topic without replicas on this broker is left out, as by Kafka.
If a log directory accepts no appends for lack of space, it has 0 usable bytes, even if the file system states more.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, Protocol

from ottla.broker.api.declaration import Api, Response
from ottla.broker.api.refusals import NOT_ON_CLUSTER
from ottla.broker.ports import WithLogs, WithMoves, WithPartitions
from ottla.broker.request import Request
from ottla.protocol.errors import ErrorCode
from ottla.protocol.rights import AclOperation, ResourceType, Right

if TYPE_CHECKING:
    from ottla.broker.log.future import FutureLog
    from ottla.broker.partition import Partition


def _refuse(version: int, body: Any) -> Response:
    """The answer to a client without the right. Before version 3 an answer has no error code."""
    return {"error_code": NOT_ON_CLUSTER["error_code"], "results": []}


API = Api(
    key=35,
    versions=(1, 5),
    needs=(Right(AclOperation.DESCRIBE, ResourceType.CLUSTER),),
    refuse=_refuse,
    gaps=("A full directory has 0 usable bytes until it has room again; to Kafka it is a failed directory.",),
)


class Parts(WithLogs, WithMoves, WithPartitions, Protocol): ...


async def handle(broker: Parts, request: Request, body: Any) -> dict[str, Any]:
    """Answers one result for each log directory; the result of a failed directory has the error KAFKA_STORAGE_ERROR."""
    wanted = None
    if body.topics is not None:
        wanted = {(topic.topic, index) for topic in body.topics for index in topic.partitions}
    by_directory: dict[str, list[Partition]] = {path: [] for path in broker.logs.paths}
    for partition in broker.partitions:
        if wanted is None or (partition.topic, partition.index) in wanted:
            by_directory[broker.logs.directory_of(partition.log)].append(partition)
    return {"results": [_result(broker, path, held) for path, held in by_directory.items()]}


def _result(broker: Parts, path: str, held: list[Partition]) -> dict[str, Any]:
    if path in broker.logs.failed:
        return {"error_code": ErrorCode.kafka_storage_error, "log_dir": path, "total_bytes": -1, "usable_bytes": -1}
    topics: dict[str, list[dict[str, Any]]] = {}
    for partition in held:
        topics.setdefault(partition.topic, []).append(
            {
                "partition_index": partition.index,
                "partition_size": partition.log.size,
                "offset_lag": max(partition.high_watermark - partition.log.log_end_offset, 0),
            }
        )
    for future in broker.moves.futures.values():
        if future.directory.startswith(f"{path}/"):
            topics.setdefault(future.log.topic, []).append(_future(future))
    usage = shutil.disk_usage(path)
    full = path in broker.logs.full  # even if the file system has free blocks, as it has under a disk quota
    return {
        "log_dir": path,
        "topics": [{"name": name, "partitions": partitions} for name, partitions in topics.items()],
        "total_bytes": usage.total,
        "usable_bytes": 0 if full else usage.free,
        "is_cordoned": path in broker.logs.cordoned,
    }


def _future(future: FutureLog) -> dict[str, Any]:
    """The entry of a replica that is being moved to this log directory."""
    return {
        "partition_index": future.log.index,
        "partition_size": future.size,
        "offset_lag": max(future.log.log_end_offset - future.log_end_offset, 0),
        "is_future_key": True,
    }
