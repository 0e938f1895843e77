"""Produce (key 0), versions 3–13 (0–2 are advertised and refused, as Kafka does for old librdkafka: KAFKA-18659).

Each partition's batch is admitted, patched and written where it was received. acks=0 gets no answer, and a closed
connection on an error; otherwise the answer leaves when all that it acknowledges is committed, or written for acks=1.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ottla.broker.api.registry import Api
from ottla.metadata.image import INTERNAL_TOPICS
from ottla.net.connection import Connection, Pending
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.frames import RequestHeader
from ottla.protocol.produce import PartitionAnswer, read_produce_request, write_produce_answer

if TYPE_CHECKING:
    from ottla.broker.node import Broker
    from ottla.net.server import Reply

API = Api(
    key=0,
    versions=(0, 13),
    served=(3, 13),
    gaps=(
        "Versions 0 to 2 are advertised and refused, as Kafka does (KAFKA-18659).",
        "Transactional batches are refused with INVALID_TXN_STATE (48) until transactions are there.",
        "Offset deltas, null keys and the greatest timestamp inside a batch are checked on compacted topics and where "
        "`ottla.validate.records` is set; Kafka always checks them.",
    ),
)
ALL = -1
INTERNAL_WRITER = "__admin_client"  # the one client id that Kafka lets write to internal topics

Answers = list[tuple[str | bytes, list[PartitionAnswer]]]


def serve(broker: Broker, connection: Connection, header: RequestHeader, frame: bytearray, body: int, end: int) -> Reply:
    """Appends what the request brings; answers at once, or returns a Pending that will."""
    version = header.api_version
    request = read_produce_request(version, frame, body, end)
    acks = request.acks
    find = broker.partitions.find
    waits: list[asyncio.Future[None]] = []
    failed = False
    answers: Answers = []
    for topic, records_of_partitions in request.topics:
        topic_answers = []
        for index, start, stop in records_of_partitions:
            try:
                partition = find(topic, index)
                if partition.internal and header.client_id != INTERNAL_WRITER:
                    raise KafkaError(ErrorCode.invalid_topic_exception, f"clients may not write to {partition.topic}")
                if not -1 <= acks <= 1:
                    raise KafkaError(ErrorCode.invalid_required_acks)
                appended = partition.append(frame, start, stop, version)
            except KafkaError as error:
                failed = True
                broker.count_produce_failure(topic, stop - start)
                topic_answers.append(PartitionAnswer(index, error.code, message=error.message or None))
                continue
            if acks == ALL and appended.last_offset >= partition.high_watermark:
                waits.append(partition.committed(appended.last_offset))
            if partition.flush_waits:
                waits.append(partition.flush())
            topic_answers.append(
                PartitionAnswer(index, 0, appended.base_offset, appended.append_time, partition.log.log_start_offset)
            )
        answers.append((topic, topic_answers))
    if acks == 0:
        if failed:
            connection.close("a Produce request with acks=0 failed: closing is the only answer")
        return None
    if not waits:
        return [write_produce_answer(version, header.correlation_id, answers)]
    pending = Pending(connection, API.key)
    broker.spawn(_answer_later(pending, header, answers, waits, request.timeout))
    return pending


async def _answer_later(
    pending: Pending, header: RequestHeader, answers: Answers, waits: list[asyncio.Future[None]], timeout_ms: int
) -> None:
    """Waits until everything is committed and flushed, at most `timeout_ms`; then an unknown outcome is a time-out."""
    done, late = await asyncio.wait(waits, timeout=max(timeout_ms, 0) / 1000)
    error = ErrorCode.request_timed_out if late else ErrorCode.none
    for future in done:
        problem = future.exception()
        if isinstance(problem, KafkaError):
            error = problem.code
        elif problem is not None:
            error = ErrorCode.kafka_storage_error
    if error:
        answers = [
            (topic, [answer if answer.error else PartitionAnswer(answer.index, error) for answer in partitions])
            for topic, partitions in answers
        ]
    pending.answer([write_produce_answer(header.api_version, header.correlation_id, answers)])
