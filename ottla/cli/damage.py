"""Finds the partition and the offset of a batch that `ottla consume` can't read.

The Kafka client raises its decoder's error, which names the batch's partition and offset only in its text, or not at
all. But the client's position in the partition stays before that batch. So this module reads each partition alone, from
the client's position; the partition whose read raises again has the unreadable batch.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ottla.cli.errors import CommandError

if TYPE_CHECKING:
    from kafka import KafkaConsumer, TopicPartition

    from ottla.cli.connection import Cluster

_POLL_MS = 2000
_CORRUPT_MESSAGE = 2


def of_records(error: Exception) -> bool:
    """Whether the error may come from a record batch that the Kafka client couldn't decode."""
    from kafka.errors import CorruptRecordError, KafkaError, UnsupportedCodecError

    return isinstance(error, CorruptRecordError | UnsupportedCodecError) or not isinstance(error, KafkaError | OSError)


def located(cluster: Cluster, consumer: KafkaConsumer, error: Exception) -> CommandError | None:
    """An error that names the partition and the offset of the batch whose read raised `error`.

    Returns None if no partition's read raises again.
    """
    positions = {one: consumer.position(one) for one in consumer.assignment()}
    for one, offset in sorted(positions.items(), key=lambda item: (repr(item[0]) not in str(error), item[0])):
        if offset < (consumer.highwater(one) or offset + 1) and _raises(cluster, one, offset):
            return _described(one, offset, _leader(cluster, one), _reason(error))
    return None


def _raises(cluster: Cluster, partition: TopicPartition, offset: int) -> bool:
    """Whether the batch at this offset can't be decoded. A new client reads it, because a client that has raised can't
    read any more."""
    consumer = cluster.consumer(group_id=None, enable_auto_commit=False)
    try:
        consumer.assign([partition])
        consumer.seek(partition, offset)
        consumer.poll(timeout_ms=_POLL_MS, max_records=1)
    except Exception as error:
        return of_records(error)
    finally:
        consumer.close(autocommit=False, timeout_ms=_POLL_MS)
    return False


def _described(partition: TopicPartition, offset: int, leader: int | None, reason: str) -> CommandError:
    topic, index = partition
    where = f"on broker {leader}" if leader is not None else "on its broker"
    return CommandError(
        f"the record batch at offset {offset} of {topic}:{index} is corrupt: {reason}",
        f"Look {where}: ottla log verify LOG-DIRECTORY/{topic}-{index}."
        f" To continue after the batch: ottla consume {topic}:{index} --offset N.",
        kafka_code=_CORRUPT_MESSAGE,
    )


def _leader(cluster: Cluster, partition: TopicPartition) -> int | None:
    with suppress(Exception):  # the leader's id is only an addition to the text of another error
        described: list[dict[str, Any]] = cluster.admin.describe_topics([partition.topic])
        for one in described[0]["partitions"]:
            if one["partition_index"] == partition.partition and one["leader_id"] >= 0:
                return int(one["leader_id"])
    return None


def _reason(error: Exception) -> str:
    """The decoder's reason, as a phrase that doesn't name the partition or the offset."""
    text = ", ".join(str(argument) for argument in error.args)
    if "crc check" in text:
        return "its CRC doesn't fit its bytes"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
