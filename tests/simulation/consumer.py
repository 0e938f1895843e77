"""Readers: a consumer that reads a partition from its start, and a group that commits offsets and reads them back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ottla.protocol.batches import iterate_headers, records
from ottla.protocol.errors import ErrorCode, KafkaError

from .client import FETCH, FIND_COORDINATOR, OFFSET_COMMIT, OFFSET_FETCH, Client, Partition, Unavailable
from .producer import value_of


class Consumer:
    """Reads one partition from its start."""

    def __init__(self, client: Client, partition: Partition, position: int = 0) -> None:
        self.client = client
        self.partition = partition
        self.position = position
        self.high_watermark = -1
        self.log_start = 0
        self.next_position = position  # after the last poll's batches, some of which compaction may have emptied
        self.epoch = -1  # the epoch of the leader that was asked last
        self.producers: list[tuple[int, int]] = []  # (id, epoch) of each record of the last poll
        self.stopped = False

    async def run(self, pause_s: float, wait_ms: int) -> None:
        """Polls until stopped."""
        while not self.stopped:
            begun = self.client.history.invoke(
                "poll", process=self.client.name, partition=list(self.partition), position=self.position
            )
            try:
                found = await self.poll(wait_ms)
            except (Unavailable, KafkaError) as error:
                self.client.history.end(begun, "fail", error=str(error))
                if isinstance(error, KafkaError) and error.code is ErrorCode.offset_out_of_range:
                    self.position = 0
                await self.client.refreshed(self.partition[0])
                continue
            self.client.history.end(begun, "ok", records=found, epoch=self.epoch)
            self.position = self.next_position
            await self.client.pause(pause_s)

    async def poll(self, wait_ms: int) -> list[tuple[int, str]]:
        """(offset, value) of the next records. Raises Unavailable, KafkaError."""
        topic, index = self.partition
        connection, self.epoch = await self.client.connection_to_leader(self.partition)
        asked = {
            "partition": index,
            "current_leader_epoch": self.epoch,
            "fetch_offset": self.position,
            "last_fetched_epoch": -1,
            "partition_max_bytes": self.client.random.choice((200, 4096, 1 << 20)),
        }
        message = {
            "max_wait": wait_ms,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "isolation_level": self.client.random.randrange(2),
            "session_epoch": -1,
            "topics": [{"topic": topic, "partitions": [asked]}],
        }
        answer = await connection.call(FETCH, message, self.client.timeout_s + wait_ms / 1000)
        if answer.error_code:
            raise KafkaError(answer.error_code)
        (result,) = answer.responses[0].partitions
        if result.error_code:
            raise KafkaError(result.error_code)
        self.high_watermark = result.high_watermark
        self.log_start = result.log_start_offset
        data = bytes(result.records or b"")
        found = []
        self.next_position = self.position
        self.producers = []
        for at, header in iterate_headers(data):
            self.next_position = header.last_offset + 1
            batch = [
                (record.offset, value_of(record))
                for record in records(data[at : at + header.size])
                if record.offset >= self.position
            ]
            found += batch
            self.producers += [(header.producer_id, header.producer_epoch)] * len(batch)
        return found


class Committer:
    """Commits growing offsets of one partition for a group, and reads the committed offset back."""

    def __init__(self, client: Client, group: str, partition: Partition) -> None:
        self.client = client
        self.group = group
        self.partition = partition
        self.stopped = False
        self._coordinator = -1
        self._offset = 0

    async def run(self, pause_s: float) -> None:
        """Commits one offset after the other, each once, until stopped."""
        while not self.stopped:
            self._offset += 1
            begun = self.client.history.invoke(
                "commit", process=self.client.name, group=self.group, partition=list(self.partition),
                offset=self._offset,
            )  # fmt: skip
            try:
                await self._commit()
            except Unavailable as error:
                self.client.history.end(begun, "unknown" if error.sent else "fail")
                self._coordinator = -1
            except KafkaError as error:
                # A coordinator that lost its partition while it waited may have written the commit nevertheless.
                self.client.history.end(begun, "unknown", error=error.code.name)
                self._coordinator = -1
            else:
                self.client.history.end(begun, "ok")
            await self.client.pause(pause_s)
            if self.client.random.random() < 0.2:
                await self.look()

    async def watch(self, pause_s: float) -> None:
        """Reads the committed offset again and again until stopped, also while another client commits."""
        while not self.stopped:
            await self.look()
            await self.client.pause(pause_s)

    async def look(self) -> bool:
        """Reads the committed offset. Returns whether that worked."""
        begun = self.client.history.invoke(
            "committed", process=self.client.name, group=self.group, partition=list(self.partition)
        )
        topic, index = self.partition
        message = {
            "group_id": self.group,
            "topics": [{"name": topic, "partition_indexes": [index]}],
            "require_stable": False,
        }
        try:
            answer = await self._to_coordinator(OFFSET_FETCH, message)
            if answer.error_code:
                raise KafkaError(answer.error_code)
            (result,) = answer.topics[0].partitions
            if result.error_code:
                raise KafkaError(result.error_code)
        except (Unavailable, KafkaError) as error:
            self.client.history.end(begun, "fail", error=str(error))
            self._coordinator = -1
            await asyncio.sleep(self.client.backoff_s)
            return False
        self.client.history.end(begun, "ok", offset=result.committed_offset, by=self._coordinator)
        return True

    async def _commit(self) -> None:
        topic, index = self.partition
        partition = {"partition_index": index, "committed_offset": self._offset, "committed_leader_epoch": -1}
        message = {
            "group_id": self.group,
            "generation_id_or_member_epoch": -1,
            "generation_id": -1,
            "member_id": "",
            "topics": [{"name": topic, "partitions": [partition]}],
        }
        answer = await self._to_coordinator(OFFSET_COMMIT, message)
        (result,) = answer.topics[0].partitions
        if result.error_code:
            raise KafkaError(result.error_code)

    async def _to_coordinator(self, api_key: int, message: Mapping[str, Any]) -> Any:
        if self._coordinator < 0:
            await self.client.refreshed(self.partition[0])
            answer = await self.client.to_any(FIND_COORDINATOR, {"key": self.group, "key_type": 0})
            if answer.error_code:
                raise KafkaError(answer.error_code)
            self._coordinator = answer.node_id
        return await self.client.to_broker(self._coordinator, api_key, message)
