"""A topic that is repeatedly deleted and created anew under the same name, while it is written and read.

Requests name the topic by its id, so that the records of one topic are distinguished from the records of its
successors. In the history, each of these topics is a topic of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
from uuid import UUID

from ottla.protocol.batches import Record, build_batch, iterate_headers, records
from ottla.protocol.errors import ErrorCode, KafkaError

from .client import DELETE_TOPICS, FETCH, METADATA, PRODUCE, Client, Unavailable, create_topic
from .producer import REFUSED

NAME = "again"
PRODUCE_BY_ID, FETCH_BY_ID = 13, 13


class Recreated:
    """Creates, writes, reads and deletes the topic, again and again, until stopped. The topic that was created last
    stays."""

    def __init__(self, client: Client, replicas: list[int]) -> None:
        self.client = client
        self.stopped = False
        self.id: UUID | None = None
        self._replicas = replicas
        self.high_watermark = -1
        self._leader = self._epoch = -1
        self._number = 0

    async def run(self, pause_s: float) -> None:
        """Runs until stopped. At the end the topic exists, and `self.id` is its topic id."""
        while True:
            await create_topic(self.client, NAME, [self._replicas], {})
            await self.look()
            for _ in range(self.client.random.randint(0, 6)):
                await self._send()
                if self.client.random.random() < 0.5:
                    await self.read()
                await self.client.pause(pause_s)
            if self.stopped and self.id is not None:
                return
            await self._delete()

    async def read(self, position: int = 0) -> list[tuple[int, str]] | None:
        """The records from `position` on; None if this read fails."""
        if self.id is None:
            return await self.look()
        begun = self.client.history.invoke(
            "poll", process=self.client.name, partition=self.partition, position=position
        )
        epoch = self._epoch
        asked = {
            "partition": 0, "current_leader_epoch": epoch, "fetch_offset": position, "last_fetched_epoch": -1,
            "partition_max_bytes": 1 << 20,
        }  # fmt: skip
        message = {
            "max_wait": 10, "min_bytes": 1, "max_bytes": 1 << 20, "isolation_level": 0, "session_epoch": -1,
            "topics": [{"topic_id": self.id, "partitions": [asked]}],
        }  # fmt: skip
        try:
            answer = await self.client.to_broker(self._leader, FETCH, message, FETCH_BY_ID)
            if answer.error_code:
                raise KafkaError(answer.error_code)
            (result,) = answer.responses[0].partitions
            if result.error_code:
                raise KafkaError(result.error_code)
        except (Unavailable, KafkaError) as error:
            self.client.history.end(begun, "fail", error=str(error))
            await self.look()
            return None
        self.high_watermark = result.high_watermark
        data = bytes(result.records or b"")
        found = [
            (record.offset, (record.value or b"").decode())
            for at, header in iterate_headers(data)
            for record in records(data[at : at + header.size])
        ]
        self.client.history.end(begun, "ok", records=found, epoch=epoch)
        return found

    async def look(self) -> None:
        """Asks for the topic's present id and leader."""
        await asyncio.sleep(self.client.backoff_s * self.client.random.random())
        with contextlib.suppress(Unavailable):
            answer = await self.client.to_any(
                METADATA, {"topics": [{"name": NAME}], "allow_auto_topic_creation": False}
            )
            (found,) = answer.topics
            await self.client.refresh(NAME)
            if found.error_code == ErrorCode.none and found.partitions:
                self.id = found.topic_id
                self._leader, self._epoch = found.partitions[0].leader_id, found.partitions[0].leader_epoch

    @property
    def partition(self) -> list[str | int]:
        """The only partition of the present topic, in the form in which the history names partitions."""
        return [f"{NAME}/{self.id}", 0]

    async def _send(self) -> None:
        if self.id is None:
            return await self.look()
        self._number += 1
        value = f"{self.client.name}/{self._number}"
        frame = build_batch([Record(0, self.client.epoch_ms + self._number, None, value.encode())])
        begun = self.client.history.invoke(
            "send", process=self.client.name, partition=self.partition, values=[value], acks=-1, idempotent=False
        )
        partition = {"index": 0, "records": frame}
        message = {
            "acks": -1, "timeout": 500, "topic_data": [{"topic_id": self.id, "partition_data": [partition]}],
        }  # fmt: skip
        try:
            answer = await self.client.to_broker(self._leader, PRODUCE, message, PRODUCE_BY_ID)
            (result,) = answer.responses[0].partition_responses
            if result.error_code:
                raise KafkaError(result.error_code)
        except Unavailable as error:
            self.client.history.end(begun, "unknown" if error.sent else "fail")
            await self.look()
        except KafkaError as error:
            self.client.history.end(begun, "fail" if error.code in REFUSED else "unknown", error=error.code.name)
            await self.look()
        else:
            self.client.history.end(begun, "ok", offset=result.base_offset)

    async def _delete(self) -> None:
        with contextlib.suppress(Unavailable):
            await self.client.to_any(DELETE_TOPICS, {"topic_names": [NAME], "timeout": 1000})
