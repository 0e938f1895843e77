"""The changes that a follower makes to its log: it appends its leader's records, and drops records that its leader
doesn't have. The high watermark and the log's start follow the leader's.

Only replica fetchers call these functions, for partitions that this broker follows. Each raises KafkaError
KAFKA_STORAGE_ERROR where the disk fails.

Source: KIP-101, KIP-279; Kafka's Partition and ReplicaFetcherThread.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ottla.broker.waiters import bytes_between, wake
from ottla.protocol.batches import BatchHeader
from ottla.protocol.received import Buffer

if TYPE_CHECKING:
    from ottla.broker.partition import Partition

logger = logging.getLogger(__name__)


def append_replicated(
    partition: Partition,
    buffer: Buffer,
    headers: Sequence[tuple[int, BatchHeader]],
    leader_high_watermark: int,
    leader_log_start: int,
) -> None:
    """Appends batches from the leader: `headers` are the (position, header) of the whole batches that fill `buffer`."""
    log = partition.log
    try:
        log.append_replicated(buffer, headers)
        if leader_log_start > log.log_start_offset:
            log.delete_records_before(min(leader_log_start, log.log_end_offset))
    except OSError as error:
        raise partition.failed(error) from error
    before = partition.high_watermark
    after = partition.high_watermark = max(before, min(leader_high_watermark, log.log_end_offset))
    if after == before:
        return
    log.producers.transactions.replicated(after)
    if partition.waiters:  # consumers that read from a follower in their own rack
        wake(partition.waiters, partition, bytes_between(log, before, after))
    if partition.committed_waiters:
        partition.stable_moved()


def truncate_to(partition: Partition, offset: int) -> None:
    """Drops the records from `offset` on, because the leader's log differs from there on."""
    log = partition.log
    if offset < partition.high_watermark:
        logger.warning("%r: truncated to %d, below its high watermark %d", partition, offset, partition.high_watermark)
    try:
        log.truncate_to(offset)
    except OSError as error:
        raise partition.failed(error) from error
    partition.high_watermark = min(partition.high_watermark, log.log_end_offset)
    if partition.damage_met is not None and partition.damage_met[0] >= log.log_end_offset:
        partition.damage_met = None
    partition.wake_all()


def restart_at(partition: Partition, offset: int) -> None:
    """Drops all records and starts the log anew at `offset`."""
    try:
        partition.log.truncate_fully_and_start_at(offset)
    except OSError as error:
        raise partition.failed(error) from error
    partition.high_watermark = offset
    partition.damage_met = None
    partition.wake_all()
