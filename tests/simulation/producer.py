"""Producers that retry as persistently as Kafka's. An idempotent producer resends all unacknowledged batches in order.
A plain producer sends once, and notes unknown outcomes as unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ottla.protocol.batches import Record, build_batch
from ottla.protocol.errors import ErrorCode, KafkaError

from .client import INIT_PRODUCER_ID, PRODUCE, Client, Connection, Partition, Unavailable
from .history import Event

# Errors after which certainly no record was appended.
REFUSED = frozenset(
    {
        ErrorCode.not_enough_replicas,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.out_of_order_sequence_number,
        ErrorCode.corrupt_message,
    }
)
# Errors that, for the first unacknowledged batch, mean that the broker has forgotten the producer.
FORGOTTEN = frozenset(
    {
        ErrorCode.out_of_order_sequence_number,
        ErrorCode.unknown_producer_id,
        ErrorCode.invalid_producer_epoch,
    }
)
TOMBSTONES = 0.15  # the share of tombstones among the records with keys
VALUE = "value"  # the name of the header that has a tombstone's value


def as_header(value: str) -> dict[str, Any]:
    """The fields of a tombstone. The value that distinguishes it from other tombstones is in a header."""
    return {"value": None, "headers": [(VALUE, value.encode())]}


def value_of(record: Record) -> str:
    """The value of a record as it was sent; a tombstone has its value in a header."""
    value = record.value if record.value is not None else dict(record.headers).get(VALUE)
    return (value or b"").decode().rstrip(".")


class _Batch:
    """A batch that isn't acknowledged yet."""

    def __init__(self, values: list[str], frame: bytes, sequence: int, begun: Event) -> None:
        self.values = values
        self.frame = frame
        self.sequence = sequence
        self.begun = begun


