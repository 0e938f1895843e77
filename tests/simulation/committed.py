"""Readers of committed records (`isolation.level=read_committed`), which drop aborted records as Kafka's consumers do.

A fetch is answered with the records below the last stable offset, aborted ones and markers included, and with the list
of the aborted transactions among them. The reader drops the batches of each of these producers from the transaction's
first offset on, up to the marker that aborts it.
"""

from __future__ import annotations

from typing import Any

from ottla.protocol.batches import iterate_headers, records
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.markers import read_marker

from .client import FETCH, Client, Partition, Unavailable

SMALL_BYTES = (100, 400, 4096, 1 << 20)  # several fetches for a transaction, or several transactions in a fetch


class CommittedReader:
    """Reads the committed records of one partition from its start."""

    def __init__(self, client: Client, partition: Partition) -> None:
        self.client = client
        self.partition = partition
        self.position = 0
        self.stable = -1  # the last stable offset, as of the last answer
        self.high_watermark = -1
        self.raw: list[tuple[int, str]] = []  # all records of the last poll, aborted ones included
        self.stopped = False

    async def run(self, pause_s: float, wait_ms: int) -> None:
        """Polls until stopped."""
        while not self.stopped:
            await self.poll(wait_ms)
            await self.client.pause(pause_s)

    async def poll(self, wait_ms: int) -> list[tuple[int, str]] | None:
        """The next committed records, as (offset, value), which are noted in the history. None if this poll fails."""
        begun = self.client.history.invoke(
            "read", process=self.client.name, partition=list(self.partition), position=self.position
        )
        try:
            found = await self._fetch(wait_ms)
        except (Unavailable, KafkaError) as error:
            self.client.history.end(begun, "fail", error=str(error))
            if isinstance(error, KafkaError) and error.code is ErrorCode.offset_out_of_range:
                self.position = 0
            await self.client.refreshed(self.partition[0])
            return None
        self.client.history.end(
            begun, "ok", records=found, next=self.position, stable=self.stable, high_watermark=self.high_watermark
        )
        return found

    async def _fetch(self, wait_ms: int) -> list[tuple[int, str]]:
        topic, index = self.partition
        connection, epoch = await self.client.connection_to_leader(self.partition)
        asked = {
            "partition": index,
            "current_leader_epoch": epoch,
            "fetch_offset": self.position,
            "last_fetched_epoch": -1,
            "partition_max_bytes": self.client.random.choice(SMALL_BYTES),
        }
        message = {
            "max_wait": wait_ms,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "isolation_level": 1,
            "session_epoch": -1,
            "topics": [{"topic": topic, "partitions": [asked]}],
        }
        answer = await connection.call(FETCH, message, self.client.timeout_s + wait_ms / 1000)
        if answer.error_code:
            raise KafkaError(answer.error_code)
        (result,) = answer.responses[0].partitions
        if result.error_code:
            raise KafkaError(result.error_code)
        self.high_watermark, self.stable = result.high_watermark, result.last_stable_offset
        found, self.raw, self.position = committed_records(result, self.position)
        return found


Records = list[tuple[int, str]]


def committed_records(result: Any, position: int) -> tuple[Records, Records, int]:
    """The committed records from `position` on in a partition's part of an answer to Fetch, as (offset, value); all
    records, aborted ones included; and the offset behind the answer's batches. Source: Kafka's CompletedFetch."""
    data = bytes(result.records or b"")
    aborted = sorted(
        ((each.first_offset, each.producer_id) for each in result.aborted_transactions or ()), reverse=True
    )
    dropping: set[int] = set()
    found: Records = []
    raw: Records = []
    for at, header in iterate_headers(data):
        batch = data[at : at + header.size]
        while aborted and aborted[-1][0] <= header.last_offset:
            dropping.add(aborted.pop()[1])
        if header.is_control:
            marker = read_marker(batch)
            if marker is not None and not marker.committed:
                dropping.discard(header.producer_id)
        else:
            every = [(each.offset, (each.value or b"").decode()) for each in records(batch) if each.offset >= position]
            raw += every
            found += [] if header.is_transactional and header.producer_id in dropping else every
        position = max(position, header.last_offset + 1)
    return found, raw, position