class Producer:
    """Sends numbered values to one partition. Up to `depth` batches are in flight, sent at most `spread_s` apart. If
    `keys` isn't 0, each record has one of `keys` different keys, and some records are tombstones with their value in a
    header. The history notes `fields` with each batch.
    """

    def __init__(
        self, client: Client, partition: Partition, *, acks: int, idempotent: bool, depth: int, padding: int,
        spread_s: float = 0.0, keys: int = 0, fields: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.client = client
        self.partition = partition
        self.acks = acks
        self.idempotent = idempotent
        self.stopped = False
        self._depth = depth
        self._padding = padding
        self._spread_s = spread_s
        self._keys = keys
        self._fields = dict(fields or {})
        self._producer = (-1, -1)  # id, epoch
        self._sequence = 0
        self._sent: list[int] = []  # sequence numbers of the batches of earlier rounds, under the present producer id
        self._number = 0
        self._unacknowledged: list[_Batch] = []

    async def run(self, pause_s: float) -> None:
        """Sends until stopped, and then until all batches are acknowledged."""
        while not self.stopped or self._unacknowledged:
            if self.idempotent and self._producer[0] < 0:
                await self._become_idempotent()
            if not self.stopped:
                for _ in range(self.client.random.randint(1, self._depth) - len(self._unacknowledged)):
                    self._unacknowledged.append(self._batch())
            if self.idempotent:
                await self._send_in_order()
            else:
                await self._send_once()
            if not self.stopped:
                await self.client.pause(pause_s)

    async def send_one(self) -> None:
        """Sends one batch. The producer must not be idempotent."""
        self._unacknowledged.append(self._batch())
        await self._send_once()

    async def _become_idempotent(self) -> None:
        message = {"transactional_id": None, "transaction_timeout": 1000, "producer_id": -1}
        while self._producer[0] < 0:
            try:
                answer = await self.client.to_any(INIT_PRODUCER_ID, message)
            except Unavailable:
                await asyncio.sleep(self.client.backoff_s)
                continue
            if answer.error_code:
                await asyncio.sleep(self.client.backoff_s)
            else:
                self._producer = (answer.producer_id, answer.producer_epoch)
        self._sequence, self._sent = 0, []

    def _forgotten(self, batch: _Batch, error: KafkaError) -> None:
        """Notes that the broker has forgotten acknowledged batches, and begins anew under another producer id."""
        self.client.history.add(
            "forgotten", "fail", process=self.client.name, partition=list(self.partition), value=batch.values[0],
            error=error.code.name, sequence=batch.sequence,
            sent_behind=sum(sequence > batch.sequence for sequence in self._sent),
        )  # fmt: skip
        for waiting in self._unacknowledged:
            self.client.history.end(waiting.begun, "unknown")
        self._unacknowledged = []
        self._producer = (-1, -1)

    def _batch(self) -> _Batch:
        count = self.client.random.randint(1, 4)
        values = []
        for _ in range(count):
            self._number += 1
            values.append(f"{self.client.name}/{self._number}")
        padding = self.client.random.randrange(self._padding + 1)
        now_ms = self.client.epoch_ms + int(asyncio.get_running_loop().time() * 1000)
        items = [Record(at, now_ms, None, value.encode().ljust(padding, b".")) for at, value in enumerate(values)]
        fields = dict(self._fields)
        if self._keys:
            keys = [f"key-{self.client.random.randrange(self._keys)}" for _ in values]
            tombstones = [value for value in values if self.client.random.random() < TOMBSTONES]
            items = [
                item._replace(key=key.encode(), **(as_header(value) if value in tombstones else {}))
                for item, key, value in zip(items, keys, values, strict=True)
            ]
            fields |= {"keys": keys, "tombstones": tombstones}
        sequence = self._sequence if self.idempotent else -1
        frame = build_batch(
            items, producer_id=self._producer[0], producer_epoch=self._producer[1], base_sequence=sequence
        )
        self._sequence += count
        begun = self.client.history.invoke(
            "send", process=self.client.name, partition=list(self.partition), values=values, acks=self.acks,
            idempotent=self.idempotent, **fields,
        )  # fmt: skip
        return _Batch(values, frame, sequence, begun)

    async def _send_in_order(self) -> None:
        """One round: sends all unacknowledged batches in order. Failed batches stay for the next round."""
        outcomes: list[Any] = []
        by = -1
        try:
            connection, _ = await self.client.connection_to_leader(self.partition)
            by = self.client.leaders[self.partition][0]
            sending: list[asyncio.Task[int]] = []
            for batch in self._unacknowledged:
                if sending and self._spread_s:
                    await asyncio.sleep(self._spread_s * self.client.random.random())
                sending.append(asyncio.create_task(self._produce(connection, batch)))
            outcomes = await asyncio.gather(*sending, return_exceptions=True)
        except Unavailable:
            pass
        left: list[_Batch] = []
        sent = self._unacknowledged
        for batch, outcome in zip(self._unacknowledged, outcomes or [None] * len(self._unacknowledged), strict=True):
            if isinstance(outcome, int):
                self.client.history.end(batch.begun, "ok", offset=outcome, by=by)
                continue
            if isinstance(outcome, BaseException) and not isinstance(outcome, (KafkaError, Unavailable)):
                raise outcome
            if isinstance(outcome, KafkaError) and outcome.code in FORGOTTEN and not left:
                self._unacknowledged = self._unacknowledged[self._unacknowledged.index(batch) :]
                self._forgotten(batch, outcome)
                return
            left.append(batch)
        self._unacknowledged = left
        if outcomes:
            latest = self._sent[-1] if self._sent else -1
            self._sent += [batch.sequence for batch in sent if batch.sequence > latest]
        if left:
            self.client.history.counts["sends repeated"] += len(left)
            await self.client.refreshed(self.partition[0])

    async def _send_once(self) -> None:
        """Sends each batch once. The outcome of a batch without an answer stays unknown."""
        batches, self._unacknowledged = self._unacknowledged, []
        again = False
        for batch in batches:
            try:
                connection, _ = await self.client.connection_to_leader(self.partition)
                offset = await self._produce(connection, batch)
            except Unavailable as error:
                self.client.history.end(batch.begun, "unknown" if error.sent else "fail")
                again = True
            except KafkaError as error:
                self.client.history.end(batch.begun, "fail" if error.code in REFUSED else "unknown")
                again = True
            else:
                self.client.history.end(batch.begun, "ok", offset=offset)
        if again:
            await self.client.refreshed(self.partition[0])

    async def _produce(self, connection: Connection, batch: _Batch) -> int:
        topic, index = self.partition
        message = {
            "acks": self.acks,
            "timeout": int(self.client.timeout_s * 800),
            "topic_data": [{"name": topic, "partition_data": [{"index": index, "records": batch.frame}]}],
        }
        answer = await connection.call(PRODUCE, message, self.client.timeout_s)
        (result,) = answer.responses[0].partition_responses
        if result.error_code == ErrorCode.duplicate_sequence_number:
            return -1
        if result.error_code:
            raise KafkaError(result.error_code)
        return int(result.base_offset)
